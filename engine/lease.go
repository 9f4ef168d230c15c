package engine

import (
	"context"

	"github.com/belayhq/belay/sitelock"
)

type leaseKey struct{}

func withLease(ctx context.Context, lock *sitelock.Lock) context.Context {
	return context.WithValue(ctx, leaseKey{}, lock)
}

// Lease returns the site lock under which an action runs. An external action that makes several effects calls its
// AssertHeld between them. It is nil outside an action.
func Lease(ctx context.Context) *sitelock.Lock {
	lock, _ := ctx.Value(leaseKey{}).(*sitelock.Lock)
	return lock
}
