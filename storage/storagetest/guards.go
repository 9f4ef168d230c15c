package storagetest

import (
	"errors"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/belayhq/belay/engine"
	"github.com/belayhq/belay/plan"
	"github.com/belayhq/belay/tenant"
)

// escapes are statements by which a step leaves its scope. What a change's text can show is refused before anything
// runs, by plan; here is what only the database can notice.
var escapes = map[tenant.Dialect][]string{
	tenant.Postgres: {
		"DO $$ BEGIN PERFORM set_config('search' || '_path', 'public', true); END $$",
		"DO $$ BEGIN PERFORM set_config('search' || '_path', 'pg_catalog', false); END $$",
		"DO $$ BEGIN EXECUTE 'SET LOCAL search' || '_path TO public'; END $$",
		"DO $$ BEGIN EXECUTE 'SET ' || 'ROLE pg_monitor'; END $$",
		"DO $$ BEGIN PERFORM set_config('role', 'pg_monitor', true); END $$",
		"DO $$ BEGIN PERFORM set_config('belay' || '.mark', 'guess', true); END $$",
		"DO $$ BEGIN COMMIT; END $$",
		"DO $$ BEGIN ROLLBACK; END $$",
		"DO $$ BEGIN EXECUTE 'COM' || 'MIT'; END $$",
	},
	tenant.SQLite: {
		"COMMIT",
		"END TRANSACTION",
		"ROLLBACK",
		"BEGIN",
		"SAVEPOINT mine",
		"ATTACH DATABASE ':memory:' AS other",
		"DETACH DATABASE main",
		"VACUUM",
		"PRAGMA journal_mode = DELETE",
		"PRAGMA synchronous = OFF",
		"PRAGMA foreign_keys = ON",
		"PRAGMA writable_schema = ON",
		"PRAGMA user_version = 99",
		"SELECT holder FROM belay_site_lock",
		"UPDATE belay_site_lock SET fence = fence + 1",
		"INSERT OR REPLACE INTO main.belay_site_lock SELECT * FROM belay_site_lock",
		`DELETE FROM "Belay_Journal"`,
		"DROP TABLE belay_event",
		"ALTER TABLE belay_plan RENAME TO mine",
		"CREATE INDEX mine ON belay_plan (change_id)",
		"CREATE VIEW mine AS SELECT * FROM belay_plan",
		"CREATE TRIGGER mine AFTER INSERT ON {t} BEGIN DELETE FROM belay_journal; END",
		"CREATE TRIGGER mine AFTER UPDATE ON belay_plan BEGIN SELECT 1; END",
		"CREATE TABLE mine AS SELECT * FROM belay_plan",
		"CREATE TABLE belay_more (k integer)",
		"ALTER TABLE {t} RENAME TO belay_other",
		"UPDATE sqlite_master SET sql = ''",
		// Each ends the transaction from within a statement.
		"INSERT OR ROLLBACK INTO {t} VALUES (0, 'there already')",
		"UPDATE OR ROLLBACK {t} SET k = 0",
	},
}

// endings end the transaction of a group whose first step put the row 0.
var endings = map[tenant.Dialect]string{
	tenant.Postgres: "DO $$ BEGIN ROLLBACK; END $$",
	tenant.SQLite:   "INSERT OR ROLLBACK INTO {t} VALUES (0, 'again')",
}

var guards = []test{
	{"a step does not leave its scope", func(t *testing.T, d *database) {
		for _, sql := range escapes[d.Dialect] {
			t.Run(sql, func(t *testing.T) {
				s := d.site(t)
				s.Exec(t, s.scope, "INSERT INTO "+s.table+" VALUES (-1, 'first')")
				x := s.begin(t, apply(change("0001-first", 3)))
				escape := x.step(1, plan.StepDone, s.sql(sql))
				for where, group := range map[string]engine.Group{
					"between others": x.group(x.put(0), escape, x.put(2)),
					"last":           x.group(x.put(0), escape),
				} {
					err := x.failure(t, group)
					if _, failed := errors.AsType[*engine.StepFailure](err); !failed && !errors.Is(err, engine.ErrStepEscaped) {
						t.Errorf("%s: got %v", where, err)
					}
					if errors.Is(err, engine.ErrUnknownOutcome) || lost(err) {
						t.Errorf("%s: the error misleads: %v", where, err)
					}
				}
				x.succeed(t, x.put(0), x.put(1), x.put(2))
			})
		}
	}},
	{"an action does not leave its scope", func(t *testing.T, d *database) {
		for _, sql := range escapes[d.Dialect] {
			t.Run(sql, func(t *testing.T) {
				s := d.site(t)
				s.Exec(t, s.scope, s.sql("INSERT INTO {t} VALUES (-1, 'first')"))
				x := s.begin(t, apply(change("0001-first", 2)))
				x.fails(t, x.group(x.put(0), s.action(1, func(tx *actionTx) { tx.exec(s.sql(sql)) })))
				x.succeed(t, x.put(0), x.put(1))
			})
		}
	}},
	{"a step that ends its own transaction does not run the steps behind it outside of one", func(t *testing.T, d *database) {
		s := d.site(t)
		x := s.begin(t, apply(change("0001-first", 3)))
		x.fails(t, x.group(x.put(0), x.step(1, plan.StepDone, s.sql(endings[d.Dialect]), s.sql("INSERT INTO {t} VALUES (50, 'stray')")), x.put(2)))
	}},
	{"an action that hides that it ended the transaction leaves nothing", func(t *testing.T, d *database) {
		s := d.site(t)
		x := s.begin(t, apply(change("0001-first", 3)))
		x.fails(t, x.group(x.put(0), s.action(1, func(tx *actionTx) {
			tx.exec(s.sql(endings[d.Dialect]))
			tx.err = nil
			tx.exec(s.sql("INSERT INTO {t} VALUES (50, 'stray')"))
			tx.err = nil
		}), x.put(2)))
		x.succeed(t, x.put(0), x.put(1), x.put(2))
	}},
	{"a step may look at its own tables and their keys", func(t *testing.T, d *database) {
		sql := map[tenant.Dialect]string{
			tenant.SQLite:   "PRAGMA table_info({t}); PRAGMA index_list({t}); SELECT count(*) FROM pragma_table_info('{t}')",
			tenant.Postgres: "SELECT count(*) FROM information_schema.columns WHERE table_name = '{t}'",
		}[d.Dialect]
		s := d.site(t)
		x := s.begin(t, apply(change("0001-first", 1)))
		x.checkpoint(t, x.group(x.step(0, plan.StepDone, strings.Split(s.sql(sql), "; ")...)))
	}},
	{"a rebuilt table keeps the rows that refer to it", func(t *testing.T, d *database) {
		// PostgreSQL has no need to rebuild; a cascading drop of the constraint is what it would be there.
		if d.Dialect == tenant.Postgres {
			return
		}
		s := d.site(t)
		s.Exec(t, s.scope, "CREATE TABLE parent (k integer PRIMARY KEY)")
		s.Exec(t, s.scope, "CREATE TABLE child (k integer REFERENCES parent (k) ON DELETE CASCADE)")
		s.Exec(t, s.scope, "INSERT INTO parent VALUES (1)")
		s.Exec(t, s.scope, "INSERT INTO child VALUES (1)")
		x := s.begin(t, apply(change("0001-first", 1)))
		x.checkpoint(t, x.group(x.step(0, plan.StepDone,
			"CREATE TABLE parent_new (k integer PRIMARY KEY, v text)", "INSERT INTO parent_new (k) SELECT k FROM parent",
			"DROP TABLE parent", "ALTER TABLE parent_new RENAME TO parent")))
		if n := s.Query(t, s.scope, "SELECT count(*) FROM child"); n != "1" {
			t.Errorf("%s children left", n)
		}
	}},
	{"a step cannot lift the limits of the steps behind it", func(t *testing.T, d *database) {
		lift := map[tenant.Dialect]string{tenant.SQLite: "SELECT 1", tenant.Postgres: "DO $$ BEGIN PERFORM set_config('statement' || '_timeout', '0', true); END $$"}[d.Dialect]
		s := d.site(t)
		x := s.begin(t, apply(change("0001-first", 2)))
		second := x.step(1, plan.StepDone, endless)
		second.Timeout = 100 * time.Millisecond
		x.failsIn(t, 1, x.group(x.step(0, plan.StepDone, lift), second))
	}},
	{"a step works in its own tenant's scope", func(t *testing.T, d *database) {
		// On SQLite the file is the scope, and two tenants never share one outside this suite.
		if d.Dialect == tenant.SQLite {
			return
		}
		a, b := d.site(t), d.site(t)
		for _, s := range []*site{a, b} {
			s.Exec(t, s.scope, "CREATE TABLE shared_name (k integer)")
		}
		x := a.begin(t, apply(change("0001-first", 2)))
		x.checkpoint(t, x.group(x.step(0, plan.StepDone, "INSERT INTO shared_name VALUES (1)"), a.action(1, func(tx *actionTx) {
			tx.exec("INSERT INTO shared_name VALUES (?)", 2)
		})))
		if na, nb := a.Query(t, a.scope, "SELECT count(*) FROM shared_name"), b.Query(t, b.scope, "SELECT count(*) FROM shared_name"); na != "2" || nb != "0" {
			t.Errorf("%s and %s rows", na, nb)
		}
		x.fails(t, x.group(x.step(1, plan.StepUndone, "INSERT INTO "+b.table+" VALUES (1, 'elsewhere')")))
	}},
	{"a step that reaches into another tenant's schema fails", func(t *testing.T, d *database) {
		if d.Dialect == tenant.SQLite {
			return // another tenant is another file
		}
		a, b := d.site(t), d.site(t)
		b.Exec(t, b.scope, "CREATE TABLE theirs (k integer)")
		b.begin(t, apply(change("0001-first", 1))) // its scope is known from here on
		x, theirs := a.begin(t, apply(change("0001-first", 2))), strconv.Quote(b.scope)
		for _, sql := range []string{
			"INSERT INTO " + theirs + ".theirs VALUES (1)",
			"SELECT count(*) FROM " + theirs + ".theirs",
			"DROP TABLE " + theirs + ".theirs",
			"CREATE TABLE " + theirs + ".ours (k integer)",
			"CREATE VIEW peek AS SELECT * FROM " + theirs + ".theirs",
			"DROP SCHEMA " + theirs + " CASCADE",
		} {
			statements, err := plan.Split(tenant.Postgres, plan.Source{File: "reach.sql", Text: sql})
			if err != nil {
				t.Fatal(err)
			}
			step := x.step(0, plan.StepDone)
			step.Statements = statements
			if failure := x.failsIn(t, 0, x.group(step)); !errors.Is(&failure, engine.ErrStepEscaped) {
				t.Errorf("%s: %v", sql, &failure)
			}
		}
		if n := b.Query(t, b.scope, "SELECT count(*) FROM theirs"); n != "0" {
			t.Errorf("%s rows of another tenant", n)
		}
		// An alias that happens to be another tenant's schema is none.
		statements, err := plan.Split(tenant.Postgres, plan.Source{
			File: "alias.sql",
			Text: "INSERT INTO " + a.table + " SELECT " + theirs + ".k, 'x' FROM (SELECT 7 AS k) " + theirs,
		})
		if err != nil {
			t.Fatal(err)
		}
		step := x.step(0, plan.StepDone)
		step.Statements = statements
		x.checkpoint(t, x.group(step))
	}},
	{"a scope that does not exist fails the step", func(t *testing.T, d *database) {
		if d.Dialect == tenant.SQLite {
			return // steps ignore the scope
		}
		s := d.site(t)
		x := s.begin(t, apply(change("0001-first", 1)))
		// With a search path of no schema that exists, this would make a temporary table, and succeed.
		group := x.group(x.step(0, plan.StepDone, "CREATE TABLE fresh (k integer)"))
		group.Scope = "no_such_scope"
		x.fails(t, group)
	}},
}

// canary is a value that no error may show.
const canary = "canary-9f3c-4711"

// leaks are statements that fail over a row that holds the canary.
var leaks = map[tenant.Dialect][]string{
	tenant.Postgres: {
		"INSERT INTO secret (v) VALUES ('" + canary + "')",
		"INSERT INTO secret (v, n) SELECT v || 'x', NULL FROM secret",
		"INSERT INTO secret (v, n) SELECT v || 'x', -1 FROM secret",
		"UPDATE secret SET parent = v",
		"SELECT v::integer FROM secret",
		"SELECT v::date FROM secret",
		"SELECT v::json FROM secret",
		"SELECT v::uuid FROM secret",
		"SELECT ('{' || v)::integer[] FROM secret",
		"DO $$ DECLARE n integer; BEGIN SELECT v INTO n FROM secret; END $$",
		"DO $$ BEGIN RAISE 'v is %', (SELECT v FROM secret); END $$",
		"DO $$ BEGIN RAISE 'v is %', (SELECT v FROM secret) USING ERRCODE = '23505'; END $$",
		"DO $$ BEGIN ASSERT false, (SELECT v FROM secret); END $$",
		"SELECT to_date(v, 'YYYY-MM-DD') FROM secret",
		"SELECT regexp_replace('a', v || '(', '') FROM secret",
		"ALTER TABLE secret ALTER COLUMN v TYPE integer USING v::integer",
		"CREATE UNIQUE INDEX twice ON secret ((1), v); INSERT INTO secret (v, n) SELECT v, 5 FROM secret",
	},
	tenant.SQLite: {
		"INSERT INTO secret (v) VALUES ('" + canary + "')",
		"INSERT INTO secret (v, n) SELECT v || 'x', NULL FROM secret",
		"INSERT INTO secret (v, n) SELECT v || 'x', -1 FROM secret",
		"UPDATE secret SET parent = v",
		"SELECT json_extract(v, '$') FROM secret",
		"SELECT json_extract('{}', v) FROM secret",
		"UPDATE secret SET n = v",
	},
}

var secrets = []test{
	{"an error shows no value of a row", func(t *testing.T, d *database) {
		s := d.site(t)
		strict := map[tenant.Dialect]string{tenant.SQLite: " STRICT"}[d.Dialect]
		s.Exec(t, s.scope, "CREATE TABLE parent (k text PRIMARY KEY)"+strict)
		s.Exec(t, s.scope, "CREATE TABLE secret (v text UNIQUE, n integer NOT NULL DEFAULT 0 CHECK (n >= 0), parent text REFERENCES parent (k))"+strict)
		s.Exec(t, s.scope, "INSERT INTO secret (v) VALUES ('"+canary+"')")
		x := s.begin(t, apply(change("0001-first", 2)))
		for _, sql := range leaks[d.Dialect] {
			t.Run(sql, func(t *testing.T) {
				step := x.step(0, plan.StepDone, strings.Split(sql, "; ")...)
				silent(t, x.failure(t, x.group(step)))
			})
		}
	}},
	{"an error shows no bound value", func(t *testing.T, d *database) {
		s := d.site(t)
		s.Exec(t, s.scope, "CREATE TABLE secret (v text UNIQUE)")
		s.Exec(t, s.scope, "INSERT INTO secret (v) VALUES ('"+canary+"')")
		x := s.begin(t, apply(change("0001-first", 1)))
		silent(t, x.failure(t, x.group(s.action(0, func(tx *actionTx) { tx.exec("INSERT INTO secret VALUES (?)", canary) }))))
	}},
	{"a verify's error shows no value of a row", func(t *testing.T, d *database) {
		s := d.site(t)
		s.Exec(t, s.scope, "INSERT INTO "+s.table+" VALUES (1, '"+canary+"')")
		sql := map[tenant.Dialect]string{tenant.SQLite: "SELECT json_extract(v, '$') FROM ", tenant.Postgres: "SELECT v::integer FROM "}[d.Dialect]
		err := d.db.Verify(t.Context(), s.scope, plan.Verify{Query: sql + s.table}, time.Minute)
		if !errors.Is(err, engine.ErrVerifyUnable) {
			t.Errorf("got %v, want ErrVerifyUnable", err)
		}
		silent(t, err)
	}},
}

// silent demands that neither err nor anything it wraps shows the canary.
func silent(t *testing.T, err error) {
	t.Helper()
	switch e := err.(type) { //nolint:errorlint // walks the tree itself
	case nil:
		return
	case interface{ Unwrap() error }:
		silent(t, e.Unwrap())
	case interface{ Unwrap() []error }:
		for _, inner := range e.Unwrap() {
			silent(t, inner)
		}
	}
	if strings.Contains(err.Error(), canary) {
		t.Errorf("%T shows the value: %v", err, err)
	}
}
