package engine

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/belayhq/belay/internal/failpoint"
	"github.com/belayhq/belay/plan"
)

// lookup returns the action of a step. The change was checked when the operation began.
func (r *run) lookup(s *plan.ProgramStep) action {
	a, _ := r.engine.config.Actions.lookup(s.Step.Action.Name)
	return a
}

// external reports whether a step's effect is outside the tenant's database, and so cannot share a transaction.
func (r *run) external(s *plan.ProgramStep) bool {
	if s.Step.Kind != plan.Action || !r.lookup(s).external {
		return false
	}
	return r.direction == plan.Up || r.lookup(s).hasUndo && s.Step.Undo == nil
}

// call is what an action is told of a step, in one direction.
func (r *run) call(s *plan.ProgramStep, d plan.Direction) call {
	p := r.record.Plan
	attempt, mayHaveRun := 1, false
	for _, e := range r.record.Journal {
		if e.Ordinal == s.Ordinal && (e.State == plan.StepIntent || e.State == plan.StepUndoIntent) {
			attempt, mayHaveRun = e.Attempt, true
		}
	}
	return call{
		Tenant: r.tenant, PlanID: p.ID, StepID: s.Step.ID, Direction: d, Fence: r.lock.Held().Fence,
		IdempotencyKey: fmt.Sprintf("%s/%s/%d/%s", p.ID, s.Step.ID, p.Cycle, d),
		Attempt:        attempt, MayHaveRun: mayHaveRun, Args: s.Step.Action.Args,
	}
}

// transactional makes an action on the tenant's own database a part of its checkpoint; nil if there is nothing to run. The
// before-image is read first: inside the checkpoint, a second connection could be one too many.
func (r *run) transactional(ctx context.Context, s *plan.ProgramStep) (func(context.Context, Tx) ([]byte, error), error) {
	a := r.lookup(s)
	if r.direction == plan.Down && (s.Step.Undo != nil || a.undo == nil) {
		return nil, nil //nolint:nilnil // no action is a valid part of a step
	}
	down := r.direction == plan.Down
	c := r.call(s, r.direction)
	if down {
		var err error
		if c.Before, err = r.image(ctx, r.record.Plan.ID, s); err != nil {
			return nil, err
		}
	}
	return func(_ context.Context, tx Tx) ([]byte, error) {
		ctx, cancel := r.actionContext(ctx, r.timeLeft(ctx, s))
		defer cancel()
		guarded := &closableTx{tx: tx}
		defer guarded.closed.Store(true)
		var before []byte
		err := protect(ctx, r.engine.config.ActionGrace, func() (err error) {
			if down {
				return a.undo(ctx, guarded, c)
			}
			before, err = a.do(ctx, guarded, c)
			return err
		})
		if err != nil || down {
			return nil, err
		}
		return r.kept(s, before), nil
	}, nil
}

// externalStep carries out a step that cannot share a transaction: intent and before-image, effect, done. last says
// that no step follows, so that its done mark may end the claim.
func (r *run) externalStep(ctx context.Context, s *plan.ProgramStep, last bool) error {
	settled, err := r.settleDoubt(ctx, s)
	if err != nil {
		return r.failed(ctx, s, err)
	}
	if !settled {
		if err := r.outside(ctx, s); err != nil {
			return r.failed(ctx, s, err)
		}
	}
	return r.failed(ctx, s, r.mark(ctx, s, r.afterwards(), last))
}

// beforehand and afterwards name the journal states around an effect in the run's direction.
func (r *run) beforehand() plan.StepState {
	if r.direction == plan.Down {
		return plan.StepUndoIntent
	}
	return plan.StepIntent
}

func (r *run) afterwards() plan.StepState {
	if r.direction == plan.Down {
		return plan.StepUndone
	}
	return plan.StepDone
}

// settleDoubt deals with a step that an earlier attempt left in doubt. It first waits until a former holder's call must
// have run out of time, unless the resource itself refuses stale fences, then asks the action what happened. It reports
// whether the step already is as this run wants it.
func (r *run) settleDoubt(ctx context.Context, s *plan.ProgramStep) (bool, error) {
	state := r.record.State(s.Ordinal)
	if state != plan.StepIntent && state != plan.StepUndoIntent {
		return false, nil
	}
	a := r.lookup(s)
	if !a.fencesChecked {
		if err := r.waitOut(ctx, s); err != nil {
			return false, err
		}
	}
	if a.inspect == nil {
		return false, nil
	}
	ctx, cancel := r.actionContext(ctx, r.timeLeft(ctx, s))
	defer cancel()
	inDoubt := plan.Up
	if state == plan.StepUndoIntent {
		inDoubt = plan.Down
	}
	c := r.call(s, inDoubt)
	var err error
	if c.Before, err = r.image(ctx, r.record.Plan.ID, s); err != nil {
		return false, err
	}
	var happened bool
	err = protect(ctx, r.engine.config.ActionGrace, func() (err error) {
		happened, err = a.inspect(ctx, c)
		return err
	})
	if err != nil {
		return false, fmt.Errorf("inspect: %w", err)
	}
	// An effect that happened is what an apply wants, one that did not is what a rollback wants; an undo the reverse.
	inPlace := happened == (state == plan.StepIntent)
	return inPlace == (r.direction == plan.Up), nil
}

// waitOut lets the deadline of a call that a former holder may still be making pass.
func (r *run) waitOut(ctx context.Context, s *plan.ProgramStep) error {
	for _, e := range r.record.Journal {
		if e.Ordinal != s.Ordinal || e.WaitLeft <= 0 {
			continue
		}
		timer := time.NewTimer(e.WaitLeft)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-ctx.Done():
		case <-r.engine.abort.Done():
		case <-r.lock.Context().Done():
		}
		if err := r.mayGoOn(ctx); err != nil {
			return err
		}
	}
	return nil
}

// outside makes the coming effect durable as an intent, with its before-image, and calls the action.
func (r *run) outside(ctx context.Context, s *plan.ProgramStep) error {
	was := r.record.State(s.Ordinal)
	image, err := r.capture(ctx, s, was)
	if err != nil {
		return fmt.Errorf("capture: %w", err)
	}
	// The call's time begins before its intent is written: it ends no later than the deadline that others wait out.
	limit := r.timeLeft(ctx, s)
	calling, cancel := r.actionContext(ctx, limit)
	defer cancel()
	group := r.newGroup()
	group.Steps = []GroupStep{{Ordinal: s.Ordinal, ID: s.Step.ID, State: r.beforehand(), Image: image, Timeout: limit}}
	if err := r.commit(ctx, group); err != nil {
		return err
	}
	return r.effect(calling, s, was == r.beforehand() || was == plan.StepUndoIntent)
}

// capture reads the before-image, unless an earlier attempt did: it would take its own effect for what was there before.
func (r *run) capture(ctx context.Context, s *plan.ProgramStep, was plan.StepState) ([]byte, error) {
	a := r.lookup(s)
	if r.direction == plan.Down || was != "" && was != plan.StepUndone {
		return nil, nil
	}
	if a.capture == nil {
		return r.kept(s, nil), nil
	}
	ctx, cancel := r.actionContext(ctx, r.timeLeft(ctx, s))
	defer cancel()
	c := r.call(s, r.direction)
	var image []byte
	err := protect(ctx, r.engine.config.ActionGrace, func() (err error) {
		image, err = a.capture(ctx, c)
		return err
	})
	if err != nil {
		return nil, err
	}
	return r.kept(s, image), nil
}

// effect calls the action, between two proofs of the lock.
func (r *run) effect(ctx context.Context, s *plan.ProgramStep, mayHaveRun bool) error {
	act := r.lookup(s).effect
	if r.direction == plan.Down {
		act = r.lookup(s).undoEffect
	}
	c := r.call(s, r.direction)
	c.MayHaveRun = mayHaveRun
	r.returned = s // until the call begins
	var err error
	if c.Before, err = r.image(ctx, r.record.Plan.ID, s); err != nil {
		return err
	}
	if err := r.lock.AssertHeld(ctx); err != nil {
		return err
	}
	if err := failpoint.Hit(failpoint.BeforeEffect); err != nil {
		return err
	}
	if err := r.mayCall(ctx); err != nil {
		return err
	}
	r.returned = nil
	err = protect(ctx, r.engine.config.ActionGrace, func() error { return act(ctx, c) })
	if errors.Is(err, ErrLeftBehind) {
		r.leftBehind = true
	} else {
		r.returned = s
	}
	return errors.Join(err, failpoint.Hit(failpoint.AfterEffect))
}

// mayCall says whether an effect may begin. It goes by the clock: a process that was stopped and goes on is faster than the
// timers that end its contexts, and by then another may have waited the call's time out.
func (r *run) mayCall(ctx context.Context) error {
	if err := r.lock.Err(); err != nil {
		return err
	}
	if end, bounded := ctx.Deadline(); bounded && ctx.Err() == nil && !time.Now().Before(end) {
		return context.DeadlineExceeded
	}
	return context.Cause(ctx)
}

// mark records how an effect ended, checks it, and, after the last step, ends the claim.
func (r *run) mark(ctx context.Context, s *plan.ProgramStep, state plan.StepState, last bool) error {
	group := r.newGroup()
	step := GroupStep{Ordinal: s.Ordinal, ID: s.Step.ID, State: state, Timeout: r.stepTimeout(s)}
	if r.direction == plan.Up {
		step.Verify = s.Step.Verify
	}
	group.Steps = r.withCovered(step, s)
	if last {
		if err := r.finishIn(&group); err != nil {
			return err
		}
	}
	return r.commit(ctx, group)
}
