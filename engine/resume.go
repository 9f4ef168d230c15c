package engine

import (
	"context"
	"time"

	"github.com/belayhq/belay/plan"
	"github.com/belayhq/belay/tenant"
)

// ResumeOptions tune a Resume. The zero value is the careful one.
type ResumeOptions struct {
	// LockTimeout is how long to wait for a lock that someone else has. Zero does not wait.
	LockTimeout time.Duration
}

// Resume takes up the plan that a dead process, a failure or a cancellation left unfinished on a tenant, and brings it to
// where it was going: a half-done rollback is finished, anything else is applied again, from the change that the tenant's
// database keeps. A tenant has at most one such plan, because a partial plan keeps every other from being claimed. Resume
// returns nil if there is none. Errors as for [Engine.Apply].
func (e *Engine) Resume(ctx context.Context, t tenant.Tenant, opts ResumeOptions) (*Result, error) {
	records, err := e.Records(ctx, t)
	if err != nil {
		return nil, err
	}
	for _, r := range records {
		if !r.Unfinished() {
			continue
		}
		result, err := e.resume(ctx, t, r.Plan, opts)
		return &result, err
	}
	return nil, nil //nolint:nilnil // nothing to resume is an answer
}

func (e *Engine) resume(ctx context.Context, t tenant.Tenant, p plan.Plan, opts ResumeOptions) (Result, error) {
	if p.Status == plan.Applied || p.Status == plan.RollingBack {
		return e.Rollback(ctx, t, p.Change, RollbackOptions{LockTimeout: opts.LockTimeout})
	}
	change, err := e.Change(ctx, t, p.Digest)
	if err != nil {
		return Result{Tenant: t, Plan: p.ID, Change: p.Change, Verdict: VerdictFailed, Err: err}, err
	}
	return e.Apply(ctx, t, change, ApplyOptions{LockTimeout: opts.LockTimeout})
}
