package engine

import (
	"context"
	"errors"
	"fmt"

	"github.com/belayhq/belay/internal/failpoint"
	"github.com/belayhq/belay/internal/logkey"
	"github.com/belayhq/belay/plan"
)

// moveOf is the move that an event makes of a plan: every move of the engine is made here, and so is an edge of [plan.Next].
func moveOf(p plan.Plan, event plan.Event, outcome plan.Outcome, failure *plan.Failure) (*Move, error) {
	to, err := plan.Next(p.Status, p.ClaimedFrom, event)
	if err != nil {
		return nil, err
	}
	return &Move{Event: event, From: p.Status, To: to, Outcome: outcome, Failure: failure}, nil
}

// finishIn adds the move that ends the claim, and the release, to the group that leaves no step.
func (r *run) finishIn(g *Group) error {
	move, err := moveOf(r.record.Plan, plan.EventSucceed, r.outcome, r.because)
	if err != nil {
		return err
	}
	g.Move, g.Release = move, !r.keepLock
	return nil
}

// turnBack moves the plan from applying to rolling_back, which makes the run a rollback.
func (r *run) turnBack(ctx context.Context, cause error) error {
	move, err := moveOf(r.record.Plan, plan.EventUndo, "", failureOf(cause, nil))
	if err != nil {
		return err
	}
	group := r.newGroup()
	group.Move = move
	r.direction, r.oneByOne = plan.Down, false
	r.outcome, r.because = plan.OutcomeRolledBack, failureOf(cause, nil)
	return r.commitAlone(ctx, group)
}

// fail writes that the claim ends without success, in a transaction of its own, and frees the lock with it; also that an
// external call has returned whose effect is in doubt, or the next run would wait out its time. It outlives cancellation
// and Abort. If it cannot be written, the next acquire recovers the plan.
func (r *run) fail(ctx context.Context, outcome plan.Outcome, failure *plan.Failure) {
	log := r.engine.logOf(r.tenant).With().Str(logkey.Plan, string(r.record.Plan.ID)).Str(logkey.Change, r.record.Plan.Change).Logger()
	move, err := moveOf(r.record.Plan, plan.EventFail, outcome, failure)
	if err != nil {
		log.Error().Err(err).Msg("status not written")
		return
	}
	group := r.newGroup()
	group.Move, group.Release = move, true
	if s := r.returned; s != nil && (r.record.State(s.Ordinal) == plan.StepIntent || r.record.State(s.Ordinal) == plan.StepUndoIntent) {
		group.Steps = []GroupStep{{Ordinal: s.Ordinal, ID: s.Step.ID, State: r.record.State(s.Ordinal)}}
	}
	ctx, cancel := finishing(ctx)
	defer cancel()
	err = r.repeated(ctx, func() error {
		return r.lock.Releasing(ctx, func(ctx context.Context) error { return r.finish(ctx, group) })
	})
	switch {
	case errors.Is(err, ErrUnknownOutcome):
		log.Warn().Err(err).Msg("status perhaps not written; if so, the next apply or rollback recovers the plan")
		return
	case err != nil:
		log.Warn().Err(err).Msg("status not written; the next apply or rollback recovers the plan")
		return
	}
	r.note(group)
}

func (r *run) finish(ctx context.Context, group Group) error {
	if err := failpoint.Hit(failpoint.BeforeFinish); err != nil {
		return err
	}
	err := r.store.Checkpoint(ctx, r.lock.Held(), group)
	if failure := failpoint.Hit(failpoint.AfterFinish); failure != nil {
		return fmt.Errorf("%w: %w", ErrUnknownOutcome, failure)
	}
	return err
}
