package sqlite

import (
	"database/sql"
	"fmt"
	"os"
	"testing"

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
	const most = 25
	native(t, s, func(c *conn) {
		if len(c.own) > most {
			t.Errorf("%d statements were prepared, want %d at most", len(c.own), most)
		}
	})
}

// Each page that a transaction touches is written to the log, and copied into the file later.
func TestAPlanTouchesFewPages(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	id := tenant.NewID()
	tenSteps(t, s.Store, id, "0001-first")
	s.exec(t, "PRAGMA wal_checkpoint(TRUNCATE)")
	tenSteps(t, s.Store, id, "0002-second")
	log, err := os.Stat(s.database.path + "-wal")
	if err != nil {
		t.Fatal(err)
	}
	const header, frame, most = 32, 24 + 4096, 15
	if pages := (log.Size() - header) / frame; pages > most {
		t.Errorf("%d pages, want %d at most", pages, most)
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
