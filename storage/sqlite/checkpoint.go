package sqlite

import (
	"context"
	"fmt"
	"time"

	"github.com/belayhq/belay/engine"
	"github.com/belayhq/belay/internal/failpoint"
	"github.com/belayhq/belay/plan"
	"github.com/belayhq/belay/sitelock"
)

// Checkpoint is the one door to a tenant's data: begin, prove, steps, journal, move, release, commit. Without a release
// the lease is extended last, because the open transaction kept renewals out.
func (s *Store) Checkpoint(ctx context.Context, held sitelock.Held, group engine.Group) error {
	err := s.write(ctx, func(own context.Context, t *transaction) error {
		l, err := t.prove(own, held)
		if err != nil {
			return err
		}
		by := term{held: held, process: l.process(), operation: l.Operation}
		if err := s.carryOut(ctx, t, by, group); err != nil {
			return err
		}
		switch {
		case group.Release:
			err = t.release(own, held)
		case group.Lease > 0:
			err = t.extend(own, held, group.Lease)
		}
		if err != nil {
			return err
		}
		return failpoint.Hit(failpoint.BeforeCommit)
	})
	if err != nil {
		return fmt.Errorf("checkpoint: %w", err)
	}
	return nil
}

// carryOut runs the steps and writes what the journal and the plan say of them. Only the steps themselves end with ctx.
func (s *Store) carryOut(ctx context.Context, t *transaction, by term, group engine.Group) error {
	own := context.WithoutCancel(ctx)
	j, err := t.journalOf(own, by.held, group.Plan)
	if err != nil {
		return err
	}
	if err := claimedBy(by.held, j.plan, group.Move); err != nil {
		return err
	}
	last := -1 // the last step that had an effect
	for i, step := range group.Steps {
		if err := ctx.Err(); err != nil {
			return context.Cause(ctx)
		}
		if i > 0 && group.Budget > 0 && time.Since(t.begun) > group.Budget {
			return engine.ErrBudgetSpent
		}
		if err := j.demand(step); err != nil {
			return err
		}
		image := step.Image
		if runs(step) {
			last = i
			captured, err := s.runStep(ctx, t, i, step)
			if err != nil {
				return err
			}
			if captured != nil {
				image = captured
			}
		}
		if err := t.enter(own, by.held, j, group.Cycle, step, image); err != nil {
			return err
		}
	}
	if last >= 0 {
		if err := s.checkReferences(own, t); err != nil {
			return &engine.StepFailure{Step: last, Err: err}
		}
	}
	switch {
	case group.Move != nil:
		return t.move(own, by, j, *group.Move)
	case j.settled && j.plan.Attempts != 0:
		return t.progress(own, by.held, j)
	}
	return nil
}

// claimedBy demands that this term claimed the plan; a resolve is for a plan that nobody has in flight.
func claimedBy(held sitelock.Held, p plan.Plan, m *engine.Move) error {
	if m != nil && (m.Event == plan.EventResolveApplied || m.Event == plan.EventResolveRolledBack) {
		if p.InFlight() {
			return fmt.Errorf("plan %s is in flight and cannot be resolved", p.ID)
		}
		return nil
	}
	if p.Fence != held.Fence {
		return fmt.Errorf("plan %s is not in flight under this lock", p.ID)
	}
	return nil
}

// runs reports whether the step runs anything. An intent never does: its effect comes after the commit.
func runs(step engine.GroupStep) bool {
	return !intent(step.State) && (len(step.Statements) > 0 || step.Action != nil || step.Verify != nil)
}

const extendLockSQL = `UPDATE belay_site_lock SET expires_at = ` + now + ` + ? WHERE tenant_id = ? AND holder = ? AND fence = ?`

func (t *transaction) extend(ctx context.Context, held sitelock.Held, lease time.Duration) error {
	_, err := t.exec(ctx, extendLockSQL, lease.Milliseconds(), held.Tenant, held.Holder, held.Fence)
	return err
}
