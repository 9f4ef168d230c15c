package engine

import (
	"context"

	"github.com/belayhq/belay/sitelock"
)

type heldLockKey struct{}

func withHeldLock(ctx context.Context, lock *sitelock.Lock) context.Context {
	return context.WithValue(ctx, heldLockKey{}, lock)
}

// HeldLock returns the site lock under which an action runs. An external action that makes several effects calls its
// AssertHeld between them. It is nil outside an action.
func HeldLock(ctx context.Context) *sitelock.Lock {
	lock, _ := ctx.Value(heldLockKey{}).(*sitelock.Lock)
	return lock
}
