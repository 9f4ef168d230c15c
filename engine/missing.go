package engine

import (
	"context"
	"errors"
	"iter"
	"slices"
	"strings"
	"time"

	"github.com/belayhq/belay/plan"
	"github.com/belayhq/belay/sitelock"
	"github.com/belayhq/belay/tenant"
)

// pinned is a change with its digest, which takes a while to make.
type pinned struct {
	change *plan.Change
	digest plan.Digest
}

func pin(changes []*plan.Change) []pinned {
	list := make([]pinned, len(changes))
	for i, c := range changes {
		list[i] = pinned{c, c.Digest()}
	}
	return list
}

// ApplyMissing brings a tenant up to date with a list of changes in the order in which they are to be applied, see
// [plan.Order]. It applies those the tenant does not have, one after the other under one lease, and stops at the first that
// fails; the ones before it stay. All of them are checked before the first is touched. A missing change that comes before
// one in place is refused, unless opts.OutOfOrder allows it.
//
// The Result is about the last change that it dealt with; Also names the ones applied before it. Errors as for
// [Engine.Apply]. opts.Repin is for one change and not heeded.
func (e *Engine) ApplyMissing(ctx context.Context, t tenant.Tenant, changes []*plan.Change, opts ApplyOptions) (Result, error) {
	return e.applyMissing(ctx, t, pin(changes), opts, nil)
}

// ApplyAllMissing brings many tenants up to date with a list of changes, as [Engine.ApplyAll] applies one.
func (e *Engine) ApplyAllMissing(ctx context.Context, tenants iter.Seq2[tenant.Tenant, error], changes []*plan.Change,
	opts ApplyOptions, pool PoolOptions, report func(Result),
) error {
	list := pin(changes)
	p := e.newPool("", opts.LockTimeout, pool, report)
	p.settle = func(s Surveyed) (Result, bool) {
		missing, _, err := missingOf(s.Records, list, opts)
		if err != nil || len(missing) > 0 || len(list) == 0 || s.Lock.Live || opts.Expect != nil {
			return Result{}, false
		}
		return settled(s.Tenant, find(s.Records, list[len(list)-1].change.ID), VerdictAlreadyApplied), true
	}
	p.work = func(ctx context.Context, s Surveyed, wait time.Duration) Result {
		one := opts
		one.LockTimeout = wait
		result, _ := e.applyMissing(ctx, s.Tenant, list, one, s.Records)
		return result
	}
	return p.run(ctx, tenants)
}

// applyMissing is ApplyMissing for a caller who may have surveyed the tenant. Only the claims, under the lock, decide.
func (e *Engine) applyMissing(ctx context.Context, t tenant.Tenant, list []pinned, opts ApplyOptions, known []plan.Record) (Result, error) {
	opts.Repin = false
	o, closeStore, err := e.begin(ctx, t, "", "")
	defer closeStore()
	if err == nil && known == nil {
		known, err = o.store.Records(ctx, t.ID)
	}
	if err != nil {
		return o.endUnclaimed(nil, "", err)
	}
	missing, about, err := missingOf(known, list, opts)
	if moved := whyMoved(t.ID, known, opts.Expect); moved != nil {
		err = moved
	} else if err == nil && len(missing) == 0 {
		err = errAlready
	}
	if err != nil {
		o.turnTo(about)
		return o.endUnclaimed(find(known, o.change), VerdictAlreadyApplied, err)
	}
	programs := make([]*plan.Program, len(missing))
	claims := make([]*sitelock.Claim, len(missing))
	for i, p := range missing {
		claims[i] = applyClaim(p.change, p.digest, opts)
		if programs[i], err = e.prepare(p.change, p.digest, o.store.Dialect()); err != nil {
			o.turnTo(p)
			return o.endUnclaimed(nil, "", err)
		}
	}
	o.turnTo(missing[0])
	claimed, mine, err := o.acquireFor(ctx, missing[0].change, claims[0], opts)
	if o.lock != nil {
		defer o.release(ctx)
	}
	if err != nil {
		return o.endUnclaimed(mine, VerdictAlreadyApplied, err)
	}
	ctx, cancel := withTimeout(ctx, opts.Timeout, 0)
	defer cancel()
	opts.Timeout = 0 // it bounds all of them together
	opts.Expect = nil
	return o.applyChosen(ctx, *claimed, missing, programs, claims, opts)
}

// applyChosen runs the missing changes upwards under one lease, each claimed when the one before it rests.
func (o *operation) applyChosen(ctx context.Context, first plan.Record, missing []pinned, programs []*plan.Program,
	claims []*sitelock.Claim, opts ApplyOptions,
) (Result, error) {
	record := first
	for i := 0; ; i++ {
		r := o.newRun(programs[i], record, plan.Up)
		o.request.Claim = claims[i]
		r.keepLock = i < len(missing)-1
		result, err := o.applyOne(ctx, r, opts)
		if err != nil || !r.keepLock {
			return result, err
		}
		o.result.Also = append(o.result.Also, record.Plan.Change)
		o.turnTo(missing[i+1])
		next, err := o.claim(ctx, claims[i+1])
		if err != nil {
			return o.endUnclaimed(nil, "", err)
		}
		if next == nil {
			mine, err := o.whyUnclaimed(ctx, missing[i+1].change, opts)
			return o.endUnclaimed(mine, VerdictAlreadyApplied, err)
		}
		record = *next
	}
}

// turnTo makes a change the one that the operation and its Result are about.
func (o *operation) turnTo(p pinned) {
	if p.change == nil {
		return
	}
	o.change, o.digest = p.change.ID, p.digest
	o.result.Change, o.result.Digest = p.change.ID, p.digest
	o.result.Plan, o.result.StepsDone, o.result.StepsTotal = "", 0, len(p.change.Steps)
}

// missingOf picks from a list, in its order, the changes that a tenant with these plans does not have, a partial one first:
// nothing else can be applied before it. Of an error it returns the change that it is about, of none the last one.
func missingOf(records []plan.Record, list []pinned, opts ApplyOptions) (missing []pinned, about pinned, err error) {
	for _, p := range list {
		about = p
		mine := find(records, p.change.ID)
		if mine != nil {
			err = whyNotClaim([]plan.Record{*mine}, plan.Up, p.change.ID, p.digest, opts.claim())
			if err != nil && !errors.Is(err, errAlready) {
				return nil, p, err
			}
			if older := ids(missing); mine.Touched() && len(older) > 0 && !opts.OutOfOrder {
				return nil, missing[0], refuse(RefusedOutOfOrder, older, "older than %s, which is in place, and not applied: %s",
					p.change.ID, strings.Join(older, ", "))
			}
		}
		switch {
		case err != nil: // it is applied
			err = nil
		case mine != nil && mine.Touched():
			missing = slices.Insert(missing, 0, p)
		default:
			missing = append(missing, p)
		}
	}
	ahead := []string{}
	for _, p := range missing {
		if err := whyNotYet(records, p, ahead, opts); err != nil {
			return nil, p, err
		}
		ahead = append(ahead, p.change.ID)
	}
	return missing, about, nil
}

// whyNotYet says what speaks against a missing change, once those ahead of it are applied.
func whyNotYet(records []plan.Record, p pinned, ahead []string, opts ApplyOptions) error {
	if len(ahead) == 0 { // every one ahead leaves no partial plan behind
		if err := whyNotClaim(records, plan.Up, p.change.ID, p.digest, opts.claim()); err != nil {
			return err
		}
	}
	if err := whyNotRequires(records, p.change, ahead); err != nil {
		return err
	}
	return whyIrreversible(p.change, opts)
}

func ids(list []pinned) []string {
	names := make([]string, len(list))
	for i, p := range list {
		names[i] = p.change.ID
	}
	return names
}
