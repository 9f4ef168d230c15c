package engine

import (
	"context"
	"errors"
	"time"

	"github.com/belayhq/belay/internal/failpoint"
	"github.com/belayhq/belay/internal/logkey"
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
	store, release, err := e.open(ctx, t)
	if err != nil {
		return o, func() {}, err
	}
	o.store = store
	return o, release, nil
}

// open opens a tenant's database, or says why it must be left as it is.
func (e *Engine) open(ctx context.Context, t tenant.Tenant) (Store, func(), error) {
	store, release, err := e.directory.Open(ctx, t)
	return store, release, AsRefusal(err)
}

// acquire takes the tenant's lock, with a claim or without, and notes what it recovered.
func (o *operation) acquire(ctx context.Context, op sitelock.Operation, claim *sitelock.Claim, wait time.Duration) (sitelock.Grant, error) {
	o.request = sitelock.Request{
		Tenant: o.tenant.ID, Scope: o.tenant.Target.Scope, Operation: op, Lease: o.engine.config.Lease, Claim: claim,
		OnWait: o.waiting,
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

// waiting tells those who watch that the operation waits for a lock.
func (o *operation) waiting(w sitelock.Waiting) {
	o.engine.config.Observe(Progress{
		At: time.Now(), Kind: KindWaiting, Tenant: o.tenant.ID, Name: o.tenant.Name, Change: o.change, Waiting: &w,
	})
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

// release ends the operation's hold on its lock. Where the plan's last transaction has released it, nothing is asked of the
// database; where that failed, the next holder need not wait for the lease to lapse.
func (o *operation) release(ctx context.Context) {
	ctx, cancel := finishing(ctx)
	defer cancel()
	if err := o.lock.Release(ctx); err != nil && !errors.Is(err, sitelock.ErrNotHeld) {
		log := o.engine.logOf(o.tenant)
		log.Warn().Err(err).Int64(logkey.Fence, int64(o.lock.Held().Fence)).Msg("lock not released; it lapses by itself")
	}
}

// newRun makes a run of a claimed plan.
func (o *operation) newRun(program *plan.Program, record plan.Record, d plan.Direction) *run {
	r := &run{operation: o, program: program, record: record, direction: d, outcome: plan.OutcomeApplied}
	if d == plan.Down {
		r.outcome = plan.OutcomeRolledBack
	}
	o.result.Plan = record.Plan.ID
	r.observe(KindClaimed, "", nil)
	return r
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

// about fills in the Result with a plan that was looked at; nil if there is none.
func (o *operation) about(record *plan.Record) {
	if record != nil {
		o.result.Plan = record.Plan.ID
		o.result.StepsDone, o.result.StepsTotal = record.InPlace(), record.Plan.StepsTotal
	}
}

// endUnclaimed makes the Result of an operation that claimed no plan, or no further one.
func (o *operation) endUnclaimed(record *plan.Record, already Verdict, err error) (Result, error) {
	o.about(record)
	if errors.Is(err, errAlready) {
		return o.end(nil, already, nil)
	}
	err = AsRefusal(err)
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
		case RefusedQuarantined, RefusedHalfUndone, RefusedBlocked, RefusedImage:
			return VerdictPartial
		case RefusedDigest, RefusedIrreversible, RefusedRequires, RefusedNewer, RefusedOutOfOrder, RefusedMoved, RefusedUnknown, RefusedInvalid,
			RefusedNewerSchema, RefusedNewerBinary, RefusedScopeTaken, RefusedRemoved, RefusedNoScope:
			return VerdictRefused
		}
	}
	if _, busy := errors.AsType[*sitelock.LockBusyError](err); busy {
		return VerdictBusy
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
