package integration

import (
	"errors"
	"strings"
	"testing"

	"github.com/belayhq/belay/engine"
	"github.com/belayhq/belay/plan"
	"github.com/belayhq/belay/tenant"
)

func join(words []string) string { return strings.Join(words, " ") }

// refusedFor demands a refusal for a reason, and the other changes it names.
func refusedFor(t *testing.T, err error, reason engine.Refusal, changes ...string) {
	t.Helper()
	refused, ok := errors.AsType[*engine.RefusedError](err)
	if !ok {
		t.Fatalf("not refused: %v", err)
	}
	equal(t, "reason", string(refused.Reason), string(reason))
	equal(t, "changes", join(refused.Changes), join(changes))
}

func planError(t *testing.T, err error) *engine.PlanError {
	t.Helper()
	e, ok := errors.AsType[*engine.PlanError](err)
	if !ok {
		t.Fatalf("%T is no PlanError: %v", err, err)
	}
	return e
}

// A failure says which step failed and where, what is in place and what is not: also when its statement shared a
// checkpoint with others.
func TestAFailureSaysWhereAndWhatIsInPlace(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, w *world) {
		l := newLab(w, engine.Config{})
		r := l.apply(newChange("change", "a b c:fail d"))
		l.came(r, engine.VerdictPartial, "do:a do:b fail:c")
		e := planError(t, r.Err)
		equal(t, "failed", e.Failed, "c")
		equal(t, "applied", join(e.Applied), "a b")
		equal(t, "undone", join(e.Undone), "")
		step, ok := errors.AsType[*engine.StepError](r.Err)
		if !ok || step.File != "c.up.sql" || step.Line != 2 || step.Step != "c" || step.Direction != plan.Up || step.Tenant != "acme" {
			t.Fatalf("step error %+v", step)
		}
		for _, part := range []string{"tenant acme", "change change", "step c (c.up.sql:2)", "missing", "in place now: a, b"} {
			contains(t, "error", r.Err.Error(), part)
		}
		failure := l.record("change").Plan.LastError
		if failure == nil || failure.Step != "c" || failure.UndoMessage != "" {
			t.Fatalf("last error %+v", failure)
		}
		contains(t, "last error", failure.Message, "c.up.sql:2")
		if r.StepsDone != 2 || r.StepsTotal != 4 {
			t.Fatalf("%d of %d steps", r.StepsDone, r.StepsTotal)
		}
	})
}

// The first error comes first, wherever the two are shown.
func TestAnApplyWhoseUndoFailsTellsBothErrorsInOrder(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, w *world) {
		l := newLab(w, engine.Config{})
		c := newChange("change", "a:stuck b c:no")
		r := l.apply(rollingBack(c))
		l.came(r, engine.VerdictPartial, "do:a do:b fail:c undo:b fail:a")
		e := planError(t, r.Err)
		if !errors.Is(e.Err, engine.ErrVerifyNo) || e.UndoErr == nil || errors.Is(e.UndoErr, engine.ErrVerifyNo) {
			t.Fatalf("first %v\nthen %v", e.Err, e.UndoErr)
		}
		equal(t, "failed", e.Failed, "c")
		equal(t, "applied", join(e.Applied), "a")
		equal(t, "undone", join(e.Undone), "b")
		first, then := strings.Index(r.Err.Error(), "step c: verify says no"), strings.Index(r.Err.Error(), "undo of step a (a.down.sql:2)")
		if first < 0 || then < first {
			t.Fatalf("error: %v", r.Err)
		}
		failure := l.record("change").Plan.LastError
		contains(t, "message", failure.Message, "verify says no")
		contains(t, "undo message", failure.UndoMessage, "a.down.sql:2")
		equal(t, "history", l.history(), "claim_apply undo fail")
		events, err := l.store().Events(t.Context(), l.tenant.ID, 1)
		check(t, err)
		if f := events[0].Failure; f == nil || f.Message != failure.Message || f.UndoMessage != failure.UndoMessage {
			t.Fatalf("event tells %+v", f)
		}
	})
}

// Whoever branches on it can tell "no" from "nobody knows".
func TestVerifySaysNoIsNotCouldNotRun(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, w *world) {
		l := newLab(w, engine.Config{})
		no := l.apply(newChange("no", "a:no"))
		if !errors.Is(no.Err, engine.ErrVerifyNo) || errors.Is(no.Err, engine.ErrVerifyUnable) {
			t.Fatal(no.Err)
		}
		contains(t, "error", no.Err.Error(), "expected 99, got 1")
		unable := l.apply(newChange("unable", "a:unable"))
		if !errors.Is(unable.Err, engine.ErrVerifyUnable) || errors.Is(unable.Err, engine.ErrVerifyNo) {
			t.Fatal(unable.Err)
		}
		l.holds("")
	})
}

// Verify repeats the queries of what is applied, and nothing else.
func TestVerifyRepeatsTheQueriesWithoutALock(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, w *world) {
		l := newLab(w, engine.Config{})
		c := newChange("change", "a b")
		c.Steps[0].Verify = &plan.Verify{Query: "SELECT count(*) FROM ledger WHERE step = 'a'", Expect: new("1")}
		c.Steps[1].Verify = &plan.Verify{Query: "SELECT step FROM ledger"}
		refused, _ := l.engine.Verify(t.Context(), l.tenant, "change")
		l.came(refused, engine.VerdictRefused, "")
		l.came(l.apply(c), engine.VerdictApplied, "do:a do:b")
		_, err := l.engine.Hold(t.Context(), l.tenant, hang, "somebody looks")
		check(t, err)
		good, _ := l.engine.Verify(t.Context(), l.tenant, "change")
		l.came(good, engine.VerdictVerified, "")
		l.exec("DELETE FROM ledger")
		bad, _ := l.engine.Verify(t.Context(), l.tenant, "change")
		l.came(bad, engine.VerdictFailed, "")
		if !errors.Is(bad.Err, engine.ErrVerifyNo) {
			t.Fatal(bad.Err)
		}
	})
}

// Until someone decides what becomes of it, a partial plan keeps others off its tenant. G3
func TestAPartialPlanBlocksOthers(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, w *world) {
		l := newLab(w, engine.Config{})
		l.came(l.apply(newChange("older", "o")), engine.VerdictApplied, "do:o")
		l.came(l.apply(newChange("half", "a b:fail")), engine.VerdictPartial, "do:a fail:b")
		r := l.apply(newChange("other", "x"))
		l.came(r, engine.VerdictPartial, "")
		refusedFor(t, r.Err, engine.RefusedBlocked, "half")
		r = l.rollback("older")
		l.came(r, engine.VerdictPartial, "")
		refusedFor(t, r.Err, engine.RefusedBlocked, "half")
		l.came(l.rollback("half"), engine.VerdictRolledBack, "undo:a")
		l.came(l.apply(newChange("other", "x")), engine.VerdictApplied, "do:x")
	})
}

// A failed plan with nothing in place is no partial one.
func TestAFailureThatLeftNothingBlocksNobody(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, w *world) {
		l := newLab(w, engine.Config{})
		l.came(l.apply(newChange("broken", "a:fail b")), engine.VerdictFailed, "fail:a")
		l.came(l.apply(newChange("other", "x")), engine.VerdictApplied, "do:x")
		l.rests("broken", "pending failed 0/2")
	})
}

// A rollback that was begun is finished, not applied over.
func TestAnAppliedPartialPlanRefusesApplyAndNamesTheRollback(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, w *world) {
		l := newLab(w, engine.Config{})
		c := newChange("change", "a:stuck b")
		l.came(l.apply(c), engine.VerdictApplied, "do:a do:b")
		l.came(l.rollback("change"), engine.VerdictPartial, "undo:b fail:a")
		l.rests("change", "applied failed 1/2 partial")
		r := l.apply(c)
		l.came(r, engine.VerdictPartial, "")
		refusedFor(t, r.Err, engine.RefusedHalfUndone)
		contains(t, "error", r.Err.Error(), "finish the rollback")
		l.holds("a")
	})
}

// An edited change under the same id is refused as long as anything of it is in place, with both digests.
func TestAnEditedChangeIsRefusedWithBothDigests(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, w *world) {
		l := newLab(w, engine.Config{})
		c := newChange("change", "a b")
		edited := newChange("change", "a b c")
		l.came(l.apply(c), engine.VerdictApplied, "do:a do:b")
		for _, repin := range []bool{false, true} {
			r := l.applyWith(edited, engine.ApplyOptions{Repin: repin})
			l.came(r, engine.VerdictRefused, "")
			refusedFor(t, r.Err, engine.RefusedDigest)
			if !errors.Is(r.Err, plan.ErrDigestMismatch) {
				t.Fatal(r.Err)
			}
			contains(t, "error", r.Err.Error(), c.Digest().Short())
			contains(t, "error", r.Err.Error(), edited.Digest().Short())
		}
		l.came(l.rollback("change"), engine.VerdictRolledBack, "undo:b undo:a")
		l.came(l.apply(edited), engine.VerdictApplied, "do:a do:b do:c")
		l.came(l.rollback("change"), engine.VerdictRolledBack, "undo:c undo:b undo:a")
	})
}

// With leave, a partial plan takes an edit of the steps that are not in place, and of those alone.
func TestAPartialPlanTakesAnEditOfStepsNotInPlace(t *testing.T) {
	t.Parallel()
	actions := engine.NewActions()
	engine.Register(actions, "note", engine.Transactional[struct {
		Words []string `json:"words"`
	}]{Do: doNothing[struct {
		Words []string `json:"words"`
	}]})
	note := actionStep("n", "note")
	note.Action.Args = []byte(`{ "words": ["a<b",   "c"] }`)
	note.Undo = &plan.NoUndo{None: "nothing happens"}
	withNote := func(c *plan.Change) *plan.Change {
		return with(c, func(c *plan.Change) { c.Steps[0] = note })
	}
	onBoth(t, func(t *testing.T, w *world) {
		l := newLab(w, engine.Config{Actions: actions})
		l.came(l.apply(withNote(newChange("change", "- a b:fail"))), engine.VerdictPartial, "do:n do:a fail:b")
		mended := withNote(newChange("change", "- a b c"))
		r := l.apply(mended)
		l.came(r, engine.VerdictRefused, "")
		refusedFor(t, r.Err, engine.RefusedDigest)
		tooMuch := with(mended, func(c *plan.Change) { c.Steps[1] = sqlStep("a", "SELECT 1", "SELECT 2") })
		for _, c := range []*plan.Change{tooMuch, withNote(newChange("change", "- b a"))} {
			r = l.applyWith(c, engine.ApplyOptions{Repin: true})
			l.came(r, engine.VerdictRefused, "")
			refusedFor(t, r.Err, engine.RefusedDigest)
			contains(t, "error", r.Err.Error(), "step a is in place and differs")
		}
		l.came(l.applyWith(mended, engine.ApplyOptions{Repin: true}), engine.VerdictApplied, "do:b do:c")
		l.rests("change", "applied applied 4/4")
		equal(t, "digest", string(l.record("change").Plan.Digest), string(mended.Digest()))
		l.came(l.rollback("change"), engine.VerdictRolledBack, "undo:c undo:b undo:a undo:n")
	})
}

// No way back is said before anything is done, in both directions. G6
func TestNoWayBackIsSaidBeforeAnythingIsTouched(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, w *world) {
		l := newLab(w, engine.Config{})
		c := newChange("change", "a b:irreversible c")
		r := l.apply(c)
		l.came(r, engine.VerdictRefused, "")
		refusedFor(t, r.Err, engine.RefusedIrreversible)
		contains(t, "error", r.Err.Error(), "gone is gone")
		l.holds("")
		l.came(l.applyWith(c, engine.ApplyOptions{AllowIrreversible: true}), engine.VerdictApplied, "do:a do:b do:c")
		events := l.history()
		r = l.rollback("change")
		l.came(r, engine.VerdictRefused, "")
		refusedFor(t, r.Err, engine.RefusedIrreversible)
		l.holds("a b c")
		l.rests("change", "applied applied 3/3")
		equal(t, "history", l.history(), events)
	})
}

// The error of an apply that cannot turn back tells why it failed, and then why it stands where it is.
func TestAnApplyThatCannotTurnBackNeedsAPerson(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, w *world) {
		l := newLab(w, engine.Config{})
		c := rollingBack(newChange("change", "a:irreversible b:fail"))
		r := l.applyWith(c, engine.ApplyOptions{AllowIrreversible: true})
		l.came(r, engine.VerdictPartial, "do:a fail:b")
		e := planError(t, r.Err)
		contains(t, "first error", e.Err.Error(), "b.up.sql:2")
		contains(t, "second error", e.UndoErr.Error(), "cannot be undone")
	})
}

// A change waits for those it requires: applied, and whole.
func TestAChangeRequiresOthersToBeApplied(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, w *world) {
		l := newLab(w, engine.Config{})
		first, second := newChange("first", "a"), newChange("second", "b")
		second.Requires = []string{"first"}
		r := l.apply(second)
		l.came(r, engine.VerdictRefused, "")
		refusedFor(t, r.Err, engine.RefusedRequires, "first")
		l.came(l.apply(first), engine.VerdictApplied, "do:a")
		l.came(l.apply(second), engine.VerdictApplied, "do:b")
		l.came(l.rollback("second"), engine.VerdictRolledBack, "undo:b")
		l.came(l.rollback("first"), engine.VerdictRolledBack, "undo:a")
		r = l.apply(second)
		refusedFor(t, r.Err, engine.RefusedRequires, "first")
	})
}

// A schema that is not there is a refusal, also where only a step finds out: nothing is in place.
func TestATenantWithoutItsSchemaIsRefused(t *testing.T) {
	t.Parallel()
	l := newLab(newWorld(t, tenant.Postgres), engine.Config{})
	l.exec("DROP SCHEMA site CASCADE")
	r := l.apply(newChange("change", "a b"))
	l.came(r, engine.VerdictRefused, "fail:a")
	refusedFor(t, r.Err, engine.RefusedNoScope)
	l.rests("change", "pending failed 0/2")
	l.exec("CREATE SCHEMA site", "CREATE TABLE site.ledger (step text NOT NULL)")
	l.came(l.apply(newChange("change", "a b")), engine.VerdictApplied, "do:a do:b")
}

// What the engine cannot carry out is refused before the tenant's lock is asked for.
func TestAChangeThatCannotRunIsRefused(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, w *world) {
		l := newLab(w, engine.Config{})
		unknown := newChange("unknown", "a")
		unknown.Steps = append(unknown.Steps, actionStep("b", "no.such.action"))
		escaping := newChange("escaping", "a")
		escaping.Steps[0].Up.Default.Text = "SELECT 1;\nCOMMIT"
		for _, c := range []*plan.Change{unknown, escaping} {
			r := l.apply(c)
			l.came(r, engine.VerdictRefused, "")
			refusedFor(t, r.Err, engine.RefusedInvalid)
		}
		r := l.rollback("never-heard-of")
		l.came(r, engine.VerdictRefused, "")
		refusedFor(t, r.Err, engine.RefusedUnknown)
		if fence := l.lock().Fence; fence != 0 {
			t.Fatalf("the lock was taken: fence %d", fence)
		}
	})
}
