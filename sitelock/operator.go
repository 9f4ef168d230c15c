package sitelock

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/belayhq/belay/tenant"
)

// breaks is how often a break is sent in all where the database is busy.
const breaks = 20

// Hold acquires a tenant's lock for an operator, with a reason, for a time that no renewal extends: whoever runs into it is
// told the reason, and it ends by itself. It is one try. Errors: *[LockBusyError] if someone has the lock; the others are
// those of [Locker.Acquire].
func (l *Locker) Hold(ctx context.Context, store Store, id tenant.ID, scope string, ttl time.Duration, reason string) (Grant, error) {
	if strings.TrimSpace(reason) == "" || ttl < MinLease {
		return Grant{}, fmt.Errorf("hold lock: a reason and a time of at least %s are needed", MinLease)
	}
	a := acquisition{locker: l, store: store, req: Request{
		Tenant: id, Scope: scope, Holder: NewHolderID(), Process: l.cfg.Process, Operation: OpHold, Lease: ttl, Reason: reason,
	}}
	for range 2 {
		grant, err := a.ask(ctx)
		if !errors.Is(err, ErrRefused) && !errors.Is(err, ErrContended) {
			return grant, err
		}
		if why := a.whyRefused(ctx, err); why != nil {
			return Grant{}, why
		}
	}
	return Grant{}, &LockBusyError{}
}

// Break takes a tenant's lock from whoever has it, recovers the tenant's plans, and leaves it free: see [Store.Break]. A busy
// database is asked again, with pauses, for some seconds.
func (l *Locker) Break(ctx context.Context, store Store, id tenant.ID, reason string) ([]Recovered, error) {
	if strings.TrimSpace(reason) == "" {
		return nil, errors.New("break lock: a reason is needed")
	}
	sent := 0
	for pause := range pauses() {
		recovered, err := l.sendBreak(ctx, store, id, reason)
		if sent++; !errors.Is(err, ErrContended) || sent == breaks {
			return recovered, err
		}
		if !sleep(ctx, pause, nil) {
			break
		}
	}
	return nil, context.Cause(ctx)
}

// sendBreak bounds the wait for the answer.
func (l *Locker) sendBreak(ctx context.Context, store Store, id tenant.ID, reason string) ([]Recovered, error) {
	ctx, cancel := context.WithTimeout(ctx, answerMax)
	defer cancel()
	return store.Break(ctx, id, l.cfg.Process, reason)
}
