package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/belayhq/belay/engine"
	"github.com/belayhq/belay/tenant"
)

// site is a tenant in the middle of an apply, with a table item that has one row.
type site struct {
	*database
	*Store
	t *testing.T
}

func newSite(t *testing.T, setup ...string) site {
	t.Helper()
	d := newDatabase(t)
	d.exec(t, "CREATE TABLE item (k INTEGER PRIMARY KEY, v TEXT)")
	d.exec(t, "INSERT INTO item VALUES (1, 'first')")
	for _, s := range setup {
		d.exec(t, s)
	}
	return site{d, d.open(t), t}
}

// run applies a change of these steps in one checkpoint, and ends the term whatever comes of it.
func (s site) run(steps ...engine.GroupStep) error {
	s.t.Helper()
	grant := acquire(s.t, s.Store, tenant.NewID(), apply(change("0001-first", len(steps))))
	err := s.Checkpoint(s.t.Context(), grant.Held, finish(grant, steps...))
	if err != nil {
		if err := s.Release(s.t.Context(), grant.Held); err != nil {
			s.t.Errorf("the lock is gone after a failed checkpoint: %v", err)
		}
	}
	return err
}

func (s site) want(query, want string) {
	s.t.Helper()
	if got := s.query(s.t, query); got != want {
		s.t.Errorf("%s: %s, want %s", query, got, want)
	}
}

func TestASteppedOutStatementIsNamed(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"BEGIN":                       "BEGIN is not allowed in a step",
		"begin exclusive":             "BEGIN is not allowed in a step",
		"COMMIT":                      "COMMIT is not allowed in a step",
		"ROLLBACK":                    "ROLLBACK is not allowed in a step",
		"SAVEPOINT a":                 "SAVEPOINT is not allowed in a step",
		"RELEASE a":                   "SAVEPOINT is not allowed in a step",
		"ROLLBACK TO a":               "SAVEPOINT is not allowed in a step",
		"ATTACH ':memory:' AS b":      "ATTACH is not allowed in a step",
		"DETACH main":                 "DETACH is not allowed in a step",
		"PRAGMA writable_schema = 1":  "PRAGMA writable_schema is not allowed in a step",
		"PRAGMA Foreign_Keys = 1":     "PRAGMA foreign_keys is not allowed in a step",
		"PRAGMA wal_checkpoint":       "PRAGMA wal_checkpoint is not allowed in a step",
		"PRAGMA main.user_version":    "PRAGMA user_version is not allowed in a step",
		"SELECT load_extension('x')":  "load_extension is not allowed in a step",
		"SELECT LOAD_EXTENSION('x')":  "load_extension is not allowed in a step",
		"DELETE FROM belay_journal":   "belay_journal belongs to Belay, no step may touch it",
		"DELETE FROM [BELAY_JOURNAL]": "belay_journal belongs to Belay, no step may touch it",
	} {
		t.Run(text, func(t *testing.T) {
			t.Parallel()
			f := failure(t, newSite(t).run(sqlStep(0, "SELECT 1", text)))
			if !errors.Is(f, engine.ErrStepEscaped) || !strings.Contains(f.Error(), want) {
				t.Errorf("got %v, want %q", f, want)
			}
			if f.File != "up.sql" || f.Line != 2 {
				t.Errorf("the failure is at %s:%d", f.File, f.Line)
			}
		})
	}
}

// TestBelaysTablesAreOutOfReach tries every way that leads to them. Some SQLite itself refuses. G8
func TestBelaysTablesAreOutOfReach(t *testing.T) {
	t.Parallel()
	const plain = "belay_plan"
	spellings := []string{plain, "BELAY_PLAN", `"belay_plan"`, "[Belay_Plan]", "`belay_plan`", "'belay_plan'", "main.belay_plan", `"main"."belay_plan"`}
	for _, pattern := range []string{
		"SELECT count(*) FROM %s",
		"SELECT 1 FROM %s",
		"SELECT * FROM item, %s",
		"SELECT (SELECT max(applied_seq) FROM %s)",
		"WITH x AS (SELECT * FROM %s) SELECT * FROM x",
		"WITH x AS (SELECT * FROM %s) INSERT INTO item (v) SELECT plan_id FROM x",
		"SELECT * FROM item WHERE EXISTS (SELECT 1 FROM %s)",
		"INSERT INTO item (v) SELECT plan_id FROM %s",
		"UPDATE item SET v = b.plan_id FROM %s AS b",
		"DELETE FROM item WHERE v IN (SELECT plan_id FROM %s)",
		"DELETE FROM %s",
		"UPDATE %s SET status = 'applied'",
		"REPLACE INTO %s DEFAULT VALUES",
		"DROP TABLE %s",
		"ALTER TABLE %s ADD COLUMN mine",
		"ALTER TABLE %s RENAME TO mine",
		"ALTER TABLE %s RENAME COLUMN applied_seq TO mine",
		"ALTER TABLE %s DROP COLUMN applied_seq",
		"CREATE TABLE mine AS SELECT * FROM %s",
		"CREATE TEMP TABLE mine AS SELECT * FROM %s",
		"CREATE VIEW mine AS SELECT * FROM %s",
		"CREATE TEMP VIEW mine AS SELECT * FROM %s",
	} {
		t.Run(pattern, func(t *testing.T) {
			t.Parallel()
			s := newSite(t)
			for _, spelling := range spellings {
				text := fmt.Sprintf(pattern, spelling)
				if f := failure(t, s.run(sqlStep(0, text))); spelling == plain && !errors.Is(f, engine.ErrStepEscaped) {
					t.Errorf("%s: got %v, want ErrStepEscaped", text, f)
				}
			}
			s.want("SELECT count(*) || ' ' || max(v) FROM item", "1 first")
			s.want("SELECT count(*) FROM sqlite_schema WHERE name = 'mine'", "0")
		})
	}
}

// G8
func TestNothingMadeByAStepReachesBelaysTables(t *testing.T) {
	t.Parallel()
	for name, statements := range map[string][]string{
		"a trigger on a table":                         {"CREATE TRIGGER mine AFTER INSERT ON item BEGIN DELETE FROM belay_journal; END"},
		"a trigger on a view":                          {"CREATE VIEW v AS SELECT 1 AS k", "CREATE TRIGGER mine INSTEAD OF INSERT ON v BEGIN DELETE FROM Belay_Journal; END"},
		"a trigger on Belay's table":                   {"CREATE TRIGGER mine AFTER INSERT ON belay_journal BEGIN SELECT 1; END"},
		"a temporary trigger":                          {"CREATE TEMP TRIGGER mine AFTER INSERT ON main.belay_journal BEGIN DELETE FROM item; END"},
		"a temporary trigger on a table of the tenant": {"CREATE TEMP TRIGGER mine AFTER INSERT ON item BEGIN DELETE FROM belay_journal; END"},
		"a trigger that fires at once": {
			"CREATE TRIGGER mine AFTER INSERT ON item BEGIN DELETE FROM belay_journal; END", "INSERT INTO item VALUES (2, '')",
		},
		"a view":                           {"CREATE VIEW mine AS SELECT * FROM (SELECT * FROM BELAY_plan)"},
		"an index":                         {"CREATE INDEX mine ON belay_plan (applied_seq)"},
		"a reference":                      {"CREATE TABLE mine (k REFERENCES belay_plan (plan_id))"},
		"a table named like Belay's":       {"CREATE TABLE belay_mine (k)"},
		"a view named like Belay's":        {"CREATE VIEW Belay_mine AS SELECT 1"},
		"an index named like Belay's":      {"CREATE INDEX belay_mine ON item (v)"},
		"a table renamed to Belay's":       {"ALTER TABLE item RENAME TO belay_item"},
		"a temporary table renamed over":   {"CREATE TEMP TABLE mine (k)", "ALTER TABLE mine RENAME TO belay_journal"},
		"a temporary table in its place":   {"CREATE TEMP TABLE belay_journal (k)"},
		"a virtual table named like Belay": {"CREATE VIRTUAL TABLE belay_mine USING rtree (id, a, b)"},
		"a schema edited by hand":          {"UPDATE sqlite_schema SET sql = '' WHERE name = 'belay_plan'"},
		"a schema row deleted by hand":     {"DELETE FROM sqlite_master WHERE name = 'belay_plan'"},
		"a schema row inserted by hand":    {"INSERT INTO sqlite_master VALUES ('view', 'mine', 'mine', 0, 'CREATE VIEW mine AS SELECT 1')"},
		"a pragma in a query":              {"SELECT * FROM pragma_journal_mode"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t)
			acquire(t, s.Store, tenant.NewID(), nil) // so that Belay's tables are there
			before := s.query(t, "SELECT group_concat(name || sql) FROM sqlite_schema")
			failure(t, s.run(sqlStep(0, statements...)))
			s.want("SELECT group_concat(name || sql) FROM sqlite_schema", before)
		})
	}
}

func TestOrdinaryScriptsPass(t *testing.T) {
	t.Parallel()
	for name, statements := range map[string][]string{
		"tables and indexes": {
			"CREATE TABLE a (k INTEGER PRIMARY KEY AUTOINCREMENT, v TEXT UNIQUE) STRICT", "CREATE INDEX a_v ON a (v DESC) WHERE v IS NOT NULL",
			"INSERT INTO a (v) VALUES ('x'), ('y')", "DROP INDEX a_v", "DROP TABLE a",
		},
		"columns": {
			"ALTER TABLE item ADD COLUMN w TEXT DEFAULT 'x'", "ALTER TABLE item RENAME COLUMN w TO x", "UPDATE item SET x = v",
			"ALTER TABLE item DROP COLUMN x",
		},
		"triggers and views": {
			"CREATE VIEW v AS SELECT count(*) AS n FROM item",
			"CREATE TRIGGER g AFTER INSERT ON item BEGIN UPDATE item SET v = 'seen' WHERE k = new.k; END", "INSERT INTO item VALUES (2, 'x')",
			"SELECT n FROM v", "DROP TRIGGER g", "DROP VIEW v",
		},
		"a rename with dependents": {
			"CREATE VIEW v AS SELECT k FROM item", "ALTER TABLE item RENAME TO thing", "SELECT * FROM v", "ALTER TABLE thing RENAME TO item",
		},
		"a temporary table":  {"CREATE TEMP TABLE t AS SELECT * FROM item", "DELETE FROM item", "INSERT INTO item SELECT * FROM t", "DROP TABLE t"},
		"a recursive query":  {"WITH RECURSIVE n(i) AS (SELECT 2 UNION ALL SELECT i + 1 FROM n WHERE i < 9) INSERT INTO item SELECT i, 'x' FROM n"},
		"an upsert":          {"INSERT INTO item VALUES (1, 'x') ON CONFLICT (k) DO UPDATE SET v = excluded.v RETURNING k, v"},
		"full text":          {"CREATE VIRTUAL TABLE f USING fts4 (v)", "INSERT INTO f VALUES ('some words')", "SELECT * FROM f WHERE f MATCH 'words'", "DROP TABLE f"},
		"an r-tree":          {"CREATE VIRTUAL TABLE r USING rtree (id, a, b)", "INSERT INTO r VALUES (1, 0, 1)", "SELECT * FROM r WHERE a < 1"},
		"JSON":               {`UPDATE item SET v = json_set('{}', '$.a', v)`, "SELECT value FROM item, json_each(item.v)"},
		"statistics":         {"ANALYZE", "REINDEX", "ANALYZE item"},
		"a look at the file": {"PRAGMA table_info(item)", "SELECT name FROM pragma_index_list('item')", "SELECT sql FROM sqlite_schema"},
		"a common table expression that looks like Belay's": {"WITH belay_x AS (SELECT 1 AS k) SELECT k FROM belay_x"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if err := newSite(t).run(sqlStep(0, statements...)); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestWhatAStepMakesForTheConnectionEndsWithIt(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	if err := s.run(sqlStep(0, "CREATE TEMP TABLE item AS SELECT 9 AS k", "CREATE TEMP TRIGGER mine AFTER INSERT ON main.item BEGIN SELECT 1; END")); err != nil {
		t.Fatal(err)
	}
	var n int
	if err := s.writer.QueryRowContext(t.Context(), "SELECT count(*) FROM sqlite_temp_schema").Scan(&n); err != nil || n != 0 {
		t.Errorf("%d temporary objects are left, %v", n, err)
	}
}

// A statement that is prepared already passes by the authorizer.
func TestNoStatementOfAStepIsKept(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	text := "SELECT version FROM belay_schema_version" // one of Belay's own, prepared by now
	if text != schemaVersionSQL {
		t.Fatalf("not Belay's own any more: %s", schemaVersionSQL)
	}
	for range 2 {
		if f := failure(t, s.run(sqlStep(0, text))); !errors.Is(f, engine.ErrStepEscaped) {
			t.Errorf("got %v", f)
		}
	}
	if err := s.run(sqlStep(0, "UPDATE item SET v = 'again'")); err != nil {
		t.Fatal(err)
	}
	connection, err := s.writer.Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer connection.Close()
	_ = connection.Raw(func(native any) error {
		if len(native.(*conn).own) == 0 {
			t.Error("Belay's own statements are not kept")
		}
		for text := range native.(*conn).own {
			if strings.Contains(text, " item ") {
				t.Errorf("kept: %s", text)
			}
		}
		return nil
	})
}

func TestOneCallIsOneStatement(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	failure(t, s.run(sqlStep(0, "UPDATE item SET v = 'a'; UPDATE item SET v = 'b'")))
	failure(t, s.run(actionStep(0, func(tx *Tx) error {
		_, err := tx.Exec(t.Context(), "UPDATE item SET v = 'a'; DELETE FROM item")
		return err
	})))
	failure(t, s.run(actionStep(0, func(tx *Tx) error {
		_, err := tx.Exec(t.Context(), "UPDATE item SET v = ? WHERE k = ?", "a")
		return err
	})))
	s.want("SELECT v FROM item", "first")
	if err := s.run(sqlStep(0, "UPDATE item SET v = 'c' ; -- and that is all")); err != nil {
		t.Error(err)
	}
	s.want("SELECT v FROM item", "c")
}

func TestARebuildKeepsTheRowsThatRefer(t *testing.T) {
	t.Parallel()
	s := newSite(t, "CREATE TABLE child (k INTEGER PRIMARY KEY, item INTEGER NOT NULL REFERENCES item (k) ON DELETE CASCADE)", "INSERT INTO child VALUES (7, 1)")
	if err := s.run(sqlStep(0, "CREATE TABLE item_new (k INTEGER PRIMARY KEY, v TEXT NOT NULL)", "INSERT INTO item_new SELECT * FROM item",
		"DROP TABLE item", "ALTER TABLE item_new RENAME TO item")); err != nil {
		t.Fatal(err)
	}
	s.want("SELECT count(*) FROM child JOIN item ON item.k = child.item", "1")
}

func TestForeignKeysAreCheckedBeforeTheCommit(t *testing.T) {
	t.Parallel()
	child := "CREATE TABLE child (k INTEGER PRIMARY KEY, item INTEGER REFERENCES item (k) ON DELETE CASCADE)"
	orphan := "INSERT INTO child VALUES (100, 99)"
	for name, test := range map[string]struct {
		setup, statements []string
		fails             bool
	}{
		"a child without a parent":          {[]string{child}, []string{"INSERT INTO child VALUES (1, 5)"}, true},
		"a child before its parent":         {[]string{child}, []string{"INSERT INTO child VALUES (1, 5)", "INSERT INTO item VALUES (5, '')"}, false},
		"a parent deleted":                  {[]string{child, "INSERT INTO child VALUES (1, 1)"}, []string{"DELETE FROM item"}, true},
		"a parent dropped":                  {[]string{child, "INSERT INTO child VALUES (1, 1)"}, []string{"DROP TABLE item"}, true},
		"a parent written by a trigger":     {[]string{child, "INSERT INTO child VALUES (1, 1)", "CREATE TABLE x (k)", "CREATE TRIGGER g AFTER INSERT ON x BEGIN DELETE FROM ITEM; END"}, []string{"INSERT INTO x VALUES (1)"}, true},
		"an orphan from before":             {[]string{child, orphan}, []string{"INSERT INTO child VALUES (1, 1)"}, false},
		"an orphan more than before":        {[]string{child, orphan}, []string{"INSERT INTO child VALUES (1, 5)"}, true},
		"an orphan where nobody wrote":      {[]string{child, orphan, "CREATE TABLE x (k)"}, []string{"INSERT INTO x VALUES (1)"}, false},
		"a schema changed beside an orphan": {[]string{child, orphan}, []string{"ALTER TABLE item ADD COLUMN w"}, false},
		"a key that cannot be checked":      {[]string{"CREATE TABLE child (k REFERENCES item (v))", "INSERT INTO child VALUES (1)"}, []string{"INSERT INTO child VALUES (2)"}, false},
		"a key made uncheckable":            {nil, []string{"CREATE TABLE child (k REFERENCES item (v))", "INSERT INTO child VALUES (1)"}, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			err := newSite(t, test.setup...).run(sqlStep(0, test.statements...))
			if !test.fails {
				if err != nil {
					t.Error(err)
				}
				return
			}
			if f := failure(t, err); !strings.Contains(f.Error(), "child") || !strings.Contains(f.Error(), "item") {
				t.Errorf("the failure does not name the tables: %v", f)
			}
		})
	}
}

func TestNoRowShowsInAnError(t *testing.T) {
	t.Parallel()
	const secret = "hunter2"
	for name, statements := range map[string][]string{
		"a unique key":        {"INSERT INTO item VALUES (1, 'hunter2')"},
		"a check":             {"CREATE TABLE c (v TEXT CHECK (length(v) < 3)) STRICT", "INSERT INTO c VALUES ('hunter2')"},
		"a strict type":       {"CREATE TABLE c (v INTEGER) STRICT", "INSERT INTO c VALUES ('hunter2')"},
		"a row id":            {"INSERT INTO item (k) VALUES ('hunter2')"},
		"an error raised":     {"CREATE TRIGGER g BEFORE INSERT ON item BEGIN SELECT RAISE(ABORT, 'no ' || new.v); END", "INSERT INTO item VALUES (2, 'hunter2')"},
		"a failure raised":    {"CREATE TRIGGER g BEFORE INSERT ON item BEGIN SELECT RAISE(FAIL, new.v); END", "INSERT INTO item VALUES (2, 'hunter2')"},
		"a path":              {"INSERT INTO item VALUES (2, 'hunter2')", "SELECT json_extract('{}', v) FROM item WHERE k = 2"},
		"a path in later row": {"INSERT INTO item VALUES (2, 'hunter2'), (3, 'x')", "SELECT json_extract('{}', iif(k = 1, '$', v)) FROM item ORDER BY k"},
		"a column added":      {"INSERT INTO item VALUES (2, 'hunter2')", "ALTER TABLE item ADD COLUMN w CHECK (json_extract('{}', v) IS NULL)"},
		"an index built":      {"INSERT INTO item VALUES (2, 'hunter2')", "CREATE INDEX i ON item (json_extract('{}', v))"},
		"a full text search":  {"CREATE VIRTUAL TABLE f USING fts4 (v)", "INSERT INTO item VALUES (2, '\"hunter2')", "SELECT * FROM f, item WHERE f MATCH item.v || '*\"(' AND k = 2"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, err := range []error{
				newSite(t).run(sqlStep(0, statements...)),
				newSite(t).run(actionStep(0, func(tx *Tx) error {
					for _, text := range statements {
						if err := tx.Query(t.Context(), text, nil, func(func(...any) error) error { return nil }); err != nil {
							return err
						}
					}
					return nil
				})),
			} {
				for cause := error(failure(t, err)); cause != nil; cause = errors.Unwrap(cause) {
					if strings.Contains(cause.Error(), secret) {
						t.Errorf("%T: %v", cause, cause)
					}
				}
			}
		})
	}
}

// Such a failure is about the schema, and people need its words.
func TestARenameThatBreaksAViewSaysWhich(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"ALTER TABLE item RENAME COLUMN v TO w", "ALTER TABLE item DROP COLUMN v"} {
		s := newSite(t, "CREATE VIEW dependent AS SELECT v, nowhere FROM item")
		if f := failure(t, s.run(sqlStep(0, text))); !strings.Contains(f.Error(), "dependent") {
			t.Errorf("%s: %v", text, f)
		}
	}
}

func TestAStepsTimeIsUpAndACallerGivesUpAreTold(t *testing.T) {
	t.Parallel()
	endless := "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) INSERT INTO item SELECT i + 10, '' FROM n"
	s := newSite(t)
	slow := sqlStep(0, endless)
	slow.Timeout = 50 * time.Millisecond
	f := failure(t, s.run(slow))
	if !strings.Contains(f.Error(), "50ms") || f.Line != 1 {
		t.Errorf("got %v", f)
	}
	grant := acquire(t, s.Store, tenant.NewID(), apply(change("0001-first", 1)))
	ctx, cancel := context.WithCancelCause(t.Context())
	given := errors.New("given up")
	step := actionStep(0, func(tx *Tx) error {
		cancel(given)
		_, err := tx.Exec(ctx, endless)
		return err
	})
	err := s.Checkpoint(ctx, grant.Held, group(grant, step))
	if _, ok := errors.AsType[*engine.StepFailure](err); ok || !errors.Is(err, given) {
		t.Errorf("got %v, want the caller's reason", err)
	}
	s.want("SELECT count(*) FROM item", "1")
}

func TestAnActionLeavesNothingOpen(t *testing.T) {
	t.Parallel()
	s := newSite(t, "INSERT INTO item VALUES (2, 'second')")
	var kept *Tx
	var rows *sql.Rows
	if err := s.run(actionStep(0, func(tx *Tx) error {
		kept = tx
		var err error
		if rows, err = tx.QueryContext(context.Background(), "SELECT k FROM item"); err != nil { //nolint:rowserrcheck,sqlclosecheck // left open on purpose
			return err
		}
		if !rows.Next() {
			return errors.New("no row")
		}
		return nil
	})); err != nil {
		t.Fatal(err)
	}
	if _, err := kept.Exec(t.Context(), "DELETE FROM item"); !errors.Is(err, errActionOver) {
		t.Errorf("exec: got %v", err)
	}
	if _, err := kept.QueryContext(t.Context(), "SELECT 1"); !errors.Is(err, errActionOver) { //nolint:rowserrcheck,sqlclosecheck // refused
		t.Errorf("query: got %v", err)
	}
	if err := s.run(sqlStep(0, "DELETE FROM item WHERE k = 2")); err != nil {
		t.Errorf("the next term: %v", err)
	}
}

func TestAPanicOfAnActionLeavesTheStoreUsable(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	func() {
		defer func() {
			if recover() == nil {
				t.Error("the panic did not pass")
			}
		}()
		_ = s.run(sqlStep(0, "DELETE FROM item"), actionStep(1, func(*Tx) error { panic("out of ideas") }))
	}()
	s.want("SELECT count(*) FROM item", "1")
	if err := s.run(sqlStep(0, "DELETE FROM item")); err != nil {
		t.Errorf("the next term: %v", err)
	}
}

func TestAFullDiskFailsTheStepAndNothingElse(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	limit := func(pages string) {
		var now int
		if err := s.writer.QueryRowContext(t.Context(), "PRAGMA max_page_count = "+pages).Scan(&now); err != nil {
			t.Fatal(err)
		}
	}
	acquire(t, s.Store, tenant.NewID(), nil)
	limit("1")
	fill := sqlStep(0, "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 100000) INSERT INTO item (v) SELECT hex(randomblob(500)) FROM n")
	f := failure(t, s.run(fill))
	if !strings.Contains(f.Error(), "full") || errors.Is(f, engine.ErrStepEscaped) || errors.Is(f, engine.ErrUnknownOutcome) {
		t.Errorf("got %v", f)
	}
	s.want("SELECT count(*) FROM item", "1")
	if err := s.run(sqlStep(0, "UPDATE item SET v = 'after'")); err != nil {
		t.Errorf("the next term: %v", err)
	}
}
