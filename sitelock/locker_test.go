package sitelock

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/belayhq/belay/plan"
	"github.com/belayhq/belay/tenant"
)

const lease = 60 * time.Second

// started returns a running locker that stops with the test. Inside a bubble it must be called in the bubble.
func started(t *testing.T, cfg Config) *Locker {
	t.Helper()
	l, err := NewLocker(cfg)
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.Stop)
	return l
}

// pass lets the bubble's clock run on.
func pass(d time.Duration) { <-time.After(d) }

func request() Request { return Request{Tenant: tenant.NewID(), Operation: OpApply} }

func acquire(t *testing.T, l *Locker, store Store, req Request) *Lock {
	t.Helper()
	lock, _, err := l.Acquire(t.Context(), store, req, 0)
	if err != nil {
		t.Fatal(err)
	}
	return lock
}

func release(t *testing.T, lock *Lock) {
	t.Helper()
	if err := lock.Release(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestConfigNamesEveryFieldThatIsOutOfBounds(t *testing.T) {
	t.Parallel()
	good := Process{Host: "h", PID: 1}
	for name, tt := range map[string]struct {
		cfg  Config
		want []string // nil if valid
	}{
		"zero value":         {Config{}, nil},
		"shortest":           {Config{Lease: MinLease, Process: good}, nil},
		"longest":            {Config{Lease: MaxLease, Process: good}, nil},
		"too short":          {Config{Lease: MinLease - 1}, []string{"Lease is 999.999999ms", "from 1s to 1h0m0s"}},
		"too long":           {Config{Lease: MaxLease + 1}, []string{"Lease is 1h0m0.000000001s", "from 1s to 1h0m0s"}},
		"negative":           {Config{Lease: -lease}, []string{"Lease is -1m0s"}},
		"everything at once": {Config{Lease: 1, Process: Process{PID: -1}}, []string{"Lease", "Process.Host", "Process.PID"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := NewLocker(tt.cfg)
			if (err == nil) != (tt.want == nil) {
				t.Fatalf("error %v, want %q", err, tt.want)
			}
			for _, part := range tt.want {
				if !strings.Contains(err.Error(), part) {
					t.Errorf("error %q does not say %q", err, part)
				}
			}
		})
	}
}

func TestTheZeroConfigIsThisProcessWithTheDefaultLease(t *testing.T) {
	t.Parallel()
	l := started(t, Config{})
	if l.cfg.Lease != DefaultLease {
		t.Errorf("lease %s", l.cfg.Lease)
	}
	if p := l.Process(); p.Host == "" || p.PID <= 0 || p.StartedAt.IsZero() {
		t.Errorf("process %+v", p)
	}
}

func TestALockerAcquiresOnlyWhileItRuns(t *testing.T) {
	t.Parallel()
	l, err := NewLocker(Config{})
	if err != nil {
		t.Fatal(err)
	}
	store := newMemory()
	if _, _, err := l.Acquire(t.Context(), store, request(), 0); !errors.Is(err, errNotRunning) {
		t.Errorf("before the start: %v", err)
	}
	if err := l.Start(t.Context()); err != nil {
		t.Error(err)
	}
	if err := l.Start(t.Context()); !errors.Is(err, errStarted) {
		t.Errorf("second start: %v", err)
	}
	lock := acquire(t, l, store, request())
	l.Stop()
	l.Stop()
	if _, _, err := l.Acquire(t.Context(), store, request(), 0); !errors.Is(err, errNotRunning) {
		t.Errorf("after the stop: %v", err)
	}
	if n := store.count("acquire"); n != 1 {
		t.Errorf("the store was asked %d times", n)
	}
	release(t, lock)
}

func TestALeaseLengthOfTheRequestIsBoundedUnlessItIsAHold(t *testing.T) {
	t.Parallel()
	l, store := started(t, Config{}), newMemory()
	for _, tt := range []struct {
		op    Operation
		lease time.Duration
		ok    bool
	}{
		{OpApply, MinLease, true},
		{OpApply, MaxLease, true},
		{OpApply, MinLease - 1, false},
		{OpApply, MaxLease + 1, false},
		{OpHold, MaxLease + 1, true},
		{OpHold, MinLease - 1, false},
	} {
		req := request()
		req.Operation, req.Lease = tt.op, tt.lease
		lock, _, err := l.Acquire(t.Context(), store, req, 0)
		if (err == nil) != tt.ok {
			t.Errorf("%s for %s: %v", tt.op, tt.lease, err)
		}
		if err == nil {
			release(t, lock)
		}
	}
}

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

func TestAWaiterGetsTheLockJustAfterItLapses(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var told []Waiting
		l, store, req := started(t, Config{OnWait: func(w Waiting) { told = append(told, w) }}), newMemory(), request()
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
		l, store, req := started(t, Config{OnWait: func(w Waiting) { told = append(told, w.State.Holder) }}), newMemory(), request()
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

var errCut = errors.New("connection lost")

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

func TestOfManyWaitersInOneProcessOnlyOneLooksAtTheDatabase(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l, store, req := started(t, Config{}), newMemory(), request()
		store.take(req.Tenant, 30*time.Second)
		var looking, most, got atomic.Int32
		store.onState = func(_ context.Context, _ int, apply func()) error {
			most.Store(max(most.Load(), looking.Add(1)))
			defer looking.Add(-1)
			pass(20 * time.Millisecond)
			apply()
			return nil
		}
		var waiters sync.WaitGroup
		for range 20 {
			waiters.Go(func() {
				lock, _, err := l.Acquire(t.Context(), store, req, time.Minute)
				if err != nil {
					t.Error(err)
					return
				}
				got.Add(1)
				release(t, lock)
			})
		}
		pass(29 * time.Second)
		if a, s := store.count("acquire"), store.count("state"); a != 1 || s > 60 {
			t.Errorf("20 waiters asked %d times and read the state %d times", a, s)
		}
		waiters.Wait()
		if got.Load() != 20 || most.Load() != 1 {
			t.Errorf("%d got the lock, up to %d looked at once", got.Load(), most.Load())
		}
	})
}

func TestWaitersInOneProcessGetTheLockInTheirOrder(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l, store, req := started(t, Config{}), newMemory(), request()
		first := acquire(t, l, store, req)
		impatient, cancel := context.WithCancel(t.Context())
		var order []int
		var waiters sync.WaitGroup
		for i := range 5 {
			waiters.Go(func() {
				ctx := t.Context()
				if i == 2 {
					ctx = impatient
				}
				lock, _, err := l.Acquire(ctx, store, req, time.Minute)
				if err != nil {
					return
				}
				order = append(order, i)
				release(t, lock)
			})
			synctest.Wait()
		}
		cancel()
		synctest.Wait()
		pass(10 * time.Second)
		released := time.Now()
		release(t, first)
		waiters.Wait()
		if fmt.Sprint(order) != "[0 1 3 4]" {
			t.Errorf("order %v", order)
		}
		if took := time.Since(released); took > time.Millisecond {
			t.Errorf("handing over within the process took %s", took)
		}
		if len(l.queues.lines) != 0 {
			t.Errorf("%d lines are left", len(l.queues.lines))
		}
	})
}

func TestAQueuedCallerGivesUpAtItsOwnDeadline(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var told atomic.Int32
		l, store, req := started(t, Config{OnWait: func(Waiting) { told.Add(1) }}), newMemory(), request()
		held := store.take(req.Tenant, time.Hour)
		var waiters sync.WaitGroup
		for _, wait := range []time.Duration{time.Minute, 5 * time.Second} {
			waiters.Go(func() {
				began := time.Now()
				_, _, err := l.Acquire(t.Context(), store, req, wait)
				busy, ok := errors.AsType[*LockBusyError](err)
				if !ok || busy.State == nil || busy.State.Holder != held.Holder {
					t.Errorf("error %v", err)
				}
				if took := time.Since(began); took != wait {
					t.Errorf("took %s, want %s", took, wait)
				}
			})
			synctest.Wait()
		}
		waiters.Wait()
		if told.Load() != 2 {
			t.Errorf("told %d times, want once for each waiter", told.Load())
		}
	})
}
