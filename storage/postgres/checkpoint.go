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

// proof is the proof of custody. It raises, so that nothing behind it takes effect. It runs in a transaction's first statement,
// whose search path is still the role's: its operators are those of pg_catalog by name.
const proof = `
    CASE WHEN (SELECT l.fence FROM belay.site_lock l
        WHERE l.tenant_id OPERATOR(pg_catalog.=) $7::uuid AND l.holder OPERATOR(pg_catalog.=) $8::uuid
          AND l.fence OPERATOR(pg_catalog.=) $9::bigint FOR KEY SHARE) IS NULL
    THEN belay.refuse('BY001', 'lock lost') END`

// proveSQL begins a transaction of a holder.
const proveSQL = `SELECT ` + settings + `, ` + planOnce + `, ` + proof

// custody begins transactions of a holder.
type custody struct {
	held   sitelock.Held
	limits limits
}

// begin queues the settings with the proof.
func (c custody) begin(tx *transaction) { tx.own(proveSQL, c.args(tx)...) }

func (c custody) args(tx *transaction) []any {
	return append(tx.settings(c.limits), c.held.Tenant, c.held.Holder, c.held.Fence)
}

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
	begin := custody{held, own}.begin
	if first := firstOf(group.Steps); first >= 0 {
		begin = entry{custody{held, own}, group, first}.begin
	}
	err := s.transact(ctx, s.pool, writing, begin, func(tx *transaction) error {
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
		if !group.Progressed && progressed(group) {
			tx.own(resetAttemptsSQL, held.Tenant, group.Plan, held.Fence)
		}
		tx.own(demandInFlightSQL, held.Tenant, group.Plan, held.Fence)
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
