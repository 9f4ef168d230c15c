package engine

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/belayhq/belay/plan"
	"github.com/belayhq/belay/sitelock"
	"github.com/belayhq/belay/tenant"
)

// RollbackOptions tune one rollback. The zero value is the careful one.
type RollbackOptions struct {
	// LockTimeout is how long to wait for a lock that someone else has. Zero does not wait.
	LockTimeout time.Duration
	// Timeout bounds the steps as a whole. Zero is no bound.
	Timeout time.Duration
	// Cascade rolls back newer plans first, where there are any in place.
	Cascade bool
	// Retry claims a quarantined plan too.
	Retry bool
}

func (o RollbackOptions) claim() plan.ClaimOptions { return plan.ClaimOptions{Retry: o.Retry} }

// Rollback takes a tenant back to before a change: it undoes exactly the steps in place, newest first, also of a plan
// that an apply left partial. It needs no files: the change is read from the tenant's database. It refuses before it
// touches anything where a step has no way back or a newer plan is in place. Errors as for [Engine.Apply].
func (e *Engine) Rollback(ctx context.Context, t tenant.Tenant, change string, opts RollbackOptions) (Result, error) {
	return e.rollback(ctx, t, change, opts, func(records []plan.Record) ([]plan.Record, error) {
		return oneOrCascade(records, change, opts)
	})
}

// RollbackTo takes a tenant back to where a change was the newest one applied: it rolls back every newer plan, newest
// first, and leaves the change itself.
func (e *Engine) RollbackTo(ctx context.Context, t tenant.Tenant, change string, opts RollbackOptions) (Result, error) {
	opts.Cascade = true
	return e.rollback(ctx, t, change, opts, func(records []plan.Record) ([]plan.Record, error) {
		return allAfter(records, change, opts)
	})
}

// rollback carries out, newest first, the rollbacks that choose picks from the tenant's plans. All of them are checked
// before the first is touched.
func (e *Engine) rollback(ctx context.Context, t tenant.Tenant, change string, opts RollbackOptions,
	choose func([]plan.Record) ([]plan.Record, error),
) (Result, error) {
	o, closeStore, err := e.begin(ctx, t, change, "")
	defer closeStore()
	if err != nil {
		return o.endUnclaimed(nil, "", err)
	}
	records, err := o.store.Records(ctx, t.ID)
	if err != nil {
		return o.endUnclaimed(nil, "", err)
	}
	chosen, err := choose(records)
	if err != nil {
		return o.endUnclaimed(find(records, change), VerdictAlreadyRolledBack, err)
	}
	programs, err := o.undoPrograms(ctx, chosen)
	if err != nil {
		return o.endUnclaimed(find(records, change), "", err)
	}
	grant, err := o.acquire(ctx, sitelock.OpRollback, rollbackClaim(chosen[0], opts), opts.LockTimeout)
	if err != nil {
		return o.endUnclaimed(nil, "", err)
	}
	defer o.release(ctx)
	if grant.Claimed == nil {
		return o.explainNoRollback(ctx, chosen[0], opts)
	}
	ctx, cancel := withTimeout(ctx, opts.Timeout, 0)
	defer cancel()
	return o.rollbackChosen(ctx, *grant.Claimed, chosen, programs, opts)
}

// rollbackChosen runs the chosen plans downwards under one lease, each claimed when the one before it rests.
func (o *operation) rollbackChosen(ctx context.Context, first plan.Record, chosen []plan.Record, programs []*plan.Program,
	opts RollbackOptions,
) (Result, error) {
	record := first
	for i := 0; ; i++ {
		r := o.newRun(programs[i], record, plan.Down)
		o.request.Claim = rollbackClaim(chosen[i], opts)
		r.keepLock = i < len(chosen)-1
		result, err := o.rollbackOne(ctx, r)
		if err != nil || !r.keepLock {
			return result, err
		}
		o.result.Also = append(o.result.Also, record.Plan.Change)
		next, err := o.claim(ctx, rollbackClaim(chosen[i+1], opts))
		if err != nil {
			return o.endUnclaimed(&chosen[i+1], "", err)
		}
		if next == nil {
			return o.explainNoRollback(ctx, chosen[i+1], opts)
		}
		record = *next
	}
}

// rollbackOne runs a claimed plan downwards and settles how it ends.
func (o *operation) rollbackOne(ctx context.Context, r *run) (Result, error) {
	ctx, cancel := withTimeout(ctx, r.program.Change.Timeout, 0)
	defer cancel()
	err := o.orCancelled(ctx, o.whyNotUndo(ctx, r.program, r.record))
	if err == nil {
		err = r.steps(ctx)
	}
	if err == nil {
		return o.end(r, VerdictRolledBack, nil)
	}
	err = r.giveUp(ctx, err, nil)
	return o.end(r, r.verdictAfter(err), r.planError(err, nil))
}

// oneOrCascade picks the plan of a change, preceded, with Cascade, by those in place on top of it.
func oneOrCascade(records []plan.Record, change string, opts RollbackOptions) ([]plan.Record, error) {
	var together []string
	var digest plan.Digest
	if mine := find(records, change); mine != nil {
		digest = mine.Plan.Digest
		if opts.Cascade {
			together = plan.NewerInPlace(records, mine.Plan)
		}
	}
	if err := whyNotRollback(records, change, digest, together, opts); err != nil {
		return nil, err
	}
	return named(records, append(together, change)), nil
}

// allAfter picks every plan in place that was first claimed after that of a change, newest first.
func allAfter(records []plan.Record, change string, opts RollbackOptions) ([]plan.Record, error) {
	mine := find(records, change)
	if mine == nil || mine.Plan.Status == plan.Pending && !mine.Touched() {
		return nil, refuse(RefusedUnknown, nil, "change %s is not applied on this tenant", change)
	}
	if mine.Partial() {
		return nil, refuse(RefusedBlocked, []string{change}, "change %s is itself partial on this tenant: apply it again, roll it back or resolve it first", change)
	}
	chosen := named(records, plan.NewerInPlace(records, mine.Plan))
	if len(chosen) == 0 {
		return nil, errAlready
	}
	return chosen, whyQuarantined(chosen, opts)
}

func rollbackClaim(r plan.Record, opts RollbackOptions) *sitelock.Claim {
	return &sitelock.Claim{Direction: plan.Down, Change: r.Plan.Change, Digest: r.Plan.Digest, Retry: opts.Retry}
}

// whyNotUndo says what speaks against undoing the steps in place of a plan.
func (o *operation) whyNotUndo(ctx context.Context, program *plan.Program, record plan.Record) error {
	if err := whyNoWayBack(program, record); err != nil {
		return err
	}
	return o.whyNoImages(ctx, program, record)
}

// whyNoWayBack refuses a rollback across a step that cannot be undone.
func whyNoWayBack(program *plan.Program, record plan.Record) error {
	byOrdinal := func(e plan.Entry, ordinal int) int { return cmp.Compare(e.Ordinal, ordinal) }
	for i := range program.Steps {
		s := program.Steps[i].Step
		if s.Undo == nil || s.Undo.Irreversible == "" {
			continue
		}
		at, found := slices.BinarySearchFunc(record.Journal, program.Steps[i].Ordinal, byOrdinal)
		if found && record.Journal[at].State != plan.StepUndone {
			return refuse(RefusedIrreversible, nil, "step %s of %s is in place and cannot be undone: %s", s.ID, record.Plan.Change, s.Undo.Irreversible)
		}
	}
	return nil
}

// explainNoRollback reads why a claim was refused.
func (o *operation) explainNoRollback(ctx context.Context, chosen plan.Record, opts RollbackOptions) (Result, error) {
	records, err := o.store.Records(ctx, o.tenant.ID)
	if err == nil {
		err = whyNotRollback(records, chosen.Plan.Change, chosen.Plan.Digest, nil, opts)
	}
	if err == nil {
		err = fmt.Errorf("tenant %s, change %s: the claim was refused", o.tenant.Name, chosen.Plan.Change)
	}
	return o.endUnclaimed(find(records, chosen.Plan.Change), VerdictAlreadyRolledBack, err)
}
