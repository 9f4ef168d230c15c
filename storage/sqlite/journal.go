package sqlite

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"fmt"
	"maps"
	"slices"

	"github.com/belayhq/belay/engine"
	"github.com/belayhq/belay/plan"
	"github.com/belayhq/belay/sitelock"
)

const planSQL = `SELECT ` + planColumns + ` FROM belay_plan AS p WHERE p.tenant_id = ? AND p.plan_id = ?`

// planned reads a plan of the tenant.
func (s session) planned(ctx context.Context, held sitelock.Held, id plan.ID) (*plan.Record, error) {
	records, err := s.records(ctx, held.Fence, planSQL, held.Tenant, id)
	if err != nil {
		return nil, err
	}
	if len(records) == 0 {
		return nil, fmt.Errorf("the tenant has no plan %s", id)
	}
	return &records[0], nil
}

// journal is what a checkpoint knows of its plan: the rows as they stood when it began, with its own on top.
type journal struct {
	plan    plan.Plan
	entries map[int]plan.Entry
	// settled says that a step of this checkpoint became done or undone.
	settled bool
}

func (t *transaction) journalOf(ctx context.Context, held sitelock.Held, id plan.ID) (*journal, error) {
	record, err := t.planned(ctx, held, id)
	if err != nil {
		return nil, err
	}
	j := &journal{plan: record.Plan, entries: make(map[int]plan.Entry, len(record.Journal))}
	for _, e := range record.Journal {
		j.entries[e.Ordinal] = e
	}
	return j, nil
}

// record is the plan with its journal as this checkpoint leaves it.
func (j *journal) record() plan.Record {
	return plan.Record{Plan: j.plan, Journal: slices.Collect(maps.Values(j.entries))}
}

// demand refuses a step whose row may not move so: that is what makes its effect happen once. It is asked before the
// step runs.
func (j *journal) demand(step engine.GroupStep) error {
	if was := j.entries[step.Ordinal].State; !was.CanBecome(step.State) || step.New && was != "" {
		if was == "" {
			was = "not begun"
		}
		return fmt.Errorf("journal: step %s is %s and cannot become %s", step.ID, was, step.State)
	}
	return nil
}

const (
	addJournalSQL = `
INSERT INTO belay_journal (tenant_id, plan_id, ordinal, step_id, state, fence, cycle, attempt, deadline_at, updated_at)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, iif(?9 > 0, ` + now + ` + ?9, 0), ` + now + `)`
	writeJournalSQL = `
UPDATE belay_journal SET step_id = ?4, state = ?5, fence = ?6, cycle = ?7, attempt = ?8, deadline_at = iif(?9 > 0, ` + now + ` + ?9, 0),
    updated_at = ` + now + `
WHERE tenant_id = ?1 AND plan_id = ?2 AND ordinal = ?3`
)

// enter writes the row of a step, and its before-image.
func (t *transaction) enter(ctx context.Context, held sitelock.Held, j *journal, cycle int, step engine.GroupStep, image []byte) error {
	was := j.entries[step.Ordinal]
	e := was.Next(step.State)
	if intent(step.State) && step.Timeout == 0 {
		e.Attempt = was.Attempt // the call of this attempt has returned
	}
	e.Ordinal = step.Ordinal
	write, limit := writeJournalSQL, step.Timeout
	if was.State == "" {
		write = addJournalSQL
	}
	if !intent(step.State) {
		j.settled, limit = true, 0
	}
	if _, err := t.exec(ctx, write, held.Tenant, j.plan.ID, step.Ordinal, step.ID, step.State, held.Fence, cycle, e.Attempt,
		limit.Milliseconds()); err != nil {
		return err
	}
	j.entries[step.Ordinal] = e
	if step.State == plan.StepUndone {
		_, err := t.exec(ctx, dropImagesSQL, held.Tenant, j.plan.ID, step.Ordinal)
		return err
	}
	if image == nil {
		return nil
	}
	sum := sha256.Sum256(image)
	_, err := t.exec(ctx, writeImageSQL, held.Tenant, j.plan.ID, step.Ordinal, cycle, held.Fence, image, sum[:])
	return err
}

func intent(s plan.StepState) bool { return s == plan.StepIntent || s == plan.StepUndoIntent }

const dropImagesSQL = `DELETE FROM belay_before_image WHERE tenant_id = ? AND plan_id = ? AND ordinal = ?`

// An image is write-once: a step run again would capture its own effect.
const writeImageSQL = `
INSERT INTO belay_before_image (tenant_id, plan_id, ordinal, part, cycle, fence, body, checksum, created_at)
VALUES (?, ?, ?, 0, ?, ?, ?, ?, ` + now + `)
ON CONFLICT (tenant_id, plan_id, ordinal, part) DO NOTHING`

const progressSQL = `UPDATE belay_plan SET attempts = 0, updated_at = ` + now + ` WHERE tenant_id = ? AND plan_id = ?`

// progress notes that the first step of a claim committed, where no move does so.
func (t *transaction) progress(ctx context.Context, held sitelock.Held, j *journal) error {
	_, err := t.exec(ctx, progressSQL, held.Tenant, j.plan.ID)
	return err
}

const movePlanSQL = `
UPDATE belay_plan SET status = ?4, claimed_from = ?5, fence = ?6, outcome = ?7, attempts = ?8,
    cycle = ?9, last_error = ?10, updated_at = ` + now + `
WHERE tenant_id = ?1 AND plan_id = ?2 AND status = ?3 AND fence IS ?11`

// The number is apart from the move, because it has an index and few moves change it.
const (
	dropSeqSQL = `UPDATE belay_plan SET applied_seq = NULL WHERE tenant_id = ?1 AND plan_id = ?2`
	giveSeqSQL = `UPDATE belay_plan SET applied_seq = COALESCE(applied_seq, ` + nextAppliedSeq + `) WHERE tenant_id = ?1 AND plan_id = ?2`
)

// move changes the plan's status, as the last thing that happens to it in a checkpoint.
func (t *transaction) move(ctx context.Context, by term, j *journal, m engine.Move) error {
	p := j.plan
	resolves := m.Event == plan.EventResolveApplied || m.Event == plan.EventResolveRolledBack
	next, err := plan.Next(m.From, p.ClaimedFrom, m.Event)
	if err != nil {
		return fmt.Errorf("move: %w", err)
	}
	if next != m.To {
		return fmt.Errorf("move: a plan that is %s becomes %s by %s, not %s", m.From, next, m.Event, m.To)
	}
	guard := sql.NullInt64{Int64: int64(by.held.Fence), Valid: !resolves}
	from, fence := sql.NullString{}, sql.NullInt64{}
	if m.To.InFlight() {
		from = sql.NullString{String: string(p.ClaimedFrom), Valid: p.ClaimedFrom != ""}
		fence = guard
	}
	if j.settled || resolves || m.Event == plan.EventSucceed {
		p.Attempts = 0
	}
	if m.Outcome != "" {
		p.Outcome = m.Outcome
	}
	if (m.Outcome == plan.OutcomeFailed || m.Outcome == plan.OutcomeInterrupted) && p.Attempts >= plan.MaxAttempts {
		p.Outcome = plan.OutcomeQuarantined
	}
	switch {
	case m.Failure != nil:
		p.LastError = m.Failure
	case m.Event == plan.EventSucceed, resolves:
		p.LastError = nil
	}
	if m.Event == plan.EventResolveApplied {
		p.Cycle = max(p.Cycle, 1)
	}
	rests := j.record()
	if rests.Plan.Status = m.To; rests.Partial() && !p.Outcome.Unsettled() {
		return fmt.Errorf("move: plan %s would be partial and say %s", p.ID, p.Outcome)
	}
	n, err := t.exec(ctx, movePlanSQL, by.held.Tenant, p.ID, m.From, m.To, from, fence, p.Outcome, p.Attempts, p.Cycle,
		encodeFailure(p.LastError), guard)
	if err != nil {
		return err
	}
	if n != 1 {
		return fmt.Errorf("move: plan %s is not %s under this lock", p.ID, m.From)
	}
	switch {
	case m.To == plan.Pending && !j.record().Touched():
		_, err = t.exec(ctx, dropSeqSQL, by.held.Tenant, p.ID)
	case m.Event == plan.EventResolveApplied:
		_, err = t.exec(ctx, giveSeqSQL, by.held.Tenant, p.ID)
	}
	if err != nil {
		return err
	}
	moved := j.plan
	moved.Status = m.From
	return t.record(ctx, by, event{kind: m.Event, plan: moved, to: m.To, outcome: p.Outcome, reason: m.Reason, failure: m.Failure})
}

// event is what record writes of a term's doing. Plan is the plan as it was before; its status is where it came from.
type event struct {
	kind    plan.Event
	plan    plan.Plan
	change  string // of a plan that is new
	to      plan.Status
	outcome plan.Outcome
	reason  string
	failure *plan.Failure
}

const writeEventSQL = `
INSERT INTO belay_event (tenant_id, seq, at, fence, plan_id, change_id, kind, status_from, status_to, outcome, operation, holder,
    host, pid, reason, failure)
VALUES (?1, (SELECT COALESCE(max(seq), 0) + 1 FROM belay_event WHERE tenant_id = +?1), ` + now + `, ?2, nullif(?3, ''), ?4, ?5, ?6, ?7,
    ?8, ?9, nullif(?10, ''), ?11, ?12, ?13, ?14)`

func (t *transaction) record(ctx context.Context, by term, e event) error {
	change := e.plan.Change
	if change == "" {
		change = e.change
	}
	_, err := t.exec(ctx, writeEventSQL, by.held.Tenant, by.held.Fence, e.plan.ID, change, e.kind, e.plan.Status, e.to, e.outcome,
		by.operation, by.held.Holder, by.process.Host, by.process.PID, e.reason, encodeFailure(e.failure))
	return err
}

const storeChangeSQL = `
INSERT INTO belay_change (digest, change_id, body, created_at) VALUES (?1, ?2, ?3, ` + nextChangeTime + `)
ON CONFLICT (digest) DO NOTHING`

// nextChangeTime is later than that of every other change with this id, so that the last one stored can be told.
const nextChangeTime = `max(` + now + `, (SELECT COALESCE(max(created_at), 0) + 1 FROM belay_change WHERE change_id = +?2))`

func (t *transaction) storeChange(ctx context.Context, digest plan.Digest, change *plan.Change) error {
	_, err := t.exec(ctx, storeChangeSQL, digest, change.ID, change.Encode())
	return err
}
