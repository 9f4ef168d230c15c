package integration

import (
	"testing"

	"github.com/belayhq/belay/engine"
	"github.com/belayhq/belay/plan"
	"github.com/belayhq/belay/tenant"
)

// What an apply does, step by step, and how the tenant then rests. Each line runs with shared checkpoints and with one for
// each step: the order must be the same. G3, G6
func TestTheOrderOfAnApply(t *testing.T) {
	t.Parallel()
	cases := []struct {
		sentence, onFailure, steps string
		calls                      string
		verdict                    engine.Verdict
		rests, holds               string
	}{
		{
			"all steps pass", "stop", "a b c",
			"do:a do:b do:c", engine.VerdictApplied, "applied applied 3/3", "a b c",
		},
		{
			"a failure stops, and leaves the earlier steps", "stop", "a b c:fail d",
			"do:a do:b fail:c", engine.VerdictPartial, "pending failed 2/4 partial", "a b",
		},
		{
			"a failure turns back, newest first", "rollback", "a b c:fail d",
			"do:a do:b fail:c undo:b undo:a", engine.VerdictFailed, "pending rolled_back 0/4", "",
		},
		{
			"a failure of the first step leaves nothing to undo", "rollback", "a:fail b",
			"fail:a", engine.VerdictFailed, "pending failed 0/2", "",
		},
		{
			"steps that change the schema keep their place", "rollback", "a b:ddl c d:ddl e:fail",
			"do:a do:b do:c do:d fail:e undo:d undo:c undo:b undo:a", engine.VerdictFailed, "pending rolled_back 0/5", "",
		},
		{
			"a verify that says no fails its step, whose effect never commits", "stop", "a b:no c",
			"do:a fail:b", engine.VerdictPartial, "pending failed 1/3 partial", "a",
		},
		{
			"a verify that says no turns back", "rollback", "a b:no c",
			"do:a fail:b undo:a", engine.VerdictFailed, "pending rolled_back 0/3", "",
		},
		{
			"a verify that could not run never turns back by itself", "rollback", "a b:unable c",
			"do:a fail:b", engine.VerdictPartial, "pending failed 1/3 partial", "a",
		},
		{
			"a failed undo stops where it is", "rollback", "a:stuck b c:fail",
			"do:a do:b fail:c undo:b fail:a", engine.VerdictPartial, "pending failed 1/3 partial", "a",
		},
		{
			"a step with nothing to undo is passed on the way back", "rollback", "a b:none c:fail",
			"do:a do:b fail:c undo:b undo:a", engine.VerdictFailed, "pending rolled_back 0/3", "b",
		},
		{
			"a covered step goes with the one that covers it", "rollback", "a b:covered c:fail",
			"do:a do:b fail:c undo:b undo:a", engine.VerdictFailed, "pending rolled_back 0/3", "",
		},
		{
			"no undo begins across a step without a way back", "rollback", "a b:irreversible c d:fail",
			"do:a do:b do:c fail:d", engine.VerdictPartial, "pending failed 3/4 partial", "a b c",
		},
		{
			"a failure before the step without a way back turns back", "rollback", "a b:fail c:irreversible",
			"do:a fail:b undo:a", engine.VerdictFailed, "pending rolled_back 0/3", "",
		},
	}
	onBoth(t, func(t *testing.T, w *world) {
		for _, tc := range cases {
			t.Run(tc.sentence, func(t *testing.T) {
				t.Parallel()
				for _, checkpoint := range []plan.Checkpointing{plan.CheckpointAuto, plan.CheckpointStep} {
					l := newLab(w.neighbour(t), engine.Config{})
					c := newChange("change", tc.steps)
					c.OnFailure, c.Checkpoint = plan.OnFailure(tc.onFailure), checkpoint
					r := l.applyWith(c, engine.ApplyOptions{AllowIrreversible: true})
					l.came(r, tc.verdict, tc.calls)
					l.rests("change", tc.rests)
					l.holds(tc.holds)
				}
			})
		}
	})
}

// An apply goes on at the first step not in place, with whatever grouping the steps left then have.
func TestAPartialPlanResumesAtTheFirstStepNotInPlace(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, w *world) {
		l := newLab(w, engine.Config{})
		c := newChange("change", "a b c:fail d")
		l.came(l.apply(c), engine.VerdictPartial, "do:a do:b fail:c")
		l.came(l.apply(c), engine.VerdictPartial, "fail:c")
		l.exec("CREATE TABLE missing (n integer)")
		l.came(l.apply(c), engine.VerdictApplied, "do:c do:d")
		l.rests("change", "applied applied 4/4")
		l.holds("a b c d")
		l.came(l.apply(c), engine.VerdictAlreadyApplied, "")
		l.came(l.rollback("change"), engine.VerdictRolledBack, "undo:d undo:c undo:b undo:a")
		l.rests("change", "pending rolled_back 0/4")
		l.came(l.rollback("change"), engine.VerdictAlreadyRolledBack, "")
		l.came(l.apply(c), engine.VerdictApplied, "do:a do:b do:c do:d")
	})
}

// A rollback of what an apply left undoes just that.
func TestARollbackOfAPartialPlanUndoesWhatIsInPlace(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, w *world) {
		l := newLab(w, engine.Config{})
		before := l.dump()
		l.came(l.apply(newChange("change", "a b:ddl c:fail d")), engine.VerdictPartial, "do:a do:b fail:c")
		l.came(l.rollback("change"), engine.VerdictRolledBack, "undo:b undo:a")
		l.rests("change", "pending rolled_back 0/4")
		equal(t, "dump", l.dump(), before)
	})
}

// An undo that failed is tried again by the next rollback, which goes on from there. G6
func TestAFailedUndoIsGoneOnWithByTheNextRollback(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, w *world) {
		l := newLab(w, engine.Config{})
		l.came(l.apply(newChange("change", "a b:stuck c")), engine.VerdictApplied, "do:a do:b do:c")
		r := l.rollback("change")
		l.came(r, engine.VerdictPartial, "undo:c fail:b")
		contains(t, "error", r.Err.Error(), "undo of step b (b.down.sql:2)")
		l.rests("change", "applied failed 2/3 partial")
		l.came(l.rollback("change"), engine.VerdictPartial, "fail:b")
		l.exec("CREATE TABLE missing (n integer)")
		l.came(l.rollback("change"), engine.VerdictRolledBack, "undo:b undo:a")
		l.rests("change", "pending rolled_back 0/3")
		l.holds("")
		equal(t, "history", l.history(), "claim_apply succeed claim_rollback fail claim_rollback fail claim_rollback succeed")
	})
}

// The undo within a failed apply is no different: the plan it leaves behind can be rolled back, or applied.
func TestAFailedUndoOfAnApplyLeavesBothWaysOpen(t *testing.T) {
	t.Parallel()
	for _, way := range []string{"back", "forward"} {
		t.Run(way, func(t *testing.T) {
			t.Parallel()
			onBoth(t, func(t *testing.T, w *world) {
				l := newLab(w, engine.Config{})
				c := rollingBack(newChange("change", "a:stuck b c:fail"))
				l.came(l.apply(c), engine.VerdictPartial, "do:a do:b fail:c undo:b fail:a")
				l.exec("CREATE TABLE missing (n integer)")
				if way == "back" {
					l.came(l.rollback("change"), engine.VerdictRolledBack, "undo:a")
					l.rests("change", "pending rolled_back 0/3")
					l.holds("")
					return
				}
				l.came(l.apply(c), engine.VerdictApplied, "do:b do:c")
				l.rests("change", "applied applied 3/3")
				l.holds("a b c")
			})
		})
	}
}

// Changes go back in the reverse of the order in which they really came. G6
func TestChangesGoBackAgainstTheOrderInWhichTheyCame(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, w *world) {
		apply1243 := func(t *testing.T) *lab {
			l := newLab(w.neighbour(t), engine.Config{})
			for _, n := range []string{"1", "2", "4", "3"} {
				l.came(l.apply(newChange("change-"+n, n)), engine.VerdictApplied, "do:"+n)
			}
			return l
		}
		t.Run("an older one alone is refused", func(t *testing.T) {
			l := apply1243(t)
			r := l.rollback("change-4")
			l.came(r, engine.VerdictRefused, "")
			refusedFor(t, r.Err, engine.RefusedNewer, "change-3")
			l.holds("1 2 3 4")
			l.came(l.rollback("change-3"), engine.VerdictRolledBack, "undo:3")
			l.came(l.rollback("change-4"), engine.VerdictRolledBack, "undo:4")
		})
		t.Run("cascade", func(t *testing.T) {
			l := apply1243(t)
			r := l.rollbackWith("change-2", engine.RollbackOptions{Cascade: true})
			l.came(r, engine.VerdictRolledBack, "undo:3 undo:4 undo:2")
			equal(t, "also", join(r.Also), "change-3 change-4")
			l.holds("1")
			l.rests("change-2", "pending rolled_back 0/1")
		})
		t.Run("to", func(t *testing.T) {
			l := apply1243(t)
			r, _ := l.engine.RollbackTo(t.Context(), l.tenant, "change-1", engine.RollbackOptions{})
			l.came(r, engine.VerdictRolledBack, "undo:3 undo:4 undo:2")
			l.holds("1")
			r, _ = l.engine.RollbackTo(t.Context(), l.tenant, "change-1", engine.RollbackOptions{})
			l.came(r, engine.VerdictAlreadyRolledBack, "")
		})
		t.Run("applied again, it is the newest", func(t *testing.T) {
			l := apply1243(t)
			l.came(l.rollbackWith("change-4", engine.RollbackOptions{Cascade: true}), engine.VerdictRolledBack, "undo:3 undo:4")
			l.came(l.apply(newChange("change-3", "3")), engine.VerdictApplied, "do:3")
			l.came(l.apply(newChange("change-4", "4")), engine.VerdictApplied, "do:4")
			l.came(l.rollback("change-3"), engine.VerdictRefused, "")
			l.came(l.rollbackWith("change-1", engine.RollbackOptions{Cascade: true}), engine.VerdictRolledBack, "undo:4 undo:3 undo:2 undo:1")
		})
		t.Run("all of a cascade is checked before the first is touched", func(t *testing.T) {
			l := newLab(w.neighbour(t), engine.Config{})
			l.came(l.apply(newChange("change-1", "1")), engine.VerdictApplied, "do:1")
			last := engine.ApplyOptions{AllowIrreversible: true}
			l.came(l.applyWith(newChange("change-2", "2:irreversible"), last), engine.VerdictApplied, "do:2")
			l.came(l.apply(newChange("change-3", "3")), engine.VerdictApplied, "do:3")
			r := l.rollbackWith("change-1", engine.RollbackOptions{Cascade: true})
			l.came(r, engine.VerdictRefused, "")
			refusedFor(t, r.Err, engine.RefusedIrreversible)
			l.holds("1 2 3")
		})
		t.Run("a cascade that fails half-way keeps what it did", func(t *testing.T) {
			l := newLab(w.neighbour(t), engine.Config{})
			l.came(l.apply(newChange("change-1", "1")), engine.VerdictApplied, "do:1")
			l.came(l.apply(newChange("change-2", "2a 2b:stuck 2c")), engine.VerdictApplied, "do:2a do:2b do:2c")
			l.came(l.apply(newChange("change-3", "3")), engine.VerdictApplied, "do:3")
			r := l.rollbackWith("change-1", engine.RollbackOptions{Cascade: true})
			l.came(r, engine.VerdictPartial, "undo:3 undo:2c fail:2b")
			equal(t, "also", join(r.Also), "change-3")
			l.rests("change-2", "applied failed 2/3 partial")
			l.rests("change-1", "applied applied 1/1")
			l.exec("CREATE TABLE missing (n integer)")
			l.came(l.rollbackWith("change-1", engine.RollbackOptions{Cascade: true}), engine.VerdictRolledBack, "undo:2b undo:2a undo:1")
		})
	})
}

// Steps that fail together may pass alone: a value just added to a type cannot be used in the transaction that added it.
func TestAStepMayUseWhatTheStepBeforeAddedToAType(t *testing.T) {
	t.Parallel()
	l := newLab(newWorld(t, tenant.Postgres), engine.Config{})
	l.exec("CREATE TYPE mood AS ENUM ('calm')", "CREATE TABLE person (id integer, mood mood)")
	c := newChange("change", "a")
	add := sqlStep("add", "ALTER TYPE mood ADD VALUE 'glad'", "")
	add.Down, add.Undo = nil, &plan.NoUndo{None: "a value more does not hurt"}
	c.Steps = append(c.Steps, add, sqlStep("use", "INSERT INTO person VALUES (1, 'glad')", "DELETE FROM person"))
	l.came(l.apply(c), engine.VerdictApplied, "do:a do:add do:use")
	equal(t, "people", l.query("SELECT id, mood::text FROM person"), "1|glad")
	l.came(l.rollback("change"), engine.VerdictRolledBack, "undo:use undo:add undo:a")
}

// Whatever makes a shared checkpoint fail, each of its steps is tried alone before a failure is reported: the hidden enum
// here is added by a function, which no splitter sees through.
func TestAFailedGroupIsTriedOneStepAtATime(t *testing.T) {
	t.Parallel()
	l := newLab(newWorld(t, tenant.Postgres), engine.Config{})
	l.exec("CREATE TYPE mood AS ENUM ('calm')", "CREATE TABLE person (id integer, mood mood)",
		`CREATE FUNCTION gladden() RETURNS void LANGUAGE plpgsql AS $$ BEGIN ALTER TYPE mood ADD VALUE 'glad'; END $$`)
	c := newChange("change", "a")
	add := sqlStep("add", "SELECT gladden()", "")
	add.Down, add.Undo = nil, &plan.NoUndo{None: "a value more does not hurt"}
	c.Steps = append(c.Steps, add, sqlStep("use", "INSERT INTO person VALUES (1, 'glad')", "DELETE FROM person"))
	l.came(l.apply(c), engine.VerdictApplied, "do:a do:add do:use")
	l.holds("a")
	equal(t, "people", l.query("SELECT id, mood::text FROM person"), "1|glad")
}

// Building a table anew with foreign keys on would silently delete the rows that refer to it. G6
func TestATableIsBuiltAnewUnderForeignKeys(t *testing.T) {
	t.Parallel()
	l := newLab(newWorld(t, tenant.SQLite), engine.Config{})
	l.exec("CREATE TABLE customer (id integer PRIMARY KEY, name text)",
		"CREATE TABLE orders (id integer PRIMARY KEY, customer integer NOT NULL REFERENCES customer (id) ON DELETE CASCADE)",
		"INSERT INTO customer VALUES (1, 'Ada'), (2, 'Grace')", "INSERT INTO orders VALUES (10, 1), (11, 2), (12, 2)")
	before := l.dump()
	rebuild := func(columns, into string) string {
		return "CREATE TABLE anew (" + columns + ");\nINSERT INTO anew SELECT " + into + " FROM customer;\n" +
			"DROP TABLE customer;\nALTER TABLE anew RENAME TO customer;"
	}
	c := newChange("change", "a")
	c.Steps = append(c.Steps, sqlStep("rebuild",
		rebuild("id integer PRIMARY KEY, name text NOT NULL, tier text NOT NULL DEFAULT 'free'", "id, name, 'free'"),
		rebuild("id integer PRIMARY KEY, name text", "id, name")))
	l.came(l.apply(c), engine.VerdictApplied, "do:a do:rebuild")
	equal(t, "orders", l.query("SELECT id, customer FROM orders ORDER BY id"), "10|1\n11|2\n12|2")
	equal(t, "customers", l.query("SELECT * FROM customer ORDER BY id"), "1|Ada|free\n2|Grace|free")
	l.came(l.rollback("change"), engine.VerdictRolledBack, "undo:rebuild undo:a")
	equal(t, "dump", l.dump(), before)

	orphans := newChange("orphans", "a")
	orphans.Steps = append(orphans.Steps, sqlStep("delete", "DELETE FROM customer WHERE id = 2", "SELECT 1"))
	r := l.apply(orphans)
	l.came(r, engine.VerdictPartial, "do:a fail:delete")
	contains(t, "error", r.Err.Error(), "2 rows of table orders violate its foreign key to customer")
}
