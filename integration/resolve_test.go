package integration

import (
	"strings"
	"sync"
	"testing"

	"github.com/belayhq/belay/engine"
	"github.com/belayhq/belay/plan"
)

func (l *lab) resolve(change string, opts engine.ResolveOptions) engine.Result {
	l.t.Helper()
	r, _ := l.engine.Resolve(l.t.Context(), l.tenant, change, opts)
	return r
}

// A plan that fails again and again without a step committing is put aside after five claims, until a person asks. G10
func TestAPlanThatNeverGetsAnywhereIsQuarantined(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, w *world) {
		l := newLab(w, engine.Config{})
		c := newChange("change", "a:fail b")
		for range plan.MaxAttempts {
			l.came(l.apply(c), engine.VerdictFailed, "fail:a")
		}
		l.rests("change", "pending quarantined 0/2")
		r := l.apply(c)
		l.came(r, engine.VerdictPartial, "")
		refusedFor(t, r.Err, engine.RefusedQuarantined)
		if n := l.record("change").Plan.Attempts; n != plan.MaxAttempts {
			t.Fatalf("%d attempts", n)
		}
		equal(t, "history", l.history(), strings.TrimSpace(strings.Repeat("claim_apply fail ", plan.MaxAttempts)))
		// Nothing of it is in place, so it keeps nobody else away.
		l.came(l.apply(newChange("other", "x")), engine.VerdictApplied, "do:x")
		l.came(l.applyWith(c, engine.ApplyOptions{Retry: true}), engine.VerdictFailed, "fail:a")
		l.rests("change", "pending failed 0/2")
		l.exec("CREATE TABLE missing (n integer)")
		l.came(l.apply(c), engine.VerdictApplied, "do:a do:b")
	})
}

// A step that commits is progress, and the count begins anew.
func TestProgressKeepsAPlanOutOfQuarantine(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, w *world) {
		l := newLab(w, engine.Config{})
		c := newChange("change", "a b:fail c")
		l.came(l.apply(c), engine.VerdictPartial, "do:a fail:b")
		for range plan.MaxAttempts - 1 {
			l.came(l.apply(c), engine.VerdictPartial, "fail:b")
		}
		l.rests("change", "pending failed 1/3 partial")
		l.came(l.apply(c), engine.VerdictPartial, "fail:b")
		l.rests("change", "pending quarantined 1/3 partial")
		r := l.apply(newChange("other", "x"))
		refusedFor(t, r.Err, engine.RefusedBlocked, "change")
		r = l.rollback("change")
		refusedFor(t, r.Err, engine.RefusedQuarantined)
		l.came(l.rollbackWith("change", engine.RollbackOptions{Retry: true}), engine.VerdictRolledBack, "undo:a")
	})
}

// A holder that dies at each attempt is counted like one that fails: the claim itself counts.
func TestAPlanWhoseHoldersDieIsQuarantined(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, w *world) {
		l, broken := newFaultyLab(w, engine.Config{})
		c := newChange("change", "a b")
		for range plan.MaxAttempts {
			broken.dies(writes("a", plan.StepDone))
			if r := l.apply(c); r.Verdict != engine.VerdictPartial {
				t.Fatal(r.Err)
			}
			l.expire()
		}
		l.calls.take()
		r := l.apply(c)
		l.came(r, engine.VerdictPartial, "recover:change")
		refusedFor(t, r.Err, engine.RefusedQuarantined)
		l.rests("change", "pending quarantined 0/2")
		l.came(l.applyWith(c, engine.ApplyOptions{Retry: true}), engine.VerdictApplied, "do:a do:b")
	})
}

// Both ways are broken: a person says what is true, the tenant is free again, and history keeps the reason.
func TestAResolveSaysWhatIsTrueAndIsKept(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		as    engine.Truth
		rests string
		kind  plan.Event
	}{
		{engine.ResolveApplied, "applied resolved 3/3", plan.EventResolveApplied},
		{engine.ResolveRolledBack, "pending resolved 0/3", plan.EventResolveRolledBack},
	} {
		t.Run(string(tc.as), func(t *testing.T) {
			t.Parallel()
			onBoth(t, func(t *testing.T, w *world) {
				l := newLab(w, engine.Config{})
				l.came(l.apply(newChange("change", "a:stuck b:fail c")), engine.VerdictPartial, "do:a fail:b")
				l.came(l.rollback("change"), engine.VerdictPartial, "fail:a")
				r := l.resolve("change", engine.ResolveOptions{As: tc.as})
				l.came(r, engine.VerdictFailed, "")
				contains(t, "error", r.Err.Error(), "a resolve needs a reason")
				l.came(l.resolve("change", engine.ResolveOptions{As: tc.as, Reason: "done by hand"}), engine.VerdictResolved, "")
				l.rests("change", tc.rests)
				l.holds("a")
				events, err := l.store().Events(t.Context(), l.tenant.ID, 1)
				check(t, err)
				if e := events[0]; e.Kind != tc.kind || e.Reason != "done by hand" || e.Change != "change" || e.Operation != "resolve" || e.Host == "" {
					t.Fatalf("event %+v", e)
				}
				l.came(l.apply(newChange("other", "x")), engine.VerdictApplied, "do:x")
			})
		})
	}
}

// A tenant changed by hand is adopted: the change counts as applied without having run, in its place in the order.
func TestATenantChangedByHandIsAdopted(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, w *world) {
		l := newLab(w, engine.Config{})
		c := newChange("baseline", "a b")
		r := l.resolve("baseline", engine.ResolveOptions{As: engine.ResolveApplied, Reason: "made by hand"})
		l.came(r, engine.VerdictRefused, "")
		refusedFor(t, r.Err, engine.RefusedUnknown)
		l.exec("INSERT INTO ledger VALUES ('a'), ('b')")
		l.came(l.resolve("baseline", engine.ResolveOptions{As: engine.ResolveApplied, Reason: "made by hand", Change: c}), engine.VerdictResolved, "")
		l.rests("baseline", "applied resolved 2/2")
		l.came(l.apply(c), engine.VerdictAlreadyApplied, "")
		next := newChange("next", "n")
		next.Requires = []string{"baseline"}
		l.came(l.apply(next), engine.VerdictApplied, "do:n")
		r = l.rollback("baseline")
		refusedFor(t, r.Err, engine.RefusedNewer, "next")
		l.came(l.rollbackWith("baseline", engine.RollbackOptions{Cascade: true}), engine.VerdictRolledBack, "undo:n undo:b undo:a")
		l.holds("")
	})
}

// A resolve lifts a quarantine, either way.
func TestAResolveLiftsAQuarantine(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, w *world) {
		l := newLab(w, engine.Config{})
		c := newChange("change", "a:fail b")
		for range plan.MaxAttempts {
			l.came(l.apply(c), engine.VerdictFailed, "fail:a")
		}
		l.rests("change", "pending quarantined 0/2")
		l.came(l.resolve("change", engine.ResolveOptions{As: engine.ResolveRolledBack, Reason: "it never ran"}), engine.VerdictResolved, "")
		l.rests("change", "pending resolved 0/2")
		l.came(l.apply(c), engine.VerdictFailed, "fail:a")
	})
}

// An effect in doubt is settled by a person as well as by the next holder.
func TestAResolveSettlesAnEffectInDoubt(t *testing.T) {
	t.Parallel()
	for _, as := range []engine.Truth{engine.ResolveApplied, engine.ResolveRolledBack} {
		t.Run(string(as), func(t *testing.T) {
			t.Parallel()
			onBoth(t, func(t *testing.T, w *world) {
				x := &resource{value: "old"}
				l, broken := newFaultyLab(w, engine.Config{Actions: only(x.external())})
				broken.dies(writes("x", plan.StepDone))
				l.apply(outsideChange("b"))
				l.expire()
				l.calls.take()
				l.came(l.resolve("change", engine.ResolveOptions{As: as, Reason: "looked at it"}), engine.VerdictResolved, "recover:change")
				l.rests("change", map[engine.Truth]string{
					engine.ResolveApplied: "applied resolved 3/3", engine.ResolveRolledBack: "pending resolved 0/3",
				}[as])
			})
		})
	}
}

// Submitting is idempotent, also from many sides at once: the tenant has one plan, and keeps it.
func TestSubmittingTwiceMakesOnePlan(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, w *world) {
		l := newLab(w, engine.Config{})
		c := newChange("change", "a b")
		var all sync.WaitGroup
		var mu sync.Mutex
		ids := map[plan.ID]int{}
		for range 20 {
			all.Go(func() {
				p, err := l.engine.Submit(t.Context(), l.tenant, c)
				if err != nil {
					t.Error(err)
				}
				mu.Lock()
				defer mu.Unlock()
				ids[p.ID]++
			})
		}
		all.Wait()
		if len(ids) != 1 {
			t.Fatalf("%d plans", len(ids))
		}
		l.rests("change", "pending never_run 0/2")
		l.came(l.apply(c), engine.VerdictApplied, "do:a do:b")
		p, err := l.engine.Submit(t.Context(), l.tenant, c)
		check(t, err)
		if p.Status != plan.Applied || ids[p.ID] == 0 {
			t.Fatalf("plan %+v", p)
		}
		l.came(l.apply(c), engine.VerdictAlreadyApplied, "")
	})
}

// Of many applies of one change to one tenant at once, one does it and the others find it done.
func TestManyAppliesAtOnceApplyOnce(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, w *world) {
		l := newLab(w, engine.Config{})
		c := newChange("change", "a b")
		const callers = 20
		verdicts := make(chan engine.Result, callers)
		for range callers {
			go func() { verdicts <- l.applyWith(c, engine.ApplyOptions{LockTimeout: hang}) }()
		}
		count := map[engine.Verdict]int{}
		for range callers {
			r := receive(t, "an apply", verdicts)
			if count[r.Verdict]++; r.Err != nil {
				t.Error(r.Err)
			}
		}
		if count[engine.VerdictApplied] != 1 || count[engine.VerdictAlreadyApplied] != callers-1 {
			t.Errorf("verdicts %v", count)
		}
		l.holds("a b")
		equal(t, "calls", l.calls.take(), "do:a do:b")
	})
}

// A plan that only a newer Belay can read is left alone, in flight or not; nothing is recovered or reset.
func TestAPlanOfANewerBelayIsLeftAlone(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, w *world) {
		l, broken := newFaultyLab(w, engine.Config{})
		broken.dies(writes("a", plan.StepDone))
		l.apply(newChange("change", "a"))
		l.expire()
		l.exec("UPDATE " + l.table("plan") + " SET format = 99")
		l.calls.take()
		r := l.apply(newChange("change", "a"))
		l.came(r, engine.VerdictRefused, "")
		contains(t, "error", r.Err.Error(), "newer version of belay")
		equal(t, "plan", l.query("SELECT status, claimed_from FROM "+l.table("plan")), "applying|pending")
	})
}
