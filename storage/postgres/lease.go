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

const longestLeaseSQL = `SELECT belay.max_lease_ms()`

// AcquireLease implements [sitelock.LeaseStore].
func (s *Store) AcquireLease(ctx context.Context, name string, holder sitelock.HolderID, by sitelock.Process, ttl time.Duration) (sitelock.Lease, bool, error) {
	if err := s.ready(ctx); err != nil {
		return sitelock.Lease{}, false, err
	}
	var leases []sitelock.Lease
	var longest int64
	err := s.write(ctx, func(tx *transaction) error {
		leases = nil
		tx.ask(acquireLeaseSQL, func(rows pgx.Rows) error { return readLeases(rows, &leases) },
			name, holder, by.Host, by.PID, sinceEpoch(by.StartedAt), limitMillis(ttl))
		tx.ask(longestLeaseSQL, func(rows pgx.Rows) error {
			for rows.Next() {
				if err := rows.Scan(&longest); err != nil {
					return err
				}
			}
			return nil
		})
		return tx.commit(ctx)
	})
	err = lockError(err)
	switch {
	case errors.Is(err, sitelock.ErrContended):
		return sitelock.Lease{}, false, nil // whoever has the row locked is just taking or renewing it
	case err != nil:
		return sitelock.Lease{}, false, fmt.Errorf("acquire lease %s: %w", name, err)
	case millis(ttl) > longest:
		return sitelock.Lease{}, false, fmt.Errorf("acquire lease %s: %s is longer than %s, the longest that this database allows",
			name, ttl, time.Duration(longest)*time.Millisecond)
	case len(leases) == 0:
		return sitelock.Lease{}, false, nil
	}
	return leases[0], true, nil
}

const renewLeaseSQL = `
UPDATE belay.lease SET expires_at = belay.now_ms() + $4::bigint
WHERE name = $1::text AND holder = $2::uuid AND fence = $3::bigint
RETURNING 1`

// RenewLease implements [sitelock.LeaseStore], on the connections for renewals.
func (s *Store) RenewLease(ctx context.Context, name string, holder sitelock.HolderID, fence sitelock.Fence, ttl time.Duration) error {
	renewed := false
	err := s.transact(ctx, s.renewals, writing, ownLimits, func(tx *transaction) error {
		renewed = false
		tx.ask(renewLeaseSQL, func(rows pgx.Rows) error { renewed = rows.Next(); return nil }, name, holder, fence, limitMillis(ttl))
		return tx.commit(ctx)
	})
	return leaseError("renew", name, renewed, err)
}

const releaseLeaseSQL = `
UPDATE belay.lease SET holder = NULL, expires_at = 0
WHERE name = $1::text AND holder = $2::uuid AND fence = $3::bigint
RETURNING 1`

// ReleaseLease implements [sitelock.LeaseStore].
func (s *Store) ReleaseLease(ctx context.Context, name string, holder sitelock.HolderID, fence sitelock.Fence) error {
	released := false
	err := s.write(ctx, func(tx *transaction) error {
		released = false
		tx.ask(releaseLeaseSQL, func(rows pgx.Rows) error { released = rows.Next(); return nil }, name, holder, fence)
		return tx.commit(ctx)
	})
	return leaseError("release", name, released, err)
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
	err := s.look(ctx, func(tx *transaction) error {
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
		l.StartedAt, l.Since, l.Expires = stamp(started), stamp(since), stamp(expires)
		*leases = append(*leases, l)
	}
	return nil
}
