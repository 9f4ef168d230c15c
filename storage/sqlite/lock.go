package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/belayhq/belay/internal/failpoint"
	"github.com/belayhq/belay/plan"
	"github.com/belayhq/belay/sitelock"
	"github.com/belayhq/belay/tenant"
)

// now is the database's clock, in milliseconds.
const now = `CAST(unixepoch('subsec') * 1000 AS INTEGER)`

// live is the one predicate that says whether a lock may not be taken. A lease further ahead than any may be comes from
// a clock that ran ahead, and binds nobody; only an operator's hold may be so long.
const live = `(l.expires_at >= ` + now + ` AND (l.operation = 'hold' OR l.expires_at <= ` + now + ` + max_lease_ms))`

// inFlight says of a plan p that a holder has claimed it, as the partial index spells it.
const inFlight = `p.status IN ('applying', 'rolling_back')`

// unsettled says of a plan p that it may be partial, as the partial index spells it.
const unsettled = `(p.outcome = 'interrupted' OR p.outcome = 'failed' OR p.outcome = 'quarantined')`

// lockRow is a tenant's lock as a transaction finds it; one without a lock has the zero State, but for Now.
type lockRow struct {
	sitelock.State
	exists   bool
	scope    string
	removed  bool
	maxLease time.Duration
}

func (l lockRow) heldBy(held sitelock.Held) bool {
	return l.exists && held.Holder != "" && l.Holder == held.Holder && l.Fence == held.Fence
}

// process is the holder's.
func (l lockRow) process() sitelock.Process {
	return sitelock.Process{Host: l.Host, PID: l.PID, StartedAt: l.StartedAt}
}

// with is the state with the plans of records that are in flight.
func (l lockRow) with(records []plan.Record) sitelock.State {
	state := l.State
	for _, r := range records {
		if r.Plan.InFlight() {
			state.InFlight = append(state.InFlight, r.Plan)
		}
	}
	return state
}

// One statement serves all who look at a lock: most files are opened for one plan, and preparing a statement costs more than
// running it a few times.
const lockSQL = `
SELECT l.tenant_id IS NOT NULL, l.scope, l.holder, l.fence, l.host, l.pid, l.started_at, l.operation, l.plan_id,
    (SELECT p.change_id FROM belay_plan AS p WHERE p.tenant_id = l.tenant_id AND p.plan_id = l.plan_id),
    l.reason, l.acquired_at, l.expires_at, l.removed_at IS NOT NULL, ` + now + `, ` + live + `, max_lease_ms
FROM belay_setting LEFT JOIN belay_site_lock AS l ON l.tenant_id = +?`

func (s session) lock(ctx context.Context, id tenant.ID) (l lockRow, err error) {
	var started, since, expires, at, longest int64
	err = s.row(ctx, lockSQL, id).Scan(&l.exists, &l.scope, &l.Holder, &l.Fence, &l.Host, &l.PID, &started, &l.Operation, &l.Plan,
		&l.Change, &l.Reason, &since, &expires, &l.removed, &at, &l.Live, &longest)
	l.StartedAt, l.Since, l.Expires, l.Now = timeOf(started), timeOf(since), timeOf(expires), timeOf(at)
	l.maxLease = time.Duration(longest) * time.Millisecond
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
		ctx, cancel := context.WithTimeout(ctx, askEvery) // the file may be too busy to be read, too
		defer cancel()
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
	if err := checkLease(req.Operation, req.Lease, before.maxLease); err != nil {
		return sitelock.Grant{}, err
	}
	grant, err := t.take(ctx, before, req)
	if err != nil {
		return sitelock.Grant{}, err
	}
	by := term{held: grant.Held, process: req.Process, operation: req.Operation}
	change := ""
	if req.Claim != nil {
		change = req.Claim.Change
	}
	records, err := t.about(ctx, req.Tenant, change, grant.Held.Fence)
	if err != nil {
		return sitelock.Grant{}, err
	}
	if grant.Recovered, err = t.recover(ctx, by, before, records); err != nil {
		return sitelock.Grant{}, err
	}
	if req.Claim != nil {
		grant.Claimed, err = s.claim(ctx, t, by, *req.Claim, records)
	}
	return grant, err
}

// checkLease refuses a lease that would not count as live. An operator's hold may be longer.
func checkLease(operation sitelock.Operation, lease, longest time.Duration) error {
	if lease.Milliseconds() < 1 {
		return fmt.Errorf("a lease of %s is too short", lease)
	}
	if operation != sitelock.OpHold && lease > longest {
		return fmt.Errorf("a lease of %s is too long: at most %s", lease, longest)
	}
	return nil
}

// mayBeTaken says whether a request gets the lock: its own row, which it recognises, one that no live holder has, and the one
// that it replaces. Nobody can change the row before the transaction ends.
func (l lockRow) mayBeTaken(req sitelock.Request) bool {
	switch {
	case l.Holder == req.Holder && l.exists:
		return true
	case req.Replace.Holder == "":
		return !l.Live
	}
	return l.exists && l.Fence == req.Replace.Fence && (l.Holder == req.Replace.Holder || !l.Live)
}

// The holder's own row keeps its fence.
const takeLockSQL = `
UPDATE belay_site_lock SET fence = fence + (holder IS NOT ?2), acquired_at = iif(holder IS ?2, acquired_at, ` + now + `), holder = ?2,
    host = ?3, pid = ?4, started_at = ?5, operation = ?6, plan_id = NULL, reason = ?7, expires_at = ` + now + ` + ?8
WHERE tenant_id = ?1
RETURNING fence, expires_at`

func (t *transaction) take(ctx context.Context, before lockRow, req sitelock.Request) (sitelock.Grant, error) {
	if !before.mayBeTaken(req) {
		return sitelock.Grant{}, sitelock.ErrRefused
	}
	if err := t.place(ctx, before, req.Tenant, req.Scope); err != nil {
		return sitelock.Grant{}, err
	}
	grant := sitelock.Grant{Held: sitelock.Held{Tenant: req.Tenant, Holder: req.Holder}}
	var expires int64
	err := t.row(ctx, takeLockSQL, req.Tenant, req.Holder, req.Process.Host, req.Process.PID, millisOf(req.Process.StartedAt),
		req.Operation, req.Reason, req.Lease.Milliseconds()).Scan(&grant.Held.Fence, &expires)
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
	if err := failpoint.Hit(failpoint.BeforeRelease); err != nil {
		return err
	}
	err := s.write(ctx, func(ctx context.Context, t *transaction) error { return t.release(ctx, held) })
	if err != nil {
		return fmt.Errorf("release: %w", err)
	}
	return failpoint.Hit(failpoint.AfterRelease)
}

func (t *transaction) release(ctx context.Context, held sitelock.Held) error {
	n, err := t.exec(ctx, releaseLockSQL, held.Tenant, held.Holder, held.Fence)
	if err == nil && n == 0 {
		return sitelock.ErrNotHeld
	}
	return err
}

// State reads who has the tenant's lock.
func (s *Store) State(ctx context.Context, id tenant.ID) (sitelock.State, error) {
	var state sitelock.State
	err := s.read(ctx, func(ctx context.Context, tx session) error {
		l, err := tx.lock(ctx, id)
		if err != nil {
			return err
		}
		records, err := tx.about(ctx, id, "", 0)
		state = l.with(records)
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
		switch {
		case err != nil || !before.exists:
			return err
		case before.removed:
			return sitelock.ErrRemoved
		}
		breaker := term{held: sitelock.Held{Tenant: id}, process: by}
		if err := t.row(ctx, breakLockSQL, id).Scan(&breaker.held.Fence); err != nil {
			return err
		}
		records, err := t.about(ctx, id, "", breaker.held.Fence)
		if err != nil {
			return err
		}
		if recovered, err = t.recover(ctx, breaker, before, records); err != nil {
			return err
		}
		return t.recordBreak(ctx, breaker, before, reason)
	})
	if err != nil {
		return nil, fmt.Errorf("break: %w", err)
	}
	return recovered, nil
}

// recordBreak tells what was broken, and by which process.
func (t *transaction) recordBreak(ctx context.Context, breaker term, broken lockRow, reason string) error {
	breaker.held.Holder, breaker.operation = broken.Holder, broken.Operation
	return t.record(ctx, breaker, event{kind: plan.EventBreak, plan: plan.Plan{ID: broken.Plan, Change: broken.Change}, reason: reason})
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
	}
	return t.place(ctx, before, id, scope)
}

// place makes the tenant's lock row, free, or gives it another scope.
func (t *transaction) place(ctx context.Context, before lockRow, id tenant.ID, scope string) error {
	if before.exists && before.scope == scope {
		return nil
	}
	_, err := t.exec(ctx, registerLockSQL, id, scope)
	if duplicate(err) {
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
