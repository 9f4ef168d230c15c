package integration

import (
	"context"
	"errors"
	"testing"

	"github.com/belayhq/belay/engine"
	"github.com/belayhq/belay/plan"
	"github.com/belayhq/belay/tenant"
)

// A step that another's undo takes back is in place until that undo is: when it fails, nothing is applied twice.
func TestACoveredStepStaysInPlaceUntilItsCoverIsUndone(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, w *world) {
		l := newLab(w, engine.Config{})
		c := rollingBack(newChange("change", "a b:covered c:fail"))
		c.Steps[0].Down.Default.Text += ";\nINSERT INTO gate VALUES (1)"
		l.came(l.apply(c), engine.VerdictPartial, "do:a do:b fail:c fail:a")
		l.holds("a b")
		l.rests("change", "pending failed 2/3 partial")
		l.exec("CREATE TABLE missing (i integer)", "CREATE TABLE gate (i integer)")
		l.came(l.apply(c), engine.VerdictApplied, "do:c")
		l.holds("a b c")
		l.came(l.rollback("change"), engine.VerdictRolledBack, "undo:c undo:b undo:a")
		l.holds("")
	})
}

// A rollback of several plans is refused as a whole where one of them must not be claimed.
func TestACascadeAcrossAQuarantinedPlanTouchesNothing(t *testing.T) {
	t.Parallel()
	for name, back := range map[string]func(*lab, engine.RollbackOptions) engine.Result{
		"cascade": func(l *lab, opts engine.RollbackOptions) engine.Result {
			opts.Cascade = true
			return l.rollbackWith("a", opts)
		},
		"to a change": func(l *lab, opts engine.RollbackOptions) engine.Result {
			r, _ := l.engine.RollbackTo(l.t.Context(), l.tenant, "a", opts)
			return r
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			onBoth(t, func(t *testing.T, w *world) {
				l := newLab(w, engine.Config{})
				l.apply(newChange("a", "a"))
				l.apply(newChange("b", "b:stuck"))
				for range plan.MaxAttempts {
					l.rollback("b")
				}
				l.rests("b", "applied quarantined 1/1")
				l.apply(newChange("c", "c"))
				l.calls.take()
				r := back(l, engine.RollbackOptions{})
				l.came(r, engine.VerdictPartial, "")
				refusedFor(t, r.Err, engine.RefusedQuarantined, "b")
				l.holds("a b c")
				l.exec("CREATE TABLE missing (i integer)")
				if r := back(l, engine.RollbackOptions{Retry: true}); r.Err != nil {
					t.Fatal(r.Err)
				}
			})
		})
	}
}

// imaged are actions that keep a before-image, or nothing, and whose undo takes down what it was handed.
func imaged(image []byte, undone *calls) *engine.Actions {
	actions := engine.NewActions()
	note := func(c engine.ActionCall[none]) {
		if c.Before == nil {
			undone.add("nil")
			return
		}
		undone.add(string(c.Before))
	}
	engine.Register(actions, "inside", engine.Transactional[none]{
		Do:   func(context.Context, engine.Tx, engine.ActionCall[none]) ([]byte, error) { return image, nil },
		Undo: func(_ context.Context, _ engine.Tx, c engine.ActionCall[none]) error { note(c); return nil },
	})
	engine.RegisterExternal(actions, "outside", engine.External[none]{
		Capture: func(context.Context, engine.ActionCall[none]) ([]byte, error) { return image, nil },
		Do:      func(context.Context, engine.ActionCall[none]) error { return nil },
		Undo:    func(_ context.Context, c engine.ActionCall[none]) error { note(c); return nil },
	})
	engine.RegisterExternal(actions, "blind", engine.External[none]{
		Do:   func(context.Context, engine.ActionCall[none]) error { return nil },
		Undo: func(_ context.Context, c engine.ActionCall[none]) error { note(c); return nil },
	})
	return actions
}

// imagedChange begins with an action, which two other steps follow.
func imagedChange(action string) *plan.Change {
	return with(oneByOne(newChange("change", "x b c")), func(c *plan.Change) { c.Steps[0] = actionStep("x", action) })
}

// Without the image that an undo needs, whether it is damaged or gone, a rollback is refused before it touches anything. The
// undo never guesses. G6
func TestARollbackWithoutItsBeforeImageTouchesNothing(t *testing.T) {
	t.Parallel()
	for _, action := range []string{"inside", "outside"} {
		for _, how := range []string{"damaged", "gone"} {
			t.Run(action+"/"+how, func(t *testing.T) {
				t.Parallel()
				onBoth(t, func(t *testing.T, w *world) {
					var undone calls
					l := newLab(w, engine.Config{Actions: imaged([]byte("was"), &undone)})
					l.came(l.apply(imagedChange(action)), engine.VerdictApplied, "do:x do:b do:c")
					statement := "DELETE FROM " + w.table("before_image")
					if how == "damaged" {
						statement = map[tenant.Dialect]string{
							tenant.Postgres: "UPDATE belay.before_image SET body = 'xxx'",
							tenant.SQLite:   "UPDATE belay_before_image SET body = x'78'",
						}[w.dialect]
					}
					w.exec(statement)
					r := l.rollback("change")
					l.came(r, engine.VerdictPartial, "")
					refusedFor(t, r.Err, engine.RefusedImage)
					if !errors.Is(r.Err, engine.ErrImageDamaged) {
						t.Fatal(r.Err)
					}
					equal(t, "undone", undone.take(), "")
					l.holds("b c")
					l.rests("change", "applied applied 3/3")
				})
			})
		}
	}
}

// Neither does a failed apply turn back then: it stays where it is, and says both.
func TestAnApplyWithoutItsBeforeImageDoesNotTurnBack(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, w *world) {
		var undone calls
		var l *lab
		l = newLab(w, engine.Config{Actions: imaged([]byte("was"), &undone), Observe: func(p engine.Progress) {
			if p.Kind == engine.KindUndoing {
				l.exec("DELETE FROM " + w.table("before_image"))
			}
		}})
		c := with(rollingBack(imagedChange("inside")), func(c *plan.Change) { c.Steps[2] = newChange("", "c:fail").Steps[0] })
		r := l.apply(c)
		l.came(r, engine.VerdictPartial, "do:x do:b fail:c")
		if e := planError(t, r.Err); !errors.Is(e.UndoErr, engine.ErrImageDamaged) || errors.Is(e.Err, engine.ErrImageDamaged) {
			t.Fatal(r.Err)
		}
		equal(t, "undone", undone.take(), "")
		l.holds("b")
		l.rests("change", "pending failed 2/3 partial")
	})
}

// An action that keeps nothing is handed nothing, also where a person said that it is applied.
func TestAnActionThatKeepsNothingIsHandedNothing(t *testing.T) {
	t.Parallel()
	for _, action := range []string{"inside", "outside", "blind"} {
		t.Run(action, func(t *testing.T) {
			t.Parallel()
			onBoth(t, func(t *testing.T, w *world) {
				var undone calls
				l := newLab(w, engine.Config{Actions: imaged(nil, &undone)})
				c := imagedChange(action)
				l.came(l.apply(c), engine.VerdictApplied, "do:x do:b do:c")
				l.came(l.rollback("change"), engine.VerdictRolledBack, "undo:c undo:b undo:x")
				r := l.resolve("change", engine.ResolveOptions{As: engine.ResolveApplied, Reason: "by hand", Change: c})
				l.came(r, engine.VerdictResolved, "")
				l.came(l.rollback("change"), engine.VerdictRolledBack, "undo:c undo:b undo:x")
				equal(t, "undone", undone.take(), "nil nil")
			})
		})
	}
}
