package postgres

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/belayhq/belay/sitelock"
)

// leaseColumns are those of a lease l, in the order of scanLease.
const leaseColumns = `l.name, COALESCE(l.holder::text, ''), l.fence, l.host, l.pid, l.started_at, l.acquired_at, l.expires_at,
    l.holder IS NOT NULL AND ` + leaseLive

// leaseLive is live without the exemption of a hold, which named leases do not have.
const leaseLive = `l.expires_at >= belay.now_ms() AND l.expires_at <= belay.now_ms() + belay.max_lease_ms()`

// acquireLeaseSQL raises the fence on every acquisition, the holder's own included.
const acquireLeaseSQL = `
INSERT INTO belay.lease AS l (name, holder, fence, host, pid, started_at, acquired_at, expires_at)
SELECT $1::text, $2::uuid, 1, $3::text, $4::integer, $5::bigint, belay.now_ms(), belay.now_ms() + $6::bigint
WHERE $6::bigint <= belay.max_lease_ms()
ON CONFLICT (name) DO UPDATE SET
    holder = EXCLUDED.holder, fence = l.fence + 1, host = EXCLUDED.host, pid = EXCLUDED.pid, started_at = EXCLUDED.started_at,
    acquired_at = belay.now_ms(), expires_at = belay.now_ms() + $6::bigint
WHERE l.holder = $2::uuid OR NOT (` + leaseLive + `)
RETURNING ` + leaseColumns

const maxLeaseSQL = `SELECT belay.max_lease_ms()`

// AcquireLease implements [sitelock.LeaseStore].
func (s *Store) AcquireLease(ctx context.Context, name string, holder sitelock.HolderID, by sitelock.Process, ttl time.Duration) (sitelock.Lease, bool, error) {
	if err := checkLease(ttl); err != nil {
		return sitelock.Lease{}, false, fmt.Errorf("acquire lease %s: %w", name, err)
	}
	if err := s.ensureTables(ctx); err != nil {
		return sitelock.Lease{}, false, err
	}
	var taken, present []sitelock.Lease
	var longest int64
	err := s.write(ctx, func(tx *transaction) error {
		taken, present = nil, nil
		tx.ask(acquireLeaseSQL, func(rows pgx.Rows) error { return readLeases(rows, &taken) },
			name, holder, by.Host, by.PID, millisOf(by.StartedAt), millis(ttl))
		tx.one(maxLeaseSQL, nil, &longest)
		tx.ask(leaseSQL, func(rows pgx.Rows) error { return readLeases(rows, &present) }, name)
		return tx.commit(ctx)
	})
	err = lockError(err)
	switch {
	case errors.Is(err, sitelock.ErrContended):
		// Whoever has the row locked is just taking or renewing it.
		lease, _, err := s.Lease(ctx, name)
		return lease, false, err
	case err != nil:
		return sitelock.Lease{}, false, fmt.Errorf("acquire lease %s: %w", name, err)
	case millis(ttl) > longest:
		return sitelock.Lease{}, false, fmt.Errorf("acquire lease %s: %w", name, errTooLong(ttl, longest))
	case len(taken) > 0:
		return taken[0], true, nil
	case len(present) > 0:
		return present[0], false, nil
	}
	return sitelock.Lease{}, false, nil
}

const renewLeaseSQL = `
UPDATE belay.lease SET expires_at = belay.now_ms() + $4::bigint
WHERE name = $1::text AND holder = $2::uuid AND fence = $3::bigint AND $4::bigint <= belay.max_lease_ms()
RETURNING 1`

// RenewLease implements [sitelock.LeaseStore], on the connections for renewals.
func (s *Store) RenewLease(ctx context.Context, held sitelock.HeldLease, ttl time.Duration) error {
	if err := checkLease(ttl); err != nil {
		return fmt.Errorf("renew lease %s: %w", held.Name, err)
	}
	renewed := false
	var longest int64
	err := s.transact(ctx, s.renewals, writing, ownLimits.begin, func(tx *transaction) error {
		renewed = false
		tx.found(renewLeaseSQL, &renewed, held.Name, held.Holder, held.Fence, millis(ttl))
		tx.one(maxLeaseSQL, nil, &longest)
		return tx.commit(ctx)
	})
	if err == nil && millis(ttl) > longest {
		return fmt.Errorf("renew lease %s: %w", held.Name, errTooLong(ttl, longest))
	}
	return leaseError("renew", held.Name, renewed, err)
}

const releaseLeaseSQL = `
UPDATE belay.lease SET holder = NULL, expires_at = 0
WHERE name = $1::text AND holder = $2::uuid AND fence = $3::bigint
RETURNING 1`

// ReleaseLease implements [sitelock.LeaseStore].
func (s *Store) ReleaseLease(ctx context.Context, held sitelock.HeldLease) error {
	released := false
	err := s.write(ctx, func(tx *transaction) error {
		released = false
		tx.found(releaseLeaseSQL, &released, held.Name, held.Holder, held.Fence)
		return tx.commit(ctx)
	})
	return leaseError("release", held.Name, released, err)
}

func leaseError(what, name string, found bool, err error) error {
	switch {
	case err != nil && reactTo(err) != missing:
		return fmt.Errorf("%s lease %s: %w", what, name, lockError(err))
	case !found:
		return fmt.Errorf("%s lease %s: %w", what, name, sitelock.ErrNotHeld)
	}
	return nil
}

const leaseSQL = `SELECT ` + leaseColumns + ` FROM belay.lease l WHERE l.name = $1::text`

// Lease implements [sitelock.LeaseStore].
func (s *Store) Lease(ctx context.Context, name string) (sitelock.Lease, bool, error) {
	leases, err := s.leases(ctx, leaseSQL, name)
	if err != nil || len(leases) == 0 {
		return sitelock.Lease{}, false, err
	}
	return leases[0], true, nil
}

const leasesSQL = `SELECT ` + leaseColumns + ` FROM belay.lease l ORDER BY l.name COLLATE "C"`

// Leases implements [sitelock.LeaseStore].
func (s *Store) Leases(ctx context.Context) ([]sitelock.Lease, error) {
	return s.leases(ctx, leasesSQL)
}

func (s *Store) leases(ctx context.Context, sql string, args ...any) ([]sitelock.Lease, error) {
	var leases []sitelock.Lease
	err := s.read(ctx, func(tx *transaction) error {
		leases = nil
		tx.ask(sql, func(rows pgx.Rows) error { return readLeases(rows, &leases) }, args...)
		return tx.commit(ctx)
	})
	if err != nil {
		return nil, fmt.Errorf("read leases: %w", err)
	}
	return leases, nil
}

func readLeases(rows pgx.Rows, leases *[]sitelock.Lease) error {
	for rows.Next() {
		var l sitelock.Lease
		var started, since, expires int64
		if err := rows.Scan(&l.Name, &l.Holder, &l.Fence, &l.Host, &l.PID, &started, &since, &expires, &l.Live); err != nil {
			return err
		}
		l.StartedAt, l.Since, l.Expires = timeOf(started), timeOf(since), timeOf(expires)
		*leases = append(*leases, l)
	}
	return nil
}
