package engine

import (
	"context"

	"github.com/belayhq/belay/plan"
	"github.com/belayhq/belay/tenant"
)

// Submit stores a pending plan without running it, and returns it. A tenant that has a plan for the change keeps it as it
// is: the call is idempotent.
func (e *Engine) Submit(ctx context.Context, t tenant.Tenant, change *plan.Change) (plan.Plan, error) {
	store, closeStore, err := e.open(ctx, t)
	if err != nil {
		return plan.Plan{}, err
	}
	defer closeStore()
	if _, err := e.prepare(change, change.Digest(), store.Dialect()); err != nil {
		return plan.Plan{}, err
	}
	p, err := store.Submit(ctx, t.ID, t.Target.Scope, plan.NewID(), change)
	return p, AsRefusal(err)
}
