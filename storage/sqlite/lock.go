package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/belayhq/belay/plan"
	"github.com/belayhq/belay/sitelock"
	"github.com/belayhq/belay/tenant"
)

// now is the database's clock, in milliseconds.
const now = `CAST(unixepoch('subsec') * 1000 AS INTEGER)`

// live is the one predicate that says whether a lock may not be taken. A lease further ahead than any may be comes from
// a clock that ran ahead, and binds nobody; only an operator's hold may be so long.
const live = `(expires_at >= ` + now + ` AND (operation = 'hold' OR expires_at <= ` + now + ` + (SELECT max_lease_ms FROM belay_setting)))`

// inFlight says of a plan p that a holder has claimed it, as the partial index spells it.
const inFlight = `p.status IN ('applying', 'rolling_back')`

// unsettled says of a plan p that it may be partial, as the partial index spells it.
const unsettled = `(p.outcome = 'interrupted' OR p.outcome = 'failed' OR p.outcome = 'quarantined')`

// lockRow is a tenant's lock as a transaction finds it. The zero value is a tenant without one.
type lockRow struct {
	exists    bool
	scope     string
	holder    sitelock.HolderID
	fence     sitelock.Fence
	process   sitelock.Process
	operation sitelock.Operation
	removed   bool
	inFlight  bool // a plan of the tenant is
}

func (l lockRow) heldBy(held sitelock.Held) bool {
	return l.exists && held.Holder != "" && l.holder == held.Holder && l.fence == held.Fence
}

const lockSQL = `
SELECT scope, COALESCE(holder, ''), fence, host, pid, started_at, operation, removed_at IS NOT NULL,
    EXISTS (SELECT 1 FROM belay_plan AS p WHERE p.tenant_id = ?1 AND ` + inFlight + `)
FROM belay_site_lock WHERE tenant_id = ?1`

func (t *transaction) lock(ctx context.Context, id tenant.ID) (lockRow, error) {
	l := lockRow{exists: true}
	var started int64
	err := t.row(ctx, lockSQL, id).Scan(&l.scope, &l.holder, &l.fence, &l.process.Host, &l.process.PID, &started,
		&l.operation, &l.removed, &l.inFlight)
	if errors.Is(err, sql.ErrNoRows) {
		return lockRow{}, nil
	}
	l.process.StartedAt = timeOf(started)
	return l, err
}

// prove is the proof of custody. The transaction keeps every other writer out, so it holds until the commit.
func (t *transaction) prove(ctx context.Context, held sitelock.Held) (lockRow, error) {
	l, err := t.lock(ctx, held.Tenant)
	if err != nil {
		return l, err
	}
	if !l.heldBy(held) {
		return l, &sitelock.LockLostError{Held: held}
	}
	return l, nil
}

// Acquire takes the lock, recovers the tenant's abandoned plans and makes the claim. While the database is busy it
// retries a bounded time; a live holder that can be read meanwhile is reported at once.
func (s *Store) Acquire(ctx context.Context, req sitelock.Request) (sitelock.Grant, error) {
	if err := s.ensureTables(ctx); err != nil {
		return sitelock.Grant{}, fmt.Errorf("acquire: %w", err)
	}
	held := func(ctx context.Context) error {
		state, err := s.State(ctx, req.Tenant)
		if err == nil && state.Live && state.Holder != req.Holder && state.Holder != req.Replace.Holder {
			return sitelock.ErrRefused
		}
		return nil
	}
	var grant sitelock.Grant
	err := s.writeUnless(ctx, held, func(ctx context.Context, t *transaction) error {
		var err error
		grant, err = s.acquire(ctx, t, req)
		return err
	})
	if err != nil {
		return sitelock.Grant{}, fmt.Errorf("acquire: %w", err)
	}
	if req.Claim != nil && grant.Claimed != nil {
		s.noteStored(req.Claim.Digest)
	}
	return grant, nil
}

func (s *Store) acquire(ctx context.Context, t *transaction, req sitelock.Request) (sitelock.Grant, error) {
	before, err := t.lock(ctx, req.Tenant)
	if err != nil {
		return sitelock.Grant{}, err
	}
	if before.removed {
		return sitelock.Grant{}, sitelock.ErrRemoved
	}
	if err := t.checkLease(ctx, req.Operation, req.Lease); err != nil {
		return sitelock.Grant{}, err
	}
	grant, err := t.take(ctx, before, req)
	if err != nil {
		return sitelock.Grant{}, err
	}
	by := term{held: grant.Held, process: req.Process, operation: req.Operation}
	if grant.Recovered, err = t.recover(ctx, by, before); err != nil {
		return sitelock.Grant{}, err
	}
	if req.Claim != nil {
		grant.Claimed, err = s.claim(ctx, t, by, *req.Claim)
	}
	return grant, err
}

const maxLeaseSQL = `SELECT max_lease_ms FROM belay_setting`

// checkLease refuses a lease that would not count as live. An operator's hold may be longer.
func (t *transaction) checkLease(ctx context.Context, operation sitelock.Operation, lease time.Duration) error {
	var bound int64
	if err := t.row(ctx, maxLeaseSQL).Scan(&bound); err != nil {
		return err
	}
	if lease.Milliseconds() < 1 {
		return fmt.Errorf("a lease of %s is too short", lease)
	}
	if operation != sitelock.OpHold && lease.Milliseconds() > bound {
		return fmt.Errorf("a lease of %s is too long: at most %s", lease, time.Duration(bound)*time.Millisecond)
	}
	return nil
}

// Whether the lock may be taken is decided by the statement that takes it, at one reading of the clock. The holder's own
// row, recognised, keeps its fence. The scope, which has an index, stays as it is.
const takeLockSQL = `
INSERT INTO belay_site_lock (tenant_id, scope, fence, holder, host, pid, started_at, operation, plan_id, reason,
    acquired_at, expires_at)
VALUES (?1, ?2, 1, ?3, ?4, ?5, ?6, ?7, NULL, ?8, ` + now + `, ` + now + ` + ?9)
ON CONFLICT (tenant_id) DO UPDATE SET fence = fence + (holder IS NOT ?3), holder = excluded.holder,
    host = excluded.host, pid = excluded.pid, started_at = excluded.started_at, operation = excluded.operation,
    plan_id = NULL, reason = excluded.reason, acquired_at = iif(holder IS ?3, acquired_at, excluded.acquired_at), expires_at = excluded.expires_at
WHERE holder = ?3 OR (?10 = '' OR fence = ?11) AND (holder = ?10 OR NOT ` + live + `)
RETURNING fence, expires_at`

func (t *transaction) take(ctx context.Context, before lockRow, req sitelock.Request) (sitelock.Grant, error) {
	grant := sitelock.Grant{Held: sitelock.Held{Tenant: req.Tenant, Holder: req.Holder}}
	var expires int64
	err := found(t.row(ctx, takeLockSQL, req.Tenant, req.Scope, req.Holder, req.Process.Host, req.Process.PID,
		millisOf(req.Process.StartedAt), req.Operation, req.Reason, req.Lease.Milliseconds(), req.Replace.Holder, req.Replace.Fence).
		Scan(&grant.Held.Fence, &expires), sitelock.ErrRefused)
	if err == nil && before.exists && before.scope != req.Scope {
		_, err = t.exec(ctx, registerLockSQL, req.Tenant, req.Scope)
	}
	if duplicate(err) {
		return sitelock.Grant{}, sitelock.ErrScopeTaken
	}
	grant.Expires = timeOf(expires)
	return grant, err
}

const renewLocksSQL = `
UPDATE belay_site_lock SET expires_at = ` + now + ` + ?
FROM (SELECT value ->> 0 AS tenant, value ->> 1 AS holder, value ->> 2 AS fence FROM json_each(?)) AS mine
WHERE tenant_id = mine.tenant AND belay_site_lock.holder = mine.holder AND belay_site_lock.fence = mine.fence
RETURNING tenant_id, belay_site_lock.fence`

// Renew extends the locks, also those that have lapsed and were not taken. What it does not renew is lost, since no row
// can be locked by anybody else meanwhile.
func (s *Store) Renew(ctx context.Context, held []sitelock.Held, lease time.Duration) (lost []sitelock.Held, err error) {
	if len(held) == 0 {
		return nil, nil
	}
	err = s.write(ctx, func(ctx context.Context, t *transaction) error {
		renewed, err := t.renew(ctx, held, lease)
		if err != nil {
			return err
		}
		for _, h := range held {
			if fence, ok := renewed[h.Tenant]; !ok || fence != h.Fence {
				lost = append(lost, h)
			}
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("renew: %w", err)
	}
	return lost, nil
}

func (t *transaction) renew(ctx context.Context, held []sitelock.Held, lease time.Duration) (map[tenant.ID]sitelock.Fence, error) {
	keys := make([][3]any, len(held))
	for i, h := range held {
		keys[i] = [3]any{h.Tenant, h.Holder, h.Fence}
	}
	rows, err := t.query(ctx, renewLocksSQL, lease.Milliseconds(), encode(keys))
	if err != nil {
		return nil, err
	}
	renewed := make(map[tenant.ID]sitelock.Fence, len(held))
	for rows.Next() {
		var id tenant.ID
		var fence sitelock.Fence
		if err := rows.Scan(&id, &fence); err != nil {
			return nil, err
		}
		renewed[id] = fence
	}
	return renewed, nil
}

const releaseLockSQL = `
UPDATE belay_site_lock SET holder = NULL, expires_at = 0, operation = '', plan_id = NULL, reason = ''
WHERE tenant_id = ? AND holder = ? AND fence = ?`

// Release frees the lock and keeps its fence.
func (s *Store) Release(ctx context.Context, held sitelock.Held) error {
	err := s.write(ctx, func(ctx context.Context, t *transaction) error { return t.release(ctx, held) })
	if err != nil {
		return fmt.Errorf("release: %w", err)
	}
	return nil
}

func (t *transaction) release(ctx context.Context, held sitelock.Held) error {
	n, err := t.exec(ctx, releaseLockSQL, held.Tenant, held.Holder, held.Fence)
	if err == nil && n == 0 {
		return sitelock.ErrNotHeld
	}
	return err
}

const stateSQL = `
SELECT ids.value, COALESCE(l.holder, ''), COALESCE(l.fence, 0), COALESCE(l.host, ''), COALESCE(l.pid, 0), COALESCE(l.started_at, 0),
    COALESCE(l.operation, ''), COALESCE(l.plan_id, ''), COALESCE(p.change_id, ''), COALESCE(l.reason, ''),
    COALESCE(l.acquired_at, 0), COALESCE(l.expires_at, 0), ` + now + `, COALESCE(` + live + `, 0)
FROM json_each(?) AS ids LEFT JOIN belay_site_lock AS l ON l.tenant_id = ids.value
LEFT JOIN belay_plan AS p ON p.tenant_id = l.tenant_id AND p.plan_id = l.plan_id`

// lockStates reads the locks of the tenants; one without a lock is idle.
func lockStates(ctx context.Context, tx session, ids string) (map[tenant.ID]sitelock.State, error) {
	rows, err := tx.query(ctx, stateSQL, ids)
	if err != nil {
		return nil, err
	}
	states := make(map[tenant.ID]sitelock.State)
	for rows.Next() {
		var id tenant.ID
		var st sitelock.State
		var started, since, expires, at int64
		if err := rows.Scan(&id, &st.Holder, &st.Fence, &st.Host, &st.PID, &started, &st.Operation, &st.Plan, &st.Change, &st.Reason,
			&since, &expires, &at, &st.Live); err != nil {
			return nil, err
		}
		st.StartedAt, st.Since, st.Expires, st.Now = timeOf(started), timeOf(since), timeOf(expires), timeOf(at)
		states[id] = st
	}
	return states, nil
}

// State reads who has the tenant's lock.
func (s *Store) State(ctx context.Context, id tenant.ID) (sitelock.State, error) {
	var state sitelock.State
	err := s.read(ctx, func(ctx context.Context, tx session) error {
		ids := encode([]tenant.ID{id})
		states, err := lockStates(ctx, tx, ids)
		if err != nil {
			return err
		}
		state = states[id]
		state.InFlight, err = scanPlans(tx.query(ctx, inFlightSQL, id))
		return err
	})
	if err != nil {
		return sitelock.State{}, fmt.Errorf("read lock: %w", err)
	}
	return state, nil
}

const breakLockSQL = `
UPDATE belay_site_lock SET fence = fence + 1, holder = NULL, expires_at = 0, operation = '', plan_id = NULL, reason = ''
WHERE tenant_id = ? RETURNING fence`

// Break raises the fence, recovers the tenant's plans and leaves the lock free. It does nothing for a tenant that never
// had a lock.
func (s *Store) Break(ctx context.Context, id tenant.ID, by sitelock.Process, reason string) (recovered []sitelock.Recovered, err error) {
	if err := s.ensureTables(ctx); err != nil {
		return nil, fmt.Errorf("break: %w", err)
	}
	hurried := func(context.Context) error { return nil }
	err = s.writeUnless(ctx, hurried, func(ctx context.Context, t *transaction) error {
		before, err := t.lock(ctx, id)
		if err != nil || !before.exists {
			return err
		}
		breaker := term{held: sitelock.Held{Tenant: id}, process: by}
		if err := t.row(ctx, breakLockSQL, id).Scan(&breaker.held.Fence); err != nil {
			return err
		}
		if recovered, err = t.recover(ctx, breaker, before); err != nil {
			return err
		}
		return t.record(ctx, breaker, event{kind: plan.EventBreak, reason: reason})
	})
	if err != nil {
		return nil, fmt.Errorf("break: %w", err)
	}
	return recovered, nil
}

const registerLockSQL = `
INSERT INTO belay_site_lock (tenant_id, scope, fence) VALUES (?, ?, 0)
ON CONFLICT (tenant_id) DO UPDATE SET scope = excluded.scope`

// Register makes the tenant's lock row, free.
func (s *Store) Register(ctx context.Context, id tenant.ID, scope string) error {
	if err := s.ensureTables(ctx); err != nil {
		return fmt.Errorf("register: %w", err)
	}
	err := s.write(ctx, func(ctx context.Context, t *transaction) error { return t.register(ctx, id, scope) })
	if err != nil {
		return fmt.Errorf("register: %w", err)
	}
	return nil
}

func (t *transaction) register(ctx context.Context, id tenant.ID, scope string) error {
	before, err := t.lock(ctx, id)
	switch {
	case err != nil:
		return err
	case before.removed:
		return sitelock.ErrRemoved
	case before.exists && before.scope == scope:
		return nil
	}
	if _, err = t.exec(ctx, registerLockSQL, id, scope); duplicate(err) {
		return sitelock.ErrScopeTaken
	}
	return err
}

const ownerSQL = `SELECT tenant_id FROM belay_site_lock WHERE scope = ? AND removed_at IS NULL`

// Owner implements [storage.Database].
func (s *Store) Owner(ctx context.Context, scope string) (tenant.ID, error) {
	var owner tenant.ID
	err := s.read(ctx, func(ctx context.Context, tx session) error {
		err := tx.row(ctx, ownerSQL, scope).Scan(&owner)
		if errors.Is(err, sql.ErrNoRows) {
			return nil
		}
		return err
	})
	if err != nil {
		return "", fmt.Errorf("owner of scope: %w", err)
	}
	return owner, nil
}

const retireLockSQL = `
UPDATE belay_site_lock SET removed_at = ` + now + `, holder = NULL, expires_at = 0, operation = '', plan_id = NULL, reason = ''
WHERE tenant_id = ?`

// Retire leaves a tombstone that keeps the fence and frees the scope.
func (s *Store) Retire(ctx context.Context, held sitelock.Held) error {
	err := s.write(ctx, func(ctx context.Context, t *transaction) error {
		if _, err := t.prove(ctx, held); err != nil {
			return err
		}
		_, err := t.exec(ctx, retireLockSQL, held.Tenant)
		return err
	})
	if err != nil {
		return fmt.Errorf("retire: %w", err)
	}
	return nil
}
