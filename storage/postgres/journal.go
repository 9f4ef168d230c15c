package postgres

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"

	"github.com/belayhq/belay/engine"
	"github.com/belayhq/belay/plan"
	"github.com/belayhq/belay/sitelock"
)

// writeJournalSQL writes the rows of a group's steps and demands that each made a legal move, as [plan.StepState.CanBecome]
// has them: a step that was carried out once more than the journal knows of takes its whole transaction down. The planner
// does not see into a subquery: it takes all arrays for equally long, and keeps one plan for them.
const writeJournalSQL = `
WITH written AS (
    INSERT INTO belay.journal AS j (tenant_id, plan_id, ordinal, step_id, state, fence, cycle, attempt, deadline_at, updated_at)
    SELECT $1::uuid, $2::uuid, w.ordinal, w.step_id, w.state, $3::bigint, $4::integer,
        CASE WHEN w.state IN ('intent', 'undo_intent') AND w.timeout_ms > 0 THEN 1 ELSE 0 END,
        CASE WHEN w.state IN ('intent', 'undo_intent') AND w.timeout_ms > 0 THEN belay.now_ms() + w.timeout_ms ELSE 0 END,
        belay.now_ms()
    FROM unnest((SELECT $5::integer[]), $6::text[], $7::text[], $8::bigint[]) AS w (ordinal, step_id, state, timeout_ms)
    WHERE w.state IN ('intent', 'done') OR EXISTS (SELECT FROM belay.journal j
        WHERE j.tenant_id = $1::uuid AND j.plan_id = $2::uuid AND j.ordinal = w.ordinal)
    ON CONFLICT (tenant_id, plan_id, ordinal) DO UPDATE SET
        step_id = EXCLUDED.step_id, state = EXCLUDED.state, fence = EXCLUDED.fence, cycle = EXCLUDED.cycle,
        deadline_at = EXCLUDED.deadline_at, updated_at = EXCLUDED.updated_at,
        attempt = EXCLUDED.attempt + CASE
            WHEN EXCLUDED.state IN ('intent', 'done') AND j.state = 'intent' THEN j.attempt
            WHEN EXCLUDED.state IN ('undo_intent', 'undone') AND j.state = 'undo_intent' THEN j.attempt
            ELSE 0 END
    WHERE CASE EXCLUDED.state
        WHEN 'intent'      THEN j.state IN ('undone', 'undo_intent', 'intent')
        WHEN 'done'        THEN j.state IN ('undone', 'undo_intent', 'intent')
        WHEN 'undo_intent' THEN j.state IN ('done', 'intent', 'undo_intent')
        WHEN 'undone'      THEN j.state IN ('done', 'intent', 'undo_intent')
        END
    RETURNING 1
)
SELECT CASE WHEN (SELECT count(*) FROM written) <> $9::bigint THEN belay.refuse('BY002', 'illegal move of a step') END`

// addJournalSQL writes the rows of steps that have none yet. A row that is there after all violates the primary key, which
// takes the transaction down too, with the same error.
const addJournalSQL = `
INSERT INTO belay.journal (tenant_id, plan_id, ordinal, step_id, state, fence, cycle, updated_at)
SELECT $1::uuid, $2::uuid, w.ordinal, w.step_id, 'done', $3::bigint, $4::integer, belay.now_ms()
FROM unnest((SELECT $5::integer[]), $6::text[]) AS w (ordinal, step_id)`

func (tx *transaction) journal(held sitelock.Held, group engine.Group) {
	n := len(group.Steps)
	ordinals, ids, states, timeouts := make([]int64, n), make([]string, n), make([]string, n), make([]int64, n)
	added := true
	for i, step := range group.Steps {
		ordinals[i], ids[i], states[i], timeouts[i] = int64(step.Ordinal), step.ID, string(step.State), millis(step.Timeout)
		added = added && step.New && step.State == plan.StepDone
	}
	if added {
		tx.own(addJournalSQL, held.Tenant, group.Plan, held.Fence, group.Cycle, ordinals, ids)
		return
	}
	tx.own(writeJournalSQL, held.Tenant, group.Plan, held.Fence, group.Cycle, ordinals, ids, states, timeouts, n)
}

// writeImageSQL keeps a before-image unless the step has one: it is write-once, or a step that is run again would take its own
// effect for what was there before.
const writeImageSQL = `
INSERT INTO belay.before_image (tenant_id, plan_id, ordinal, part, cycle, fence, body, checksum, created_at)
VALUES ($1::uuid, $2::uuid, $3::integer, 0, $4::integer, $5::bigint, $6::bytea, $7::bytea, belay.now_ms())
ON CONFLICT (tenant_id, plan_id, ordinal, part) DO NOTHING`

const dropImagesSQL = `
DELETE FROM belay.before_image WHERE tenant_id = $1::uuid AND plan_id = $2::uuid AND ordinal = ANY ($3::integer[])`

func (tx *transaction) images(held sitelock.Held, group engine.Group) {
	var undone []int64
	for i, step := range group.Steps {
		if step.State == plan.StepUndone {
			undone = append(undone, int64(step.Ordinal))
			continue
		}
		body := step.Image
		if taken, ok := tx.taken[i]; ok {
			body = taken
		}
		if body != nil {
			sum := sha256.Sum256(body)
			tx.own(writeImageSQL, held.Tenant, group.Plan, step.Ordinal, group.Cycle, held.Fence, body, sum[:])
		}
	}
	if undone != nil {
		tx.own(dropImagesSQL, held.Tenant, group.Plan, undone)
	}
}

// resetAttemptsSQL starts the count of attempts again, because a step was carried out.
const resetAttemptsSQL = `
UPDATE belay.plan SET attempts = 0, updated_at = belay.now_ms()
WHERE tenant_id = $1::uuid AND plan_id = $2::uuid AND fence = $3::bigint AND attempts <> 0`

// demandInFlightSQL is the move of a group that has none: the plan must be in flight under this fence.
const demandInFlightSQL = `
SELECT CASE WHEN NOT EXISTS (SELECT FROM belay.plan WHERE tenant_id = $1::uuid AND plan_id = $2::uuid AND fence = $3::bigint)
    THEN belay.refuse('BY002', 'plan is not in flight under this fence') END`

// movePlanSQL changes a plan's status and tells it. A plan that is resolved is not in flight; any other is in flight under
// the holder's fence. Where a plan returns to, only its row says.
const movePlanSQL = `
WITH moved AS (
    UPDATE belay.plan p SET
        status = $5::text,
        claimed_from = CASE WHEN $5::text IN ('applying', 'rolling_back') THEN p.claimed_from END,
        fence = CASE WHEN $5::text IN ('applying', 'rolling_back') THEN p.fence END,
        attempts = CASE WHEN $6::boolean THEN 0 ELSE p.attempts END,
        outcome = CASE
            WHEN $7::text = '' THEN p.outcome
            WHEN $7::text IN ('failed', 'interrupted') AND p.attempts >= $8::integer AND NOT $6::boolean THEN 'quarantined'
            ELSE $7::text END,
        applied_seq = CASE
            WHEN $5::text = 'pending' AND NOT ` + touched + ` THEN NULL
            WHEN $9::text = 'resolve_applied' THEN COALESCE(p.applied_seq, belay.next_applied_seq($1::uuid))
            ELSE p.applied_seq END,
        cycle = CASE WHEN $9::text = 'resolve_applied' THEN GREATEST(p.cycle, 1) ELSE p.cycle END,
        last_error = CASE
            WHEN $10::text IS NOT NULL THEN $10::text
            WHEN $9::text IN ('succeed', 'resolve_applied', 'resolve_rolled_back') THEN NULL
            ELSE p.last_error END,
        updated_at = belay.now_ms()
    WHERE p.tenant_id = $1::uuid AND p.plan_id = $2::uuid AND p.status = $4::text
        AND CASE WHEN $9::text LIKE 'resolve%' THEN p.fence IS NULL ELSE p.fence = $3::bigint END
        AND ($9::text NOT IN ('fail', 'recover') OR $5::text = ` + claimedFrom + `)
    RETURNING p.*
), noted AS (
    INSERT INTO belay.event (tenant_id, at, fence, plan_id, change_id, kind, status_from, status_to, outcome,
        operation, holder, host, pid, reason, failure)
    SELECT m.tenant_id, belay.now_ms(), l.fence, m.plan_id, m.change_id, $9::text, $4::text, m.status, m.outcome,
        l.operation, l.holder, l.host, l.pid, $11::text, $10::text
    FROM moved m JOIN belay.site_lock l ON l.tenant_id = m.tenant_id
)
SELECT CASE
    WHEN NOT EXISTS (SELECT FROM moved) THEN belay.refuse('BY002', 'plan is not as the holder knows it')
    WHEN EXISTS (SELECT FROM moved p WHERE NOT ` + unsettled + ` AND ` + partial + `) THEN belay.refuse('BY002', 'plan would be partial and not say so')
    END`

func (tx *transaction) move(held sitelock.Held, group engine.Group) error {
	m := group.Move
	// Only fail and recover ask where the plan was claimed from, and the statement demands that it was from m.To.
	next, err := plan.Next(m.From, m.To, m.Event)
	if err != nil {
		return fmt.Errorf("move: %w", err)
	}
	if next != m.To {
		return fmt.Errorf("move: a plan that is %s becomes %s by %s, not %s", m.From, next, m.Event, m.To)
	}
	var failure any
	if m.Failure != nil {
		text, err := json.Marshal(m.Failure)
		if err != nil {
			return fmt.Errorf("encode failure: %w", err)
		}
		failure = string(text)
	}
	afresh := progressed(group) || m.Event == plan.EventSucceed || m.Event == plan.EventResolveApplied || m.Event == plan.EventResolveRolledBack
	tx.own(movePlanSQL, held.Tenant, group.Plan, held.Fence, string(m.From), string(m.To), afresh,
		string(m.Outcome), plan.MaxAttempts, string(m.Event), failure, m.Reason)
	return nil
}

// releaseHeldSQL frees the lock in the transaction that proved it.
const releaseHeldSQL = `
WITH released AS (` + releaseLockSQL + `)
SELECT CASE WHEN NOT EXISTS (SELECT FROM released) THEN belay.refuse('BY002', 'lock was not released') END`
