package engine

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"time"

	"github.com/belayhq/belay/plan"
	"github.com/belayhq/belay/sitelock"
	"github.com/belayhq/belay/tenant"
)

// ApplyOptions tune one apply. The zero value is the careful one.
type ApplyOptions struct {
	// LockTimeout is how long to wait for a lock that someone else has. Zero does not wait.
	LockTimeout time.Duration
	// Timeout bounds the steps as a whole; the change's own timeout, if shorter, counts. Zero is no bound.
	Timeout time.Duration
	// AllowIrreversible lets a change be applied that has a step without a way back.
	AllowIrreversible bool
	// Retry claims a quarantined plan too.
	Retry bool
	// Repin lets a partial plan take an edited change, if only steps not in place differ.
	Repin bool
	// OutOfOrder lets ApplyMissing apply a change that comes before one in place.
	OutOfOrder bool
	// Expect, if set, gives the [Preview.Basis] of each tenant, empty if there is none. A tenant whose plans are not those any
	// more is refused, under its lock.
	Expect func(tenant.ID) Basis
}

// claimsLate says that what speaks against the claim can only be known under the lock.
func (o ApplyOptions) claimsLate() bool { return o.Repin || o.Expect != nil }

func (o ApplyOptions) claim() plan.ClaimOptions {
	return plan.ClaimOptions{Retry: o.Retry, Repin: o.Repin}
}

// Apply brings a tenant to where every step of the change is in place. A plan that an earlier apply left partial is
// resumed at the first step not in place; one that is applied is left as it is.
//
// If a step fails, the earlier ones stay in place or are undone, newest first, as change.OnFailure says. Errors:
// *sitelock.LockBusyError, *sitelock.LockLostError, *RefusedError (nothing was touched), *PlanError. The Result is
// filled in either way.
func (e *Engine) Apply(ctx context.Context, t tenant.Tenant, change *plan.Change, opts ApplyOptions) (Result, error) {
	return e.applyKnowing(ctx, t, change, change.Digest(), opts, nil)
}

// applyKnowing is Apply for a caller who has just surveyed the tenant: what speaks against the apply is then looked for in
// what it read. Only the claim, under the lock, decides.
func (e *Engine) applyKnowing(ctx context.Context, t tenant.Tenant, change *plan.Change, digest plan.Digest, opts ApplyOptions,
	known []plan.Record,
) (Result, error) {
	o, closeStore, err := e.begin(ctx, t, change.ID, digest)
	defer closeStore()
	if err != nil {
		return o.endUnclaimed(nil, "", err)
	}
	program, err := e.prepare(change, digest, o.store.Dialect())
	if err != nil {
		return o.endUnclaimed(nil, "", err)
	}
	if mine, err := o.whyNotApply(ctx, change, opts, known); err != nil {
		return o.endUnclaimed(mine, VerdictAlreadyApplied, err)
	}
	claimed, mine, err := o.acquireFor(ctx, change, applyClaim(change, digest, opts), opts)
	if o.lock != nil {
		defer o.release(ctx)
	}
	if err != nil {
		return o.endUnclaimed(mine, VerdictAlreadyApplied, err)
	}
	return o.applyOne(ctx, o.newRun(program, *claimed, plan.Up), opts)
}

// acquireFor takes the tenant's lock and claims the plan of a change, in one transaction where nothing has to be looked at
// between the two. Of an error it returns the plan as it was found, if it was looked at. The caller releases the lock if
// there is one.
func (o *operation) acquireFor(ctx context.Context, change *plan.Change, claim *sitelock.Claim, opts ApplyOptions) (claimed, mine *plan.Record, err error) {
	first := claim
	if opts.claimsLate() {
		first = nil
	}
	grant, err := o.acquire(ctx, sitelock.OpApply, first, opts.LockTimeout)
	if err != nil {
		return nil, nil, err
	}
	claimed = grant.Claimed
	if first == nil {
		if mine, err = o.whyNotApply(ctx, change, opts, nil); err != nil {
			return nil, mine, err
		}
		o.request.Claim = claim
		if claimed, err = o.claim(ctx, claim); err != nil {
			return nil, mine, err
		}
	}
	if claimed == nil {
		mine, err = o.whyUnclaimed(ctx, change, opts)
	}
	return claimed, mine, err
}

func applyClaim(change *plan.Change, digest plan.Digest, opts ApplyOptions) *sitelock.Claim {
	return &sitelock.Claim{
		Direction: plan.Up, Change: change.ID, Digest: digest, Body: change, NewPlan: plan.NewID(), Retry: opts.Retry, Repin: opts.Repin,
	}
}

// applyOne runs a claimed plan upwards and settles how it ends.
func (o *operation) applyOne(ctx context.Context, r *run, opts ApplyOptions) (Result, error) {
	stepsCtx, cancel := withTimeout(ctx, opts.Timeout, r.program.Change.Timeout)
	defer cancel()
	err := o.orCancelled(ctx, o.stillRequired(ctx, r))
	if err == nil {
		err = r.steps(stepsCtx)
	}
	if err == nil {
		return o.end(r, VerdictApplied, nil)
	}
	if o.mayUndo(r, err) {
		return o.undo(ctx, r, err)
	}
	err = r.giveUp(ctx, err, nil)
	return o.end(r, r.verdictAfter(err), r.planError(err, nil))
}

// mayUndo says whether a failed apply turns back by itself. A verify that could not run never does: nobody knows
// whether the change is good. Nor does an apply while an action that ignored its end may still be at work, or one that was
// aborted.
func (o *operation) mayUndo(r *run, err error) bool {
	_, lost := errors.AsType[*sitelock.LockLostError](err)
	may := !lost && !r.finished && !r.leftBehind && o.engine.abort.Err() == nil
	return may && r.program.Change.OnFailure == plan.RollbackOnFailure && r.record.Touched() &&
		!errors.Is(err, ErrVerifyUnable) && !errors.Is(err, ErrUnknownOutcome)
}

// undo turns a failed apply into a rollback under the same lease, with a time budget of its own, so that neither the
// caller's cancellation nor a spent timeout keeps the tenant half-changed.
func (o *operation) undo(ctx context.Context, r *run, cause error) (Result, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), o.engine.config.UndoTimeout)
	defer cancel()
	r.observe(KindUndoing, "", cause)
	r.keepLock = false // nothing follows what failed
	undoErr := o.whyNotUndo(ctx, r.program, r.record)
	if undoErr == nil {
		undoErr = r.turnBack(ctx, cause)
	}
	if undoErr == nil {
		undoErr = r.steps(ctx)
	}
	if undoErr == nil {
		return o.end(r, r.verdictAfter(cause), r.planError(cause, nil))
	}
	undoErr = r.giveUp(ctx, cause, undoErr)
	return o.end(r, r.verdictAfter(undoErr), r.planError(cause, undoErr))
}

// verdictAfter says what a failed run came to.
func (r *run) verdictAfter(err error) Verdict {
	switch {
	case errors.Is(err, errCancelled):
		return VerdictCancelled
	case r.record.Plan.InFlight() || r.record.Partial():
		return VerdictPartial
	}
	if _, refused := errors.AsType[*RefusedError](err); refused {
		return verdictOf(err)
	}
	return VerdictFailed
}

// stillRequired looks again, under the lock, whether the changes that this one requires are applied.
func (o *operation) stillRequired(ctx context.Context, r *run) error {
	change := r.program.Change
	if len(change.Requires) == 0 {
		return nil
	}
	records, err := o.store.Records(ctx, o.tenant.ID)
	if err != nil {
		return err
	}
	return whyNotRequires(records, change, nil)
}

// whyNotApply says what speaks against the apply, in the tenant's plans as known or else as read now.
func (o *operation) whyNotApply(ctx context.Context, change *plan.Change, opts ApplyOptions, known []plan.Record) (*plan.Record, error) {
	records := known
	if records == nil || len(change.Requires) > 0 || opts.Expect != nil {
		var err error
		if records, err = o.recordsFor(ctx, change, opts); err != nil {
			return nil, err
		}
	}
	mine := find(records, change.ID)
	if err := whyMoved(o.tenant.ID, records, opts.Expect); err != nil {
		return mine, err
	}
	if err := whyNotApply(records, change, o.digest, opts); err != nil {
		return mine, err
	}
	if opts.Repin && mine != nil && mine.Touched() && mine.Plan.Digest != o.digest {
		return mine, o.whyNotRepin(ctx, mine, change)
	}
	return mine, nil
}

// recordsFor reads the plans that may speak against an apply: of a long history the few that a survey reads, unless the
// change requires others or the basis of a preview is to be compared.
func (o *operation) recordsFor(ctx context.Context, change *plan.Change, opts ApplyOptions) ([]plan.Record, error) {
	if len(change.Requires) > 0 || opts.Expect != nil {
		return o.store.Records(ctx, o.tenant.ID)
	}
	surveyed, err := surveyStore(ctx, o.store, []tenant.Tenant{o.tenant}, change.ID)
	if err != nil {
		return nil, err
	}
	return surveyed[0].Records, nil
}

// whyNotRepin allows an edit only of steps that are not in place.
func (o *operation) whyNotRepin(ctx context.Context, mine *plan.Record, change *plan.Change) error {
	pinned, err := o.store.Change(ctx, mine.Plan.Digest)
	if err != nil {
		return err
	}
	// In the form in which the database gave the other back.
	if change, err = plan.DecodeChange(change.Encode()); err != nil {
		return err
	}
	for _, entry := range mine.Journal {
		if entry.State == plan.StepUndone {
			continue
		}
		if entry.Ordinal >= len(change.Steps) || entry.Ordinal >= len(pinned.Steps) ||
			!reflect.DeepEqual(change.Steps[entry.Ordinal], pinned.Steps[entry.Ordinal]) {
			return refuse(RefusedDigest, nil, "step %s is in place and differs from the one that was applied: only steps not in place may be edited", entry.Step)
		}
	}
	return nil
}

// whyUnclaimed reads why a claim was refused.
func (o *operation) whyUnclaimed(ctx context.Context, change *plan.Change, opts ApplyOptions) (*plan.Record, error) {
	mine, err := o.whyNotApply(ctx, change, opts, nil)
	if err == nil {
		err = fmt.Errorf("tenant %s, change %s: the claim was refused", o.tenant.Name, change.ID)
	}
	return mine, err
}
