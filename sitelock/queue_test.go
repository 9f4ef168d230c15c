package sitelock

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

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
		l, store, req := started(t, Config{}), newMemory(), request()
		req.OnWait = func(Waiting) { told.Add(1) }
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
