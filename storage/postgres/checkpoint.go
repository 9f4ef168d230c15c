package postgres

import (
	"context"
	"fmt"
	"time"

	"github.com/belayhq/belay/engine"
	"github.com/belayhq/belay/internal/failpoint"
	"github.com/belayhq/belay/plan"
	"github.com/belayhq/belay/sitelock"
)

// proveSQL is the proof of custody. It raises, so that nothing behind it takes effect.
const proveSQL = `
SELECT CASE WHEN (SELECT l.fence FROM belay.site_lock l
        WHERE l.tenant_id = $1::uuid AND l.holder = $2::uuid AND l.fence = $3::bigint FOR KEY SHARE) IS NULL
    THEN belay.refuse('BY001', 'lock lost') END`

// Limits that a group gets if it brings none.
const (
	defaultIdle     = 30 * time.Second
	defaultLockWait = 5 * time.Second
)

// Checkpoint implements [engine.Store]. It is the one door: whatever a holder writes, it writes here.
func (s *Store) Checkpoint(ctx context.Context, held sitelock.Held, group engine.Group) error {
	if group.Limits.Idle <= 0 {
		group.Limits.Idle = defaultIdle
	}
	if group.Limits.LockWait <= 0 {
		group.Limits.LockWait = defaultLockWait
	}
	own := ownLimits
	own.idle = group.Limits.Idle
	err := s.transact(ctx, s.pool, writing, own, func(tx *transaction) error {
		tx.own(proveSQL, held.Tenant, held.Holder, held.Fence)
		if err := tx.steps(ctx, group); err != nil {
			return err
		}
		if err := tx.record(held, group); err != nil {
			return err
		}
		if err := failpoint.Hit(failpoint.BeforeCommit); err != nil {
			return err
		}
		return tx.commit(ctx)
	})
	if err != nil {
		return fmt.Errorf("checkpoint: %w", heldError(held, err))
	}
	return nil
}

// record queues everything that a group writes about itself.
func (tx *transaction) record(held sitelock.Held, group engine.Group) error {
	if len(group.Steps) > 0 {
		tx.journal(held, group)
		tx.images(held, group)
	}
	switch {
	case group.Move != nil:
		if err := tx.move(held, group); err != nil {
			return err
		}
	case len(group.Steps) > 0:
		tx.own(progressSQL, held.Tenant, group.Plan, held.Fence, progressed(group))
	}
	if group.Release {
		tx.own(releaseHeldSQL, held.Tenant, held.Holder, held.Fence)
	}
	return nil
}

// progressed reports whether a step of the group was carried out, as opposed to announced.
func progressed(group engine.Group) bool {
	for _, step := range group.Steps {
		if step.State == plan.StepDone || step.State == plan.StepUndone {
			return true
		}
	}
	return false
}
