package sitelock

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

func TestARenewalThatFailsOnceIsNoLoss(t *testing.T) {
	t.Parallel()
	for name, first := range map[string]hook{
		"it never arrives": away,
		"it hangs":         hangs,
		"its answer is lost": func(_ context.Context, _ int, apply func()) error {
			apply()
			return errCut
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				l, store := started(t, Config{}), newMemory()
				var at []time.Duration
				began := time.Now()
				store.onRenew = func(ctx context.Context, call int, apply func()) error {
					at = append(at, time.Since(began))
					if call == 1 {
						return first(ctx, call, apply)
					}
					apply()
					return nil
				}
				lock := acquire(t, l, store, request())
				pass(lease + time.Second)
				if err := lock.Err(); err != nil {
					t.Errorf("lost: %v", err)
				}
				release(t, lock)
				if want := []time.Duration{lease / 4, lease / 2, 3 * lease / 4, lease}; !slices.Equal(at, want) {
					t.Errorf("renewed at %v, want %v", at, want)
				}
			})
		})
	}
}

func TestALockTakenByAnotherIsLostAtTheNextRenewal(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l, store := started(t, Config{}), newMemory()
		taken, kept := acquire(t, l, store, request()), acquire(t, l, store, request())
		store.take(taken.Held().Tenant, lease)
		if at := lostAt(t, taken); at != lease/4 {
			t.Errorf("lost after %s", at)
		}
		if err := kept.Err(); err != nil {
			t.Errorf("another lock of the same call: %v", err)
		}
		if err := taken.Release(t.Context()); !errors.Is(err, ErrNotHeld) {
			t.Errorf("release: %v", err)
		}
		release(t, kept)
		if n := store.count("release"); n != 1 {
			t.Errorf("%d releases were sent, want that of the lock still held", n)
		}
	})
}

func TestALockLostToOneWhoseRowIsLockedCostsTheOthersNothing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l, store := started(t, Config{}), newMemory()
		skipped, kept := acquire(t, l, store, request()), acquire(t, l, store, request())
		store.set(&store.onRenew, func(context.Context, int, func()) error {
			return &NotRenewedError{Held: []Held{skipped.Held()}, Err: ErrContended}
		})
		if at := lostAt(t, skipped); at != trust(lease) {
			t.Errorf("lost after %s", at)
		}
		pass(lease)
		if err := kept.Err(); err != nil {
			t.Errorf("the other: %v", err)
		}
		release(t, kept)
		release(t, skipped)
	})
}

func TestAThousandLocksAreRenewedByOneCall(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l, store := started(t, Config{}), newMemory()
		var locks []*Lock
		for range 1000 {
			locks = append(locks, acquire(t, l, store, request()))
			pass(time.Millisecond) // they are not all acquired at one moment
		}
		pass(lease)
		if n := store.count("renew"); n != 4 {
			t.Errorf("%d calls in a lease", n)
		}
		for _, lock := range locks {
			if left := time.Until(store.expires(lock.Held().Tenant)); lock.Err() != nil || left < 3*lease/4 {
				t.Fatalf("%v, lapses in %s", lock.Err(), left)
			}
			release(t, lock)
		}
	})
}

func TestADatabaseThatHangsDelaysNoOther(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l, bad, good := started(t, Config{}), newMemory(), newMemory()
		bad.onRenew = hangs
		lost, kept := acquire(t, l, bad, request()), acquire(t, l, good, request())
		if at := lostAt(t, lost); at != trust(lease) {
			t.Errorf("lost after %s", at)
		}
		if left := time.Until(good.expires(kept.Held().Tenant)); kept.Err() != nil || left < 3*lease/4 {
			t.Errorf("%v, lapses in %s", kept.Err(), left)
		}
		release(t, kept)
		release(t, lost)
	})
}

func TestOneDatabaseIsNeverAskedTwiceAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l, store := started(t, Config{}), newMemory()
		var asking, most atomic.Int32
		store.onRenew = func(ctx context.Context, call int, apply func()) error {
			most.Store(max(most.Load(), asking.Add(1)))
			defer asking.Add(-1)
			if call%2 == 1 {
				return hangs(ctx, call, apply)
			}
			apply()
			return nil
		}
		lock := acquire(t, l, store, request())
		pass(10 * lease)
		if most.Load() != 1 || lock.Err() != nil {
			t.Errorf("%d at once, %v", most.Load(), lock.Err())
		}
		release(t, lock)
	})
}

func TestStopWaitsForTheLastRenewalAndLeavesTheRestToTrust(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l, store := started(t, Config{}), newMemory()
		store.onRenew = func(ctx context.Context, _ int, _ func()) error {
			<-ctx.Done()
			pass(time.Second)
			return ctx.Err()
		}
		lock := acquire(t, l, store, request())
		pass(lease/4 + time.Second)
		began := time.Now()
		l.Stop()
		if took := time.Since(began); took != time.Second {
			t.Errorf("the stop took %s, the call under way ended after 1s", took)
		}
		if err := lock.Err(); err != nil {
			t.Errorf("lost at once: %v", err)
		}
		lostAt(t, lock)
		if n := store.count("renew"); n != 1 {
			t.Errorf("%d renewals", n)
		}
		release(t, lock)
	})
}

func TestNothingRunsWithoutLocks(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l, store := started(t, Config{}), newMemory()
		release(t, acquire(t, l, store, request()))
		ended := make(chan struct{})
		go func() {
			l.keeper.wg.Wait()
			close(ended)
		}()
		synctest.Wait()
		select {
		case <-ended:
		default:
			t.Error("a goroutine renews nothing")
		}
	})
}

func TestManyLocksComeAndGoAtOnce(t *testing.T) {
	t.Parallel()
	l, stores := started(t, Config{Lease: MinLease}), []*memory{newMemory(), newMemory()}
	var workers sync.WaitGroup
	for i := range 16 {
		workers.Go(func() {
			for j := range 50 {
				err := l.Run(t.Context(), stores[(i+j)%2], request(), 0, func(ctx context.Context, lock *Lock, _ Grant) error {
					if err := lock.AssertHeld(ctx); err != nil {
						return err
					}
					lock.Extended(time.Now())
					return lock.Releasing(ctx, func(ctx context.Context) error { return lock.store.Release(ctx, lock.Held()) })
				})
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	workers.Wait()
	if len(l.keeper.groups) != 0 {
		t.Errorf("%d groups are left", len(l.keeper.groups))
	}
}
