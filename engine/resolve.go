package engine

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/belayhq/belay/plan"
	"github.com/belayhq/belay/sitelock"
	"github.com/belayhq/belay/tenant"
)

// Truth is what a person says of a plan.
type Truth string

// What a plan can be resolved as.
const (
	ResolveApplied    Truth = "applied"
	ResolveRolledBack Truth = "rolled-back"
)

// ResolveOptions say what is true, and why.
type ResolveOptions struct {
	As Truth
	// Reason is kept in the tenant's history. Required.
	Reason string
	// Change is the change itself. Only needed where the tenant has no plan for it yet: a tenant changed by hand is adopted
	// by resolving it as applied.
	Change *plan.Change
	// LockTimeout is how long to wait for a lock that someone else has. Zero does not wait.
	LockTimeout time.Duration
}

// Resolve sets a plan's journal and status to what a person says is true, under the site lock, and lifts a quarantine.
// It touches no data. Errors: *sitelock.LockBusyError, *RefusedError.
func (e *Engine) Resolve(ctx context.Context, t tenant.Tenant, change string, opts ResolveOptions) (Result, error) {
	o, closeStore, err := e.begin(ctx, t, change, "")
	defer closeStore()
	if err == nil {
		err = opts.validate()
	}
	if err != nil {
		return o.endUnclaimed(nil, "", err)
	}
	_, err = o.acquire(ctx, sitelock.OpResolve, nil, opts.LockTimeout)
	if err != nil {
		return o.endUnclaimed(nil, "", err)
	}
	defer o.release(ctx)
	record, steps, err := o.resolvable(ctx, opts)
	if err != nil {
		return o.endUnclaimed(record, "", err)
	}
	group, err := resolution(*record, steps, t, opts)
	if err != nil {
		return o.endUnclaimed(record, "", err)
	}
	ctx, cancel := finishing(ctx)
	defer cancel()
	err = o.lock.Releasing(ctx, func(ctx context.Context) error { return o.store.Checkpoint(ctx, o.lock.Held(), group) })
	if err != nil && (!errors.Is(err, ErrUnknownOutcome) || !o.isResolved(ctx, group)) {
		return o.endUnclaimed(record, "", err)
	}
	o.result.Digest = record.Plan.Digest
	o.result.Plan, o.result.StepsTotal = record.Plan.ID, record.Plan.StepsTotal
	if opts.As == ResolveApplied {
		o.result.StepsDone = record.Plan.StepsTotal
	}
	return o.end(nil, VerdictResolved, nil)
}

// isResolved looks whether a plan is as a resolve whose answer was lost would have left it.
func (o *operation) isResolved(ctx context.Context, group Group) bool {
	records, err := o.store.Records(ctx, o.tenant.ID)
	mine := find(records, o.change)
	return err == nil && mine != nil && mine.Plan.ID == group.Plan && mine.Plan.Status == group.Move.To &&
		mine.Plan.Outcome == plan.OutcomeResolved
}

func (o ResolveOptions) validate() error {
	var problems []error
	if o.As != ResolveApplied && o.As != ResolveRolledBack {
		problems = append(problems, fmt.Errorf("resolve as %s or %s, not %q", ResolveApplied, ResolveRolledBack, o.As))
	}
	if strings.TrimSpace(o.Reason) == "" {
		problems = append(problems, errors.New("a resolve needs a reason"))
	}
	return errors.Join(problems...)
}

// resolvable returns the plan to resolve, and the steps of its change. A tenant that has none gets a pending one.
func (o *operation) resolvable(ctx context.Context, opts ResolveOptions) (*plan.Record, []plan.Step, error) {
	records, err := o.store.Records(ctx, o.tenant.ID)
	if err != nil {
		return nil, nil, err
	}
	if mine := find(records, o.change); mine != nil && (opts.Change == nil || mine.Touched()) {
		change, err := o.store.Change(ctx, mine.Plan.Digest)
		if err != nil {
			return mine, nil, err
		}
		return mine, change.Steps, nil
	}
	if opts.Change == nil {
		return nil, nil, refuse(RefusedUnknown, nil, "this tenant has no plan for change %s", o.change)
	}
	p, err := o.store.Submit(ctx, o.tenant.ID, o.tenant.Target.Scope, plan.NewID(), opts.Change)
	if err != nil {
		return nil, nil, err
	}
	return &plan.Record{Plan: p}, opts.Change.Steps, nil
}

// resolution is the group that makes the journal and the status say what the person says.
func resolution(record plan.Record, steps []plan.Step, t tenant.Tenant, opts ResolveOptions) (Group, error) {
	group := Group{Plan: record.Plan.ID, Scope: t.Target.Scope, Cycle: max(record.Plan.Cycle, 1), Release: true}
	event, state := plan.EventResolveApplied, plan.StepDone
	group.Direction = plan.Up
	if opts.As == ResolveRolledBack {
		event, state = plan.EventResolveRolledBack, plan.StepUndone
		group.Direction = plan.Down
	}
	move, err := moveOf(record.Plan, event, plan.OutcomeResolved, nil)
	if err != nil {
		return Group{}, err
	}
	move.Reason = opts.Reason
	group.Move = move
	for i := range steps {
		now := record.State(i)
		if now == state || !now.CanBecome(state) {
			continue
		}
		step := GroupStep{Ordinal: i, ID: steps[i].ID, State: state}
		if state == plan.StepDone && steps[i].Kind == plan.Action {
			step.Image = []byte{} // nobody knows what was there before
		}
		group.Steps = append(group.Steps, step)
	}
	return group, nil
}
