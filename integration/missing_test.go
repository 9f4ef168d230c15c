package integration

import (
	"testing"
	"time"

	"github.com/belayhq/belay/engine"
	"github.com/belayhq/belay/plan"
)

// missing brings the lab's tenant up to date with changes, the order of which is theirs.
func (l *lab) missing(opts engine.ApplyOptions, changes ...*plan.Change) engine.Result {
	l.t.Helper()
	r, err := l.engine.ApplyMissing(l.t.Context(), l.tenant, changes, opts)
	if (err == nil) != (r.Err == nil) {
		l.t.Fatalf("error %v, in the result %v", err, r.Err)
	}
	return r
}

func requiring(c *plan.Change, required ...string) *plan.Change {
	return with(c, func(c *plan.Change) { c.Requires = required })
}

// What applying a list of changes does to one tenant. G3, G6
func TestATenantGetsTheChangesThatItDoesNotHave(t *testing.T) {
	t.Parallel()
	one, two, three := newChange("1", "a b"), requiring(newChange("2", "c"), "1"), newChange("3", "d")
	none := engine.ApplyOptions{}
	onBoth(t, func(t *testing.T, w *world) {
		t.Run("all of them, under one lease", func(t *testing.T) {
			l := newLab(w.neighbour(t), engine.Config{})
			r := l.missing(none, one, two, three)
			l.came(r, engine.VerdictApplied, "do:a do:b do:c do:d")
			equal(t, "also", join(r.Also), "1 2")
			equal(t, "change", r.Change, "3")
			l.rests("3", "applied applied 1/1")
			equal(t, "fences", l.query("SELECT fence FROM "+l.table("site_lock")+" WHERE holder IS NULL AND tenant_id = '"+string(l.id)+"'"), "1")
			r = l.missing(none, one, two, three)
			l.came(r, engine.VerdictAlreadyApplied, "")
			equal(t, "change", r.Change, "3")
			again, _ := l.engine.RollbackTo(t.Context(), l.tenant, "1", engine.RollbackOptions{})
			l.came(again, engine.VerdictRolledBack, "undo:d undo:c")
			l.came(l.missing(none, one, two, three), engine.VerdictApplied, "do:c do:d")
		})
		t.Run("not those it has", func(t *testing.T) {
			l := newLab(w.neighbour(t), engine.Config{})
			l.came(l.apply(one), engine.VerdictApplied, "do:a do:b")
			r := l.missing(none, one, two, three)
			l.came(r, engine.VerdictApplied, "do:c do:d")
			equal(t, "also", join(r.Also), "2")
		})
		t.Run("none behind one that fails, and those before it stay", func(t *testing.T) {
			l := newLab(w.neighbour(t), engine.Config{})
			broken := newChange("2", "c x:fail")
			r := l.missing(none, one, broken, three)
			l.came(r, engine.VerdictPartial, "do:a do:b do:c fail:x")
			equal(t, "change", r.Change, "2")
			equal(t, "also", join(r.Also), "1")
			l.rests("2", "pending failed 1/2 partial")
			l.exec("CREATE TABLE missing (n integer)")
			l.came(l.missing(none, one, broken, three), engine.VerdictApplied, "do:x do:d")
		})
		t.Run("none behind one that fails and turns back, and its lock is free", func(t *testing.T) {
			l := newLab(w.neighbour(t), engine.Config{})
			r := l.missing(none, one, rollingBack(newChange("2", "c x:fail")), three)
			l.came(r, engine.VerdictFailed, "do:a do:b do:c fail:x undo:c")
			l.holds("a b")
			equal(t, "lock", string(l.lock().Kind()), "idle")
		})
		t.Run("one that comes late is refused, unless it may", func(t *testing.T) {
			l := newLab(w.neighbour(t), engine.Config{})
			l.came(l.missing(none, one, three), engine.VerdictApplied, "do:a do:b do:d")
			r := l.missing(none, one, two, three)
			l.came(r, engine.VerdictRefused, "")
			refusedFor(t, r.Err, engine.RefusedOutOfOrder, "2")
			l.came(l.missing(engine.ApplyOptions{OutOfOrder: true}, one, two, three), engine.VerdictApplied, "do:c")
			l.came(l.missing(none, one, two, three), engine.VerdictAlreadyApplied, "")
		})
		t.Run("a partial one first, else nothing could be applied", func(t *testing.T) {
			l := newLab(w.neighbour(t), engine.Config{})
			broken := newChange("3", "d x:fail")
			l.came(l.apply(broken), engine.VerdictPartial, "do:d fail:x")
			l.came(l.missing(none, one, broken), engine.VerdictRefused, "")
			l.exec("CREATE TABLE missing (n integer)")
			l.came(l.missing(engine.ApplyOptions{OutOfOrder: true}, one, broken), engine.VerdictApplied, "do:x do:a do:b")
		})
		t.Run("all of them are checked before the first is touched", func(t *testing.T) {
			l := newLab(w.neighbour(t), engine.Config{})
			for reason, last := range map[engine.Refusal]*plan.Change{
				engine.RefusedIrreversible: newChange("2", "c:irreversible"),
				engine.RefusedRequires:     requiring(newChange("2", "c"), "elsewhere"),
				engine.RefusedInvalid: with(newChange("2", "c"), func(c *plan.Change) {
					c.Steps = append(c.Steps, actionStep("warm", "nobody.knows"))
				}),
			} {
				r := l.missing(none, one, last)
				l.came(r, engine.VerdictRefused, "")
				refusedFor(t, r.Err, reason, map[bool][]string{true: {"elsewhere"}}[reason == engine.RefusedRequires]...)
				equal(t, "change", r.Change, "2")
			}
			l.came(l.apply(one), engine.VerdictApplied, "do:a do:b")
			r := l.missing(none, newChange("1", "a other"), two)
			l.came(r, engine.VerdictRefused, "")
			refusedFor(t, r.Err, engine.RefusedDigest)
		})
		t.Run("the timeout bounds them together", func(t *testing.T) {
			l := newLab(w.neighbour(t), engine.Config{})
			r := l.missing(engine.ApplyOptions{Timeout: time.Nanosecond}, one, two)
			l.came(r, engine.VerdictFailed, "")
			contains(t, "error", r.Err.Error(), "timed out")
		})
	})
}

func TestManyTenantsGetWhatEachDoesNotHave(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, w *world) {
		f := newFleet(w, 12, engine.Config{})
		one, two := newChange("1", "a"), newChange("2", "b")
		for _, tn := range f.tenants[:4] {
			_, err := f.engine.Apply(t.Context(), tn, one, engine.ApplyOptions{})
			check(t, err)
		}
		missing := func() *results {
			r := &results{}
			check(t, f.engine.ApplyAllMissing(t.Context(), f.all(), []*plan.Change{one, two}, engine.ApplyOptions{}, engine.PoolOptions{Workers: 4}, r.add))
			return r
		}
		f.tally(missing(), map[engine.Verdict]int{engine.VerdictApplied: 12})
		f.tally(missing(), map[engine.Verdict]int{engine.VerdictAlreadyApplied: 12})
	})
}
