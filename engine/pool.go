package engine

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/belayhq/belay/internal/logkey"
	"github.com/belayhq/belay/plan"
	"github.com/belayhq/belay/tenant"
)

// PoolOptions tune an operation over many tenants. The zero value of each field is its default.
type PoolOptions struct {
	// Workers is how many tenants are worked on at once. Default 8.
	Workers int
	// StopAfter is how many tenants may fail before no further one is started; those under way are finished. Default: no
	// number is too many.
	StopAfter int
}

// ApplyAll applies a change to many tenants, each under its own lock, never two operations on one tenant. What is applied
// already is found in one read for each thousand tenants of a database, and costs no lock. A tenant that someone else
// is working on is put off until the others are done, then waited for. One bad or hung tenant does not stop the others.
//
// report is called with the result of every tenant, from one goroutine at a time, in the order in which they end. After the
// context is cancelled, or after too many failures, tenants not yet started are reported as skipped. The error is that of
// the sequence of tenants; everything else is in the results.
func (e *Engine) ApplyAll(ctx context.Context, tenants iter.Seq2[tenant.Tenant, error], change *plan.Change,
	opts ApplyOptions, pool PoolOptions, report func(Result),
) error {
	digest := change.Digest()
	p := e.newPool(change.ID, opts.LockTimeout, pool, report)
	p.settle = func(s Surveyed) (Result, bool) {
		mine := find(s.Records, change.ID)
		if mine == nil || s.Lock.Live || opts.Expect != nil ||
			!errors.Is(whyNotClaim([]plan.Record{*mine}, plan.Up, change.ID, digest, opts.claim()), errAlready) {
			return Result{}, false
		}
		return settled(s.Tenant, mine, VerdictAlreadyApplied), true
	}
	p.work = func(ctx context.Context, s Surveyed, wait time.Duration) Result {
		one := opts
		one.LockTimeout = wait
		result, _ := e.applyKnowing(ctx, s.Tenant, change, digest, one, s.Records)
		return result
	}
	return p.run(ctx, tenants)
}

// RollbackAll rolls a change back on many tenants, as [Engine.ApplyAll] applies one.
func (e *Engine) RollbackAll(ctx context.Context, tenants iter.Seq2[tenant.Tenant, error], change string,
	opts RollbackOptions, pool PoolOptions, report func(Result),
) error {
	p := e.newPool(change, opts.LockTimeout, pool, report)
	p.settle = func(s Surveyed) (Result, bool) {
		mine := find(s.Records, change)
		if mine == nil || s.Lock.Live || mine.Plan.Status != plan.Pending || mine.Touched() {
			return Result{}, false
		}
		return settled(s.Tenant, mine, VerdictAlreadyRolledBack), true
	}
	p.work = func(ctx context.Context, s Surveyed, wait time.Duration) Result {
		one := opts
		one.LockTimeout = wait
		result, _ := e.Rollback(ctx, s.Tenant, change, one)
		return result
	}
	return p.run(ctx, tenants)
}

// RollbackAllTo takes many tenants back to where a change was the newest one applied.
func (e *Engine) RollbackAllTo(ctx context.Context, tenants iter.Seq2[tenant.Tenant, error], change string,
	opts RollbackOptions, pool PoolOptions, report func(Result),
) error {
	p := e.newPool(change, opts.LockTimeout, pool, report)
	p.work = func(ctx context.Context, s Surveyed, wait time.Duration) Result {
		one := opts
		one.LockTimeout = wait
		result, _ := e.RollbackTo(ctx, s.Tenant, change, one)
		return result
	}
	return p.run(ctx, tenants)
}

// Each runs any operation about a change on many tenants in the same pool: Verify or Resolve, say.
func (e *Engine) Each(ctx context.Context, tenants iter.Seq2[tenant.Tenant, error], change string, pool PoolOptions,
	work func(context.Context, tenant.Tenant) Result, report func(Result),
) error {
	p := e.newPool(change, 0, pool, report)
	p.work = func(ctx context.Context, s Surveyed, _ time.Duration) Result { return work(ctx, s.Tenant) }
	return p.run(ctx, tenants)
}

// pool is one operation over many tenants.
type pool struct {
	engine *Engine
	change string
	wait   time.Duration
	opts   PoolOptions
	// settle, if set, gives the result of a tenant that needs no work, from what a survey read of it.
	settle func(Surveyed) (Result, bool)
	work   func(ctx context.Context, s Surveyed, wait time.Duration) Result

	reporting sync.Mutex
	report    func(Result)
	failures  atomic.Int64
	busyMu    sync.Mutex
	busy      []tenant.Tenant
}

func (e *Engine) newPool(change string, wait time.Duration, opts PoolOptions, report func(Result)) *pool {
	opts.Workers = defaultTo(opts.Workers, 8)
	return &pool{engine: e, change: change, wait: wait, opts: opts, report: report}
}

// run works on the tenants as they come, then on those that were busy.
func (p *pool) run(ctx context.Context, tenants iter.Seq2[tenant.Tenant, error]) error {
	var workers errgroup.Group
	workers.SetLimit(p.opts.Workers)
	err := p.first(ctx, tenants, &workers)
	_ = workers.Wait() // no worker returns an error: what befell a tenant is its result
	for _, t := range p.busy {
		p.start(ctx, &workers, Surveyed{Tenant: t}, func(s Surveyed) { p.tell(p.attempt(ctx, s, p.wait)) })
	}
	_ = workers.Wait()
	return err
}

// first starts every tenant that needs work, without waiting for those that are busy.
func (p *pool) first(ctx context.Context, tenants iter.Seq2[tenant.Tenant, error], workers *errgroup.Group) error {
	for batch, err := range batches(tenants) {
		if err != nil {
			return fmt.Errorf("list tenants: %w", err)
		}
		for _, group := range byDatabase(batch) {
			for _, s := range p.unsettled(ctx, group) {
				p.start(ctx, workers, s, func(s Surveyed) { p.tryFirst(ctx, s) })
			}
		}
	}
	return nil
}

// start gives a tenant to the next free worker, unless the pool has stopped by then.
func (p *pool) start(ctx context.Context, workers *errgroup.Group, s Surveyed, work func(Surveyed)) {
	if p.stopped(ctx) {
		p.tell(p.skipped(s.Tenant))
		return
	}
	workers.Go(func() error {
		if p.stopped(ctx) { // while it waited for a worker
			p.tell(p.skipped(s.Tenant))
			return nil
		}
		work(s)
		return nil
	})
}

// unsettled reports the tenants of one database that need no work, and returns the others. One whose database cannot be read
// is left to its worker, which will say why. So is a tenant alone in its database: its worker looks before it asks for the
// lock anyway, and databases are then opened once, as many at a time as there are workers.
func (p *pool) unsettled(ctx context.Context, group []tenant.Tenant) []Surveyed {
	rest := make([]Surveyed, 0, len(group))
	if p.settle == nil || len(group) == 1 || p.stopped(ctx) {
		for _, t := range group {
			rest = append(rest, Surveyed{Tenant: t})
		}
		return rest
	}
	for _, s := range p.engine.surveyOne(ctx, group, p.change) {
		if s.Err == nil {
			if result, done := p.settle(s); done {
				p.tell(result)
				continue
			}
		}
		rest = append(rest, s)
	}
	return rest
}

// tryFirst works on a tenant, or puts it off if it is busy and may be waited for.
func (p *pool) tryFirst(ctx context.Context, s Surveyed) {
	result := p.attempt(ctx, s, 0)
	if result.Verdict == VerdictBusy && p.wait > 0 {
		p.busyMu.Lock()
		defer p.busyMu.Unlock()
		p.busy = append(p.busy, s.Tenant)
		return
	}
	p.tell(result)
}

// attempt works on a tenant. A panic becomes that tenant's result, so that the others are not left half-way; the lock is free
// then, and the next apply or rollback recovers a plan in flight. Actions have a net of their own: see protect.
func (p *pool) attempt(ctx context.Context, s Surveyed, wait time.Duration) (result Result) {
	defer func() {
		if v := recover(); v != nil {
			log := p.engine.logOf(s.Tenant)
			log.Error().Bytes(logkey.Stack, debug.Stack()).Msg("panic")
			result = Result{
				Tenant: s.Tenant, Change: p.change, Verdict: VerdictFailed,
				Err: fmt.Errorf("tenant %s, change %s: panic: %v", s.Tenant.Name, p.change, v),
			}
		}
	}()
	return p.work(ctx, s, wait)
}

// stopped says that no further tenant may be started.
func (p *pool) stopped(ctx context.Context) bool {
	return ctx.Err() != nil || p.engine.abort.Err() != nil ||
		p.opts.StopAfter > 0 && p.failures.Load() >= int64(p.opts.StopAfter)
}

func (p *pool) tell(r Result) {
	switch r.Verdict {
	case VerdictFailed, VerdictPartial, VerdictRefused, VerdictBusy:
		p.failures.Add(1)
	case VerdictApplied, VerdictAlreadyApplied, VerdictRolledBack, VerdictAlreadyRolledBack, VerdictVerified,
		VerdictResolved, VerdictCancelled, VerdictSkipped:
	}
	p.reporting.Lock()
	defer p.reporting.Unlock()
	p.report(r)
}

func (p *pool) skipped(t tenant.Tenant) Result {
	return Result{Tenant: t, Change: p.change, Verdict: VerdictSkipped}
}

// settled is the result of a tenant that needed no work.
func settled(t tenant.Tenant, r *plan.Record, verdict Verdict) Result {
	return Result{
		Tenant: t, Plan: r.Plan.ID, Change: r.Plan.Change, Digest: r.Plan.Digest, Verdict: verdict,
		StepsDone: r.InPlace(), StepsTotal: r.Plan.StepsTotal,
	}
}
