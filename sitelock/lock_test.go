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

// lostAt returns when a lock's context was cancelled, counted from now, and fails the test if it was for another reason
// than a loss.
func lostAt(t *testing.T, lock *Lock) time.Duration {
	t.Helper()
	began := time.Now()
	<-lock.Context().Done()
	if _, ok := errors.AsType[*LockLostError](context.Cause(lock.Context())); !ok {
		t.Errorf("cause %v", context.Cause(lock.Context()))
	}
	if lost, ok := errors.AsType[*LockLostError](lock.Err()); !ok || lost.Held != lock.Held() || lost.Lease != lease {
		t.Errorf("error %v", lock.Err())
	}
	return time.Since(began)
}

func away(context.Context, int, func()) error { return errCut }

func hangs(ctx context.Context, _ int, _ func()) error {
	<-ctx.Done()
	return ctx.Err()
}

func TestALockIsHeldAsLongAsItIsRenewed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l, store := started(t, Config{}), newMemory()
		lock := acquire(t, l, store, request())
		pass(10 * lease)
		if err := lock.Err(); err != nil || lock.Context().Err() != nil {
			t.Errorf("error %v, context %v", err, lock.Context().Err())
		}
		if n := store.count("renew"); n < 39 || n > 40 {
			t.Errorf("%d renewals in 10 leases", n)
		}
		release(t, lock)
	})
}

func TestTrustEndsBeforeTheLeaseWhenTheDatabaseIsGone(t *testing.T) {
	t.Parallel()
	for name, gone := range map[string]hook{"refuses": away, "hangs": hangs} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				l, store := started(t, Config{}), newMemory()
				lock := acquire(t, l, store, request())
				expires := store.expires(lock.Held().Tenant)
				store.set(&store.onRenew, gone)
				if at := lostAt(t, lock); at != lease-lease/8 || !time.Now().Before(expires) {
					t.Errorf("lost after %s, its lease lapses %s later", at, time.Until(expires))
				}
				store.set(&store.onRenew, nil)
				pass(2 * lease)
				if _, ok := errors.AsType[*LockLostError](lock.Err()); !ok {
					t.Error("a lost lock was held again")
				}
				if err := lock.AssertHeld(t.Context()); !errors.As(err, new(*LockLostError)) {
					t.Errorf("assert: %v", err)
				}
				if n := store.count("renew"); n > 4 {
					t.Errorf("%d renewals: a lost lock is still renewed", n)
				}
				release(t, lock) // nobody took it, so it is freed
				if state, _ := store.State(t.Context(), lock.Held().Tenant); state.Holder != "" {
					t.Error("not freed")
				}
			})
		})
	}
}

func TestTrustCountsFromTheSendingNotFromTheAnswer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l, store := started(t, Config{}), newMemory()
		store.onRenew = func(_ context.Context, call int, apply func()) error {
			if call > 1 {
				return errCut
			}
			pass(10 * time.Second)
			apply()
			return nil
		}
		lock := acquire(t, l, store, request())
		if at, want := lostAt(t, lock), lease/4+trust(lease); at != want {
			t.Errorf("lost after %s, want %s", at, want)
		}
		release(t, lock)
	})
}

func TestAnAnswerDelayedBeyondTrustDoesNotProlongIt(t *testing.T) {
	t.Parallel()
	late := 9 * lease / 10
	t.Run("of a renewal", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			l, store := started(t, Config{}), newMemory()
			store.onRenew = func(_ context.Context, _ int, apply func()) error {
				apply() // the lease is extended at once, and the answer ignores its deadline
				pass(late)
				return nil
			}
			lock := acquire(t, l, store, request())
			if at := lostAt(t, lock); at != trust(lease) {
				t.Errorf("lost after %s, want %s", at, trust(lease))
			}
			pass(late)
			if lock.Err() == nil {
				t.Error("the late answer healed the lock")
			}
			release(t, lock)
		})
	})
	t.Run("of an acquire", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			l, store := started(t, Config{}), newMemory()
			store.onAcquire = func(_ context.Context, call int, apply func()) error {
				apply()
				if call == 1 {
					pass(late)
				}
				return nil
			}
			lock := acquire(t, l, store, request())
			defer release(t, lock)
			if lock.Err() != nil || store.count("acquire") != 2 || lock.Held().Fence != 1 {
				t.Errorf("error %v after %d tries, held %+v", lock.Err(), store.count("acquire"), lock.Held())
			}
		})
	})
}

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

func TestAssertHeldProvesWithOneRenewal(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l, store := started(t, Config{}), newMemory()
		lock := acquire(t, l, store, request())
		pass(lease / 8)
		if err := lock.AssertHeld(t.Context()); err != nil || store.count("renew") != 1 {
			t.Errorf("error %v after %d renewals", err, store.count("renew"))
		}
		if left := time.Until(store.expires(lock.Held().Tenant)); left != lease {
			t.Errorf("lapses in %s", left)
		}
		store.set(&store.onRenew, away)
		if err := lock.AssertHeld(t.Context()); !errors.Is(err, errCut) || lock.Err() != nil {
			t.Errorf("a database that cannot tell: %v, lock %v", err, lock.Err())
		}
		if at, want := lostAt(t, lock), trust(lease); at != want {
			t.Errorf("lost %s after it was asserted, want %s", at, want)
		}
		release(t, lock)
	})
}

func TestAssertHeldFindsALoss(t *testing.T) {
	t.Parallel()
	l, store := started(t, Config{}), newMemory()
	lock := acquire(t, l, store, request())
	store.take(lock.Held().Tenant, lease)
	if err := lock.AssertHeld(t.Context()); !errors.As(err, new(*LockLostError)) {
		t.Errorf("error %v", err)
	}
	lostAt(t, lock)
	if err := lock.Release(t.Context()); !errors.Is(err, ErrNotHeld) {
		t.Errorf("release: %v", err)
	}
}

func TestAssertHeldWaitsForARowThatIsLockedForAMoment(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l, store := started(t, Config{}), newMemory()
		store.onRenew = func(_ context.Context, call int, apply func()) error {
			if call < 3 {
				return ErrContended
			}
			apply()
			return nil
		}
		lock := acquire(t, l, store, request())
		if err := lock.AssertHeld(t.Context()); err != nil {
			t.Error(err)
		}
		store.set(&store.onRenew, func(context.Context, int, func()) error { return ErrContended })
		if err := lock.AssertHeld(t.Context()); !errors.Is(err, ErrContended) || lock.Err() != nil {
			t.Errorf("error %v, lock %v", err, lock.Err())
		}
		release(t, lock)
	})
}

func TestReleasingRunsWithoutRenewalsAndFreesTheLock(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l, store := started(t, Config{}), newMemory()
		renewing := false
		store.onRenew = func(_ context.Context, _ int, apply func()) error {
			renewing = true
			pass(5 * time.Second)
			apply()
			renewing = false
			return nil
		}
		lock := acquire(t, l, store, request())
		pass(lease/4 + time.Second)
		err := lock.Releasing(t.Context(), func(ctx context.Context) error {
			if renewing {
				t.Error("a renewal was under way")
			}
			if err := lock.AssertHeld(ctx); err != nil {
				t.Errorf("assert in the transaction: %v", err)
			}
			pass(lease / 2)
			return store.Release(ctx, lock.Held())
		})
		if err != nil {
			t.Error(err)
		}
		if n := store.count("renew"); n != 1 {
			t.Errorf("%d renewals", n)
		}
		if !errors.Is(lock.Err(), ErrNotHeld) || lock.Context().Err() != nil {
			t.Errorf("error %v, context %v", lock.Err(), lock.Context().Err())
		}
		pass(lease)
		release(t, lock)
		if lock.Context().Err() == nil || store.count("release") != 1 || store.count("renew") != 1 {
			t.Errorf("calls %v", store.log)
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

func TestTheEndOfTrustDoesNotInterruptAnOpenTransaction(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		after hook // renewals from the end of the transaction on
		taken bool
		lost  bool
	}{
		"and it is renewed afterwards":   {},
		"and it is lost if that fails":   {after: away, lost: true},
		"or if it turns out to be taken": {taken: true, lost: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				l, store := started(t, Config{}), newMemory()
				lock := acquire(t, l, store, request())
				store.set(&store.onRenew, hangs) // the open transaction keeps renewals out
				err := lock.Proving(t.Context(), func(context.Context) error {
					pass(2 * lease)
					if lock.Err() != nil || lock.Context().Err() != nil {
						t.Errorf("interrupted: %v", lock.Err())
					}
					store.set(&store.onRenew, tt.after)
					if tt.lost && name[0] == 'o' {
						store.set(&store.onRenew, nil)
						store.take(lock.Held().Tenant, lease)
					}
					return nil
				})
				if err != nil {
					t.Errorf("the transaction committed, and yet: %v", err)
				}
				if lost := lock.Err() != nil; lost != tt.lost {
					t.Errorf("lost: %v, want %v", lost, tt.lost)
				}
				if !tt.lost {
					pass(lease)
					if lock.Err() != nil {
						t.Errorf("not renewed any more: %v", lock.Err())
					}
				}
				_ = lock.Release(t.Context())
			})
		})
	}
}

func TestACheckpointThatExtendsTheLeaseExtendsTrust(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l, store := started(t, Config{}), newMemory()
		store.set(&store.onRenew, away)
		lock := acquire(t, l, store, request())
		pass(lease / 2)
		lock.Extended(time.Now())
		lock.Extended(time.Now().Add(-lease)) // an older one takes nothing away
		if at := lostAt(t, lock); at != trust(lease) {
			t.Errorf("lost after %s, want %s", at, trust(lease))
		}
		lock.Extended(time.Now())
		if lock.Err() == nil {
			t.Error("a lost lock was held again")
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

func TestTheFirstLossStays(t *testing.T) {
	t.Parallel()
	l, store := started(t, Config{}), newMemory()
	lock := acquire(t, l, store, request())
	lock.Lose(&LockLostError{Current: &State{Holder: "first"}})
	first := lock.Err()
	lock.Lose(&LockLostError{})
	if !errors.Is(lock.Err(), first) || !errors.Is(context.Cause(lock.Context()), first) {
		t.Errorf("first %v, then %v", first, lock.Err())
	}
}

func TestAReleasedLockCannotBeLost(t *testing.T) {
	t.Parallel()
	l, store := started(t, Config{}), newMemory()
	lock := acquire(t, l, store, request())
	release(t, lock)
	lock.Lose(&LockLostError{})
	if err := lock.Err(); !errors.Is(err, ErrNotHeld) {
		t.Errorf("error %v", err)
	}
}

// A process that was stopped finds its timer due and an answer there in the same instant, in any order.
func TestAProcessThatWakesUpTooLateBelievesNoAnswer(t *testing.T) {
	t.Parallel()
	l, store := started(t, Config{}), newMemory()
	lock := acquire(t, l, store, request())
	defer release(t, lock)
	lock.mu.Lock()
	lock.trustUntil = time.Now().Add(-time.Second)
	lock.mu.Unlock()
	lock.Extended(time.Now())
	if err := lock.Err(); !errors.As(err, new(*LockLostError)) {
		t.Errorf("error %v", err)
	}
}

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
