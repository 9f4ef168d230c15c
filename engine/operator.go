package engine

import (
	"context"
	"fmt"
	"time"

	"github.com/belayhq/belay/sitelock"
	"github.com/belayhq/belay/tenant"
)

// Break takes a tenant's lock from whoever has it, alive or not, returns its plans to the statuses they were claimed
// from, and leaves it free. The former holder cannot commit anything any more. The reason is kept in the history.
func (e *Engine) Break(ctx context.Context, t tenant.Tenant, reason string) ([]sitelock.Recovered, error) {
	store, closeStore, err := e.open(ctx, t)
	if err != nil {
		return nil, err
	}
	defer closeStore()
	recovered, err := e.locker.Break(ctx, store, t.ID, reason)
	return recovered, AsRefusal(err)
}

// Hold keeps everyone off a tenant for a time, with a reason that those kept off are told. It refuses a live holder,
// is not renewed, ends by itself, and can be ended by [Engine.ReleaseHold] from any process.
func (e *Engine) Hold(ctx context.Context, t tenant.Tenant, ttl time.Duration, reason string) (sitelock.Grant, error) {
	store, closeStore, err := e.open(ctx, t)
	if err != nil {
		return sitelock.Grant{}, err
	}
	defer closeStore()
	grant, err := e.locker.Hold(ctx, store, t.ID, t.Target.Scope, ttl, reason)
	return grant, AsRefusal(err)
}

// ReleaseHold ends an operator's hold. It is an error if nobody holds the tenant.
func (e *Engine) ReleaseHold(ctx context.Context, t tenant.Tenant) error {
	store, closeStore, err := e.open(ctx, t)
	if err != nil {
		return err
	}
	defer closeStore()
	// An operator who is not answered is told so, and the hold ends by itself.
	ctx, cancel := context.WithTimeout(ctx, finishTimeout)
	defer cancel()
	state, err := store.State(ctx, t.ID)
	if err != nil {
		return err
	}
	if state.Kind() != sitelock.StateHeld {
		return fmt.Errorf("tenant %s is not held: %w", t.Name, sitelock.ErrNotHeld)
	}
	return store.Release(ctx, sitelock.Held{Tenant: t.ID, Holder: state.Holder, Fence: state.Fence})
}
