package engine

import (
	"context"
	"errors"

	"github.com/belayhq/belay/plan"
	"github.com/belayhq/belay/tenant"
)

// Verify repeats every verify query of an applied change, read-only and without a lock. The change is the one the tenant
// has; no files are needed. The Result is verified, failed (with every query that failed, joined) or refused.
func (e *Engine) Verify(ctx context.Context, t tenant.Tenant, change string) (Result, error) {
	o, closeStore, err := e.begin(ctx, t, change, "")
	defer closeStore()
	if err != nil {
		return o.endUnclaimed(nil, "", err)
	}
	records, err := o.store.Records(ctx, t.ID)
	if err != nil {
		return o.endUnclaimed(nil, "", err)
	}
	record := find(records, change)
	if record == nil || record.Plan.Status != plan.Applied {
		return o.endUnclaimed(record, "", refuse(RefusedUnknown, nil, "change %s is not applied on this tenant", change))
	}
	o.result.Digest = record.Plan.Digest
	applied, err := o.store.Change(ctx, record.Plan.Digest)
	if err != nil {
		return o.endUnclaimed(record, "", err)
	}
	var failed []error
	for i := range applied.Steps {
		s := &applied.Steps[i]
		if s.Verify == nil {
			continue
		}
		timeout := defaultTo(s.Timeout, e.config.StepTimeout)
		if err := o.store.Verify(ctx, t.Target.Scope, *s.Verify, timeout); err != nil {
			failed = append(failed, &StepError{
				Tenant: t.Name, Change: change, Plan: record.Plan.ID, Step: s.ID, Direction: plan.Up, Err: err,
			})
		}
	}
	if len(failed) > 0 {
		return o.endUnclaimed(record, "", errors.Join(failed...))
	}
	o.about(record)
	return o.end(nil, VerdictVerified, nil)
}
