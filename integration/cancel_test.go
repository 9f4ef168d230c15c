package integration

import (
	"context"
	"database/sql"
	"errors"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/belayhq/belay/engine"
	"github.com/belayhq/belay/plan"
	"github.com/belayhq/belay/sitelock"
	"github.com/belayhq/belay/tenant"
)

var errStop = errors.New("the operator pressed a key") // a cause that is no context error

// cancelling is a context that a step cancels when it is done.
func cancelling(t *testing.T, step string) (context.Context, func(engine.Progress)) {
	ctx, cancel := context.WithCancelCause(t.Context())
	return ctx, func(p engine.Progress) {
		if p.Kind == engine.KindStepDone && p.Step == step {
			cancel(errStop)
		}
	}
}

// A cancelled apply stops at its next checkpoint, with a true status and a free lock.
func TestACancelledApplyStopsAtTheNextCheckpoint(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, w *world) {
		ctx, watch := cancelling(t, "b")
		l := newLab(w, engine.Config{Observe: watch})
		c := oneByOne(newChange("change", "a b c d"))
		r, err := l.engine.Apply(ctx, l.tenant, c, engine.ApplyOptions{})
		l.came(r, engine.VerdictCancelled, "do:a do:b")
		if !errors.Is(err, errStop) {
			t.Fatalf("the cause is lost: %v", err)
		}
		l.rests("change", "pending interrupted 2/4 partial")
		l.came(l.apply(c), engine.VerdictApplied, "do:c do:d")
	})
}

// One whose change turns back on failure undoes what it did, on a context of its own: actions get one that is alive.
// Cancelling it is no failure.
func TestACancelledApplyUndoesWhatItDid(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, w *world) {
		ctx, watch := cancelling(t, "c")
		x := &resource{value: "old"}
		actions := only(x.external())
		x.before = func(ctx context.Context, _ plan.Direction) error { return ctx.Err() }
		engine.Register(actions, "inside", engine.Transactional[none]{
			Do:   doNothing[none],
			Undo: func(ctx context.Context, _ engine.Tx, _ engine.ActionCall[none]) error { return ctx.Err() },
		})
		l := newLab(w, engine.Config{Actions: actions, Observe: watch})
		c := rollingBack(oneByOne(outsideChange("b c d")))
		c.Steps = append([]plan.Step{actionStep("i", "inside")}, c.Steps...)
		r, err := l.engine.Apply(ctx, l.tenant, c, engine.ApplyOptions{})
		l.came(r, engine.VerdictCancelled, "do:i do:a do:x do:b do:c undo:c undo:b undo:x undo:a undo:i")
		if !errors.Is(err, errStop) || planError(t, err).UndoErr != nil {
			t.Fatal(err)
		}
		equal(t, "value", x.read(), "old")
		l.rests("change", "pending rolled_back 0/6")
	})
}

// A cancelled rollback stops half-way and is gone on with later.
func TestACancelledRollbackStopsAtTheNextCheckpoint(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, w *world) {
		ctx, cancel := context.WithCancelCause(t.Context())
		l := newLab(w, engine.Config{Observe: func(p engine.Progress) {
			if p.Kind == engine.KindStepUndone && p.Step == "b" {
				cancel(errStop)
			}
		}})
		l.came(l.apply(oneByOne(newChange("change", "a b c"))), engine.VerdictApplied, "do:a do:b do:c")
		r, _ := l.engine.Rollback(ctx, l.tenant, "change", engine.RollbackOptions{})
		l.came(r, engine.VerdictCancelled, "undo:c undo:b")
		l.rests("change", "applied interrupted 1/3 partial")
		l.came(l.rollback("change"), engine.VerdictRolledBack, "undo:a")
	})
}

// Cancelled before it began, an operation says so, whatever layer noticed, and leaves nothing.
func TestAnOperationCancelledBeforeItBeganIsCancelled(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, w *world) {
		l := newLab(w, engine.Config{})
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(errStop)
		c := newChange("change", "a")
		r, _ := l.engine.Apply(ctx, l.tenant, c, engine.ApplyOptions{})
		l.came(r, engine.VerdictCancelled, "")
		l.came(l.apply(c), engine.VerdictApplied, "do:a")
		r, _ = l.engine.Rollback(ctx, l.tenant, "change", engine.RollbackOptions{})
		l.came(r, engine.VerdictCancelled, "")
		r, _ = l.engine.Resolve(ctx, l.tenant, "change", engine.ResolveOptions{As: engine.ResolveApplied, Reason: "because"})
		l.came(r, engine.VerdictCancelled, "")
		equal(t, "history", l.history(), "claim_apply succeed")
	})
}

// So does one that was waiting for someone else's lock.
func TestAnOperationCancelledWhileItWaitsIsCancelled(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, w *world) {
		ctx, cancel := context.WithCancelCause(t.Context())
		l := newLab(w, engine.Config{Observe: func(p engine.Progress) {
			if p.Kind == engine.KindWaiting {
				equal(t, "who waits, for what", p.Name+" "+p.Change, "acme change")
				cancel(errStop)
			}
		}})
		_, err := l.engine.Hold(t.Context(), l.tenant, time.Hour, "somebody works by hand")
		check(t, err)
		wait := later(t, func() engine.Result {
			r, _ := l.engine.Apply(ctx, l.tenant, newChange("change", "a"), engine.ApplyOptions{LockTimeout: hang})
			return r
		})
		l.came(wait(), engine.VerdictCancelled, "")
	})
}

// Nor has one failed that is cancelled between its claim and its first step, where it only reads.
func TestAnOperationCancelledBehindItsClaimIsCancelled(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, w *world) {
		stop := func(error) {}
		actions := engine.NewActions()
		engine.Register(actions, "inside", engine.Transactional[none]{
			Do:   doNothing[none],
			Undo: func(context.Context, engine.Tx, engine.ActionCall[none]) error { return nil },
		})
		l := newLab(w, engine.Config{Actions: actions, Observe: func(p engine.Progress) {
			if p.Kind == engine.KindClaimed {
				stop(errStop)
			}
		}})
		first := newChange("first", "a")
		first.Steps = append(first.Steps, actionStep("i", "inside"))
		second := with(newChange("second", "b"), func(c *plan.Change) { c.Requires = []string{"first"} })
		l.came(l.apply(first), engine.VerdictApplied, "do:a do:i")

		ctx, cancel := context.WithCancelCause(t.Context())
		stop = cancel
		r, _ := l.engine.Apply(ctx, l.tenant, second, engine.ApplyOptions{}) // reads what it requires
		l.came(r, engine.VerdictCancelled, "")
		l.rests("second", "pending never_run 0/1")

		ctx, cancel = context.WithCancelCause(t.Context())
		stop = cancel
		r, _ = l.engine.Rollback(ctx, l.tenant, "first", engine.RollbackOptions{}) // reads its before-images
		l.came(r, engine.VerdictCancelled, "")
		l.rests("first", "applied interrupted 2/2")
	})
}

// An action that heeds its context is cancelled with the operation, and has not failed.
func TestACancelledActionHasNotFailed(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"inside", "outside"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			onBoth(t, func(t *testing.T, w *world) {
				running := make(chan none)
				obey := func(ctx context.Context) error {
					close(running)
					<-ctx.Done()
					return ctx.Err()
				}
				actions := engine.NewActions()
				engine.Register(actions, "inside", engine.Transactional[none]{
					Do: func(ctx context.Context, _ engine.Tx, _ engine.ActionCall[none]) ([]byte, error) {
						return nil, obey(ctx)
					},
				})
				engine.RegisterExternal(actions, "outside", engine.External[none]{
					Do: func(ctx context.Context, _ engine.ActionCall[none]) error { return obey(ctx) },
				})
				l := newLab(w, engine.Config{Actions: actions})
				c := oneByOne(newChange("change", "a b"))
				step := actionStep("x", kind)
				step.Undo = &plan.NoUndo{None: "nothing happens"}
				c.Steps = append(c.Steps, step)
				ctx, cancel := context.WithCancelCause(t.Context())
				wait := later(t, func() engine.Result {
					r, _ := l.engine.Apply(ctx, l.tenant, c, engine.ApplyOptions{})
					return r
				})
				receive(t, "the action to run", running)
				cancel(errStop)
				l.came(wait(), engine.VerdictCancelled, "do:a do:b")
				l.rests("change", "pending interrupted 2/3 partial")
			})
		})
	}
}

// slow is a statement that runs far longer than any test.
func slow(d tenant.Dialect) string {
	if d == tenant.Postgres {
		return "SELECT pg_sleep(3600)"
	}
	return "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 1e12) SELECT count(*) FROM n"
}

// withSlow adds a step whose SQL does not end, up or down.
func withSlow(c *plan.Change, d tenant.Dialect, way plan.Direction) *plan.Change {
	return with(c, func(c *plan.Change) {
		s := sqlStep("slow", "INSERT INTO ledger VALUES ('slow');\n"+slow(d), "DELETE FROM ledger WHERE step = 'slow'")
		if way == plan.Down {
			s = sqlStep("slow", "INSERT INTO ledger VALUES ('slow')", "DELETE FROM ledger WHERE step = 'slow';\n"+slow(d))
		}
		c.Steps = append(c.Steps, s)
	})
}

// A step ends when its own time is up, and its statement with it.
func TestAStepTimesOut(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, w *world) {
		l := newLab(w, engine.Config{})
		c := rollingBack(withSlow(newChange("change", "a"), w.dialect, plan.Up))
		c.Steps[1].Timeout = 300 * time.Millisecond
		r := later(t, func() engine.Result { return l.apply(c) })()
		l.came(r, engine.VerdictFailed, "do:a fail:slow undo:a")
		contains(t, "error", r.Err.Error(), "step slow (slow.up.sql:2)")
		contains(t, "error", r.Err.Error(), "300ms")
		l.rests("change", "pending rolled_back 0/2")
	})
}

// So does an action, inside the database or outside.
func TestAnActionTimesOut(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"inside", "outside"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			onBoth(t, func(t *testing.T, w *world) {
				actions := engine.NewActions()
				obey := func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }
				engine.Register(actions, "inside", engine.Transactional[none]{
					Do: func(ctx context.Context, _ engine.Tx, _ engine.ActionCall[none]) ([]byte, error) {
						return nil, obey(ctx)
					},
				})
				engine.RegisterExternal(actions, "outside", engine.External[none]{
					Do: func(ctx context.Context, _ engine.ActionCall[none]) error { return obey(ctx) },
				})
				l := newLab(w, engine.Config{Actions: actions, ActionTimeout: 300 * time.Millisecond})
				c := newChange("change", "a")
				step := actionStep("x", kind)
				step.Undo = &plan.NoUndo{None: "nothing happens"}
				c.Steps = append(c.Steps, step)
				r := later(t, func() engine.Result { return l.apply(c) })()
				l.came(r, engine.VerdictPartial, "do:a fail:x")
				contains(t, "error", r.Err.Error(), "300ms")
			})
		})
	}
}

// The plan's time bounds its steps as a whole, also the one that runs; the undo then has time of its own.
func TestAPlanTimesOutAndIsUndoneInTimeOfItsOwn(t *testing.T) {
	t.Parallel()
	for _, where := range []string{"option", "change"} {
		t.Run(where, func(t *testing.T) {
			t.Parallel()
			onBoth(t, func(t *testing.T, w *world) {
				l := newLab(w, engine.Config{})
				c := rollingBack(oneByOne(withSlow(newChange("change", "a b"), w.dialect, plan.Up)))
				opts := engine.ApplyOptions{Timeout: 2 * time.Second}
				if where == "change" {
					c.Timeout, opts.Timeout = opts.Timeout, time.Hour
				}
				r := later(t, func() engine.Result { return l.applyWith(c, opts) })()
				l.came(r, engine.VerdictFailed, "do:a do:b fail:slow undo:b undo:a")
				l.rests("change", "pending rolled_back 0/3")
			})
		})
	}
}

// The undo's own time is bounded, too.
func TestAnUndoHasABudgetOfItsOwn(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, w *world) {
		l := newLab(w, engine.Config{UndoTimeout: time.Second})
		c := rollingBack(withSlow(newChange("change", "a"), w.dialect, plan.Down))
		c.Steps = append(c.Steps, newChange("change", "c:fail").Steps...)
		r := later(t, func() engine.Result { return l.apply(c) })()
		l.came(r, engine.VerdictPartial, "do:a do:slow fail:c fail:slow")
		e := planError(t, r.Err)
		contains(t, "first error", e.Err.Error(), "c.up.sql:2")
		contains(t, "second error", e.UndoErr.Error(), "undo of step slow (slow.down.sql:2)")
		l.rests("change", "pending failed 2/3 partial")
	})
}

// A second signal: what runs is cut short, nothing new begins, not even an undo, and the status is true all the same.
func TestAbortCutsARunningStatementShort(t *testing.T) {
	t.Parallel()
	for _, onFailure := range []plan.OnFailure{plan.StopOnFailure, plan.RollbackOnFailure} {
		t.Run(string(onFailure), func(t *testing.T) {
			t.Parallel()
			onBoth(t, func(t *testing.T, w *world) {
				l := newLab(w, engine.Config{})
				c := oneByOne(withSlow(newChange("change", "a b"), w.dialect, plan.Up))
				c.OnFailure = onFailure
				wait := later(t, func() engine.Result { return l.apply(c) })
				l.seesSlow()
				l.engine.Abort()
				r := wait()
				l.came(r, engine.VerdictCancelled, "do:a do:b")
				l.rests("change", "pending interrupted 2/3 partial")
				l.holds("a b")
				if _, lost := errors.AsType[*sitelock.LockLostError](r.Err); lost {
					t.Fatal(r.Err)
				}
				l.came(l.apply(c), engine.VerdictCancelled, "")
				l.engine = newEngine(t, l.directory, engine.Config{Observe: l.calls.observe})
				l.came(l.rollback("change"), engine.VerdictRolledBack, "undo:b undo:a")
			})
		})
	}
}

// seesSlow returns when the slow statement runs.
func (l *lab) seesSlow() {
	l.t.Helper()
	deadline := time.Now().Add(hang)
	for !l.runsSlow() {
		if time.Now().After(deadline) {
			l.t.Fatal("the slow statement never ran")
		}
		runtime.Gosched()
	}
}

func (l *lab) runsSlow() bool {
	if l.dialect == tenant.Postgres {
		return l.query("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND state = 'active' AND query LIKE '%pg_sleep(3600)%' AND pid <> pg_backend_pid()") != "0"
	}
	// Steps a and b are done, and the file is being written: that is the slow step.
	if l.query("SELECT count(*) FROM ledger") != "2" {
		return false
	}
	db, err := sql.Open("sqlite3", "file:"+l.path+"?_busy_timeout=0&_txlock=immediate")
	check(l.t, err)
	defer db.Close()
	tx, err := db.Begin()
	if err == nil {
		check(l.t, tx.Rollback())
		return false
	}
	return strings.Contains(err.Error(), "locked")
}

// A step that panics or ends its goroutine has failed; the lock is free.
func TestAPanicIsAFailureOfItsStep(t *testing.T) {
	t.Parallel()
	for how, explode := range map[string]func(){
		"action panicked: boom":      func() { panic("boom") },
		"action ended its goroutine": runtime.Goexit,
	} {
		for _, kind := range []string{"inside", "outside"} {
			t.Run(how+"/"+kind, func(t *testing.T) {
				t.Parallel()
				onBoth(t, func(t *testing.T, w *world) {
					actions := engine.NewActions()
					engine.Register(actions, "inside", engine.Transactional[none]{
						Do: func(ctx context.Context, tx engine.Tx, _ engine.ActionCall[none]) ([]byte, error) {
							if _, err := tx.Exec(ctx, "INSERT INTO ledger VALUES ('x')"); err != nil {
								return nil, err
							}
							explode()
							return nil, nil
						},
					})
					engine.RegisterExternal(actions, "outside", engine.External[none]{
						Do: func(context.Context, engine.ActionCall[none]) error { explode(); return nil },
					})
					l := newLab(w, engine.Config{Actions: actions})
					c := newChange("change", "a")
					step := actionStep("x", kind)
					step.Undo = &plan.NoUndo{None: "nothing happens"}
					c.Steps = append(c.Steps, step)
					r := l.apply(c)
					l.came(r, engine.VerdictPartial, "do:a fail:x")
					contains(t, "error", r.Err.Error(), how)
					l.rests("change", "pending failed 1/2 partial")
					l.holds("a")
				})
			})
		}
	}
}

// An action that ignores the end of its context is left behind: its operation ends, and whatever it still tries on its
// transaction fails. G1
func TestAnActionThatIgnoresItsEndIsLeftBehind(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, w *world) {
		ends, late := make(chan none), make(chan error)
		var calls atomic.Int32 // with the other steps of its group, then on its own
		ledger := "ledger"
		if w.scope != "" {
			ledger = w.scope + ".ledger" // found whatever the search path is by then
		}
		actions := engine.NewActions()
		engine.Register(actions, "deaf", engine.Transactional[none]{
			Do: func(_ context.Context, tx engine.Tx, _ engine.ActionCall[none]) ([]byte, error) {
				calls.Add(1)
				<-ends
				_, err := tx.Exec(context.Background(), "INSERT INTO "+ledger+" VALUES ('late')")
				late <- err
				return []byte("late"), nil
			},
			Undo: func(context.Context, engine.Tx, engine.ActionCall[none]) error { return nil },
		})
		l := newLab(w, engine.Config{Actions: actions, ActionTimeout: 300 * time.Millisecond})
		c := rollingBack(newChange("change", "a"))
		c.Steps = append(c.Steps, actionStep("x", "deaf"))
		r := later(t, func() engine.Result { return l.apply(c) })()
		l.came(r, engine.VerdictFailed, "do:a fail:x undo:a")
		l.rests("change", "pending rolled_back 0/2")
		close(ends)
		for range calls.Load() {
			if err := receive(t, "the late write", late); err == nil {
				t.Error("the action wrote after its end")
			}
		}
		l.holds("")
	})
}

// One outside the database may still be at work, so nothing is undone beside it.
func TestNothingIsUndoneBesideAnActionThatMayStillBeAtWork(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, w *world) {
		ends, ended := make(chan none), make(chan none)
		x := &resource{value: "old"}
		action := x.external()
		x.before = func(_ context.Context, d plan.Direction) error {
			if d == plan.Up {
				defer close(ended)
				<-ends
			}
			return nil
		}
		l := newLab(w, engine.Config{Actions: only(action)})
		c := rollingBack(outsideChange("b"))
		c.Steps[1].Timeout = 300 * time.Millisecond
		r := later(t, func() engine.Result { return l.apply(c) })()
		l.came(r, engine.VerdictPartial, "do:a fail:x")
		contains(t, "error", r.Err.Error(), "ignored the end of its context")
		l.rests("change", "pending failed 1/3 partial")
		close(ends)
		receive(t, "the action's end", ended)
		l.came(l.rollback("change"), engine.VerdictRolledBack, "undo:x undo:a")
		equal(t, "value", x.read(), "old")
	})
}
