package sitelock

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/belayhq/belay/plan"
)

func TestEveryAcquisitionHasAHolderOfItsOwn(t *testing.T) {
	t.Parallel()
	l, store, req := started(t, Config{Process: Process{Host: "h", PID: 42}}), newMemory(), request()
	first := acquire(t, l, store, req)
	release(t, first)
	second := acquire(t, l, store, req)
	defer release(t, second)
	if first.Held().Holder == second.Held().Holder || second.Held().Fence != first.Held().Fence+1 {
		t.Errorf("%+v after %+v", second.Held(), first.Held())
	}
	if state, _ := store.State(t.Context(), req.Tenant); state.Host != "h" || state.PID != 42 {
		t.Errorf("state %+v", state)
	}
}

func TestARefusedCallerIsToldWhoHasTheLock(t *testing.T) {
	t.Parallel()
	l, store, req := started(t, Config{}), newMemory(), request()
	held := store.take(req.Tenant, lease)
	_, _, err := l.Acquire(t.Context(), store, req, 0)
	busy, ok := errors.AsType[*LockBusyError](err)
	if !ok || busy.State == nil || busy.State.Holder != held.Holder {
		t.Fatalf("error %v", err)
	}
	if a := store.count("acquire"); a != 1 {
		t.Errorf("asked %d times, want one try", a)
	}
}

func TestAHolderThatWasJustFinishingIsTriedOnceMore(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		refusals int
		ok       bool
	}{
		"free at the second try":     {1, true},
		"refused at the second, too": {2, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l, store := started(t, Config{}), newMemory()
			store.onAcquire = func(_ context.Context, call int, apply func()) error {
				if call <= tt.refusals {
					return ErrRefused
				}
				apply()
				return nil
			}
			lock, _, err := l.Acquire(t.Context(), store, request(), 0)
			if tt.ok {
				if err != nil {
					t.Fatal(err)
				}
				release(t, lock)
				return
			}
			if busy, ok := errors.AsType[*LockBusyError](err); !ok || busy.State != nil || busy.Cause != nil {
				t.Errorf("error %v", err)
			}
			if n := store.count("acquire"); n != 2 {
				t.Errorf("asked %d times, want 2", n)
			}
		})
	}
}

func TestABusyDatabaseIsPolledUntilTheWaitIsOver(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		live bool
		wait time.Duration
		free int // the call from which on the database is not busy; 0 for never
	}{
		"without a wait":            {},
		"in vain":                   {wait: 10 * time.Second},
		"someone has it, as read":   {live: true, wait: 10 * time.Second},
		"until it is free":          {wait: 10 * time.Second, free: 5},
		"someone has it, no waiter": {live: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				l, store, req := started(t, Config{}), newMemory(), request()
				if tt.live {
					store.take(req.Tenant, lease)
				}
				store.onAcquire = func(_ context.Context, call int, apply func()) error {
					if tt.free == 0 || call < tt.free {
						return ErrContended
					}
					apply()
					return nil
				}
				began := time.Now()
				lock, _, err := l.Acquire(t.Context(), store, req, tt.wait)
				if tt.free > 0 {
					if err != nil {
						t.Fatal(err)
					}
					release(t, lock)
					return
				}
				if took := time.Since(began); took != tt.wait {
					t.Errorf("took %s, want %s", took, tt.wait)
				}
				busy, ok := errors.AsType[*LockBusyError](err)
				if !ok || (busy.State != nil) != tt.live || errors.Is(err, ErrContended) == tt.live {
					t.Errorf("error %v", err)
				}
				if tt.wait == 0 && store.count("acquire") != 1 {
					t.Errorf("asked %d times", store.count("acquire"))
				}
			})
		})
	}
}

func TestALapsedHolderWhoseRowIsLockedIsNamed(t *testing.T) {
	t.Parallel()
	for _, wait := range []time.Duration{0, 10 * time.Second} {
		synctest.Test(t, func(t *testing.T) {
			var told []Waiting
			l, store, req := started(t, Config{}), newMemory(), request()
			other := store.take(req.Tenant, lease)
			pass(2 * lease)
			store.onAcquire = func(context.Context, int, func()) error { return ErrContended }
			req.OnWait = func(w Waiting) { told = append(told, w) }
			_, _, err := l.Acquire(t.Context(), store, req, wait)
			busy, ok := errors.AsType[*LockBusyError](err)
			if !ok || !errors.Is(busy.Cause, ErrContended) || busy.State == nil || busy.State.Holder != other.Holder || busy.State.Live {
				t.Fatalf("error %v", err)
			}
			if n := store.count("acquire"); n > 20 {
				t.Errorf("asked %d times in %s", n, wait)
			}
			if len(told) > 1 {
				t.Errorf("told %d times", len(told))
			}
		})
	}
}

func TestALockThatOthersHadInBetweenIsNotReplaced(t *testing.T) {
	t.Parallel()
	for name, gone := range map[string]bool{"they have it": false, "they let it go": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l, store, req := started(t, Config{}), newMemory(), request()
			old := acquire(t, l, store, req)
			old.Lose(&LockLostError{})
			other := store.take(req.Tenant, lease)
			if gone {
				if err := store.Release(t.Context(), other); err != nil {
					t.Fatal(err)
				}
			}
			req.Replace = old.Held()
			_, _, err := l.Acquire(t.Context(), store, req, 0)
			busy, ok := errors.AsType[*LockBusyError](err)
			if !ok || busy.State == nil || busy.Cause != nil || busy.State.Fence != other.Fence {
				t.Errorf("error %v", err)
			}
		})
	}
}

func TestAWaiterGetsTheLockJustAfterItLapses(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var told []Waiting
		l, store, req := started(t, Config{}), newMemory(), request()
		req.OnWait = func(w Waiting) { told = append(told, w) }
		dead := store.take(req.Tenant, 10*time.Second)
		began := time.Now()
		lock, _, err := l.Acquire(t.Context(), store, req, time.Minute)
		if err != nil {
			t.Fatal(err)
		}
		defer release(t, lock)
		if took := time.Since(began); took <= 10*time.Second || took > 10*time.Second+2*pauseMin {
			t.Errorf("took %s", took)
		}
		if len(told) != 1 || told[0].State.Holder != dead.Holder || told[0].Tenant != req.Tenant ||
			!told[0].Since.Equal(began) || !told[0].Deadline.Equal(began.Add(time.Minute)) {
			t.Errorf("told %+v", told)
		}
		if n := store.count("acquire"); n != 2 {
			t.Errorf("asked for the lock %d times, want once at the beginning and once when it had lapsed", n)
		}
		if n := store.count("state"); n > 25 {
			t.Errorf("read the state %d times in 10 s", n)
		}
	})
}

func TestAWaiterIsToldAgainWhenTheLockChangesHands(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var told []HolderID
		l, store, req := started(t, Config{}), newMemory(), request()
		req.OnWait = func(w Waiting) { told = append(told, w.State.Holder) }
		first := store.take(req.Tenant, lease)
		taken := make(chan Held, 1)
		time.AfterFunc(20*time.Second, func() { taken <- store.take(req.Tenant, 20*time.Second) })
		lock, _, err := l.Acquire(t.Context(), store, req, 90*time.Second)
		if err != nil {
			t.Fatal(err)
		}
		defer release(t, lock)
		second := <-taken
		if len(told) != 2 || told[0] != first.Holder || told[1] != second.Holder {
			t.Errorf("told %v, want %v and %v", told, first.Holder, second.Holder)
		}
	})
}

func TestWhatNoWaitCanHealReturnsAtOnce(t *testing.T) {
	t.Parallel()
	for _, want := range []error{ErrNewerBinary, ErrScopeTaken, ErrRemoved} {
		t.Run(want.Error(), func(t *testing.T) {
			t.Parallel()
			l, store := started(t, Config{}), newMemory()
			store.onAcquire = func(context.Context, int, func()) error { return fmt.Errorf("acquire: %w", want) }
			if _, _, err := l.Acquire(t.Context(), store, request(), time.Hour); !errors.Is(err, want) {
				t.Errorf("error %v", err)
			}
			if n := store.count("acquire"); n != 1 {
				t.Errorf("asked %d times", n)
			}
		})
	}
	t.Run("a newer binary at work", func(t *testing.T) {
		t.Parallel()
		l, store, req := started(t, Config{}), newMemory(), request()
		store.take(req.Tenant, lease)
		store.rows[req.Tenant].plans = []plan.Plan{{Status: plan.Applying, Format: plan.Format + 1}}
		if _, _, err := l.Acquire(t.Context(), store, req, time.Hour); !errors.Is(err, ErrNewerBinary) {
			t.Errorf("error %v", err)
		}
	})
}

func TestAnAcquireWhoseAnswerIsLostRecognisesItsRow(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		hook hook
		ok   bool
	}{
		"once": {func(_ context.Context, call int, apply func()) error {
			apply()
			if call == 1 {
				return errCut
			}
			return nil
		}, true},
		"three times": {func(_ context.Context, call int, apply func()) error {
			apply()
			if call <= 3 {
				return errCut
			}
			return nil
		}, true},
		"and its row is still locked": {func(_ context.Context, call int, apply func()) error {
			switch call {
			case 1:
				apply()
				return errCut
			case 2:
				return ErrContended
			}
			apply()
			return nil
		}, true},
		"every time": {func(_ context.Context, _ int, apply func()) error {
			apply()
			return errCut
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				l, store := started(t, Config{}), newMemory()
				store.onAcquire = tt.hook
				lock, _, err := l.Acquire(t.Context(), store, request(), time.Second)
				if !tt.ok {
					if !errors.Is(err, errCut) || store.count("acquire") != sends {
						t.Errorf("error %v after %d tries", err, store.count("acquire"))
					}
					return
				}
				if err != nil {
					t.Fatal(err)
				}
				if lock.Held().Fence != 1 {
					t.Errorf("fence %d: it was taken from itself", lock.Held().Fence)
				}
				release(t, lock)
			})
		})
	}
}

func TestATakeOverFromOneselfDoesNotWaitForTheOldLease(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l, store, req := started(t, Config{}), newMemory(), request()
		old := acquire(t, l, store, req)
		old.Lose(&LockLostError{})
		req.Replace = old.Held()
		store.onAcquire = func(_ context.Context, call int, apply func()) error {
			if call <= 3 { // the old transaction is not decided yet
				return ErrContended
			}
			apply()
			return nil
		}
		began := time.Now()
		lock, _, err := l.Acquire(t.Context(), store, req, lease)
		if err != nil {
			t.Fatal(err)
		}
		defer release(t, lock)
		if took := time.Since(began); took > time.Second {
			t.Errorf("took %s", took)
		}
	})
}

func TestAnAcquireThatHangsIsGivenUpAndSentAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l, store := started(t, Config{}), newMemory()
		store.onAcquire = func(ctx context.Context, call int, apply func()) error {
			if call == 1 {
				<-ctx.Done()
				return ctx.Err()
			}
			apply()
			return nil
		}
		began := time.Now()
		lock := acquire(t, l, store, request())
		defer release(t, lock)
		if took := time.Since(began); took < answerMax || took > answerMax+time.Second {
			t.Errorf("took %s", took)
		}
	})
}

func TestAnAcquireCancelledWhileTheDatabaseAnswersLeavesNoLock(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l, store, req := started(t, Config{}), newMemory(), request()
		ctx, cancel := context.WithCancel(t.Context())
		store.onAcquire = func(ctx context.Context, _ int, apply func()) error {
			cancel()
			pass(answerGrace / 2)
			if ctx.Err() != nil {
				return ctx.Err()
			}
			apply()
			return nil
		}
		if _, _, err := l.Acquire(ctx, store, req, time.Minute); !errors.Is(err, context.Canceled) {
			t.Errorf("error %v", err)
		}
		if state, _ := store.State(t.Context(), req.Tenant); state.Live || state.Fence != 1 {
			t.Errorf("state %+v", state)
		}
	})
}

func TestACancelledAcquireDoesNotWaitForADatabaseThatHangs(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l, store := started(t, Config{}), newMemory()
		ctx, cancel := context.WithTimeoutCause(t.Context(), time.Second, errCut)
		defer cancel()
		store.onAcquire = func(ctx context.Context, _ int, _ func()) error {
			<-ctx.Done()
			return ctx.Err()
		}
		began := time.Now()
		if _, _, err := l.Acquire(ctx, store, request(), time.Minute); !errors.Is(err, errCut) {
			t.Errorf("error %v", err)
		}
		if took := time.Since(began); took != time.Second+answerGrace {
			t.Errorf("took %s", took)
		}
	})
}
