package integration

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/belayhq/belay/integration/testchild/fake"
	"github.com/belayhq/belay/internal/failpoint"
	"github.com/belayhq/belay/plan"
	"github.com/belayhq/belay/tenant"
)

// site is a tenant with data, a change of every kind of step, and the resource outside its database.
type site struct {
	*world
	changeDir, outside string
	before             string
}

// newSite makes a tenant whose ledger table counts every effect: a step that happened twice shows.
func newSite(w *world, checkpoint string) *site {
	w.t.Helper()
	return siteOf(w, map[string]string{
		"change.yaml": `version: 1
id: every-kind
checkpoint: ` + checkpoint + `
steps:
  - id: insert
    sql: {up: insert.up.sql, down: insert.down.sql}
  - id: column
    sql: {up: column.up.sql, down: column.down.sql}
  - id: fill
    sql: {up: fill.up.sql, down: fill.down.sql}
    verify: {query: "SELECT count(*) FROM customer WHERE locale IS NULL", expect: 0}
  - id: own
    action: {name: ledger.insert, args: {value: x}}
  - id: outside
    action: {name: file.set, args: {value: new}}
  - id: last
    sql: {up: last.up.sql, down: last.down.sql}
`,
		"insert.up.sql":   "INSERT INTO customer VALUES (3, 'Edsger'); INSERT INTO ledger VALUES ('insert');",
		"insert.down.sql": "DELETE FROM customer WHERE id = 3; DELETE FROM ledger WHERE step = 'insert';",
		"column.up.sql":   "ALTER TABLE customer ADD COLUMN locale text; INSERT INTO ledger VALUES ('column');",
		"column.down.sql": "ALTER TABLE customer DROP COLUMN locale; DELETE FROM ledger WHERE step = 'column';",
		"fill.up.sql":     "UPDATE customer SET locale = 'en'; INSERT INTO ledger VALUES ('fill');",
		"fill.down.sql":   "UPDATE customer SET locale = NULL; DELETE FROM ledger WHERE step = 'fill';",
		"last.up.sql":     "INSERT INTO ledger VALUES ('last');",
		"last.down.sql":   "DELETE FROM ledger WHERE step = 'last';",
	})
}

// siteOf makes a tenant with a change, which has the id every-kind.
func siteOf(w *world, change map[string]string) *site {
	w.t.Helper()
	w.exec(
		"CREATE TABLE customer (id integer PRIMARY KEY, name text NOT NULL)",
		"CREATE TABLE ledger (step text NOT NULL)",
		"INSERT INTO customer VALUES (1, 'Ada'), (2, 'Grace')",
	)
	if w.witness != nil {
		check(w.t, w.witness.WatchLedger(w.t.Context(), w.scope))
	}
	s := &site{world: w, outside: filepath.Join(w.t.TempDir(), "outside"), changeDir: w.change(change), before: w.dump()}
	check(w.t, os.WriteFile(s.outside, []byte("old"), 0o600))
	return s
}

func (s *site) args(op string) []string {
	args := []string{"-target", s.target, "-id", string(s.id), "-ledger", s.outside, "-op", op, "-lease", "10s"}
	if op == "rollback" {
		return append(args, "-change-id", "every-kind")
	}
	return append(args, "-change", s.changeDir)
}

// heal runs the operation as the next process would, and demands success.
func (s *site) heal(op string) report {
	s.t.Helper()
	s.expire()
	r := startChild(s.t, "", append(s.args(op), "-wait", "20s")...).wait()
	want := map[string][]string{"apply": {"applied", "already_applied"}, "rollback": {"rolled_back", "already_rolled_back"}}[op]
	if r.Verdict != want[0] && r.Verdict != want[1] {
		s.t.Fatalf("%s after the crash: %+v", op, r)
	}
	return r
}

// appliedOnce demands that every effect is in place exactly once.
func (s *site) appliedOnce() {
	s.t.Helper()
	equal(s.t, "customers", sorted(s.query("SELECT id, locale FROM customer")), "1|en\n2|en\n3|en")
	s.appliedWith("column\nfill\ninsert\nlast\nown", "new")
}

// appliedWith demands that the change is applied, and what it left in the ledger and outside.
func (s *site) appliedWith(ledger, outside string) {
	s.t.Helper()
	equal(s.t, "ledger", sorted(s.query("SELECT step FROM ledger")), ledger)
	equal(s.t, "outside", s.readOutside(), outside)
	equal(s.t, "plan", s.query("SELECT status, outcome, claimed_from, fence FROM "+s.table("plan")), "applied|applied|NULL|NULL")
	equal(s.t, "lock", s.query("SELECT holder FROM "+s.table("site_lock")), "NULL")
}

// rolledBack demands that schema, data and the outside are as before the change.
func (s *site) rolledBack() {
	s.t.Helper()
	equal(s.t, "dump", s.dump(), s.before)
	equal(s.t, "outside", s.readOutside(), "old")
	equal(s.t, "plan", s.query("SELECT status, claimed_from, fence FROM "+s.table("plan")), "pending|NULL|NULL")
	equal(s.t, "lock", s.query("SELECT holder FROM "+s.table("site_lock")), "NULL")
}

func (s *site) readOutside() string {
	b, err := os.ReadFile(s.outside)
	check(s.t, err)
	return string(b)
}

// fencesNeverFall demands that the outside resource saw no call of an older term after one of a newer.
func (s *site) fencesNeverFall() {
	s.t.Helper()
	calls, err := fake.Calls(s.outside)
	check(s.t, err)
	last := plan.Fence(0)
	for _, c := range calls {
		if c.Fence < last {
			s.t.Fatalf("a call with fence %d came after one with %d", c.Fence, last)
		}
		last = c.Fence
	}
}

// edge is a point of an operation at which a process dies, stalls, or hears that the network has failed.
type edge struct {
	point string
	// checkpoint says that every checkpoint passes it; the others are passed once in an operation.
	checkpoint bool
	// open says that a transaction is open there.
	open bool
}

// edges are all of them, in the order in which an operation passes them. Every sweep goes over this list.
var edges = []edge{
	{point: failpoint.AfterAcquire},
	{point: failpoint.BeforeCheckpoint, checkpoint: true},
	{point: failpoint.BeforeCommit, checkpoint: true, open: true},
	{point: failpoint.AfterCheckpoint, checkpoint: true},
	{point: failpoint.BeforeEffect},
	{point: failpoint.AfterEffect},
}

// G2, G3, G4, G5
func TestAProcessKilledAtAnyEdgeOfAnApplyIsHealedByTheNext(t *testing.T) {
	t.Parallel()
	sweep(t, everyEdge, func(s *site, point string) bool {
		c := startChild(s.t, point, s.args("apply")...)
		if !c.reached() {
			equal(s.t, "verdict", c.wait().Verdict, "applied")
			return false
		}
		c.kill()
		s.heal("apply")
		s.appliedOnce()
		s.heal("rollback")
		s.rolledBack()
		s.fencesNeverFall()
		return true
	})
}

// G2, G3, G6
func TestAProcessKilledAtAnyEdgeOfARollbackIsHealedByTheNext(t *testing.T) {
	t.Parallel()
	sweep(t, everyEdge, func(s *site, point string) bool {
		equal(s.t, "verdict", startChild(s.t, "", s.args("apply")...).wait().Verdict, "applied")
		c := startChild(s.t, point, s.args("rollback")...)
		if !c.reached() {
			equal(s.t, "verdict", c.wait().Verdict, "rolled_back")
			return false
		}
		c.kill()
		s.heal("rollback")
		s.rolledBack()
		return true
	})
}

// A rollback may be abandoned in favour of applying again only once it is finished; an abandoned apply may be rolled back.
// G6
func TestAnAbandonedApplyCanBeRolledBackInstead(t *testing.T) {
	t.Parallel()
	sweep(t, everyEdge, func(s *site, point string) bool {
		c := startChild(s.t, point, s.args("apply")...)
		if !c.reached() {
			return false
		}
		c.kill()
		s.heal("rollback")
		s.rolledBack()
		return true
	})
}

// everyEdge is the choice of all of them.
func everyEdge(edge) bool { return true }

// sweep runs a cell for the edges that take chooses, every passage of each, both databases and both ways to group steps. A
// cell returns false when the point was not passed that often, which ends the row; an edge never passed at all fails the test.
func sweep(t *testing.T, take func(edge) bool, cell func(s *site, point string) bool) {
	t.Helper()
	sweepOn(t, dialects(), take, cell)
}

// sweepOn is sweep on some of the databases.
func sweepOn(t *testing.T, on []tenant.Dialect, take func(edge) bool, cell func(s *site, point string) bool) {
	t.Helper()
	for _, d := range on {
		for _, grouping := range []string{"auto", "step"} {
			for _, edge := range edges {
				if !take(edge) {
					continue
				}
				t.Run(fmt.Sprintf("%s/%s/%s", d, grouping, edge.point), func(t *testing.T) {
					t.Parallel()
					w, n := newWorld(t, d).watched(), 1
					for s := newSite(w, grouping); cell(s, numbered(edge.point, n)); s = newSite(w, grouping) {
						s.sound()
						w, n = w.renewed().watched(), n+1
					}
					if n == 1 {
						t.Fatalf("%s was never passed", edge.point)
					}
				})
			}
		}
	}
}
