package sqlite

import (
	"database/sql"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/belayhq/belay/engine"
	"github.com/belayhq/belay/tenant"
)

// tenSteps runs a plan of ten steps on a tenant, from the look before it to its end.
func tenSteps(t *testing.T, s *Store, id tenant.ID, changeID string) {
	t.Helper()
	c := change(changeID, 10)
	if _, err := s.Survey(t.Context(), []tenant.ID{id}, c.ID); err != nil {
		t.Fatal(err)
	}
	grant := acquire(t, s, id, apply(c))
	var steps []engine.GroupStep
	for i := range 10 {
		steps = append(steps, sqlStep(i, fmt.Sprintf("INSERT INTO item (v) VALUES ('row %d')", i)))
	}
	if err := s.Checkpoint(t.Context(), grant.Held, finish(grant, steps...)); err != nil {
		t.Fatal(err)
	}
}

// A file is opened for one plan, as a rule: what is done once for each connection is done once for each plan.
func TestAPlanOpensOneConnectionAndPreparesFewStatements(t *testing.T) {
	t.Parallel()
	made := newSite(t)
	acquire(t, made.Store, tenant.NewID(), nil) // makes the tables
	s := made.open(t)
	tenSteps(t, s, tenant.NewID(), "0001-first")
	if w, r := s.writer.Stats().OpenConnections, s.reader.Stats().OpenConnections; w != 1 || r != 0 {
		t.Errorf("%d connections to write and %d to read, want 1 and 0", w, r)
	}
	native(t, s, func(c *conn) {
		if len(c.own) != 21 {
			t.Errorf("%d statements were prepared, want 21", len(c.own))
		}
	})
}

// countPrepares counts what the writer's statements ask the authorizer for until the test ends: that is done while they are
// prepared, also if SQLite does that again by itself. What is prepared so far is prepared once more.
func countPrepares(t *testing.T, s *Store) (asked func() int) {
	t.Helper()
	n := 0
	native(t, s, func(c *conn) {
		c.RegisterAuthorizer(func(op int, a, b, database string) int {
			if !c.guard.on() {
				n++
			}
			return c.guard.authorize(op, a, b, database)
		})
	})
	return func() int { return n }
}

// SQLite prepares a statement again if another value of a parameter might be served by another index, which costs more than
// running it.
func TestNoStatementOfAPlanIsPreparedTwice(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	id := tenant.NewID()
	acquire(t, s.Store, tenant.NewID(), nil) // makes the tables
	asked := countPrepares(t, s.Store)
	tenSteps(t, s.Store, id, "0001-first")
	before := asked()
	tenSteps(t, s.Store, id, "0002-second")
	if again := asked() - before; before == 0 || again != 0 {
		t.Errorf("the authorizer was asked %d times by the first plan and %d times by the second, want none", before, again)
	}
}

// frameSize is what a page takes in the log.
const frameSize = 24 + 4096

func (d *database) logSize(t *testing.T) int64 {
	t.Helper()
	log, err := os.Stat(d.path + "-wal")
	if err != nil {
		t.Fatal(err)
	}
	return log.Size()
}

// Each page that a transaction touches is written to the log, and copied into the file later.
func TestAPlanTouchesFewPages(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	id := tenant.NewID()
	tenSteps(t, s.Store, id, "0001-first")
	s.exec(t, "PRAGMA wal_checkpoint(TRUNCATE)")
	tenSteps(t, s.Store, id, "0002-second")
	const header, want = 32, 15
	if pages := (s.logSize(t) - header) / frameSize; pages != want {
		t.Errorf("%d pages, want %d", pages, want)
	}
}

// A checkpoint of one step writes that step's row, its journal row and the lease, each a page. The lease is as it was if it
// ends in the same millisecond.
func TestACheckpointOfOneStepTouchesThreePages(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	grant := acquire(t, s.Store, tenant.NewID(), apply(change("0001-first", 10)))
	step := func(i int) {
		g := group(grant, sqlStep(i, fmt.Sprintf("INSERT INTO item (v) VALUES ('row %d')", i)))
		g.Lease = time.Minute
		if err := s.Checkpoint(t.Context(), grant.Held, g); err != nil {
			t.Fatal(err)
		}
	}
	step(0) // the first one ends the count of attempts, too
	before := s.logSize(t)
	for i := range 9 {
		step(i + 1)
	}
	if pages := (s.logSize(t) - before) / frameSize; pages > 9*3 {
		t.Errorf("%d pages for nine checkpoints, want 27 at most", pages)
	}
}

// What a plan allocates is the collector's work, for each tenant.
func TestAPlanAllocatesLittle(t *testing.T) {
	s := newSite(t)
	n := 0
	got := testing.AllocsPerRun(20, func() {
		n++
		tenSteps(t, s.Store, tenant.NewID(), fmt.Sprintf("%04d-next", n))
	})
	const most = 850
	if got > most {
		t.Errorf("%.0f allocations, want %d at most", got, most)
	}
}

// A file that is only looked at is not written to.
func TestAFileThatIsOnlyReadKeepsItsJournalMode(t *testing.T) {
	t.Parallel()
	path := t.TempDir() + "/tenant.db"
	plain := sql.OpenDB(&connector{file: &file{path: path}, dsn: dsn(path, "rwc", nil)})
	t.Cleanup(func() { plain.Close() })
	d := &database{path: path, plain: plain}
	d.exec(t, "CREATE TABLE item (v TEXT)")
	s := d.open(t)
	if _, err := s.Survey(t.Context(), []tenant.ID{tenant.NewID()}, ""); err != nil {
		t.Fatal(err)
	}
	mode := func() string {
		d.query(t, "SELECT count(*) FROM item") // looks at the file anew
		return d.query(t, "PRAGMA journal_mode")
	}
	if got := mode(); got != "delete" {
		t.Errorf("after reading the mode is %s, want delete", got)
	}
	acquire(t, s, tenant.NewID(), nil)
	if got := mode(); got != "wal" {
		t.Errorf("after writing the mode is %s, want wal", got)
	}
}
