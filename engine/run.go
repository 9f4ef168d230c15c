package engine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/belayhq/belay/internal/failpoint"
	"github.com/belayhq/belay/plan"
	"github.com/belayhq/belay/sitelock"
	"github.com/belayhq/belay/tenant"
)

// run carries one claimed plan in one direction, under one lock. Apply and rollback are the same loop: take the steps
// that are left, make a group of them, commit it, until none is left; the last group carries the move that ends the
// claim, and frees the lock.
type run struct {
	*operation
	program   *plan.Program
	record    plan.Record
	direction plan.Direction
	// oneByOne is set once a shared checkpoint has failed.
	oneByOne bool
	// keepLock leaves the lock held when the plan is finished, for the next plan of the same operation.
	keepLock bool
	// outcome is what the plan's last move records, and because why the plan turned back; nil if it did not.
	outcome plan.Outcome
	because *plan.Failure
	// finished says that the plan rests: its last move is committed.
	finished bool
	// leftBehind says that an external action has ignored its end and may still be at work.
	leftBehind bool
	// returned is the external step whose call, the last one made, has returned: nobody need wait for it. Nil while a call
	// is under way, and after one left behind.
	returned *plan.ProgramStep
	// stumbles counts failures in a row of a kind that looking again may mend.
	stumbles int
	// undone collects the steps taken back, newest first.
	undone []string
}

// errCancelled is why a run stopped when its caller asked it to.
var errCancelled = errors.New("cancelled")

// steps runs until no step is left, and finishes the plan. On any error the plan is still in flight, unless the lock is
// lost.
func (r *run) steps(ctx context.Context) error {
	looks := 0
	for {
		if err := r.mayGoOn(ctx); err != nil {
			return err
		}
		left := r.remaining()
		var err error
		if len(left) > 0 && r.external(left[0]) {
			err = r.externalStep(ctx, left[0], len(left) == 1)
		} else {
			err = r.groupOf(ctx, left)
		}
		if errors.Is(err, errLookAgain) {
			if looks++; looks > looksMax {
				return fmt.Errorf("commits keep losing their answer: %w", ErrUnknownOutcome)
			}
			err = nil
		}
		switch {
		case err != nil:
			return r.orLost(err)
		case r.finished:
			return nil
		}
	}
}

// looksMax bounds how often one run finds out what became of a commit.
const looksMax = 20

// remaining lists the steps left in the run's direction: those not in place, oldest first, or those in place or in doubt,
// newest first. A step that an earlier one's undo takes back is left to that one: it is in place until then.
func (r *run) remaining() []*plan.ProgramStep {
	var left []*plan.ProgramStep
	for i := range r.program.Steps {
		s := &r.program.Steps[i]
		switch {
		case r.direction == plan.Up && r.record.State(s.Ordinal) != plan.StepDone:
			left = append(left, s)
		case r.direction == plan.Down && r.present(s) && !r.coveredByOther(s):
			left = append(left, s)
		}
	}
	if r.direction == plan.Down {
		slices.Reverse(left)
	}
	return left
}

// present reports whether a step is in place or in doubt.
func (r *run) present(s *plan.ProgramStep) bool {
	state := r.record.State(s.Ordinal)
	return state != "" && state != plan.StepUndone
}

func (r *run) coveredByOther(s *plan.ProgramStep) bool {
	return s.Step.Undo != nil && s.Step.Undo.CoveredBy != "" && slices.ContainsFunc(r.program.Steps, func(other plan.ProgramStep) bool {
		return other.Step.ID == s.Step.Undo.CoveredBy && r.present(&other)
	})
}

// withCovered is a step with, on the way down, the marks of the steps that its undo takes back too, newest first: they go in
// the same checkpoint, or the journal would call undone what is still in place.
func (r *run) withCovered(step GroupStep, s *plan.ProgramStep) []GroupStep {
	if r.direction == plan.Up {
		return []GroupStep{step}
	}
	var steps []GroupStep
	for i := range slices.Backward(r.program.Steps) {
		other := &r.program.Steps[i]
		if other.Step.Undo != nil && other.Step.Undo.CoveredBy == s.Step.ID && r.present(other) {
			steps = append(steps, GroupStep{Ordinal: other.Ordinal, ID: other.Step.ID, State: plan.StepUndone})
		}
	}
	return append(steps, step)
}

// groupOf commits the next checkpoint: as many of the steps left as may share one.
func (r *run) groupOf(ctx context.Context, left []*plan.ProgramStep) error {
	members := r.membersOf(left)
	group := r.newGroup()
	var owners []*plan.ProgramStep // of the group's steps
	for _, s := range members {
		step, err := r.groupStep(ctx, s)
		if err != nil {
			return r.failed(ctx, s, err)
		}
		group.Steps = append(group.Steps, r.withCovered(step, s)...)
		for len(owners) < len(group.Steps) {
			owners = append(owners, s)
		}
	}
	if len(members) == len(left) {
		if err := r.finishIn(&group); err != nil {
			return err
		}
	}
	err := r.commit(ctx, group)
	if len(members) > 1 && r.mayPassAlone(ctx, err) {
		r.oneByOne = true
		return nil
	}
	if failure, ok := errors.AsType[*StepFailure](err); ok {
		return r.failed(ctx, owners[failure.Step], failure)
	}
	if len(members) == 1 {
		return r.failed(ctx, members[0], err)
	}
	return err
}

// mayPassAlone says whether a failed group is tried again one step at a time: what failed may be the sharing. Once the
// operation's time is up nothing is tried again, and the step that used it up is the one to name.
func (r *run) mayPassAlone(ctx context.Context, err error) bool {
	_, failed := errors.AsType[*StepFailure](err)
	return failed && !errors.Is(ctx.Err(), context.DeadlineExceeded) || errors.Is(err, ErrBudgetSpent)
}

// membersOf returns the steps that share the next checkpoint: short sql steps, up to and including the first that does
// more than write rows. An action on its own database closes its group, one outside it never joins one.
func (r *run) membersOf(left []*plan.ProgramStep) []*plan.ProgramStep {
	if len(left) == 0 {
		return nil
	}
	most := r.engine.config.GroupSteps
	if r.oneByOne || r.program.Change.Checkpoint == plan.CheckpointStep {
		most = 1
	}
	n := 0
	for n < len(left) && n < most && !r.external(left[n]) {
		n++
		if !r.onlyRows(left[n-1]) {
			break
		}
	}
	return left[:n]
}

func (r *run) onlyRows(s *plan.ProgramStep) bool {
	if s.Step.Kind == plan.Action {
		return false
	}
	return !slices.ContainsFunc(r.statements(s), func(st plan.Statement) bool { return !st.RowsOnly })
}

func (r *run) statements(s *plan.ProgramStep) []plan.Statement {
	if r.direction == plan.Down {
		return s.Down
	}
	return s.Up
}

func (r *run) newGroup() Group {
	c := r.engine.config
	return Group{
		Plan: r.record.Plan.ID, Scope: r.tenant.Target.Scope, Direction: r.direction, Cycle: r.record.Plan.Cycle,
		Lease: c.Lease, Budget: c.GroupBudget, Progressed: r.record.Plan.Attempts == 0,
		Limits: Limits{Idle: c.Lease / 2, LockWait: c.LockWait},
	}
}

// groupStep is a sql step, or an action on the tenant's own database, as data for the store.
func (r *run) groupStep(ctx context.Context, s *plan.ProgramStep) (GroupStep, error) {
	g := GroupStep{
		Ordinal: s.Ordinal, ID: s.Step.ID, State: plan.StepDone, New: r.record.State(s.Ordinal) == "", Timeout: r.timeLeft(ctx, s),
	}
	if r.direction == plan.Down {
		g.State = plan.StepUndone
	}
	if r.direction == plan.Up {
		g.Verify = s.Step.Verify
	}
	if s.Step.Kind == plan.Action {
		action, err := r.transactional(ctx, s)
		g.Action = action
		return g, err
	}
	g.Statements = r.statements(s)
	return g, nil
}

func (r *run) stepTimeout(s *plan.ProgramStep) time.Duration {
	if s.Step.Kind == plan.Action {
		return defaultTo(s.Step.Timeout, r.engine.config.ActionTimeout)
	}
	return defaultTo(s.Step.Timeout, r.engine.config.StepTimeout)
}

// timeLeft is the step's timeout, or what is left of the operation's where that is less.
func (r *run) timeLeft(ctx context.Context, s *plan.ProgramStep) time.Duration {
	limit := r.stepTimeout(s)
	if end, bounded := ctx.Deadline(); bounded {
		limit = min(limit, max(time.Until(end).Round(time.Millisecond), time.Millisecond))
	}
	return limit
}

// commit makes a checkpoint and takes note of it. Transactions the database wants repeated are; an outcome that nobody
// knows is found out, after which the run goes on with what it found.
func (r *run) commit(ctx context.Context, group Group) error {
	err := r.repeated(ctx, func() error { return r.tryCommit(ctx, group) })
	switch {
	case err == nil:
		r.stumbles = 0
		r.note(group)
		return nil
	case r.decided(err):
		return err
	case errors.Is(err, ErrUnknownOutcome):
		return r.findOut(ctx, err)
	case r.engine.abort.Err() != nil:
		return fmt.Errorf("%w: %w", errCancelled, err)
	}
	// Nothing of the group is in place. A new term and a new connection mend what a restart of the server broke; what
	// fails again after that is there to stay.
	if r.stumbles++; r.stumbles > stumblesMax {
		return err
	}
	return r.findOut(ctx, err)
}

const stumblesMax = 2

// commitAlone makes a checkpoint after which the run looks at its journal anyway.
func (r *run) commitAlone(ctx context.Context, group Group) error {
	if err := r.commit(ctx, group); err != nil && !errors.Is(err, errLookAgain) {
		return err
	}
	return nil
}

// decided reports whether an error is a last word: nothing of the group is in place, and asking again would not help.
func (r *run) decided(err error) bool {
	if _, failed := errors.AsType[*StepFailure](err); failed {
		return true
	}
	if _, lost := errors.AsType[*sitelock.LockLostError](err); lost {
		return true
	}
	return errors.Is(err, ErrBudgetSpent) || errors.Is(err, ErrRetryTransaction)
}

func (r *run) tryCommit(ctx context.Context, group Group) error {
	ctx, cancel := r.engine.uncancelled(ctx, group.patience())
	defer cancel()
	if err := failpoint.Hit(failpoint.BeforeCheckpoint); err != nil {
		return err
	}
	var err error
	sent := time.Now()
	transaction := func(ctx context.Context) error {
		err := r.store.Checkpoint(ctx, r.lock.Held(), group)
		if failure := failpoint.Hit(failpoint.AfterCheckpoint); failure != nil {
			return fmt.Errorf("%w: %w", ErrUnknownOutcome, failure)
		}
		return err
	}
	if group.Release {
		err = r.lock.Releasing(ctx, transaction)
	} else {
		err = r.lock.Proving(ctx, transaction)
	}
	if err == nil && !group.Release && r.store.Dialect() == tenant.SQLite {
		r.lock.Extended(sent)
	}
	return err
}

// patience is how long a checkpoint may take before its connection is given up: every statement at its own limit, and
// some more for the network.
func (g *Group) patience() time.Duration {
	const network = 10 * time.Second
	total := network
	for _, s := range g.Steps {
		total += s.Timeout * time.Duration(len(s.Statements)+2)
	}
	return total
}

// note brings the run's own picture of the plan up to date after a commit.
func (r *run) note(group Group) {
	for i := range group.Steps {
		s := &group.Steps[i]
		if s.returned() {
			continue // its step is where it was
		}
		r.set(s.Ordinal, s.ID, s.State)
		switch s.State {
		case plan.StepDone:
			r.record.Plan.Attempts = 0
			r.observe(KindStepDone, s.ID, nil)
		case plan.StepUndone:
			r.record.Plan.Attempts = 0
			r.undone = append(r.undone, s.ID)
			r.observe(KindStepUndone, s.ID, nil)
		case plan.StepIntent, plan.StepUndoIntent:
		}
	}
	if group.Move != nil {
		r.record.Plan.Status = group.Move.To
		r.finished = !group.Move.To.InFlight()
	}
}

func (r *run) set(ordinal int, id string, state plan.StepState) {
	for i := range r.record.Journal {
		if e := &r.record.Journal[i]; e.Ordinal == ordinal {
			*e = e.Next(state)
			e.WaitLeft = 0
			return
		}
	}
	entry := plan.Entry{Ordinal: ordinal, Step: id, Cycle: r.record.Plan.Cycle}
	r.record.Journal = append(r.record.Journal, entry.Next(state))
	slices.SortFunc(r.record.Journal, func(a, b plan.Entry) int { return a.Ordinal - b.Ordinal })
}

// giveUp ends a claim without success: the plan goes back to the status it was claimed from, with the cause on record, and
// with the error that then stopped its undo, if it turned back. Nothing is written if the lock is lost: the new holder has
// recovered the plan. It returns the later error, behind the loss of the lock if that shows only now.
func (r *run) giveUp(ctx context.Context, cause, undoErr error) error {
	last := cmp.Or(undoErr, cause)
	if _, lost := errors.AsType[*sitelock.LockLostError](last); lost || r.finished {
		return last
	}
	r.fail(ctx, r.outcomeAfter(cause, undoErr), failureOf(cause, undoErr))
	return r.orLost(last)
}

// outcomeAfter is what a claim that ends without success says of its plan; empty if it leaves it as it was.
func (r *run) outcomeAfter(cause, undoErr error) plan.Outcome {
	if undoErr != nil || !errors.Is(cause, errCancelled) {
		return plan.OutcomeFailed
	}
	rests := r.record
	rests.Plan.Status = rests.Plan.ClaimedFrom
	if rests.Touched() || rests.Partial() {
		return plan.OutcomeInterrupted
	}
	return ""
}

// failed names the step in an error that came from it. A step that ended because its caller asked it to was cancelled, it
// did not fail.
func (r *run) failed(ctx context.Context, s *plan.ProgramStep, err error) error {
	_, lost := errors.AsType[*sitelock.LockLostError](err)
	if err == nil || lost || errors.Is(err, errCancelled) || errors.Is(err, errLookAgain) {
		return err
	}
	step := &StepError{
		Tenant: r.tenant.Name, Change: r.record.Plan.Change, Plan: r.record.Plan.ID, Step: s.Step.ID, Direction: r.direction, Err: err,
	}
	if failure, ok := errors.AsType[*StepFailure](err); ok {
		step.File, step.Line, step.Err = failure.File, failure.Line, failure.Err
	}
	step.Err = AsRefusal(step.Err)
	if err := r.orCancelled(ctx, step); errors.Is(err, errCancelled) {
		return err
	}
	r.observe(KindStepFailed, step.Step, step)
	return step
}

func (r *run) observe(kind ProgressKind, step string, err error) {
	r.engine.config.Observe(Progress{
		At: time.Now(), Kind: kind, Tenant: r.tenant.ID, Name: r.tenant.Name, Plan: r.record.Plan.ID, Change: r.record.Plan.Change,
		Step: step, StepsDone: r.record.InPlace(), StepsTotal: r.record.Plan.StepsTotal, Err: err,
	})
}
