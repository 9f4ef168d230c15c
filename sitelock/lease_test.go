package sitelock

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// leader runs RunWhileLeader until the test calls stop, which returns its error.
func leader(t *testing.T, store LeaseStore, fn func(ctx context.Context, fence Fence) error) (stop func() error) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var err error
	var running sync.WaitGroup
	running.Go(func() { err = RunWhileLeader(ctx, store, "sweeper", LeaseConfig{}, fn) })
	return func() error {
		cancel()
		running.Wait()
		return err
	}
}

func untilCancelled(ctx context.Context, _ Fence) error {
	<-ctx.Done()
	return context.Cause(ctx)
}

func TestALeaseConfigIsCheckedBeforeAnythingIsAsked(t *testing.T) {
	t.Parallel()
	for _, cfg := range []LeaseConfig{{TTL: MinLease - 1}, {TTL: MaxLease + 1}, {Process: Process{Host: "h"}}} {
		store := newMemory()
		_, _, tryErr := TryLease(t.Context(), store, "sweeper", cfg)
		runErr := RunWhileLeader(t.Context(), store, "sweeper", cfg, untilCancelled)
		for _, err := range []error{tryErr, runErr} {
			if err == nil || !strings.HasPrefix(err.Error(), "lease config: ") {
				t.Errorf("%+v: %v", cfg, err)
			}
		}
		if len(store.log) != 0 {
			t.Errorf("calls %v", store.log)
		}
	}
}

func TestALeaseThatIsTakenIsBusyNotAnError(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := newMemory()
		first, ok, err := TryLease(t.Context(), store, "sweeper", LeaseConfig{})
		if !ok || err != nil {
			t.Fatalf("%v, %v", ok, err)
		}
		if _, ok, err := TryLease(t.Context(), store, "sweeper", LeaseConfig{}); ok || err != nil {
			t.Errorf("%v, %v", ok, err)
		}
		pass(DefaultLease / 2)
		if err := first.Renew(t.Context()); err != nil || first.TrustLeft() != trust(DefaultLease) {
			t.Errorf("%v, %s", err, first.TrustLeft())
		}
		pass(DefaultLease + 1)
		second, ok, err := TryLease(t.Context(), store, "sweeper", LeaseConfig{})
		if !ok || err != nil || second.Fence() <= first.Fence() {
			t.Fatalf("%v, %v, fence %d after %d", ok, err, second.Fence(), first.Fence())
		}
		if err := first.Renew(t.Context()); !errors.Is(err, ErrNotHeld) {
			t.Errorf("renewal of a lost lease: %v", err)
		}
		if err := first.Release(t.Context()); !errors.Is(err, ErrNotHeld) {
			t.Errorf("release of a lost lease: %v", err)
		}
		if err := second.Release(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

func TestACleanStopHandsOverWithinSeconds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := newMemory()
		leading := make(chan Fence, 2)
		lead := func(ctx context.Context, fence Fence) error {
			leading <- fence
			return untilCancelled(ctx, fence)
		}
		stopFirst := leader(t, store, lead)
		first := <-leading
		stopSecond := leader(t, store, lead)
		pass(10 * DefaultLease) // the first keeps it for as long as it lives
		if len(leading) != 0 {
			t.Fatal("two leaders")
		}
		if err := stopFirst(); err != nil {
			t.Error(err)
		}
		stopped := time.Now()
		if second := <-leading; second != first+1 {
			t.Errorf("fence %d after %d", second, first)
		}
		if took := time.Since(stopped); took > 2*leasePoll {
			t.Errorf("the hand-over took %s", took)
		}
		if err := stopSecond(); err != nil {
			t.Error(err)
		}
	})
}

func TestALeaderThatLosesItsLeaseStopsAndTriesAgain(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		lose func(store *memory)
		at   time.Duration // after the last renewal
	}{
		"because it was taken": {func(store *memory) {
			store.mu.Lock()
			defer store.mu.Unlock()
			r := store.leases["sweeper"]
			r.held.Holder, r.held.Fence, r.expires = NewHolderID(), r.held.Fence+1, time.Now().Add(DefaultLease)
		}, DefaultLease / 4},
		"because the database is away": {func(store *memory) {
			store.set(&store.onLease, away)
			time.AfterFunc(2*DefaultLease, func() { store.set(&store.onLease, nil) })
		}, trust(DefaultLease)},
		"because the database hangs": {func(store *memory) {
			store.set(&store.onLease, hangs)
			time.AfterFunc(2*DefaultLease, func() { store.set(&store.onLease, nil) })
		}, trust(DefaultLease)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				store := newMemory()
				terms := make(chan Fence)
				causes := make(chan error, 2)
				stop := leader(t, store, func(ctx context.Context, fence Fence) error {
					terms <- fence
					<-ctx.Done()
					causes <- context.Cause(ctx)
					return nil
				})
				first := <-terms
				pass(DefaultLease)
				renewed := time.Now()
				pass(time.Second)
				tt.lose(store)
				if cause := <-causes; !errors.Is(cause, ErrNotHeld) {
					t.Errorf("cause %v", cause)
				}
				if at := time.Since(renewed); at != tt.at {
					t.Errorf("stopped after %s, want %s", at, tt.at)
				}
				if again := <-terms; again <= first {
					t.Errorf("fence %d after %d", again, first)
				}
				if err := stop(); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

func TestALeaderThatIsDoneReturnsAndFreesTheLease(t *testing.T) {
	t.Parallel()
	for name, fn := range map[string]func(context.Context, Fence) error{
		"success": func(context.Context, Fence) error { return nil },
		"error":   func(context.Context, Fence) error { return errCut },
		"panic":   func(context.Context, Fence) error { panic("a sweep") },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			store := newMemory()
			defer func() {
				if p := recover(); (p != nil) != (name == "panic") {
					t.Errorf("recovered %v", p)
				}
				if holder := store.leases["sweeper"].held.Holder; holder != "" {
					t.Errorf("held by %s", holder)
				}
			}()
			err := RunWhileLeader(t.Context(), store, "sweeper", LeaseConfig{}, fn)
			if errors.Is(err, errCut) != (name == "error") {
				t.Errorf("error %v", err)
			}
		})
	}
}

func TestACandidateStopsWithItsContext(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := newMemory()
		other, _, err := TryLease(t.Context(), store, "sweeper", LeaseConfig{})
		if err != nil {
			t.Fatal(err)
		}
		stop := leader(t, store, untilCancelled)
		pass(10 * time.Second)
		tries := store.count("acquire lease")
		if err := stop(); err != nil {
			t.Error(err)
		}
		if tries < 5 || tries > 12 {
			t.Errorf("%d tries in 10 s", tries)
		}
		if err := other.Release(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

func TestACandidateCancelledWhileTheDatabaseAnswersLeavesNoLease(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := newMemory()
		store.onLease = func(ctx context.Context, _ int, apply func()) error {
			pass(time.Second)
			if ctx.Err() != nil {
				return ctx.Err()
			}
			apply()
			return nil
		}
		stop := leader(t, store, func(context.Context, Fence) error {
			t.Error("led after the stop")
			return nil
		})
		pass(time.Second / 2)
		if err := stop(); err != nil {
			t.Error(err)
		}
		if r := store.leases["sweeper"]; r.held.Fence != 1 || r.held.Holder != "" {
			t.Errorf("left %+v", r.held)
		}
	})
}

func TestALeaderSendsNoRenewalOnceItReleases(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := newMemory()
		var asking, most atomic.Int32
		store.onLease = func(_ context.Context, _ int, apply func()) error {
			most.Store(max(most.Load(), asking.Add(1)))
			defer asking.Add(-1)
			pass(time.Second)
			apply()
			return nil
		}
		err := RunWhileLeader(t.Context(), store, "sweeper", LeaseConfig{}, func(context.Context, Fence) error {
			pass(DefaultLease/4 + time.Second/2) // into the first renewal
			return nil
		})
		if err != nil {
			t.Error(err)
		}
		if store.count("renew lease") != 1 || store.count("release lease") != 1 || most.Load() != 1 {
			t.Errorf("calls %v, up to %d at once", store.log, most.Load())
		}
		if r := store.leases["sweeper"]; r.held.Holder != "" {
			t.Error("not freed")
		}
	})
}
