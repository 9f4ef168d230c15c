package engine

import (
	"context"
	"errors"
	"time"

	"github.com/belayhq/belay/internal/failpoint"
	"github.com/belayhq/belay/plan"
	"github.com/belayhq/belay/sitelock"
	"github.com/belayhq/belay/tenant"
)

// operation is one Apply, Rollback or Resolve on one tenant, from opening its database to its Result.
type operation struct {
	engine *Engine
	tenant tenant.Tenant
	change string
	digest plan.Digest
	store  Store
	began  time.Time
	result Result
	// lock is nil until it is acquired. A run that must look what became of a commit asks for another, with the same
	// request.
	lock    *sitelock.Lock
	request sitelock.Request
	// cancelled reports whether the caller has asked to stop.
	cancelled func() bool
}

// begin opens the tenant's database. The caller calls the returned function when the operation is over.
func (e *Engine) begin(ctx context.Context, t tenant.Tenant, change string, digest plan.Digest) (*operation, func(), error) {
	o := &operation{
		engine: e, tenant: t, change: change, digest: digest, began: time.Now(),
		result:    Result{Tenant: t, Change: change, Digest: digest},
		cancelled: func() bool { return errors.Is(ctx.Err(), context.Canceled) },
	}
	if _, err := tenant.ParseID(string(t.ID)); err != nil {
		return o, func() {}, err
	}
	store, release, err := e.directory.Open(ctx, t)
	if err != nil {
		return o, func() {}, err
	}
	o.store = store
	return o, release, nil
}

// acquire takes the tenant's lock, with a claim or without, and notes what it recovered.
func (o *operation) acquire(ctx context.Context, op sitelock.Operation, claim *sitelock.Claim, wait time.Duration) (sitelock.Grant, error) {
	o.request = sitelock.Request{
		Tenant: o.tenant.ID, Scope: o.tenant.Target.Scope, Operation: op, Lease: o.engine.config.Lease, Claim: claim,
	}
	if err := failpoint.Hit(failpoint.BeforeAcquire); err != nil {
		return sitelock.Grant{}, err
	}
	lock, grant, err := o.engine.locker.Acquire(ctx, o.store, o.request, wait)
	if err != nil {
		return grant, err
	}
	if err := failpoint.Hit(failpoint.AfterAcquire); err != nil {
		return grant, err
	}
	o.lock = lock
	o.recovered(grant.Recovered)
	return grant, nil
}

func (o *operation) recovered(plans []sitelock.Recovered) {
	o.result.Recovered = append(o.result.Recovered, plans...)
	for i := range plans {
		o.engine.config.Observe(Progress{
			At: time.Now(), Kind: KindRecovered, Tenant: o.tenant.ID, Name: o.tenant.Name,
			Plan: plans[i].Plan, Change: plans[i].Change, Recovered: &plans[i],
		})
	}
}

// free ends the operation's hold on its lock. Where the plan's last transaction has released it, nothing is asked of the
// database; where that failed, the next holder need not wait for the lease to lapse.
func (o *operation) free(ctx context.Context) {
	ctx, cancel := finishing(ctx)
	defer cancel()
	if err := o.lock.Release(ctx); err != nil && !errors.Is(err, sitelock.ErrNotHeld) {
		o.engine.config.Log.Warn().Err(err).Str("tenant", o.tenant.Name).Msg("lock not released; it lapses by itself")
	}
}

// newRun makes a run of a claimed plan.
func (o *operation) newRun(program *plan.Program, record plan.Record, d plan.Direction) *run {
	r := &run{operation: o, program: program, record: record, direction: d}
	o.result.Plan = record.Plan.ID
	r.observe(KindClaimed, "", nil)
	return r
}

// giveUp ends a claim without success: the plan goes back to the status it was claimed from. Nothing is written if the
// lock is lost: the new holder has recovered the plan. It returns the cause, behind the loss of the lock if that shows
// only now.
func (o *operation) giveUp(ctx context.Context, r *run, cause error) error {
	if _, lost := errors.AsType[*sitelock.LockLostError](cause); lost || r.finished {
		return cause
	}
	outcome := plan.Failed
	if errors.Is(cause, errCancelled) {
		outcome = ""
		if r.record.Touched() {
			outcome = plan.Interrupted
		}
	}
	r.move(ctx, plan.Fail, outcome, failureOf(cause, nil))
	return r.orLost(cause)
}

// move writes a status of its own, without steps, and frees the lock with it. It outlives cancellation and Abort. If it
// cannot be written, the lease lapses and the next acquire recovers the plan.
func (r *run) move(ctx context.Context, event plan.Event, outcome plan.Outcome, failure *plan.Failure) {
	to, err := plan.Next(r.record.Plan.Status, r.record.Plan.ClaimedFrom, event)
	if err != nil {
		r.engine.config.Log.Error().Err(err).Str("tenant", r.tenant.Name).Msg("status not written")
		return
	}
	group := r.newGroup()
	group.Move = &Move{Event: event, From: r.record.Plan.Status, To: to, Outcome: outcome, Failure: failure}
	group.Release = true
	ctx, cancel := finishing(ctx)
	defer cancel()
	err = r.lock.Releasing(ctx, func(ctx context.Context) error { return r.store.Checkpoint(ctx, r.lock.Held(), group) })
	if err != nil {
		r.engine.config.Log.Warn().Err(err).Str("tenant", r.tenant.Name).
			Msg("status not written; the lease lapses and the next apply or rollback recovers the plan")
		return
	}
	r.note(group)
}

// end makes the operation's Result. r is nil if no plan was claimed.
func (o *operation) end(r *run, verdict Verdict, err error) (Result, error) {
	o.result.Verdict, o.result.Err = verdict, err
	o.result.Duration = time.Since(o.began)
	if r != nil {
		o.result.Plan = r.record.Plan.ID
		o.result.Digest = r.record.Plan.Digest
		o.result.StepsDone, o.result.StepsTotal = r.record.InPlace(), r.record.Plan.StepsTotal
		r.observe(KindFinished, "", err)
	}
	return o.result, err
}

// endUnclaimed makes the Result of an operation that claimed no plan.
func (o *operation) endUnclaimed(record *plan.Record, already Verdict, err error) (Result, error) {
	if record != nil {
		o.result.Plan = record.Plan.ID
		o.result.StepsDone, o.result.StepsTotal = record.InPlace(), record.Plan.StepsTotal
	}
	if errors.Is(err, errAlready) {
		return o.end(nil, already, nil)
	}
	verdict := verdictOf(err)
	if verdict == VerdictFailed && o.cancelled() {
		// Whatever it was, it is what became of being cancelled: not every layer passes the cause on.
		verdict = VerdictCancelled
	}
	return o.end(nil, verdict, err)
}

// verdictOf classifies an error that left the tenant as it was.
func verdictOf(err error) Verdict {
	if refused, ok := errors.AsType[*RefusedError](err); ok {
		switch refused.Reason {
		case RefusedQuarantined, RefusedHalfUndone, RefusedBlocked:
			return VerdictPartial
		case RefusedDigest, RefusedIrreversible, RefusedRequires, RefusedNewer, RefusedUnknown, RefusedInvalid:
			return VerdictRefused
		}
	}
	if _, busy := errors.AsType[*sitelock.LockBusyError](err); busy {
		return VerdictBusy
	}
	for _, refusal := range []error{ErrNewerSchema, sitelock.ErrNewerBinary, sitelock.ErrScopeTaken, sitelock.ErrRemoved} {
		if errors.Is(err, refusal) {
			return VerdictRefused
		}
	}
	if errors.Is(err, errCancelled) || errors.Is(err, context.Canceled) {
		return VerdictCancelled
	}
	return VerdictFailed
}

// planError tells how a claimed plan failed and what is in place now.
func (r *run) planError(err, undoErr error) error {
	e := &PlanError{
		Tenant: r.tenant.Name, Plan: r.record.Plan.ID, Change: r.record.Plan.Change, Undone: r.undone, Err: err, UndoErr: undoErr,
	}
	if step, ok := errors.AsType[*StepError](err); ok {
		e.Failed = step.Step
	}
	for _, entry := range r.record.Journal {
		if entry.State == plan.StepDone {
			e.Applied = append(e.Applied, entry.Step)
		}
	}
	return e
}

func failureOf(err, undoErr error) *plan.Failure {
	f := &plan.Failure{Message: err.Error()}
	if step, ok := errors.AsType[*StepError](err); ok {
		f.Step = step.Step
	}
	if undoErr != nil {
		f.UndoMessage = undoErr.Error()
	}
	return f
}
