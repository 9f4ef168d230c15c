// Package storagetest is the one suite that every storage package must pass. It knows the contracts of engine.Store,
// storage.Database and Belay's own tables, and nothing of how a package meets them. A backend's wiring is a Harness:
// an empty database, ways to open it, and plain SQL to look at it and to play tricks on it from outside.
//
// An exception that one database needs is a branch on the dialect with its reason beside it; there are no skips.
package storagetest

import (
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/belayhq/belay/engine"
	"github.com/belayhq/belay/plan"
	"github.com/belayhq/belay/sitelock"
	"github.com/belayhq/belay/storage"
	"github.com/belayhq/belay/tenant"
)

// Harness is one fresh, empty database without Belay's tables. Its functions fail the test on an error and are safe to
// call from any goroutine of it.
type Harness struct {
	Dialect tenant.Dialect
	// Open returns another handle with connections of its own: another process's view of the database. The harness
	// closes it when the test ends.
	Open func(t *testing.T) storage.Database
	// Scope makes a place for one tenant's data and returns its name: a schema on PostgreSQL. On SQLite, where the file
	// is the scope and steps ignore it, any text that was not returned before.
	Scope func(t *testing.T) string
	// Exec runs one statement outside Belay, with scope (if not empty) as the search path on PostgreSQL.
	Exec func(t *testing.T, scope, sql string)
	// Query runs one statement outside Belay and returns its one scalar as text; empty for NULL.
	Query func(t *testing.T, scope, sql string) string
	// Table is the full name of one of Belay's tables: belay.plan or belay_plan.
	Table func(name string) string
	// SetVersion makes the database say that its tables are of this version.
	SetVersion func(t *testing.T, version int)
}

// Run runs the suite. It calls open once for every subtest.
func Run(t *testing.T, open func(t *testing.T) Harness) {
	groups := []struct {
		name  string
		tests []test
	}{
		{"migrate", migrating},
		{"locks", locks},             // G1, G9
		{"breaks", breaks},           // G2
		{"claims", claims},           // G3, G10
		{"rule", rule},               // G3, G6
		{"machine", machines},        // G1, G2, G3, G10
		{"recovery", recoveries},     // G2, G3
		{"checkpoints", checkpoints}, // G3, G4, G10
		{"moves", moves},             // G3
		{"journal", journals},        // G4, G5
		{"images", images},           // G5, G6
		{"actions", actions},         // G4
		{"verify", verifies},
		{"guards", guards}, // G8
		{"secrets", secrets},
		{"fences", fences}, // G1
		{"leases", leases},
		{"registry", registry},
		{"reads", reads},
	}
	for _, group := range groups {
		t.Run(group.name, func(t *testing.T) {
			t.Parallel()
			for _, test := range group.tests {
				t.Run(test.sentence, func(t *testing.T) {
					t.Parallel()
					h := open(t)
					test.run(t, &database{Harness: h, db: h.Open(t), sites: new(atomic.Int64)})
				})
			}
		})
	}
}

// test is one sentence about a database, with the code that checks it against a fresh one.
type test struct {
	sentence string
	run      func(t *testing.T, d *database)
}

// database is what a test works on.
type database struct {
	Harness
	db storage.Database
	// sites numbers the tenants' tables: on SQLite they share the file.
	sites *atomic.Int64
}

// again is the same database as another process sees it.
func (d *database) again(t *testing.T) *database {
	return &database{Harness: d.Harness, db: d.Open(t), sites: d.sites}
}

// site is a tenant with a table of its own, empty at first.
type site struct {
	*database
	id    tenant.ID
	scope string
	table string
}

func (d *database) site(t *testing.T) *site {
	t.Helper()
	s := &site{database: d, id: tenant.NewID(), scope: d.Scope(t), table: fmt.Sprintf("item_%d", d.sites.Add(1))}
	d.Exec(t, s.scope, "CREATE TABLE "+s.table+" (k integer PRIMARY KEY, v text)")
	return s
}

// sql puts the name of the site's table into a statement, for {t}.
func (s *site) sql(text string) string { return strings.ReplaceAll(text, "{t}", s.table) }

// rows returns how many rows the site's table has.
func (s *site) rows(t *testing.T) string {
	t.Helper()
	return s.Query(t, s.scope, "SELECT count(*) FROM "+s.table)
}

// now is the database's clock as an expression.
func (d *database) now() string {
	if d.Dialect == tenant.SQLite {
		return "CAST(unixepoch('subsec') * 1000 AS INTEGER)"
	}
	return "belay.now_ms()"
}

// setLock changes the site's lock row behind Belay's back.
func (s *site) setLock(t *testing.T, assignment string) {
	t.Helper()
	s.Exec(t, "", fmt.Sprintf("UPDATE %s SET %s WHERE tenant_id = '%s'", s.Table("site_lock"), assignment, s.id))
}

// expire makes the site's lock lapse.
func (s *site) expire(t *testing.T) {
	t.Helper()
	s.setLock(t, "expires_at = "+s.now()+" - 1000")
}

// setPlan changes the row of one of the site's plans behind Belay's back.
func (s *site) setPlan(t *testing.T, id plan.ID, assignment string) {
	t.Helper()
	s.Exec(t, "", fmt.Sprintf("UPDATE %s SET %s WHERE tenant_id = '%s' AND plan_id = '%s'", s.Table("plan"), assignment, s.id, id))
}

// dump renders every table of the database, Belay's and the tenants', row by row.
func (d *database) dump(t *testing.T) string {
	t.Helper()
	if d.Dialect == tenant.Postgres {
		return d.Query(t, "", `
			SELECT string_agg(schemaname || '.' || tablename || query_to_xml(
				format('SELECT r::text FROM %I.%I AS r ORDER BY 1', schemaname, tablename), true, false, '')::text,
				chr(10) ORDER BY schemaname, tablename)
			FROM pg_tables WHERE schemaname NOT IN ('pg_catalog', 'information_schema')`)
	}
	var all strings.Builder
	for table := range strings.FieldsSeq(d.Query(t, "", "SELECT group_concat(name, ' ' ORDER BY name) FROM sqlite_schema WHERE type = 'table'")) {
		row := d.Query(t, "", fmt.Sprintf(`SELECT group_concat('quote("' || name || '")', ' || '' '' || ') FROM pragma_table_info('%s')`, table))
		rows := d.Query(t, "", fmt.Sprintf("SELECT group_concat(%[1]s, char(10) ORDER BY %[1]s) FROM %[2]s", row, table))
		fmt.Fprintf(&all, "%s:\n%s\n", table, rows)
	}
	return all.String()
}

// unchanged runs fn and fails if it left any trace in the database.
func (d *database) unchanged(t *testing.T, fn func()) {
	t.Helper()
	before := d.dump(t)
	fn()
	if after := d.dump(t); after != before {
		t.Errorf("the database changed:\n%s", differing(before, after))
	}
}

// differing lists the lines that only one of two dumps has.
func differing(before, after string) string {
	var lines []string
	was, is := strings.Split(before, "\n"), strings.Split(after, "\n")
	for _, line := range was {
		if !slices.Contains(is, line) {
			lines = append(lines, "- "+line)
		}
	}
	for _, line := range is {
		if !slices.Contains(was, line) {
			lines = append(lines, "+ "+line)
		}
	}
	return strings.Join(lines, "\n")
}

// change makes a change of so many sql steps. Its scripts are never run here: what a group runs, the test says.
func change(id string, steps int) *plan.Change {
	c := &plan.Change{Version: 1, ID: id, OnFailure: plan.StopOnFailure, Checkpoint: plan.CheckpointAuto}
	for i := range steps {
		c.Steps = append(c.Steps, plan.Step{
			ID:   stepID(i),
			Kind: plan.SQL,
			Up:   &plan.Script{Default: &plan.Source{File: "sql/up.sql", Text: "SELECT 1"}},
			Down: &plan.Script{Default: &plan.Source{File: "sql/down.sql", Text: "SELECT 2"}},
		})
	}
	return c
}

// edited is the same change with other content, and so another digest.
func edited(c *plan.Change) *plan.Change {
	other := *c
	other.Title = c.Title + " edited"
	return &other
}

func stepID(ordinal int) string { return fmt.Sprintf("step-%d", ordinal) }

func apply(c *plan.Change) *sitelock.Claim {
	return &sitelock.Claim{Direction: plan.Up, Change: c.ID, Digest: c.Digest(), Body: c, NewPlan: plan.NewID()}
}

func rollback(c *plan.Change) *sitelock.Claim {
	return &sitelock.Claim{Direction: plan.Down, Change: c.ID, Digest: c.Digest()}
}

const lease = time.Minute

// request asks for the lock as a process of its own would.
func (s *site) request(claim *sitelock.Claim) sitelock.Request {
	operation := sitelock.OpResolve
	switch {
	case claim == nil:
	case claim.Direction == plan.Up:
		operation = sitelock.OpApply
	default:
		operation = sitelock.OpRollback
	}
	return sitelock.Request{
		Tenant: s.id, Scope: s.scope, Holder: sitelock.NewHolderID(), Process: worker,
		Operation: operation, Lease: lease, Claim: claim,
	}
}

// worker is the process that acquires in these tests.
var worker = sitelock.Process{Host: "worker-7.example", PID: 4711, StartedAt: time.UnixMilli(1_700_000_000_123).UTC()}

// acquire takes the site's lock, with or without the claim.
func (s *site) acquire(t *testing.T, claim *sitelock.Claim) sitelock.Grant {
	t.Helper()
	grant, err := s.db.Acquire(t.Context(), s.request(claim))
	if err != nil {
		t.Fatalf("acquire: %v", err)
	}
	return grant
}

// refused takes the site's lock, demands that the claim is refused, and frees it again.
func (s *site) refused(t *testing.T, claim *sitelock.Claim) {
	t.Helper()
	grant := s.acquire(t, claim)
	if grant.Claimed != nil {
		t.Errorf("the claim was made: %+v", grant.Claimed.Plan)
	}
	s.release(t, grant.Held)
}

func (s *site) release(t *testing.T, held sitelock.Held) {
	t.Helper()
	if err := s.db.Release(t.Context(), held); err != nil {
		t.Fatalf("release: %v", err)
	}
}

func (s *site) state(t *testing.T) sitelock.State {
	t.Helper()
	state, err := s.db.State(t.Context(), s.id)
	if err != nil {
		t.Fatalf("state: %v", err)
	}
	return state
}

// plan reads the site's plan for a change.
func (s *site) plan(t *testing.T, c *plan.Change) plan.Record {
	t.Helper()
	records, err := s.db.Records(t.Context(), s.id)
	if err != nil {
		t.Fatalf("records: %v", err)
	}
	for _, r := range records {
		if r.Plan.Change == c.ID {
			return r
		}
	}
	t.Fatalf("the tenant has no plan for %s", c.ID)
	return plan.Record{}
}

// events reads the site's history, newest first.
func (s *site) events(t *testing.T) []engine.Event {
	t.Helper()
	events, err := s.db.Events(t.Context(), s.id, 1000)
	if err != nil {
		t.Fatalf("events: %v", err)
	}
	return events
}

// lastEvent reads the newest event of a kind.
func (s *site) lastEvent(t *testing.T, kind plan.Event) engine.Event {
	t.Helper()
	for _, e := range s.events(t) {
		if e.Kind == kind {
			return e
		}
	}
	t.Fatalf("the tenant has no event %s", kind)
	return engine.Event{}
}
