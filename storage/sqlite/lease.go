package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/belayhq/belay/sitelock"
)

// leaseLive is the predicate of locks, without an operator's holds.
const leaseLive = `(expires_at >= ` + now + ` AND expires_at <= ` + now + ` + (SELECT max_lease_ms FROM belay_setting))`

const leaseColumns = `name, COALESCE(holder, ''), fence, host, pid, started_at, acquired_at, expires_at, ` + leaseLive

func scanLease(scan func(...any) error) (sitelock.Lease, error) {
	var l sitelock.Lease
	var started, since, expires int64
	err := scan(&l.Name, &l.Holder, &l.Fence, &l.Host, &l.PID, &started, &since, &expires, &l.Live)
	l.StartedAt, l.Since, l.Expires = timeOf(started), timeOf(since), timeOf(expires)
	return l, err
}

// The fence grows with each acquisition, also the holder's own.
const acquireLeaseSQL = `
INSERT INTO belay_lease (name, holder, fence, host, pid, started_at, acquired_at, expires_at)
VALUES (?1, ?2, 1, ?3, ?4, ?5, ` + now + `, ` + now + ` + ?6)
ON CONFLICT (name) DO UPDATE SET holder = excluded.holder, fence = fence + 1, host = excluded.host, pid = excluded.pid,
    started_at = excluded.started_at, acquired_at = excluded.acquired_at, expires_at = excluded.expires_at
WHERE holder = ?2 OR NOT ` + leaseLive

const leaseSQL = `SELECT ` + leaseColumns + ` FROM belay_lease WHERE name = ?`

// AcquireLease takes a named lease that is free, lapsed or the holder's own. Otherwise it returns the one there is.
func (s *Store) AcquireLease(
	ctx context.Context, name string, holder sitelock.HolderID, by sitelock.Process, ttl time.Duration,
) (sitelock.Lease, bool, error) {
	if err := s.ensureTables(ctx); err != nil {
		return sitelock.Lease{}, false, fmt.Errorf("acquire lease %s: %w", name, err)
	}
	var lease sitelock.Lease
	taken := false
	err := s.write(ctx, func(ctx context.Context, t *transaction) error {
		if err := t.checkLease(ctx, ttl); err != nil {
			return err
		}
		n, err := t.exec(ctx, acquireLeaseSQL, name, holder, by.Host, by.PID, millisOf(by.StartedAt), ttl.Milliseconds())
		if err != nil {
			return err
		}
		taken = n == 1
		lease, err = scanLease(t.row(ctx, leaseSQL, name).Scan)
		return err
	})
	if err != nil {
		return sitelock.Lease{}, false, fmt.Errorf("acquire lease %s: %w", name, err)
	}
	return lease, taken, nil
}

const renewLeaseSQL = `UPDATE belay_lease SET expires_at = ` + now + ` + ? WHERE name = ? AND holder = ? AND fence = ?`

// RenewLease extends a lease.
func (s *Store) RenewLease(ctx context.Context, held sitelock.HeldLease, ttl time.Duration) error {
	return s.changeLease(ctx, "renew", held.Name, func(ctx context.Context, t *transaction) (int64, error) {
		if err := t.checkLease(ctx, ttl); err != nil {
			return 0, err
		}
		return t.exec(ctx, renewLeaseSQL, ttl.Milliseconds(), held.Name, held.Holder, held.Fence)
	})
}

const releaseLeaseSQL = `UPDATE belay_lease SET holder = NULL, expires_at = 0 WHERE name = ? AND holder = ? AND fence = ?`

// ReleaseLease frees a lease and keeps its fence.
func (s *Store) ReleaseLease(ctx context.Context, held sitelock.HeldLease) error {
	return s.changeLease(ctx, "release", held.Name, func(ctx context.Context, t *transaction) (int64, error) {
		return t.exec(ctx, releaseLeaseSQL, held.Name, held.Holder, held.Fence)
	})
}

const maxLeaseSQL = `SELECT max_lease_ms FROM belay_setting`

func (t *transaction) checkLease(ctx context.Context, lease time.Duration) error {
	var longest int64
	if err := t.row(ctx, maxLeaseSQL).Scan(&longest); err != nil {
		return err
	}
	return checkLease("", lease, time.Duration(longest)*time.Millisecond)
}

// changeLease runs one guarded statement, which must change one row.
func (s *Store) changeLease(ctx context.Context, what, name string, change func(context.Context, *transaction) (int64, error)) error {
	made, err := s.made(ctx)
	if err == nil && !made {
		err = sitelock.ErrNotHeld
	}
	if err == nil {
		err = s.write(ctx, func(ctx context.Context, t *transaction) error {
			n, err := change(ctx, t)
			if err == nil && n == 0 {
				return sitelock.ErrNotHeld
			}
			return err
		})
	}
	if err != nil {
		return fmt.Errorf("%s lease %s: %w", what, name, err)
	}
	return nil
}

// Lease reads one named lease.
func (s *Store) Lease(ctx context.Context, name string) (lease sitelock.Lease, ok bool, err error) {
	err = s.read(ctx, func(ctx context.Context, tx session) error {
		lease, err = scanLease(tx.row(ctx, leaseSQL, name).Scan)
		if errors.Is(err, sql.ErrNoRows) {
			return nil
		}
		ok = err == nil
		return err
	})
	if err != nil {
		return sitelock.Lease{}, false, fmt.Errorf("read lease %s: %w", name, err)
	}
	return lease, ok, nil
}

const leasesSQL = `SELECT ` + leaseColumns + ` FROM belay_lease ORDER BY name`

// Leases lists all named leases, by name.
func (s *Store) Leases(ctx context.Context) ([]sitelock.Lease, error) {
	var leases []sitelock.Lease
	err := s.read(ctx, func(ctx context.Context, tx session) error {
		rows, err := tx.query(ctx, leasesSQL)
		if err != nil {
			return err
		}
		for rows.Next() {
			l, err := scanLease(rows.Scan)
			if err != nil {
				return err
			}
			leases = append(leases, l)
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("list leases: %w", err)
	}
	return leases, nil
}
