package sitelock

import (
	"context"
	"errors"
	"time"

	"github.com/belayhq/belay/internal/logkey"
)

// Run acquires a lock as [Locker.Acquire] does, calls fn with a context that ends with ctx and with the lock, and releases
// the lock whatever fn does: return, panic or end its goroutine. What fn started must have ended when it returns.
//
// The error is that of Acquire or of fn. A release that failed is only logged, because the lock lapses by itself.
func (l *Locker) Run(ctx context.Context, store Store, req Request, wait time.Duration,
	fn func(ctx context.Context, lock *Lock, grant Grant) error,
) error {
	lock, grant, err := l.Acquire(ctx, store, req, wait)
	if err != nil {
		return err
	}
	defer func() {
		if err := lock.Release(ctx); err != nil && !errors.Is(err, ErrNotHeld) {
			l.cfg.Log.Warn().Err(err).Str(logkey.Tenant, string(req.Tenant)).Int64(logkey.Fence, int64(lock.held.Fence)).
				Msg("lock not released, it lapses by itself")
		}
	}()
	working, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(lock.Context(), func() { cancel(context.Cause(lock.Context())) })()
	return fn(working, lock, grant)
}
