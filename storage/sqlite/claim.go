package sqlite

import (
	"context"
	"fmt"

	"github.com/belayhq/belay/plan"
	"github.com/belayhq/belay/sitelock"
	"github.com/belayhq/belay/tenant"
)

// term is on whose behalf a transaction writes.
type term struct {
	held      sitelock.Held
	process   sitelock.Process
	operation sitelock.Operation
}

// The plans that something can depend on besides the claimed one are few: only unsettled ones can be partial.
const aboutSQL = `
SELECT ` + planColumns + ` FROM belay_plan AS p
WHERE p.tenant_id = +?1 AND (p.change_id = +?2 OR ` + inFlight + ` OR ` + unsettled + `)
ORDER BY p.applied_seq NULLS LAST, p.created_at, p.plan_id`

// about reads the tenant's plan for a change, and those in flight and those that may be partial.
func (s session) about(ctx context.Context, id tenant.ID, change string, mine sitelock.Fence) ([]plan.Record, error) {
	return s.records(ctx, mine, aboutSQL, id, change)
}

const recoverSQL = `
UPDATE belay_plan SET status = ?, claimed_from = NULL, fence = NULL, outcome = ?, applied_seq = ?, updated_at = ` + now + `
WHERE tenant_id = ? AND plan_id = ?`

// recover returns every plan in flight to the status it was claimed from, in records too. dead is the lock row as it was before
// this term took it.
func (t *transaction) recover(ctx context.Context, by term, dead lockRow, records []plan.Record) ([]sitelock.Recovered, error) {
	var recovered []sitelock.Recovered
	for i := range records {
		p := records[i].Plan
		if !p.InFlight() {
			continue
		}
		if p.Format > plan.Format {
			return nil, sitelock.ErrNewerBinary
		}
		r, err := t.recoverOne(ctx, by, dead, &records[i])
		if err != nil {
			return nil, err
		}
		recovered = append(recovered, r)
	}
	return recovered, nil
}

func (t *transaction) recoverOne(ctx context.Context, by term, dead lockRow, record *plan.Record) (sitelock.Recovered, error) {
	p := record.Plan
	to, err := plan.Next(p.Status, p.ClaimedFrom, plan.EventRecover)
	if err != nil {
		return sitelock.Recovered{}, fmt.Errorf("recover plan %s: %w", p.ID, err)
	}
	rests := &record.Plan
	rests.Status, rests.ClaimedFrom, rests.Fence = to, "", 0
	switch {
	case p.Attempts >= plan.MaxAttempts:
		rests.Outcome = plan.OutcomeQuarantined
	case record.Touched(), record.Partial():
		rests.Outcome = plan.OutcomeInterrupted
	}
	if to == plan.Pending && !record.Touched() {
		rests.AppliedSeq = 0
	}
	if _, err := t.exec(ctx, recoverSQL, to, rests.Outcome, nullable(rests.AppliedSeq), by.held.Tenant, p.ID); err != nil {
		return sitelock.Recovered{}, err
	}
	r := sitelock.Recovered{Plan: p.ID, Change: p.Change, Was: p.Status, Status: to}
	if dead.Holder != "" {
		r.Process = dead.process()
	}
	gone := term{
		held:    sitelock.Held{Tenant: by.held.Tenant, Holder: dead.Holder, Fence: by.held.Fence},
		process: r.Process,
	}
	return r, t.record(ctx, gone, event{kind: plan.EventRecover, plan: p, to: to, outcome: rests.Outcome})
}

// Claim moves a plan in flight under a lock already held.
func (s *Store) Claim(ctx context.Context, held sitelock.Held, claim sitelock.Claim) (*plan.Record, error) {
	var claimed *plan.Record
	err := s.write(ctx, func(ctx context.Context, t *transaction) error {
		l, err := t.prove(ctx, held)
		if err != nil {
			return err
		}
		records, err := t.about(ctx, held.Tenant, claim.Change, held.Fence)
		if err != nil {
			return err
		}
		claimed, err = s.claim(ctx, t, term{held: held, process: l.process(), operation: l.Operation}, claim, records)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("claim: %w", err)
	}
	if claimed != nil {
		s.noteStored(claim.Digest)
	}
	return claimed, nil
}

const markPlanSQL = `UPDATE belay_site_lock SET plan_id = ? WHERE tenant_id = ?`

// claim makes the claim, or returns nil if something speaks against it. records are the plans about its change.
func (s *Store) claim(ctx context.Context, t *transaction, by term, claim sitelock.Claim, records []plan.Record) (*plan.Record, error) {
	mine, blocked := sortOut(records, claim.Change)
	if blocked {
		return nil, nil
	}
	if ok, err := t.mayClaim(ctx, by.held.Tenant, claim, mine); err != nil || !ok {
		return nil, err
	}
	move := plan.EventClaimApply
	if claim.Direction == plan.Down {
		move = plan.EventClaimRollback
	}
	was := plan.Plan{ID: claim.NewPlan, Status: plan.Pending, Outcome: plan.OutcomeNeverRun, Format: plan.Format}
	if mine != nil {
		was = mine.Plan
	}
	now, err := claimed(was, move, by.held.Fence, claim, mine != nil && mine.Touched())
	if err != nil {
		return nil, err
	}
	if move == plan.EventClaimApply && claim.Body != nil && !s.isStored(claim.Digest) {
		if err := t.storeChange(ctx, claim.Digest, claim.Body); err != nil {
			return nil, err
		}
	}
	if mine == nil {
		err = t.addPlan(ctx, by.held.Tenant, now)
	} else {
		err = t.putPlan(ctx, by.held.Tenant, now)
	}
	if err != nil {
		return nil, err
	}
	if _, err := t.exec(ctx, markPlanSQL, now.ID, by.held.Tenant); err != nil {
		return nil, err
	}
	if err := t.record(ctx, by, event{kind: move, plan: was, change: claim.Change, to: now.Status, outcome: now.Outcome}); err != nil {
		return nil, err
	}
	return t.planned(ctx, by.held, now.ID)
}

// sortOut finds the plan for a change, and says whether another one keeps it from being claimed: because it is partial, or in
// flight.
func sortOut(records []plan.Record, change string) (mine *plan.Record, blocked bool) {
	for i := range records {
		if records[i].Plan.Change == change {
			mine = &records[i]
		} else if records[i].Unfinished() {
			blocked = true
		}
	}
	return mine, blocked
}

// claimed returns the plan as the claim leaves it.
func claimed(was plan.Plan, move plan.Event, fence sitelock.Fence, claim sitelock.Claim, touched bool) (plan.Plan, error) {
	p := was
	var err error
	if p.Status, err = plan.Next(was.Status, "", move); err != nil {
		return p, err
	}
	p.Change, p.ClaimedFrom, p.Fence, p.Digest = claim.Change, was.Status, fence, claim.Digest
	p.Attempts++
	if claim.Retry && was.Quarantined() {
		p.Attempts = 1
	}
	if move != plan.EventClaimApply {
		return p, nil
	}
	if !touched {
		p.Cycle++
	}
	switch {
	case claim.Body != nil:
		p.StepsTotal, p.Format = len(claim.Body.Steps), plan.Format
	case was.Cycle == 0 && was.StepsTotal == 0:
		return p, fmt.Errorf("claim of %s needs the change itself", claim.Change)
	}
	return p, nil
}

// mayClaim is [plan.WhyNotClaim] in the transaction that claims; record is the tenant's plan for the change, nil if there is
// none. Whether a newer one has something in place is asked of the database.
func (t *transaction) mayClaim(ctx context.Context, id tenant.ID, claim sitelock.Claim, record *plan.Record) (bool, error) {
	var own []plan.Record
	var p plan.Plan
	if record != nil {
		own, p = []plan.Record{*record}, record.Plan
	}
	opts := plan.ClaimOptions{Retry: claim.Retry, Repin: claim.Repin}
	if plan.WhyNotClaim(own, claim.Direction, claim.Change, claim.Digest, opts) != nil {
		return false, nil
	}
	if claim.Direction == plan.Up {
		return true, nil
	}
	return t.isNewest(ctx, id, p.AppliedSeq)
}

const findNewerSQL = `
SELECT EXISTS (
    SELECT 1 FROM belay_plan AS p JOIN belay_journal AS j ON j.tenant_id = p.tenant_id AND j.plan_id = p.plan_id
    WHERE p.tenant_id = ? AND p.applied_seq > ? AND j.state <> 'undone')`

// isNewest reports whether no plan claimed after the one with this number has a step in place or in doubt.
func (t *transaction) isNewest(ctx context.Context, id tenant.ID, seq int64) (bool, error) {
	var newer bool
	err := t.row(ctx, findNewerSQL, id, seq).Scan(&newer)
	return !newer, err
}

// nextAppliedSeq follows the highest number among the tenant's plans.
const nextAppliedSeq = `(SELECT COALESCE(max(applied_seq), 0) + 1 FROM belay_plan WHERE tenant_id = +?1)`

const addPlanSQL = `
INSERT INTO belay_plan (tenant_id, plan_id, change_id, digest, status, claimed_from, fence, outcome, attempts, applied_seq, cycle,
    steps_total, format, created_at, updated_at)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ` + nextAppliedSeq + `, ?10, ?11, ?12, ` + now + `, ` + now + `)`

// addPlan writes a plan that is new, and claimed.
func (t *transaction) addPlan(ctx context.Context, id tenant.ID, p plan.Plan) error {
	_, err := t.exec(ctx, addPlanSQL, id, p.ID, p.Change, p.Digest, p.Status, p.ClaimedFrom, p.Fence, p.Outcome, p.Attempts,
		p.Cycle, p.StepsTotal, p.Format)
	return err
}

const putPlanSQL = `
UPDATE belay_plan SET digest = ?3, status = ?4, claimed_from = ?5, fence = ?6, attempts = ?7,
    applied_seq = COALESCE(applied_seq, ` + nextAppliedSeq + `), cycle = ?8, steps_total = ?9, updated_at = ` + now + `
WHERE tenant_id = ?1 AND plan_id = ?2`

// putPlan writes a plan that is claimed. One without a number gets the next.
func (t *transaction) putPlan(ctx context.Context, id tenant.ID, p plan.Plan) error {
	_, err := t.exec(ctx, putPlanSQL, id, p.ID, p.Digest, p.Status, p.ClaimedFrom, p.Fence, p.Attempts, p.Cycle, p.StepsTotal)
	return err
}

const submitSQL = `
INSERT INTO belay_plan (tenant_id, plan_id, change_id, digest, status, outcome, steps_total, format, created_at, updated_at)
VALUES (?, ?, ?, ?, 'pending', 'never_run', ?, ?, ` + now + `, ` + now + `)`

const resubmitSQL = `
UPDATE belay_plan SET digest = ?, steps_total = ?, format = ?, updated_at = ` + now + ` WHERE tenant_id = ? AND plan_id = ?`

// Submit stores a pending plan, unless the tenant has one for this change. One that is pending with nothing in place
// takes the content.
func (s *Store) Submit(ctx context.Context, id tenant.ID, scope string, newPlan plan.ID, change *plan.Change) (plan.Plan, error) {
	if err := s.ensureTables(ctx); err != nil {
		return plan.Plan{}, fmt.Errorf("submit: %w", err)
	}
	var p plan.Plan
	err := s.write(ctx, func(ctx context.Context, t *transaction) error {
		if err := t.register(ctx, id, scope); err != nil {
			return err
		}
		var err error
		p, err = t.submit(ctx, id, newPlan, change)
		return err
	})
	if err != nil {
		return plan.Plan{}, fmt.Errorf("submit: %w", err)
	}
	return p, nil
}

func (t *transaction) submit(ctx context.Context, id tenant.ID, newPlan plan.ID, change *plan.Change) (plan.Plan, error) {
	digest := change.Digest()
	records, err := t.about(ctx, id, change.ID, 0)
	if err != nil {
		return plan.Plan{}, err
	}
	record, _ := sortOut(records, change.ID)
	if record != nil && (record.Plan.Status != plan.Pending || record.Touched() || record.Plan.Digest == digest) {
		return record.Plan, nil
	}
	if err := t.storeChange(ctx, digest, change); err != nil {
		return plan.Plan{}, err
	}
	if record == nil {
		record = &plan.Record{Plan: plan.Plan{ID: newPlan}}
		_, err = t.exec(ctx, submitSQL, id, newPlan, change.ID, digest, len(change.Steps), plan.Format)
	} else {
		_, err = t.exec(ctx, resubmitSQL, digest, len(change.Steps), plan.Format, id, record.Plan.ID)
	}
	if err != nil {
		return plan.Plan{}, err
	}
	record, err = t.planned(ctx, sitelock.Held{Tenant: id}, record.Plan.ID)
	if err != nil {
		return plan.Plan{}, err
	}
	return record.Plan, nil
}
