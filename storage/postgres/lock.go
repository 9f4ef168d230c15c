package postgres

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/belayhq/belay/engine"
	"github.com/belayhq/belay/internal/failpoint"
	"github.com/belayhq/belay/plan"
	"github.com/belayhq/belay/sitelock"
	"github.com/belayhq/belay/tenant"
)

// live is the one predicate for a lease that has not lapsed: a lock may be taken exactly when it does not hold.
const live = `(l.expires_at >= belay.now_ms() AND (l.operation = 'hold' OR l.expires_at <= belay.now_ms() + belay.max_lease_ms()))`

// inFlight is spelt as the partial index spells it.
const inFlight = `p.status IN ('applying', 'rolling_back')`

// unsettled says of a plan p that it may be partial, as the partial index spells it.
const unsettled = `p.outcome IN ('interrupted', 'failed', 'quarantined')`

// ensureLockSQL makes the tenant's lock row, free. A scope of another tenant violates site_lock_scope_key.
const ensureLockSQL = `
INSERT INTO belay.site_lock (tenant_id, scope, fence) VALUES ($1::uuid, $2::text, 0)
ON CONFLICT (tenant_id) DO NOTHING`

// takenColumns are what was taken and from whom, in the order of readTaken. They also keep for recoverSQL whom it was
// taken from.
const takenColumns = `l.fence, l.expires_at, was.host, was.pid, was.started_at, was.holder IS NOT NULL,
    pg_catalog.set_config('belay.dead', CASE WHEN was.holder IS NULL THEN '{}' ELSE
        pg_catalog.jsonb_build_object('holder', was.holder, 'host', was.host, 'pid', was.pid)::text END, true)`

// takeLockSQL takes the lock row without waiting for it.
const takeLockSQL = `
UPDATE belay.site_lock l SET
    scope = $2::text,
    fence = CASE WHEN l.holder = $3::uuid THEN l.fence ELSE l.fence + 1 END,
    holder = $3::uuid, host = $4::text, pid = $5::integer, started_at = $6::bigint,
    operation = $7::text, reason = $8::text,
    plan_id = COALESCE((SELECT p.plan_id FROM belay.plan p WHERE p.tenant_id = $1::uuid AND p.change_id = $9::text), $10::uuid),
    acquired_at = CASE WHEN l.holder = $3::uuid THEN l.acquired_at ELSE belay.now_ms() END,
    expires_at = belay.now_ms() + $11::bigint
FROM (SELECT l.tenant_id, l.holder, l.host, l.pid, l.started_at FROM belay.site_lock l
      WHERE l.tenant_id = $1::uuid AND l.removed_at IS NULL
        AND (l.holder = $3::uuid OR (NOT ` + live + ` AND $12::uuid IS NULL)
             OR (l.fence = $13::bigint AND (l.holder = $12::uuid OR (NOT ` + live + ` AND $12::uuid IS NOT NULL))))
        AND ($11::bigint <= belay.max_lease_ms() OR $7::text = 'hold')
        AND NOT EXISTS (SELECT FROM belay.plan p WHERE p.tenant_id = $1::uuid AND ` + inFlight + ` AND p.format > $14::integer)
      FOR UPDATE NOWAIT) was
WHERE l.tenant_id = was.tenant_id
RETURNING ` + takenColumns

// newLockSQL makes the tenant's lock row, taken, if takeLockSQL found none. A scope of another tenant violates
// site_lock_scope_key.
const newLockSQL = `
INSERT INTO belay.site_lock AS l (tenant_id, scope, fence, holder, host, pid, started_at, operation, reason, plan_id, acquired_at, expires_at)
SELECT $1::uuid, $2::text, 1, $3::uuid, $4::text, $5::integer, $6::bigint, $7::text, $8::text, $9::uuid,
    clock.now, clock.now + $10::bigint
FROM (SELECT belay.now_ms() AS now OFFSET 0) clock
WHERE $10::bigint <= belay.max_lease_ms() OR $7::text = 'hold'
ON CONFLICT (tenant_id) DO NOTHING
RETURNING l.fence, l.expires_at, '', 0, 0::bigint, false, NULL`

// makingRow runs a transaction that may make a tenant's lock row, once more if another one for the same tenant did so in
// the meantime: that can violate a key beside the one that makes it give way.
func (s *Store) makingRow(ctx context.Context, body func(tx *transaction) error) error {
	err := s.write(ctx, body)
	if server, ok := errors.AsType[*Error](err); ok && server.Code == codeUniqueViolation && strings.HasPrefix(server.Constraint, "site_lock_") {
		err = s.write(ctx, body)
	}
	return err
}

// Acquire implements [sitelock.Store].
func (s *Store) Acquire(ctx context.Context, req sitelock.Request) (sitelock.Grant, error) {
	if err := checkLease(req.Lease); err != nil {
		return sitelock.Grant{}, fmt.Errorf("acquire: %w", err)
	}
	if err := s.ensureTables(ctx); err != nil {
		return sitelock.Grant{}, err
	}
	if err := s.openRenewals(ctx); err != nil {
		return sitelock.Grant{}, fmt.Errorf("acquire: %w", lockError(err))
	}
	if err := s.keepChange(ctx, req.Claim); err != nil {
		return sitelock.Grant{}, fmt.Errorf("acquire: %w", lockError(err))
	}
	var a acquisition
	err := s.makingRow(ctx, func(tx *transaction) error {
		a = acquisition{grant: sitelock.Grant{Held: sitelock.Held{Tenant: req.Tenant, Holder: req.Holder}}}
		var change string
		var newPlan plan.ID
		if req.Claim != nil {
			change, newPlan = req.Claim.Change, req.Claim.NewPlan
		}
		tx.ask(takeLockSQL, a.readTaken, req.Tenant, req.Scope, req.Holder,
			req.Process.Host, req.Process.PID, millisOf(req.Process.StartedAt), string(req.Operation), req.Reason,
			change, orNull(newPlan), millis(req.Lease), orNull(req.Replace.Holder), req.Replace.Fence, plan.Format)
		if req.Replace.Holder == "" {
			tx.ask(newLockSQL, a.readTaken, req.Tenant, req.Scope, req.Holder, req.Process.Host, req.Process.PID,
				millisOf(req.Process.StartedAt), string(req.Operation), req.Reason, orNull(newPlan), millis(req.Lease))
		}
		tx.ask(recoverSQL, a.readRecovered, req.Tenant, req.Holder, plan.Format, plan.MaxAttempts)
		if req.Claim != nil {
			s.claim(tx, req.Tenant, req.Holder, req.Claim, &a.grant.Claimed)
		}
		return tx.commit(ctx)
	})
	switch {
	case err != nil:
		return sitelock.Grant{}, fmt.Errorf("acquire: %w", lockError(err))
	case !a.taken:
		return sitelock.Grant{}, fmt.Errorf("acquire: %w", s.whyNot(ctx, req.Tenant, req.Operation, req.Lease))
	}
	if s.forgot(req.Claim, a.grant.Claimed) {
		claimed, err := s.Claim(ctx, a.grant.Held, *req.Claim)
		if err != nil {
			return sitelock.Grant{}, err
		}
		a.grant.Claimed = claimed
	}
	return a.grant, nil
}

// openRenewals opens the connection that renews before there is anything to renew: once all the server's slots are taken it
// could not be had, and every lock would lapse.
func (s *Store) openRenewals(ctx context.Context) error {
	if s.renewing.Load() {
		return nil
	}
	conn, err := s.renewals.Acquire(ctx)
	if err != nil {
		return connectError(err)
	}
	conn.Release()
	s.renewing.Store(true)
	return nil
}

// acquisition collects the answers of one.
type acquisition struct {
	grant sitelock.Grant
	taken bool
	dead  sitelock.Process
}

func (a *acquisition) readTaken(rows pgx.Rows) error {
	for rows.Next() {
		var expires, started int64
		var hadHolder bool
		if err := rows.Scan(&a.grant.Held.Fence, &expires, &a.dead.Host, &a.dead.PID, &started, &hadHolder, nil); err != nil {
			return err
		}
		a.taken, a.grant.Expires, a.dead.StartedAt = true, timeOf(expires), timeOf(started)
		if !hadHolder {
			a.dead = sitelock.Process{}
		}
	}
	return nil
}

func (a *acquisition) readRecovered(rows pgx.Rows) error {
	for rows.Next() {
		r := sitelock.Recovered{Process: a.dead}
		if err := rows.Scan(&r.Plan, &r.Change, &r.Was, &r.Status); err != nil {
			return err
		}
		a.grant.Recovered = append(a.grant.Recovered, r)
	}
	return nil
}

// checkLease refuses a lease that the database, which counts milliseconds, would take for none.
func checkLease(lease time.Duration) error {
	if millis(lease) < 1 {
		return fmt.Errorf("a lease of %s is too short", lease)
	}
	return nil
}

// errTooLong is for a lease that would not count as live.
func errTooLong(lease time.Duration, longest int64) error {
	return fmt.Errorf("a lease of %s is too long: at most %s", lease, time.Duration(longest)*time.Millisecond)
}

const whyNotSQL = `
SELECT l.removed_at IS NOT NULL, COALESCE(` + live + `, false),
    $2::text <> 'hold' AND $3::bigint > belay.max_lease_ms(), belay.max_lease_ms(),
    EXISTS (SELECT FROM belay.plan p WHERE p.tenant_id = $1::uuid AND ` + inFlight + ` AND p.format > $4::integer)
FROM (SELECT) one LEFT JOIN belay.site_lock l ON l.tenant_id = $1::uuid`

// whyNot says why a lock was not taken. If the reason has gone in the meantime, it is that somebody had it.
func (s *Store) whyNot(ctx context.Context, id tenant.ID, op sitelock.Operation, lease time.Duration) error {
	reason := sitelock.ErrRefused
	err := s.snapshot(ctx, func(tx *transaction) error {
		tx.ask(whyNotSQL, func(rows pgx.Rows) error {
			for rows.Next() {
				var removed, isLive, tooLong, newer bool
				var longest int64
				if err := rows.Scan(&removed, &isLive, &tooLong, &longest, &newer); err != nil {
					return err
				}
				switch {
				case removed:
					reason = sitelock.ErrRemoved
				case tooLong:
					reason = errTooLong(lease, longest)
				case newer && !isLive:
					reason = sitelock.ErrNewerBinary
				}
			}
			return nil
		}, id, string(op), millis(lease), plan.Format)
		return tx.commit(ctx)
	})
	if err != nil {
		return lockError(err)
	}
	return reason
}

// renewLocksSQL locks each row by itself, in the order of the arrays, and leaves locked ones out. A renewal changes no key, so
// that it passes beside an open proof.
const renewLocksSQL = `
UPDATE belay.site_lock l SET expires_at = belay.now_ms() + $4::bigint
FROM (SELECT mine.tenant_id, w.place
      FROM unnest($1::uuid[], $2::uuid[], $3::bigint[]) WITH ORDINALITY AS w (tenant_id, holder, fence, place)
      CROSS JOIN LATERAL (SELECT l.tenant_id FROM belay.site_lock l
          WHERE l.tenant_id = w.tenant_id AND l.holder = w.holder AND l.fence = w.fence
          FOR NO KEY UPDATE SKIP LOCKED) mine) mine
WHERE l.tenant_id = mine.tenant_id
RETURNING mine.place`

// stillHeldSQL looks at locks that were not renewed.
const stillHeldSQL = `
SELECT w.place FROM unnest($1::uuid[], $2::uuid[], $3::bigint[]) WITH ORDINALITY AS w (tenant_id, holder, fence, place)
CROSS JOIN LATERAL (SELECT FROM belay.site_lock l
    WHERE l.tenant_id = w.tenant_id AND l.holder = w.holder AND l.fence = w.fence OFFSET 0) l`

// Renew implements [sitelock.Store], on connections of its own.
func (s *Store) Renew(ctx context.Context, held []sitelock.Held, lease time.Duration) ([]sitelock.Held, error) {
	if len(held) == 0 {
		return nil, nil
	}
	renewed, err := s.ofHeld(ctx, writing, renewLocksSQL, held, millis(lease))
	if err != nil {
		return nil, fmt.Errorf("renew: %w", lockError(err))
	}
	rest := without(held, renewed)
	if len(rest) == 0 {
		return nil, nil
	}
	locked, err := s.ofHeld(ctx, reading, stillHeldSQL, rest)
	if err != nil {
		return nil, fmt.Errorf("renew: look up locks that were not renewed: %w", &sitelock.NotRenewedError{Held: rest, Err: err})
	}
	lost, busy := without(rest, locked), slices.DeleteFunc(rest, func(h sitelock.Held) bool { return !locked[h] })
	if len(busy) == 0 {
		return lost, nil
	}
	return lost, fmt.Errorf("renew: %w", &sitelock.NotRenewedError{Held: busy, Err: sitelock.ErrContended})
}

// ofHeld runs a statement over locks, in ascending order of tenants, which is the order in which rows are locked
// everywhere, and returns those whose place it gives back.
func (s *Store) ofHeld(ctx context.Context, begin, sql string, held []sitelock.Held, more ...any) (map[sitelock.Held]bool, error) {
	held = slices.SortedFunc(slices.Values(held), func(a, b sitelock.Held) int {
		return strings.Compare(string(a.Tenant), string(b.Tenant))
	})
	var found map[sitelock.Held]bool
	err := s.repeatable(ctx, s.renewals, begin, func(tx *transaction) error {
		found = make(map[sitelock.Held]bool, len(held))
		tx.own(indexesSQL)
		tx.ask(sql, func(rows pgx.Rows) error {
			for rows.Next() {
				var place int
				if err := rows.Scan(&place); err != nil {
					return err
				}
				found[held[place-1]] = true
			}
			return nil
		}, append(heldArrays(held), more...)...)
		return tx.commit(ctx)
	})
	return found, err
}

func heldArrays(held []sitelock.Held) []any {
	tenants, holders, fences := make([]string, len(held)), make([]string, len(held)), make([]int64, len(held))
	for i, h := range held {
		tenants[i], holders[i], fences[i] = string(h.Tenant), string(h.Holder), int64(h.Fence)
	}
	return []any{tenants, holders, fences}
}

func without(held []sitelock.Held, these map[sitelock.Held]bool) []sitelock.Held {
	return slices.DeleteFunc(slices.Clone(held), func(h sitelock.Held) bool { return these[h] })
}

const releaseLockSQL = `
UPDATE belay.site_lock SET holder = NULL, expires_at = 0, operation = '', plan_id = NULL, reason = ''
WHERE tenant_id = $1::uuid AND holder = $2::uuid AND fence = $3::bigint
RETURNING 1`

// Release implements [sitelock.Store].
func (s *Store) Release(ctx context.Context, held sitelock.Held) error {
	if err := failpoint.Hit(failpoint.BeforeRelease); err != nil {
		return err
	}
	released := false
	err := s.write(ctx, func(tx *transaction) error {
		released = false
		tx.found(releaseLockSQL, &released, held.Tenant, held.Holder, held.Fence)
		return tx.commit(ctx)
	})
	switch {
	case err != nil:
		return fmt.Errorf("release: %w", heldError(held, err))
	case !released:
		return fmt.Errorf("release: %w", sitelock.ErrNotHeld)
	}
	return failpoint.Hit(failpoint.AfterRelease)
}

// stateColumns are those of a lock l, in the order of scanState.
const stateColumns = `COALESCE(l.holder::text, ''), l.fence, l.host, l.pid, l.started_at, l.operation, COALESCE(l.plan_id::text, ''),
    COALESCE((SELECT p.change_id FROM belay.plan p WHERE p.tenant_id = l.tenant_id AND p.plan_id = l.plan_id), ''),
    l.reason, l.acquired_at, l.expires_at, belay.now_ms(), l.holder IS NOT NULL AND ` + live + `, l.tenant_id::text`

const stateSQL = `SELECT ` + stateColumns + ` FROM belay.site_lock l WHERE l.tenant_id = $1::uuid`

const inFlightSQL = `SELECT ` + planColumns + ` FROM belay.plan p WHERE p.tenant_id = $1::uuid AND ` + inFlight

// State implements [sitelock.Store].
func (s *Store) State(ctx context.Context, id tenant.ID) (sitelock.State, error) {
	var state sitelock.State
	err := s.read(ctx, func(tx *transaction) error {
		state = sitelock.State{}
		tx.ask(stateSQL, func(rows pgx.Rows) error {
			for rows.Next() {
				if err := scanState(rows, &state, new(tenant.ID)); err != nil {
					return err
				}
			}
			return nil
		}, id)
		tx.ask(inFlightSQL, func(rows pgx.Rows) error { return readPlans(rows, &state.InFlight) }, id)
		return tx.commit(ctx)
	})
	if err != nil {
		return sitelock.State{}, fmt.Errorf("read lock state: %w", err)
	}
	return state, nil
}

func scanState(rows pgx.Rows, s *sitelock.State, id *tenant.ID) error {
	var started, since, expires, now int64
	err := rows.Scan(&s.Holder, &s.Fence, &s.Host, &s.PID, &started, &s.Operation, &s.Plan, &s.Change, &s.Reason,
		&since, &expires, &now, &s.Live, id)
	s.StartedAt, s.Since, s.Expires, s.Now = timeOf(started), timeOf(since), timeOf(expires), timeOf(now)
	return err
}

// breakLockSQL takes the row from whoever has it, for a holder that nobody else knows.
const breakLockSQL = `
UPDATE belay.site_lock l SET fence = l.fence + 1, holder = $2::uuid
FROM (SELECT l.tenant_id, l.holder, l.host, l.pid, l.started_at FROM belay.site_lock l
      WHERE l.tenant_id = $1::uuid AND l.removed_at IS NULL
        AND NOT EXISTS (SELECT FROM belay.plan p WHERE p.tenant_id = $1::uuid AND ` + inFlight + ` AND p.format > $3::integer)
      FOR UPDATE NOWAIT) was
WHERE l.tenant_id = was.tenant_id
RETURNING ` + takenColumns

// noteBreakSQL tells what was broken; releaseLockSQL cannot do it, because it forgets.
const noteBreakSQL = `
INSERT INTO belay.event (tenant_id, at, fence, plan_id, change_id, kind, operation, holder, host, pid, reason)
SELECT l.tenant_id, belay.now_ms(), l.fence, l.plan_id,
    COALESCE((SELECT p.change_id FROM belay.plan p WHERE p.tenant_id = l.tenant_id AND p.plan_id = l.plan_id), ''),
    'break', l.operation, (current_setting('belay.dead')::jsonb ->> 'holder')::uuid, $3::text, $4::integer, $5::text
FROM belay.site_lock l WHERE l.tenant_id = $1::uuid AND l.holder = $2::uuid`

const freeBrokenSQL = `
UPDATE belay.site_lock SET holder = NULL, expires_at = 0, operation = '', plan_id = NULL, reason = ''
WHERE tenant_id = $1::uuid AND holder = $2::uuid`

// Break implements [sitelock.Store].
func (s *Store) Break(ctx context.Context, id tenant.ID, by sitelock.Process, reason string) ([]sitelock.Recovered, error) {
	if err := s.ensureTables(ctx); err != nil {
		return nil, err
	}
	var a acquisition
	breaker := sitelock.HolderID(uuid.NewString())
	err := s.write(ctx, func(tx *transaction) error {
		a = acquisition{}
		tx.ask(breakLockSQL, a.readTaken, id, breaker, plan.Format)
		tx.ask(recoverSQL, a.readRecovered, id, breaker, plan.Format, plan.MaxAttempts)
		tx.own(noteBreakSQL, id, breaker, by.Host, by.PID, reason)
		tx.own(freeBrokenSQL, id, breaker)
		return tx.commit(ctx)
	})
	if err != nil {
		return nil, fmt.Errorf("break lock: %w", lockError(err))
	}
	if !a.taken {
		// Not taken is also a tenant that was never locked, and that is fine.
		if err := s.whyNot(ctx, id, "", 0); errors.Is(err, sitelock.ErrNewerBinary) || errors.Is(err, sitelock.ErrRemoved) {
			return nil, fmt.Errorf("break lock: %w", err)
		}
	}
	return a.grant.Recovered, nil
}

const hasScopeSQL = `SELECT 1 FROM pg_catalog.pg_namespace WHERE nspname = $1::text`

const registerLockSQL = `
INSERT INTO belay.site_lock AS l (tenant_id, scope, fence) VALUES ($1::uuid, $2::text, 0)
ON CONFLICT (tenant_id) DO UPDATE SET scope = EXCLUDED.scope WHERE l.removed_at IS NULL
RETURNING 1`

// Register implements [storage.Database].
func (s *Store) Register(ctx context.Context, id tenant.ID, scope string) error {
	if err := s.ensureTables(ctx); err != nil {
		return err
	}
	var exists, registered bool
	err := s.makingRow(ctx, func(tx *transaction) error {
		tx.found(hasScopeSQL, &exists, scope)
		if err := tx.flush(ctx); err != nil || !exists {
			return err
		}
		tx.found(registerLockSQL, &registered, id, scope)
		return tx.commit(ctx)
	})
	switch {
	case err != nil:
		return fmt.Errorf("register %s: %w", scope, lockError(err))
	case !exists:
		return fmt.Errorf("register %s: %w", scope, engine.ErrNoScope)
	case !registered:
		return fmt.Errorf("register %s: %w", scope, sitelock.ErrRemoved)
	}
	return nil
}

const ownerSQL = `SELECT tenant_id::text FROM belay.site_lock WHERE scope = $1::text AND removed_at IS NULL`

// Owner implements [storage.Database].
func (s *Store) Owner(ctx context.Context, scope string) (tenant.ID, error) {
	var owner tenant.ID
	err := s.read(ctx, func(tx *transaction) error {
		owner = ""
		tx.one(ownerSQL, []any{scope}, &owner)
		return tx.commit(ctx)
	})
	if err != nil {
		return "", fmt.Errorf("owner of %s: %w", scope, err)
	}
	return owner, nil
}

const retireLockSQL = `
UPDATE belay.site_lock SET removed_at = belay.now_ms(), holder = NULL, expires_at = 0, operation = '', plan_id = NULL, reason = ''
WHERE tenant_id = $1::uuid AND holder = $2::uuid AND fence = $3::bigint`

// Retire implements [storage.Database].
func (s *Store) Retire(ctx context.Context, held sitelock.Held) error {
	err := s.transact(ctx, s.pool, writing, custody{held, ownLimits}.begin, func(tx *transaction) error {
		tx.own(retireLockSQL, held.Tenant, held.Holder, held.Fence)
		return tx.commit(ctx)
	})
	if err != nil {
		return fmt.Errorf("retire: %w", heldError(held, err))
	}
	return nil
}

var _ engine.Store = (*Store)(nil)
