package engine

import (
	"context"
	"fmt"
	"time"
)

// finishTimeout bounds a transaction without steps.
const finishTimeout = 10 * time.Second

// uncancelled returns a context for a database transaction: it outlives the cancellation of ctx, because a statement
// cut in the middle of a commit would leave an unknown outcome, but not an Abort, nor its own deadline.
func (e *Engine) uncancelled(ctx context.Context, timeout time.Duration) (context.Context, context.CancelFunc) {
	ctx, cancelCause := context.WithCancelCause(context.WithoutCancel(ctx))
	stop := context.AfterFunc(e.abort, func() { cancelCause(context.Cause(e.abort)) })
	ctx, cancel := context.WithTimeout(ctx, timeout)
	return ctx, func() { stop(); cancel(); cancelCause(context.Canceled) }
}

// finishing returns a context for the last words on a plan or a lock: neither the caller's cancellation nor an Abort
// may keep the status from being true.
func finishing(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), finishTimeout)
}

// actionContext is what an action runs under: the lock's context, which ends when the lock is lost, with the caller's
// cancellation, the step's time and Abort.
func (r *run) actionContext(ctx context.Context, limit time.Duration) (context.Context, context.CancelFunc) {
	ctx, cancelCause := context.WithCancelCause(ctx)
	lockCtx := r.lock.Context()
	stopLock := context.AfterFunc(lockCtx, func() { cancelCause(context.Cause(lockCtx)) })
	stopAbort := context.AfterFunc(r.engine.abort, func() { cancelCause(context.Cause(r.engine.abort)) })
	ctx, cancel := context.WithTimeoutCause(withHeldLock(ctx, r.lock), limit, fmt.Errorf("timed out after %s", limit))
	return ctx, func() { stopLock(); stopAbort(); cancel(); cancelCause(context.Canceled) }
}

// withTimeout bounds ctx by the shorter of two limits; zero is no limit.
func withTimeout(ctx context.Context, a, b time.Duration) (context.Context, context.CancelFunc) {
	limit := a
	if limit == 0 || b > 0 && b < limit {
		limit = b
	}
	if limit == 0 {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, limit)
}
