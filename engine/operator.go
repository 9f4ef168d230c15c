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

// Submit stores a pending plan without running it, and returns it. A tenant that has a plan for the change keeps it as it
// is: the call is idempotent.
func (e *Engine) Submit(ctx context.Context, t tenant.Tenant, change *plan.Change) (plan.Plan, error) {
	store, closeStore, err := e.directory.Open(ctx, t)
	if err != nil {
		return plan.Plan{}, err
	}
	defer closeStore()
	if _, err := e.prepare(change, change.Digest(), store.Dialect()); err != nil {
		return plan.Plan{}, err
	}
	return store.Submit(ctx, t.ID, t.Target.Scope, plan.NewID(), change)
}

// Break takes a tenant's lock from whoever has it, alive or not, returns its plans to the statuses they were claimed
// from, and leaves it free. The former holder cannot commit anything any more. The reason is kept in the history.
func (e *Engine) Break(ctx context.Context, t tenant.Tenant, reason string) ([]sitelock.Recovered, error) {
	if strings.TrimSpace(reason) == "" {
		return nil, errors.New("breaking a lock needs a reason")
	}
	store, closeStore, err := e.directory.Open(ctx, t)
	if err != nil {
		return nil, err
	}
	defer closeStore()
	for tries := 1; ; tries++ {
		recovered, err := store.Break(ctx, t.ID, e.locker.Process(), reason)
		if !errors.Is(err, sitelock.ErrContended) || tries > 20 {
			return recovered, err
		}
		if err := pause(ctx, tries); err != nil {
			return nil, err
		}
	}
}

// Hold keeps everyone off a tenant for a time, with a reason that those kept off are told. It refuses a live holder,
// is not renewed, ends by itself, and can be ended by [Engine.ReleaseHold] from any process.
func (e *Engine) Hold(ctx context.Context, t tenant.Tenant, ttl time.Duration, reason string) (sitelock.Grant, error) {
	if strings.TrimSpace(reason) == "" || ttl < time.Second {
		return sitelock.Grant{}, errors.New("holding a tenant needs a reason and a time of at least 1s")
	}
	store, closeStore, err := e.directory.Open(ctx, t)
	if err != nil {
		return sitelock.Grant{}, err
	}
	defer closeStore()
	grant, err := store.Acquire(ctx, sitelock.Request{
		Tenant: t.ID, Scope: t.Target.Scope, Holder: sitelock.NewHolderID(), Process: e.locker.Process(),
		Operation: sitelock.OpHold, Lease: ttl, Reason: reason,
	})
	if errors.Is(err, sitelock.ErrRefused) || errors.Is(err, sitelock.ErrContended) {
		return grant, busyOn(ctx, store, t.ID, err)
	}
	return grant, err
}

// ReleaseHold ends an operator's hold. It is an error if nobody holds the tenant.
func (e *Engine) ReleaseHold(ctx context.Context, t tenant.Tenant) error {
	store, closeStore, err := e.directory.Open(ctx, t)
	if err != nil {
		return err
	}
	defer closeStore()
	state, err := store.State(ctx, t.ID)
	if err != nil {
		return err
	}
	if state.Kind() != sitelock.HeldState {
		return fmt.Errorf("tenant %s is not held: %w", t.Name, sitelock.ErrNotHeld)
	}
	return store.Release(ctx, sitelock.Held{Tenant: t.ID, Holder: state.Holder, Fence: state.Fence})
}

// busyOn says who has a lock that one try did not get.
func busyOn(ctx context.Context, store Store, id tenant.ID, refused error) error {
	busy := &sitelock.LockBusyError{}
	if errors.Is(refused, sitelock.ErrContended) {
		busy.Cause = sitelock.ErrContended
	}
	if state, err := store.State(ctx, id); err == nil && state.Live {
		busy.State, busy.Cause = &state, nil
	}
	return busy
}

// observeWait tells those who watch that an operation waits for a lock.
func (e *Engine) observeWait(w sitelock.Waiting) {
	e.config.Observe(Progress{At: time.Now(), Kind: KindWaiting, Tenant: w.Tenant, Waiting: &w})
}
