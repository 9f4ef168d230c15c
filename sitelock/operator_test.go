package sitelock

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

func TestAHoldIsALeaseOfItsOwnThatIsNotRenewed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l, store, req := started(t, Config{}), newMemory(), request()
		began := time.Now()
		grant, err := l.Hold(t.Context(), store, req.Tenant, "", 2*MaxLease, "somebody works by hand")
		if err != nil {
			t.Fatal(err)
		}
		state, err := store.State(t.Context(), req.Tenant)
		if err != nil || state.Kind() != StateHeld || state.Holder != grant.Held.Holder || state.PID != l.Process().PID {
			t.Errorf("state %+v, %v", state, err)
		}
		pass(MaxLease)
		if expires := store.expires(req.Tenant); !expires.Equal(began.Add(2 * MaxLease)) {
			t.Errorf("expires %s after it began", expires.Sub(began))
		}
	})
}

func TestAHoldSaysWhoHasTheLock(t *testing.T) {
	t.Parallel()
	l, store, req := started(t, Config{}), newMemory(), request()
	holder := store.take(req.Tenant, lease)
	_, err := l.Hold(t.Context(), store, req.Tenant, "", lease, "somebody works by hand")
	if busy, ok := errors.AsType[*LockBusyError](err); !ok || busy.State == nil || busy.State.Holder != holder.Holder {
		t.Errorf("error %v", err)
	}
}

func TestAHoldOnABusyDatabaseSaysThatItIsBusy(t *testing.T) {
	t.Parallel()
	l, store, req := started(t, Config{}), newMemory(), request()
	store.onAcquire = func(context.Context, int, func()) error { return ErrContended }
	_, err := l.Hold(t.Context(), store, req.Tenant, "", lease, "somebody works by hand")
	if busy, ok := errors.AsType[*LockBusyError](err); !ok || busy.State != nil || !errors.Is(busy, ErrContended) {
		t.Errorf("error %v", err)
	}
}

func TestAnOperatorGivesAReason(t *testing.T) {
	t.Parallel()
	l, store, req := started(t, Config{}), newMemory(), request()
	if _, err := l.Hold(t.Context(), store, req.Tenant, "", lease, " "); err == nil {
		t.Error("held without a reason")
	}
	if _, err := l.Hold(t.Context(), store, req.Tenant, "", MinLease-1, "because"); err == nil {
		t.Error("held for less than the shortest lease")
	}
	if _, err := l.Break(t.Context(), store, req.Tenant, ""); err == nil {
		t.Error("broken without a reason")
	}
	if len(store.log) != 0 {
		t.Errorf("the store was asked: %q", store.log)
	}
}

func TestABreakAsksABusyDatabaseAgainButNotForEver(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		busy, sent int // calls
		err        error
	}{
		"free":         {0, 1, nil},
		"busy a while": {3, 4, nil},
		"busy always":  {breaks, breaks, ErrContended},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				l, store, req := started(t, Config{}), newMemory(), request()
				holder := store.take(req.Tenant, lease)
				store.onBreak = func(_ context.Context, call int, apply func()) error {
					if call <= tt.busy {
						return ErrContended
					}
					apply()
					return nil
				}
				if _, err := l.Break(t.Context(), store, req.Tenant, "it hangs"); !errors.Is(err, tt.err) {
					t.Errorf("error %v, want %v", err, tt.err)
				}
				if n := store.count("break"); n != tt.sent {
					t.Errorf("sent %d times, want %d", n, tt.sent)
				}
				state, err := store.State(t.Context(), req.Tenant)
				if err != nil || tt.err == nil && (state.Live || state.Fence <= holder.Fence) {
					t.Errorf("state %+v, %v", state, err)
				}
			})
		})
	}
}

func TestABreakThatHangsIsGivenUp(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l, store, req := started(t, Config{}), newMemory(), request()
		store.onBreak = func(ctx context.Context, _ int, _ func()) error {
			<-ctx.Done()
			return ctx.Err()
		}
		began := time.Now()
		if _, err := l.Break(t.Context(), store, req.Tenant, "it hangs"); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("error %v", err)
		}
		if took := time.Since(began); took != answerMax {
			t.Errorf("took %s", took)
		}
	})
}

func TestABreakStopsAskingWhenItsContextEnds(t *testing.T) {
	t.Parallel()
	l, store, req := started(t, Config{}), newMemory(), request()
	ctx, cancel := context.WithCancel(t.Context())
	store.onBreak = func(context.Context, int, func()) error {
		cancel()
		return ErrContended
	}
	if _, err := l.Break(ctx, store, req.Tenant, "it hangs"); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
}
