package storagetest

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/belayhq/belay/engine"
	"github.com/belayhq/belay/plan"
	"github.com/belayhq/belay/sitelock"
)

// term is a site whose lock is held, with the plan that was claimed.
type term struct {
	*site
	held      sitelock.Held
	claimed   plan.Record
	direction plan.Direction
	recovered []sitelock.Recovered
}

// begin takes the site's lock and makes the claim, which must succeed.
func (s *site) begin(t *testing.T, claim *sitelock.Claim) term {
	t.Helper()
	grant := s.acquire(t, claim)
	if grant.Claimed == nil {
		t.Fatalf("the claim of %s %s was refused", claim.Direction, claim.Change)
	}
	return term{site: s, held: grant.Held, claimed: *grant.Claimed, direction: claim.Direction, recovered: grant.Recovered}
}

// group is a checkpoint of this term as most tests want it.
func (x term) group(steps ...engine.GroupStep) engine.Group {
	return engine.Group{
		Plan: x.claimed.Plan.ID, Scope: x.scope, Direction: x.direction, Cycle: x.claimed.Plan.Cycle, Steps: steps,
		Limits: engine.Limits{Idle: 30 * time.Second, LockWait: 5 * time.Second},
	}
}

func (x term) checkpoint(t *testing.T, group engine.Group) {
	t.Helper()
	if err := x.db.Checkpoint(t.Context(), x.held, group); err != nil {
		t.Fatalf("checkpoint: %v", err)
	}
}

// fails runs a checkpoint that must fail without a trace.
func (x term) fails(t *testing.T, group engine.Group) {
	t.Helper()
	_ = x.failure(t, group)
}

// failure is fails for a caller who looks at the error.
func (x term) failure(t *testing.T, group engine.Group) error {
	t.Helper()
	var err error
	x.unchanged(t, func() { err = x.db.Checkpoint(t.Context(), x.held, group) })
	if err == nil {
		t.Fatal("the checkpoint succeeded")
	}
	return err
}

// failsIn is fails, with a failure that names the step.
func (x term) failsIn(t *testing.T, step int, group engine.Group) engine.StepFailure {
	t.Helper()
	err := x.failure(t, group)
	failure, ok := errors.AsType[*engine.StepFailure](err)
	if !ok {
		t.Fatalf("not a step's failure: %T: %v", err, err)
	}
	if failure.Step != step {
		t.Errorf("the failure is of step %d of the group, want %d: %v", failure.Step, step, err)
	}
	return *failure
}

// put is a step that adds the row k to the site's table, and take is its undo.
func (s *site) put(k int) engine.GroupStep {
	return s.step(k, plan.StepDone, fmt.Sprintf("INSERT INTO %s VALUES (%d, 'up')", s.table, k))
}

func (s *site) take(k int) engine.GroupStep {
	return s.step(k, plan.StepUndone, fmt.Sprintf("DELETE FROM %s WHERE k = %d", s.table, k))
}

// step is a step of the given statements, each on a line of its own.
func (s *site) step(ordinal int, state plan.StepState, statements ...string) engine.GroupStep {
	step := engine.GroupStep{Ordinal: ordinal, ID: stepID(ordinal), State: state, Timeout: 20 * time.Second}
	for i, sql := range statements {
		step.Statements = append(step.Statements, plan.Statement{SQL: sql, File: fmt.Sprintf("sql/%d.sql", ordinal), Line: i + 1, RowsOnly: true})
	}
	return step
}

// recorded is a step that only writes its journal row.
func recorded(ordinal int, state plan.StepState) engine.GroupStep {
	return engine.GroupStep{Ordinal: ordinal, ID: stepID(ordinal), State: state, Timeout: time.Minute}
}

// succeed ends the term: the last move and the release in one transaction.
func (x term) succeed(t *testing.T, steps ...engine.GroupStep) {
	t.Helper()
	move := engine.Move{Event: plan.EventSucceed, From: plan.Applying, To: plan.Applied, Outcome: plan.OutcomeApplied}
	if x.direction == plan.Down {
		move = engine.Move{Event: plan.EventSucceed, From: plan.RollingBack, To: plan.Pending, Outcome: plan.OutcomeRolledBack}
	}
	x.finish(t, move, steps...)
}

// fail ends the term and returns the plan to where it was claimed from.
func (x term) fail(t *testing.T, steps ...engine.GroupStep) {
	t.Helper()
	x.finish(t, engine.Move{
		Event: plan.EventFail, From: x.claimed.Plan.Status, To: x.claimed.Plan.ClaimedFrom, Outcome: plan.OutcomeFailed,
		Failure: &plan.Failure{Step: "step-9", Message: "out of luck"},
	}, steps...)
}

func (x term) finish(t *testing.T, move engine.Move, steps ...engine.GroupStep) {
	t.Helper()
	group := x.group(steps...)
	group.Move, group.Release = &move, true
	x.checkpoint(t, group)
}

// applied applies all steps of a change to the site.
func (s *site) applied(t *testing.T, c *plan.Change) {
	t.Helper()
	x := s.begin(t, apply(c))
	var steps []engine.GroupStep
	for i := range c.Steps {
		steps = append(steps, recorded(i, plan.StepDone))
	}
	x.succeed(t, steps...)
}

// partial applies the first step of a change to the site, and fails.
func (s *site) partial(t *testing.T, c *plan.Change) {
	t.Helper()
	s.begin(t, apply(c)).fail(t, recorded(0, plan.StepDone))
}

// lost reports whether err says that the caller's custody is gone.
func lost(err error) bool {
	_, ok := errors.AsType[*sitelock.LockLostError](err)
	return ok || errors.Is(err, sitelock.ErrNotHeld)
}
