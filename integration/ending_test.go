package integration

import (
	"context"
	"errors"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/rs/zerolog"

	"github.com/belayhq/belay/engine"
	"github.com/belayhq/belay/plan"
	"github.com/belayhq/belay/sitelock"
	"github.com/belayhq/belay/tenant"
)

// A group that ends the claim may take longer than a lease. On PostgreSQL renewals pass beside it: its holder is alive, and
// everyone sees that.
func TestALiveHolderInItsLastGroupLooksAlive(t *testing.T) {
	t.Parallel()
	w := newWorld(t, tenant.Postgres)
	l := newLab(w, engine.Config{Lease: 3 * time.Second})
	ctx := t.Context()
	gate, err := pgx.Connect(ctx, w.url)
	check(t, err)
	defer gate.Close(ctx)
	_, err = gate.Exec(ctx, "SELECT pg_advisory_lock(42)")
	check(t, err)
	c := newChange("change", "a")
	c.Steps[0].Up.Default.Text += ";\nSELECT pg_advisory_xact_lock(42)"
	run := later(t, func() engine.Result { return l.apply(c) })
	var first sitelock.State
	for deadline := time.Now().Add(hang); ; runtime.Gosched() {
		state := l.lock()
		if first.Holder == "" {
			first = state
		}
		if first.Holder != "" && (state.Expires.Sub(first.Expires) > 4*time.Second || time.Now().After(deadline)) {
			break
		}
		if first.Holder != "" && !state.Live {
			t.Fatalf("the holder lives and its lock looks %s", state.Kind())
		}
	}
	other := newEngine(t, newDirectory(t), engine.Config{Lease: 3 * time.Second})
	r, err := other.Apply(ctx, l.tenant, newChange("other", "z"), engine.ApplyOptions{})
	if busy, ok := errors.AsType[*sitelock.LockBusyError](err); !ok || busy.State == nil || !busy.State.Live {
		t.Fatalf("%s: %v", r.Verdict, err)
	}
	_, err = gate.Exec(ctx, "SELECT pg_advisory_unlock(42)")
	check(t, err)
	l.came(run(), engine.VerdictApplied, "do:a")
	l.rests("change", "applied applied 1/1")
}

// What ends a claim without success is repeated when the database asks for that, like every other transaction.
func TestTheEndOfAFailedRunIsRepeatedWhenTheDatabaseAsks(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, w *world) {
		l, broken := newFaultyLab(w, engine.Config{})
		tries := 0
		broken.around = func(g engine.Group, commit func() error) error {
			if g.Move != nil && g.Move.Event == plan.EventFail {
				if tries++; tries < 3 {
					return engine.ErrRetryTransaction
				}
			}
			return commit()
		}
		l.came(l.apply(newChange("change", "a b:fail")), engine.VerdictPartial, "do:a fail:b")
		l.rests("change", "pending failed 1/2 partial")
		if tries != 3 {
			t.Fatalf("%d tries", tries)
		}
	})
}

// A resolve whose answer is lost has resolved the plan if the plan says so, and only then.
func TestAResolveWhoseAnswerIsLostLooksWhatBecameOfIt(t *testing.T) {
	t.Parallel()
	for name, commits := range map[string]bool{"in place": true, "not in place": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			onBoth(t, func(t *testing.T, w *world) {
				l, broken := newFaultyLab(w, engine.Config{})
				l.came(l.apply(newChange("change", "a b")), engine.VerdictApplied, "do:a do:b")
				broken.losesAnswer(func(g engine.Group) bool { return g.Move != nil }, commits)
				r := l.resolve("change", engine.ResolveOptions{As: engine.ResolveRolledBack, Reason: "by hand"})
				if commits {
					l.came(r, engine.VerdictResolved, "")
					l.rests("change", "pending resolved 0/2")
					return
				}
				l.came(r, engine.VerdictFailed, "")
				if !errors.Is(r.Err, engine.ErrUnknownOutcome) {
					t.Fatal(r.Err)
				}
				l.rests("change", "applied applied 2/2")
			})
		})
	}
}

// unreleased is a directory whose stores do not release locks.
type unreleased struct{ engine.Directory }

type unreleasedStore struct{ engine.Store }

var errNoRelease = errors.New("the release never arrived")

func (u unreleased) Open(ctx context.Context, t tenant.Tenant) (engine.Store, func(), error) {
	store, done, err := u.Directory.Open(ctx, t)
	return unreleasedStore{store}, done, err
}

func (unreleasedStore) Release(context.Context, sitelock.Held) error { return errNoRelease }

// An operation whose lock cannot be released has not failed: it says what it did, the log says that the lock is left, and that
// lapses by itself. G2
func TestALockThatIsNotReleasedIsAWarning(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, w *world) {
		c, actions, between, within := gatedChange(t)
		within.open()
		waiting, log := make(chan none, 10), &output{}
		l := newLab(w, engine.Config{Actions: actions})
		other := newEngine(t, unreleased{l.directory}, engine.Config{Actions: actions, Log: zerolog.New(log), Observe: func(p engine.Progress) {
			if p.Kind == engine.KindWaiting {
				waiting <- none{}
			}
		}})
		holder := later(t, func() engine.Result { return l.apply(c) })
		between.wait(1)
		waiter := later(t, func() engine.Result {
			r, _ := other.Apply(t.Context(), l.tenant, c, engine.ApplyOptions{LockTimeout: hang})
			return r
		})
		receive(t, "the waiter", waiting)
		between.open()
		if r := holder(); r.Verdict != engine.VerdictApplied {
			t.Fatalf("%s: %v", r.Verdict, r.Err)
		}
		if r := waiter(); r.Verdict != engine.VerdictAlreadyApplied || r.Err != nil {
			t.Fatalf("%s: %v", r.Verdict, r.Err)
		}
		contains(t, "log", log.String(), `"level":"warn"`)
		contains(t, "log", log.String(), errNoRelease.Error())
		if state := l.lock(); !state.Live {
			t.Fatalf("the lock was released: %+v", state)
		}
		l.expire()
		l.came(l.apply(newChange("next", "z")), engine.VerdictApplied, "do:a do:o do:x do:b do:z")
	})
}

// An engine that is closed asks no database any more, not even what became of a commit.
func TestAClosedEngineStopsAtOnce(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, w *world) {
		l, broken := newFaultyLab(w, engine.Config{})
		broken.once(writes("b", plan.StepDone), func(func() error) error {
			l.engine.Close()
			return engine.ErrUnknownOutcome
		})
		r := later(t, func() engine.Result { return l.apply(oneByOne(newChange("change", "a b c"))) })()
		if !errors.Is(r.Err, engine.ErrUnknownOutcome) {
			t.Fatalf("%s: %v", r.Verdict, r.Err)
		}
		l.holds("a")
	})
}

// Which steps an edit may change is decided when the tenant is this run's alone, not before the wait for it.
func TestAnEditIsCheckedWhenTheTenantIsFree(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, w *world) {
		l, broken := newFaultyLab(w, engine.Config{})
		waiting := make(chan none, 9)
		second := newEngine(t, l.directory, engine.Config{Observe: func(p engine.Progress) {
			if p.Kind == engine.KindWaiting {
				waiting <- none{}
			}
		}})
		c := oneByOne(newChange("change", "a b:fail c:no"))
		l.came(l.apply(c), engine.VerdictPartial, "do:a fail:b")
		l.exec("CREATE TABLE missing (i integer)")
		edited := with(c, func(c *plan.Change) {
			c.Steps[1] = sqlStep("b", "INSERT INTO ledger VALUES ('new b')", "DELETE FROM ledger WHERE step = 'new b'")
			c.Steps[2] = newChange("", "c").Steps[0]
		})
		var wait func() engine.Result
		broken.once(writes("b", plan.StepDone), func(commit func() error) error {
			wait = later(t, func() engine.Result {
				r, _ := second.Apply(t.Context(), l.tenant, edited, engine.ApplyOptions{Repin: true, LockTimeout: hang})
				return r
			})
			receive(t, "the second to wait", waiting)
			return commit()
		})
		l.came(l.apply(c), engine.VerdictPartial, "do:b fail:c")
		r := wait()
		l.came(r, engine.VerdictRefused, "")
		refusedFor(t, r.Err, engine.RefusedDigest)
		contains(t, "error", r.Err.Error(), "step b is in place and differs")
		equal(t, "digest", string(l.record("change").Plan.Digest), string(c.Digest()))
		l.came(l.rollback("change"), engine.VerdictRolledBack, "undo:b undo:a")
		l.holds("")
	})
}

// The claim of an edit is as safe as any: what becomes of it is found out.
func TestAnEditWhoseClaimIsInDoubtIsApplied(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, w *world) {
		l := newLab(w, engine.Config{})
		meddler := &claims{Directory: l.directory}
		l.engine = newEngine(t, meddler, engine.Config{Observe: l.calls.observe})
		var met atomic.Int32
		meddler.first(func(ctx context.Context, claim func(context.Context) (*plan.Record, error)) (*plan.Record, error) {
			met.Add(1)
			if _, err := claim(ctx); err != nil {
				return nil, err
			}
			return nil, engine.ErrUnknownOutcome
		})
		l.came(l.apply(newChange("change", "a b:fail")), engine.VerdictPartial, "do:a fail:b")
		edited := newChange("change", "a b c")
		l.came(l.applyWith(edited, engine.ApplyOptions{Repin: true}), engine.VerdictApplied, "do:b do:c")
		if met.Load() != 1 {
			t.Fatal("the claim was not met")
		}
		equal(t, "digest", string(l.record("change").Plan.Digest), string(edited.Digest()))
	})
}
