package integration

import (
	"strings"
	"testing"
	"time"

	"github.com/belayhq/belay/engine"
	"github.com/belayhq/belay/plan"
	"github.com/belayhq/belay/sitelock"
	"github.com/belayhq/belay/tenant"
)

// previews returns the preview of the lab's tenant, and what it says in words: "do:a do:b", as an apply then reports it.
func (l *lab) previews(changes ...*plan.Change) (engine.Preview, string) {
	l.t.Helper()
	one := func(yield func(tenant.Tenant, error) bool) { yield(l.tenant, nil) }
	var seen engine.Preview
	for p, err := range l.engine.Preview(l.t.Context(), one, changes, engine.ApplyOptions{}) {
		check(l.t, err)
		seen = p
	}
	var words []string
	for _, c := range seen.Changes {
		for _, s := range c.Steps {
			words = append(words, "do:"+s.Step.ID)
		}
	}
	return seen, strings.Join(words, " ")
}

// bookkeeping is all that Belay keeps of the tenant's lock and plans, as text.
func (l *lab) bookkeeping() string {
	l.t.Helper()
	var all []string
	for _, table := range []string{"site_lock", "plan", "journal", "event"} {
		all = append(all, sorted(l.query("SELECT * FROM "+l.table(table))))
	}
	return strings.Join(all, "\n--\n")
}

func expecting(p engine.Preview) engine.ApplyOptions {
	return engine.ApplyOptions{Expect: func(tenant.ID) engine.Basis { return p.Basis }}
}

// abandons leaves the tenant as a process does that dies when the first step of a change is in place.
func (l *lab) abandons(c *plan.Change) {
	l.t.Helper()
	ctx, store := l.t.Context(), l.store()
	program, err := c.Compile(l.dialect)
	check(l.t, err)
	grant, err := store.Acquire(ctx, l.request(sitelock.OpApply, &sitelock.Claim{
		Direction: plan.Up, Change: c.ID, Digest: c.Digest(), Body: c, NewPlan: plan.NewID(),
	}))
	check(l.t, err)
	first := engine.GroupStep{ID: c.Steps[0].ID, State: plan.StepDone, New: true, Statements: program.Steps[0].Up}
	check(l.t, store.Checkpoint(ctx, grant.Held, engine.Group{
		Plan: grant.Claimed.Plan.ID, Scope: l.scope, Direction: plan.Up, Cycle: grant.Claimed.Plan.Cycle, Steps: []engine.GroupStep{first},
		Lease: time.Minute,
	}))
	l.expire()
}

// recovers takes the lock, which returns what is abandoned, and gives it back.
func (l *lab) recovers() {
	l.t.Helper()
	grant, err := l.store().Acquire(l.t.Context(), l.request(sitelock.OpApply, nil))
	check(l.t, err)
	check(l.t, l.store().Release(l.t.Context(), grant.Held))
}

func (l *lab) request(operation sitelock.Operation, claim *sitelock.Claim) sitelock.Request {
	return sitelock.Request{
		Tenant: l.id, Scope: l.scope, Holder: sitelock.NewHolderID(), Process: sitelock.Process{Host: "elsewhere", PID: 1, StartedAt: time.Now()},
		Operation: operation, Lease: time.Minute, Claim: claim,
	}
}

// A preview tells what the apply then does, whatever state the tenant is in, and changes nothing. G3
func TestAPreviewIsWhatTheApplyThenDoes(t *testing.T) {
	t.Parallel()
	one, two := newChange("1", "a b c"), requiring(newChange("2", "d"), "1")
	states := map[string]func(l *lab){
		"never changed":  func(*lab) {},
		"with the first": func(l *lab) { l.apply(one) },
		"rolled back":    func(l *lab) { l.apply(one); l.rollback("1") },
		"abandoned":      func(l *lab) { l.abandons(one) },
		"partial":        func(l *lab) { l.abandons(one); l.recovers() },
		"up to date":     func(l *lab) { l.apply(one); l.apply(two) },
	}
	onBoth(t, func(t *testing.T, w *world) {
		for name, prepare := range states {
			l := newLab(w.neighbour(t), engine.Config{})
			l.recovers() // Belay's tables are there
			prepare(l)
			l.calls.take()
			before := l.bookkeeping()
			p, words := l.previews(one, two)
			equal(t, "what Belay keeps of a tenant "+name+", after its preview", l.bookkeeping(), before)
			r := l.missing(expecting(p), one, two)
			equal(t, "verdict of a tenant "+name, string(r.Verdict), string(p.Verdict()))
			equal(t, "steps of a tenant "+name, strings.TrimPrefix(l.calls.take(), "recover:1 "), words)
			again, nothing := l.previews(one, two)
			equal(t, "afterwards", string(again.Verdict())+nothing, string(engine.VerdictAlreadyApplied))
		}
	})
}

// What was done to a tenant since its preview shows, also where it stands as it stood. G3
func TestATenantThatMovedSinceItsPreviewIsRefused(t *testing.T) {
	t.Parallel()
	one, two := newChange("1", "a b c"), newChange("2", "d")
	onBoth(t, func(t *testing.T, w *world) {
		for name, move := range map[string]func(l *lab){
			"applied":           func(l *lab) { l.apply(two) },
			"taken back":        func(l *lab) { l.rollback("1") },
			"there and back":    func(l *lab) { l.rollback("1"); l.apply(one) },
			"with another one":  func(l *lab) { l.apply(newChange("3", "e")) },
			"abandoned":         func(l *lab) { l.abandons(two) },
			"resolved as taken": func(l *lab) { l.resolve("1", engine.ResolveOptions{As: engine.ResolveRolledBack, Reason: "by hand"}) },
			"resolved as in place": func(l *lab) {
				l.resolve("2", engine.ResolveOptions{As: engine.ResolveApplied, Reason: "by hand", Change: two})
			},
		} {
			l := newLab(w.neighbour(t), engine.Config{})
			l.apply(one)
			p, _ := l.previews(one, two)
			move(l)
			l.calls.take()
			before := l.query("SELECT step FROM ledger ORDER BY 1")
			for _, r := range []engine.Result{l.missing(expecting(p), one, two), l.applyWith(two, expecting(p))} {
				equal(t, "verdict of a tenant "+name, string(r.Verdict), string(engine.VerdictRefused))
				refusedFor(t, r.Err, engine.RefusedMoved)
			}
			equal(t, "calls on a tenant "+name, strings.TrimPrefix(l.calls.take(), "recover:2"), "")
			equal(t, "ledger of a tenant "+name, l.query("SELECT step FROM ledger ORDER BY 1"), before)
		}
	})
}
