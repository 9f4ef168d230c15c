package sitelock

import (
	"context"
	"errors"
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

// G9
func TestTrustCountsFromTheSendingNotFromTheAnswer(t *testing.T) {
	t.Parallel()
	const takes = 2 * time.Second
	slow := func(_ context.Context, call int, apply func()) error {
		if call > 1 {
			return errCut
		}
		pass(takes)
		apply()
		return nil
	}
	for name, tt := range map[string]struct {
		acquire, renew hook
		asserted       bool
		want           time.Duration
	}{
		"of an acquire":            {acquire: slow, renew: away, want: trust(lease) - takes},
		"of a renewal":             {renew: slow, want: lease/4 + trust(lease)},
		"of a renewal that proves": {renew: slow, asserted: true, want: trust(lease) - takes},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				l, store := started(t, Config{}), newMemory()
				store.onAcquire, store.onRenew = tt.acquire, tt.renew
				lock := acquire(t, l, store, request())
				if tt.asserted {
					if err := lock.AssertHeld(t.Context()); err != nil {
						t.Error(err)
					}
				}
				if at := lostAt(t, lock); at != tt.want {
					t.Errorf("lost after %s, want %s", at, tt.want)
				}
				release(t, lock)
			})
		})
	}
}

func TestAnAssertionThatHangsIsGivenUpAndSentAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l, store := started(t, Config{}), newMemory()
		store.onRenew = func(ctx context.Context, call int, apply func()) error {
			if call == 1 {
				return hangs(ctx, call, apply)
			}
			apply()
			return nil
		}
		lock := acquire(t, l, store, request())
		defer release(t, lock)
		began := time.Now()
		if err := lock.AssertHeld(t.Context()); err != nil {
			t.Error(err)
		}
		if took := time.Since(began); took < attempt(lease) || took > attempt(lease)+time.Second {
			t.Errorf("took %s", took)
		}
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

func TestAssertHeldProvesWithOneRenewalAndAsksForAsLongAsTheLockIsTrusted(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l, store := started(t, Config{}), newMemory()
		lock := acquire(t, l, store, request())
		pass(lease / 8)
		asserted := time.Now()
		if err := lock.AssertHeld(t.Context()); err != nil || store.count("renew") != 1 {
			t.Errorf("error %v after %d renewals", err, store.count("renew"))
		}
		if left := time.Until(store.expires(lock.Held().Tenant)); left != lease {
			t.Errorf("lapses in %s", left)
		}
		store.set(&store.onRenew, away)
		hurried, cancel := context.WithTimeout(t.Context(), attempt(lease)/2)
		defer cancel()
		if err := lock.AssertHeld(hurried); !errors.Is(err, errCut) || lock.Err() != nil {
			t.Errorf("a caller who has no time: %v, lock %v", err, lock.Err())
		}
		if err := lock.AssertHeld(t.Context()); !errors.Is(err, errCut) || !errors.As(err, new(*LockLostError)) {
			t.Errorf("a database that cannot tell: %v, lock %v", err, lock.Err())
		}
		if at, want := time.Since(asserted), trust(lease); at < want || at > want+attempt(lease) {
			t.Errorf("lost %s after it was asserted, want %s", at, want)
		}
		lostAt(t, lock)
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
		asked, began := store.count("renew"), time.Now()
		store.set(&store.onRenew, func(_ context.Context, _ int, apply func()) error {
			if time.Since(began) < lease/2 { // longer than one renewal may take
				return ErrContended
			}
			apply()
			return nil
		})
		if err := lock.AssertHeld(t.Context()); err != nil || store.count("renew") <= asked {
			t.Errorf("error %v", err)
		}
		store.set(&store.onRenew, func(context.Context, int, func()) error { return ErrContended })
		if err := lock.AssertHeld(t.Context()); !errors.Is(err, ErrContended) || !errors.As(err, new(*LockLostError)) {
			t.Errorf("error %v, lock %v", err, lock.Err())
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
