package sitelock

import (
	"context"
	"errors"
	"testing"
)

func TestRunReleasesOnEveryPath(t *testing.T) {
	t.Parallel()
	for name, fn := range map[string]func() error{
		"success": func() error { return nil },
		"error":   func() error { return errCut },
		"panic":   func() error { panic("a step") },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l, store, req := started(t, Config{}), newMemory(), request()
			defer func() {
				if p := recover(); (p != nil) != (name == "panic") {
					t.Errorf("recovered %v", p)
				}
				if state, _ := store.State(t.Context(), req.Tenant); state.Holder != "" || state.Fence != 1 {
					t.Errorf("state %+v", state)
				}
			}()
			err := l.Run(t.Context(), store, req, 0, func(ctx context.Context, lock *Lock, grant Grant) error {
				if ctx.Err() != nil || grant.Held != lock.Held() {
					t.Error("not the lock's own context and grant")
				}
				return fn()
			})
			if errors.Is(err, errCut) != (name == "error") {
				t.Errorf("error %v", err)
			}
		})
	}
	t.Run("refused", func(t *testing.T) {
		t.Parallel()
		l, store, req := started(t, Config{}), newMemory(), request()
		store.take(req.Tenant, lease)
		err := l.Run(t.Context(), store, req, 0, func(context.Context, *Lock, Grant) error {
			t.Error("ran without the lock")
			return nil
		})
		if !errors.As(err, new(*LockBusyError)) {
			t.Errorf("error %v", err)
		}
	})
	t.Run("a release that fails takes nothing from the work", func(t *testing.T) {
		t.Parallel()
		l, store := started(t, Config{}), newMemory()
		store.onRelease = away
		if err := l.Run(t.Context(), store, request(), 0, func(context.Context, *Lock, Grant) error { return nil }); err != nil {
			t.Error(err)
		}
	})
}
