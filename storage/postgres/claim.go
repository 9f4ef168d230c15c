package postgres

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/belayhq/belay/plan"
	"github.com/belayhq/belay/sitelock"
	"github.com/belayhq/belay/tenant"
)

// touched says of a plan p that a step of it is in place or in doubt.
const touched = `belay.touched(p.tenant_id, p.plan_id)`

// done counts the steps of a plan p that are in place.
const done = `belay.in_place(p.tenant_id, p.plan_id)`

// partial says of a plan p that it is, if it may be: see [plan.Record.Partial].
const partial = `CASE p.status WHEN 'pending' THEN ` + touched + ` WHEN 'applied' THEN ` + done + ` < p.steps_total ELSE false END`

// claimedFrom is the status that a plan p in flight returns to.
const claimedFrom = `COALESCE(p.claimed_from, CASE p.status WHEN 'applying' THEN 'pending' ELSE 'applied' END)`

// nextAppliedSeq is the place behind all of the tenant's plans.
const nextAppliedSeq = `(SELECT COALESCE(max(n.applied_seq), 0) + 1 FROM belay.plan n WHERE n.tenant_id = $1::uuid)`

// noOther says that no plan of tenant $1 but that of change $3 is in flight or partial. Only unsettled
// plans can be partial, and an index holds them.
const noOther = `
    NOT EXISTS (SELECT FROM belay.plan p
        WHERE p.tenant_id = $1::uuid AND p.change_id <> $3::text AND ` + inFlight + `)
    AND NOT EXISTS (SELECT FROM belay.plan p
        WHERE p.tenant_id = $1::uuid AND p.change_id <> $3::text
          AND ` + unsettled + ` AND ` + partial + `)`

// recoverSQL returns every abandoned plan to the status it was claimed from. It finds the lock row by the new holder, so
// that behind a take that was refused it does nothing.
const recoverSQL = `
WITH abandoned AS (
    SELECT p.tenant_id, p.plan_id, p.status AS was, l.fence,
        ` + claimedFrom + ` AS back,
        ` + touched + ` AS touched
    FROM belay.site_lock l JOIN belay.plan p ON p.tenant_id = l.tenant_id
    WHERE l.tenant_id = $1::uuid AND l.holder = $2::uuid AND ` + inFlight + ` AND p.format <= $3::integer
    FOR UPDATE OF p NOWAIT
), recovered AS (
    UPDATE belay.plan p SET
        status = a.back, claimed_from = NULL, fence = NULL, updated_at = belay.now_ms(),
        outcome = CASE
            WHEN p.attempts >= $4::integer THEN 'quarantined'
            WHEN a.touched OR (a.back = 'applied' AND ` + done + ` < p.steps_total) THEN 'interrupted'
            ELSE p.outcome END,
        applied_seq = CASE WHEN a.back = 'pending' AND NOT a.touched THEN NULL ELSE p.applied_seq END
    FROM abandoned a WHERE p.tenant_id = a.tenant_id AND p.plan_id = a.plan_id
    RETURNING p.tenant_id, p.plan_id, p.change_id, a.was, p.status, p.outcome, a.fence
), noted AS (
    INSERT INTO belay.event (tenant_id, at, fence, plan_id, change_id, kind, status_from, status_to, outcome, holder, host, pid)
    SELECT r.tenant_id, belay.now_ms(), r.fence, r.plan_id, r.change_id, 'recover', r.was, r.status, r.outcome,
        (d.was ->> 'holder')::uuid, COALESCE(d.was ->> 'host', ''), COALESCE((d.was ->> 'pid')::integer, 0)
    FROM recovered r, (SELECT NULLIF(pg_catalog.current_setting('belay.dead', true), '')::jsonb AS was) d
)
SELECT plan_id::text, change_id, was, status FROM recovered`

// keepChangeSQL stores a change's text, in a transaction of its own before the claims that need it: inside theirs, the first
// of many tenants would keep all others waiting until it commits.
const keepChangeSQL = `
INSERT INTO belay.change (digest, change_id, body, created_at)
SELECT $1::text, $2::text, $3::bytea, ` + nextChangeTime + `
ON CONFLICT (digest) DO NOTHING`

// claimApplySQL makes the tenant's plan for a change, or takes up the one there is, and moves it in flight.
const claimApplySQL = `
WITH claimed AS (
    INSERT INTO belay.plan AS p (tenant_id, plan_id, change_id, digest, status, claimed_from, fence, outcome, attempts,
        applied_seq, cycle, steps_total, format, created_at, updated_at)
    SELECT $1::uuid, $4::uuid, $3::text, $5::text, 'applying', 'pending', l.fence, 'never_run', 1,
        ` + nextAppliedSeq + `, 1, $6::integer, $7::integer, belay.now_ms(), belay.now_ms()
    FROM belay.site_lock l
    WHERE l.tenant_id = $1::uuid AND l.holder = $2::uuid AND ` + noOther + `
        AND EXISTS (SELECT FROM belay.change c WHERE c.digest = $5::text)
    ON CONFLICT (tenant_id, change_id) DO UPDATE SET
        status = 'applying', claimed_from = 'pending', fence = EXCLUDED.fence, digest = EXCLUDED.digest,
        steps_total = EXCLUDED.steps_total, format = EXCLUDED.format, updated_at = EXCLUDED.updated_at,
        attempts = CASE WHEN p.outcome = 'quarantined' THEN 1 ELSE p.attempts + 1 END,
        applied_seq = COALESCE(p.applied_seq, EXCLUDED.applied_seq),
        cycle = CASE WHEN ` + touched + ` THEN p.cycle ELSE p.cycle + 1 END
    WHERE p.status = 'pending' AND p.format <= EXCLUDED.format AND (p.outcome <> 'quarantined' OR $8::boolean)
        AND (p.digest = EXCLUDED.digest OR $9::boolean OR NOT ` + touched + `)
    RETURNING p.*
)` + noteClaim

// claimRollbackSQL moves a plan in flight to be undone: an applied one, or what is in place of a partial one.
const claimRollbackSQL = `
WITH claimed AS (
    UPDATE belay.plan p SET
        status = 'rolling_back', claimed_from = p.status, fence = l.fence, updated_at = belay.now_ms(),
        attempts = CASE WHEN p.outcome = 'quarantined' THEN 1 ELSE p.attempts + 1 END,
        applied_seq = COALESCE(p.applied_seq, ` + nextAppliedSeq + `)
    FROM belay.site_lock l
    WHERE l.tenant_id = $1::uuid AND l.holder = $2::uuid
        AND p.tenant_id = $1::uuid AND p.change_id = $3::text AND p.digest = $4::text AND p.format <= $6::integer
        AND (p.outcome <> 'quarantined' OR $5::boolean)
        AND (p.status = 'applied' OR (p.status = 'pending' AND ` + touched + `))
        AND NOT EXISTS (SELECT FROM belay.plan n JOIN belay.journal j ON j.tenant_id = n.tenant_id AND j.plan_id = n.plan_id
            WHERE n.tenant_id = $1::uuid AND n.applied_seq > COALESCE(p.applied_seq, 0) AND j.state <> 'undone')
        AND ` + noOther + `
    RETURNING p.*
)` + noteClaim

// noteClaim writes the event of what a statement claimed and returns the plan.
const noteClaim = `, noted AS (
    INSERT INTO belay.event (tenant_id, at, fence, plan_id, change_id, kind, status_from, status_to, outcome,
        operation, holder, host, pid)
    SELECT p.tenant_id, belay.now_ms(), p.fence, p.plan_id, p.change_id,
        CASE p.status WHEN 'applying' THEN 'claim_apply' ELSE 'claim_rollback' END, p.claimed_from, p.status, p.outcome,
        l.operation, l.holder, l.host, l.pid
    FROM claimed p JOIN belay.site_lock l ON l.tenant_id = p.tenant_id
)
SELECT ` + planColumns + ` FROM claimed p`

// claimedJournalSQL reads the journal of the plan that the holder has in flight. Only what an earlier term began may
// still be running.
const claimedJournalSQL = `
SELECT j.ordinal, j.step_id, j.state, j.fence, j.cycle, j.attempt,
    CASE WHEN j.state IN ('intent', 'undo_intent') AND j.fence <> l.fence THEN GREATEST(j.deadline_at - belay.now_ms(), 0) ELSE 0 END,
    j.updated_at, j.plan_id::text
FROM belay.site_lock l
JOIN belay.plan p ON p.tenant_id = l.tenant_id AND p.fence = l.fence AND ` + inFlight + `
JOIN belay.journal j ON j.tenant_id = p.tenant_id AND j.plan_id = p.plan_id
WHERE l.tenant_id = $1::uuid AND l.holder = $2::uuid
ORDER BY j.ordinal`

// claim queues the statements that claim a plan for the holder of a lock and read it into record, which stays nil if the
// claim is refused.
func (s *Store) claim(tx *transaction, id tenant.ID, holder sitelock.HolderID, c *sitelock.Claim, record **plan.Record) {
	*record = nil
	read := func(rows pgx.Rows) error {
		var plans []plan.Plan
		if err := readPlans(rows, &plans); err != nil {
			return err
		}
		if len(plans) > 0 {
			*record = &plan.Record{Plan: plans[0]}
		}
		return nil
	}
	if c.Direction == plan.Up {
		tx.ask(claimApplySQL, read, id, holder, c.Change, c.NewPlan, c.Digest, len(c.Body.Steps), plan.Format, c.Retry, c.Repin)
	} else {
		tx.ask(claimRollbackSQL, read, id, holder, c.Change, c.Digest, c.Retry, plan.Format)
	}
	tx.ask(claimedJournalSQL, func(rows pgx.Rows) error {
		return readEntries(rows, func(_ plan.ID, e plan.Entry) {
			if *record != nil {
				(*record).Journal = append((*record).Journal, e)
			}
		})
	}, id, holder)
}

// keepChange makes sure that the change of a claim is stored, once for all claims of this Store.
func (s *Store) keepChange(ctx context.Context, c *sitelock.Claim) error {
	if c == nil || c.Direction != plan.Up || s.isStored(c.Digest) {
		return nil
	}
	_, err, _ := s.keeping.Do(string(c.Digest), func() (any, error) {
		err := s.write(ctx, func(tx *transaction) error {
			tx.own(keepChangeSQL, c.Digest, c.Change, c.Body.Encode())
			return tx.commit(ctx)
		})
		if err == nil {
			s.stored.Store(c.Digest, struct{}{})
		}
		return nil, err
	})
	if err != nil {
		return fmt.Errorf("store change %s: %w", c.Change, err)
	}
	return nil
}

// forgot reports whether a claim may have been refused only because the database has lost a change that this Store had
// committed: it was restored to an older state. The change is stored again before the next claim.
func (s *Store) forgot(c *sitelock.Claim, claimed *plan.Record) bool {
	if c == nil || claimed != nil || c.Direction != plan.Up {
		return false
	}
	_, known := s.stored.LoadAndDelete(c.Digest)
	return known
}

// markPlanSQL tells people which plan the holder works on.
const markPlanSQL = `
UPDATE belay.site_lock l SET plan_id = p.plan_id
FROM belay.plan p
WHERE l.tenant_id = $1::uuid AND l.holder = $2::uuid AND p.tenant_id = l.tenant_id AND p.fence = l.fence AND ` + inFlight

// Claim implements [engine.Store].
func (s *Store) Claim(ctx context.Context, held sitelock.Held, c sitelock.Claim) (*plan.Record, error) {
	var record *plan.Record
	if err := s.keepChange(ctx, &c); err != nil {
		return nil, err
	}
	err := s.transact(ctx, s.pool, writing, custody{held, ownLimits}.begin, func(tx *transaction) error {
		s.claim(tx, held.Tenant, held.Holder, &c, &record)
		tx.own(markPlanSQL, held.Tenant, held.Holder)
		return tx.commit(ctx)
	})
	if err != nil {
		return nil, fmt.Errorf("claim %s: %w", c.Change, heldError(held, err))
	}
	return record, nil
}

const registeredSQL = `SELECT 1 FROM belay.site_lock WHERE tenant_id = $1::uuid AND removed_at IS NULL`

// storeSubmittedSQL and submitSQL write only for a tenant that is there, and only where the plan is new or, with nothing
// of it in place, takes other content.
const storeSubmittedSQL = `
INSERT INTO belay.change (digest, change_id, body, created_at)
SELECT $3::text, $2::text, $4::bytea, ` + nextChangeTime + `
FROM belay.site_lock
WHERE tenant_id = $1::uuid AND removed_at IS NULL AND NOT EXISTS (SELECT FROM belay.plan p
    WHERE p.tenant_id = $1::uuid AND p.change_id = $2::text AND (p.digest = $3::text OR p.status <> 'pending' OR ` + touched + `))
ON CONFLICT (digest) DO NOTHING`

const submitSQL = `
INSERT INTO belay.plan AS p (tenant_id, plan_id, change_id, digest, status, outcome, steps_total, format, created_at, updated_at)
SELECT $1::uuid, $2::uuid, $3::text, $4::text, 'pending', 'never_run', $5::integer, $6::integer, belay.now_ms(), belay.now_ms()
FROM belay.site_lock WHERE tenant_id = $1::uuid AND removed_at IS NULL
ON CONFLICT (tenant_id, change_id) DO UPDATE SET
    digest = EXCLUDED.digest, steps_total = EXCLUDED.steps_total, format = EXCLUDED.format, updated_at = EXCLUDED.updated_at
WHERE p.digest <> EXCLUDED.digest AND p.status = 'pending' AND NOT ` + touched

const planOfChangeSQL = `SELECT ` + planColumns + ` FROM belay.plan p WHERE p.tenant_id = $1::uuid AND p.change_id = $2::text`

// Submit implements [engine.Store].
func (s *Store) Submit(ctx context.Context, id tenant.ID, scope string, newPlan plan.ID, change *plan.Change) (plan.Plan, error) {
	if err := s.ensureTables(ctx); err != nil {
		return plan.Plan{}, err
	}
	digest := change.Digest()
	var plans []plan.Plan
	registered := false
	err := s.makingRow(ctx, func(tx *transaction) error {
		plans, registered = nil, false
		tx.own(ensureLockSQL, id, scope)
		tx.found(registeredSQL, &registered, id)
		tx.own(storeSubmittedSQL, id, change.ID, digest, change.Encode())
		tx.own(submitSQL, id, newPlan, change.ID, digest, len(change.Steps), plan.Format)
		tx.ask(planOfChangeSQL, func(rows pgx.Rows) error { return readPlans(rows, &plans) }, id, change.ID)
		return tx.commit(ctx)
	})
	switch {
	case err != nil:
		return plan.Plan{}, fmt.Errorf("submit %s: %w", change.ID, lockError(err))
	case !registered || len(plans) == 0:
		return plan.Plan{}, fmt.Errorf("submit %s: %w", change.ID, sitelock.ErrRemoved)
	}
	return plans[0], nil
}
