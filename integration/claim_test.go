package integration

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"

	"github.com/belayhq/belay/engine"
	"github.com/belayhq/belay/plan"
	"github.com/belayhq/belay/sitelock"
	"github.com/belayhq/belay/tenant"
)

// claims is a directory whose stores let a test decide what becomes of a claim under a lock already held.
type claims struct {
	engine.Directory
	mu     sync.Mutex
	stores map[engine.Store]*claimStore
	// meddle is called instead of each such claim, with what makes it.
	meddle func(ctx context.Context, claim func(context.Context) (*plan.Record, error)) (*plan.Record, error)
}

type claimStore struct {
	engine.Store
	claims *claims
}

func (c *claims) Open(ctx context.Context, t tenant.Tenant) (engine.Store, func(), error) {
	store, release, err := c.Directory.Open(ctx, t)
	if err != nil {
		return nil, nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.stores == nil {
		c.stores = map[engine.Store]*claimStore{}
	}
	if c.stores[store] == nil {
		c.stores[store] = &claimStore{store, c}
	}
	return c.stores[store], release, nil
}

func (s *claimStore) Claim(ctx context.Context, held sitelock.Held, claim sitelock.Claim) (*plan.Record, error) {
	return s.claims.meddle(ctx, func(ctx context.Context) (*plan.Record, error) { return s.Store.Claim(ctx, held, claim) })
}

// A cascade claims its second plan under the lock it has. That claim has the protections of every other transaction: nothing
// that passes ends the cascade half-way, and no plan is left in flight. G3, G7
func TestACascadeSurvivesWhatBefallsItsClaims(t *testing.T) {
	t.Parallel()
	type claim = func(context.Context) (*plan.Record, error)
	for name, first := range map[string]func(ctx context.Context, claim claim) (*plan.Record, error){
		"the database asks to repeat it": func(context.Context, claim) (*plan.Record, error) {
			return nil, fmt.Errorf("claim: %w", engine.ErrRetryTransaction)
		},
		"its connection is gone before it is sent": func(context.Context, claim) (*plan.Record, error) {
			return nil, errors.New("connection refused")
		},
		"its answer is lost, it is in place": func(ctx context.Context, claim claim) (*plan.Record, error) {
			if _, err := claim(ctx); err != nil {
				return nil, err
			}
			return nil, fmt.Errorf("commit: %w", engine.ErrUnknownOutcome)
		},
		"its answer is lost, it is not in place": func(context.Context, claim) (*plan.Record, error) {
			return nil, fmt.Errorf("commit: %w", engine.ErrUnknownOutcome)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			onBoth(t, func(t *testing.T, w *world) {
				l, meddler := newClaimsLab(w)
				meddler.first(first)
				r := l.rollbackWith("change-1", engine.RollbackOptions{Cascade: true})
				l.came(r, engine.VerdictRolledBack, "undo:2 undo:1")
				equal(t, "also", join(r.Also), "change-2")
				l.rests("change-1", "pending rolled_back 0/1")
				l.rests("change-2", "pending rolled_back 0/1")
				l.holds("")
			})
		})
	}
}

// Who cancels while a claim is on its way stops the cascade before the plan, which rests where it was. G3, G7
func TestACascadeCancelledDuringAClaimLeavesNoPlanInFlight(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, w *world) {
		l, meddler := newClaimsLab(w)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		meddler.first(func(ctx context.Context, claim func(context.Context) (*plan.Record, error)) (*plan.Record, error) {
			cancel()
			if ctx.Err() != nil {
				t.Error("the claim is cut short")
			}
			return claim(ctx)
		})
		r, _ := l.engine.Rollback(ctx, l.tenant, "change-1", engine.RollbackOptions{Cascade: true})
		l.came(r, engine.VerdictCancelled, "undo:2")
		equal(t, "also", join(r.Also), "change-2")
		if p := l.record("change-1").Plan; p.Status != plan.Applied {
			t.Fatalf("change-1 is %s", p.Status)
		}
		equal(t, "lock", string(l.lock().Kind()), string(sitelock.StateIdle))
		l.holds("1")
	})
}

// A cascade whose lock is taken while a claim's answer is lost says that it lost the lock. G1
func TestACascadeThatLosesItsLockDuringAClaimSaysSo(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, w *world) {
		l, meddler := newClaimsLab(w)
		other := newEngine(t, newDirectory(t), engine.Config{})
		meddler.first(func(ctx context.Context, claim func(context.Context) (*plan.Record, error)) (*plan.Record, error) {
			if _, err := claim(ctx); err != nil {
				return nil, err
			}
			if _, err := other.Break(ctx, l.tenant, "somebody looks"); err != nil {
				return nil, err
			}
			if _, err := other.Hold(ctx, l.tenant, hang, "somebody looks"); err != nil {
				return nil, err
			}
			return nil, fmt.Errorf("commit: %w", engine.ErrUnknownOutcome)
		})
		r := l.rollbackWith("change-1", engine.RollbackOptions{Cascade: true})
		l.came(r, engine.VerdictFailed, "undo:2")
		if _, lost := errors.AsType[*sitelock.LockLostError](r.Err); !lost {
			t.Fatalf("got %v", r.Err)
		}
		equal(t, "status", string(l.record("change-1").Plan.Status), string(plan.Applied))
	})
}

// first lets a test decide what becomes of the first claim only.
func (c *claims) first(meddle func(context.Context, func(context.Context) (*plan.Record, error)) (*plan.Record, error)) {
	var once sync.Once
	c.meddle = func(ctx context.Context, claim func(context.Context) (*plan.Record, error)) (record *plan.Record, err error) {
		meddled := false
		once.Do(func() {
			meddled = true
			record, err = meddle(ctx, claim)
		})
		if meddled {
			return record, err
		}
		return claim(ctx)
	}
}

// newClaimsLab is a lab with two changes in place, whose claims a test may meddle with.
func newClaimsLab(w *world) (*lab, *claims) {
	l := newLab(w, engine.Config{})
	meddler := &claims{Directory: l.directory}
	l.engine = newEngine(w.t, meddler, engine.Config{Observe: l.calls.observe})
	for _, n := range []string{"1", "2"} {
		l.came(l.apply(newChange("change-"+n, n)), engine.VerdictApplied, "do:"+n)
	}
	return l, meddler
}
