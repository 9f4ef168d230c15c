package sitelock

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

func TestReleaseWaitsOutARenewalAndNoneFollows(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l, store := started(t, Config{}), newMemory()
		answered := false
		store.onRenew = func(_ context.Context, _ int, apply func()) error {
			pass(5 * time.Second)
			apply()
			answered = true
			return nil
		}
		store.onRelease = func(_ context.Context, _ int, apply func()) error {
			if !answered {
				t.Error("released during a renewal")
			}
			apply()
			return nil
		}
		other := acquire(t, l, store, request()) // keeps the renewals of this store going
		lock := acquire(t, l, store, request())
		pass(lease/4 + time.Second)
		renewed := store.count("renew")
		release(t, lock)
		release(t, lock) // idempotent
		if err := lock.Err(); !errors.Is(err, ErrNotHeld) {
			t.Errorf("after its release: %v", err)
		}
		if err := lock.AssertHeld(t.Context()); !errors.Is(err, ErrNotHeld) {
			t.Errorf("assert after its release: %v", err)
		}
		if !errors.Is(lock.Context().Err(), context.Canceled) {
			t.Error("its context lives on")
		}
		lapsed := store.expires(lock.Held().Tenant)
		pass(lease)
		if !store.expires(lock.Held().Tenant).Equal(lapsed) || store.count("renew") == renewed || renewed != 1 {
			t.Errorf("renewed after its release; %d calls in all, %d before", store.count("renew"), renewed)
		}
		if store.count("release") != 1 {
			t.Errorf("%d releases", store.count("release"))
		}
		release(t, other)
	})
}

func TestACancelledCallerStillReleases(t *testing.T) {
	t.Parallel()
	l, store := started(t, Config{}), newMemory()
	ctx, cancel := context.WithCancelCause(t.Context())
	lock, _, err := l.Acquire(ctx, store, request(), 0)
	if err != nil {
		t.Fatal(err)
	}
	cancel(errCut)
	if err := lock.Context().Err(); err != nil {
		t.Errorf("the lock's context ended with its caller's: %v", err)
	}
	if err := lock.Release(ctx); err != nil {
		t.Error(err)
	}
	if state, _ := store.State(t.Context(), lock.Held().Tenant); state.Live {
		t.Error("still held")
	}
}

func TestAReleaseThatFailsIsReportedAndNotRepeated(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		hook hook
		want error
	}{
		"the database is away": {away, errCut},
		"the database hangs":   {hangs, context.DeadlineExceeded},
		"it was taken":         {func(context.Context, int, func()) error { return ErrNotHeld }, ErrNotHeld},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				l, store := started(t, Config{}), newMemory()
				store.onRelease = tt.hook
				lock := acquire(t, l, store, request())
				began := time.Now()
				if err := lock.Release(t.Context()); !errors.Is(err, tt.want) {
					t.Errorf("error %v", err)
				}
				if took := time.Since(began); took > lease/2 {
					t.Errorf("took %s", took)
				}
				pass(lease)
				if store.count("renew") != 0 || lock.Release(t.Context()) != nil || store.count("release") != 1 {
					t.Errorf("calls %v", store.log)
				}
			})
		})
	}
}

func TestALockIsRenewedWhileItsLastTransactionIsOpen(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l, store := started(t, Config{}), newMemory()
		lock := acquire(t, l, store, request())
		err := lock.Releasing(t.Context(), func(ctx context.Context) error {
			pass(3 * lease)
			if err := lock.AssertHeld(ctx); err != nil {
				t.Errorf("assert in the transaction: %v", err)
			}
			if state, _ := store.State(ctx, lock.Held().Tenant); !state.Live {
				t.Error("a live holder looks dead")
			}
			return store.Release(ctx, lock.Held())
		})
		if err != nil {
			t.Error(err)
		}
		if !errors.Is(lock.Err(), ErrNotHeld) || lock.Context().Err() != nil {
			t.Errorf("error %v, context %v", lock.Err(), lock.Context().Err())
		}
		renewed := store.count("renew")
		pass(lease)
		release(t, lock)
		if lock.Context().Err() == nil || store.count("release") != 1 || store.count("renew") != renewed {
			t.Errorf("calls %v", store.log)
		}
	})
}

func TestARenewalThatMeetsTheReleaseIsNoLoss(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		err  error // of the transaction
		took bool  // it has taken effect
		lost bool
	}{
		"the transaction succeeds":            {took: true},
		"its answer is lost":                  {err: errCut, took: true, lost: true},
		"it fails, and the lock is as it was": {err: errCut},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				l, store := started(t, Config{}), newMemory()
				lock := acquire(t, l, store, request())
				err := lock.Releasing(t.Context(), func(ctx context.Context) error {
					if err := store.Release(ctx, lock.Held()); err != nil {
						t.Error(err)
					}
					pass(lease / 2) // renewals find the row free
					if lock.Err() != nil || lock.Context().Err() != nil {
						t.Errorf("lost before the transaction returned: %v", lock.Err())
					}
					if !tt.took {
						store.giveBack(lock.Held())
					}
					return tt.err
				})
				if !errors.Is(err, tt.err) {
					t.Errorf("error %v", err)
				}
				_, lost := errors.AsType[*LockLostError](lock.Err())
				if held := lock.Err() == nil; lost != tt.lost || held != !tt.took {
					t.Errorf("error %v", lock.Err())
				}
				if !tt.took {
					pass(2 * lease)
					if err := lock.Err(); err != nil {
						t.Errorf("not renewed any more: %v", err)
					}
				}
				_ = lock.Release(t.Context())
			})
		})
	}
}

func TestNoRenewalUsesTheStoreAfterARelease(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l, store := started(t, Config{}), newMemory()
		var renewing atomic.Bool
		store.onRenew = func(_ context.Context, _ int, apply func()) error {
			renewing.Store(true)
			pass(5 * time.Second)
			apply()
			renewing.Store(false)
			return nil
		}
		lock := acquire(t, l, store, request())
		err := lock.Releasing(t.Context(), func(ctx context.Context) error {
			pass(lease/4 + time.Second)
			return store.Release(ctx, lock.Held())
		})
		if err != nil || !renewing.Load() {
			t.Errorf("error %v, renewal under way: %v", err, renewing.Load())
		}
		release(t, lock)
		if renewing.Load() {
			t.Error("released while a renewal was under way")
		}
	})
}

func TestReleasingTakesTheLockBackWhenItFails(t *testing.T) {
	t.Parallel()
	for name, panics := range map[string]bool{"with an error": false, "with a panic": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				l, store := started(t, Config{}), newMemory()
				lock := acquire(t, l, store, request())
				func() {
					defer func() { _ = recover() }()
					err := lock.Releasing(t.Context(), func(context.Context) error {
						if panics {
							panic("a step")
						}
						return errCut
					})
					if !errors.Is(err, errCut) {
						t.Errorf("error %v", err)
					}
				}()
				pass(2 * lease)
				if err := lock.Err(); err != nil || store.count("renew") < 7 {
					t.Errorf("error %v after %d renewals", err, store.count("renew"))
				}
				release(t, lock)
			})
		})
	}
}

func TestReleasingDoesNotTakeALostLockBack(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l, store := started(t, Config{}), newMemory()
		lock := acquire(t, l, store, request())
		other := store.take(lock.Held().Tenant, lease)
		now := &LockLostError{Current: &State{Holder: other.Holder, Live: true}}
		if err := lock.Releasing(t.Context(), func(context.Context) error { return now }); !errors.Is(err, now) {
			t.Errorf("error %v", err)
		}
		lostAt(t, lock)
		lost, _ := errors.AsType[*LockLostError](lock.Err())
		if lost.Current != now.Current {
			t.Errorf("it does not say who has it: %v", lost)
		}
		pass(lease)
		if n := store.count("renew"); n != 0 {
			t.Errorf("%d renewals", n)
		}
		called := false
		run := func(context.Context) error { called = true; return nil }
		if err := lock.Releasing(t.Context(), run); err == nil || called {
			t.Errorf("a lost lock released: %v", err)
		}
		if err := lock.Proving(t.Context(), run); err == nil || called {
			t.Errorf("a lost lock proved: %v", err)
		}
	})
}
