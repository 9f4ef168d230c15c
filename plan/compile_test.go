package plan

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/belayhq/belay/tenant"
)

func TestAChangeCompilesForEachDatabase(t *testing.T) {
	t.Parallel()
	c := mustLoad(t, exampleFiles)
	stored, err := DecodeChange(c.Encode())
	if err != nil {
		t.Fatal(err)
	}
	for _, from := range []*Change{c, stored} {
		for d, want := range map[tenant.Dialect][2]string{
			tenant.Postgres: {"ALTER TABLE customer DROP COLUMN IF EXISTS locale", "sql/index.postgres.sql"},
			tenant.SQLite:   {"ALTER TABLE customer DROP locale", "sql/index.sqlite.sql"},
		} {
			p, err := from.Compile(d)
			if err != nil {
				t.Fatal(err)
			}
			if p.Change != from || p.Digest != c.Digest() || p.Dialect != d || len(p.Steps) != 4 {
				t.Fatalf("program %+v", p)
			}
			add, index, warm := p.Steps[0], p.Steps[1], p.Steps[2]
			if add.Step != &from.Steps[0] || index.Ordinal != 1 || len(add.Up) != 1 || len(add.Down) != 1 || add.Down[0].SQL != want[0] ||
				add.Up[0].File != "sql/add.up.sql" {
				t.Errorf("%s: add-column %+v", d, add)
			}
			if len(index.Up) != 1 || index.Down != nil || index.Up[0].File != want[1] || index.Up[0].Line != 1 {
				t.Errorf("%s: index %+v", d, index)
			}
			if warm.Up != nil || warm.Down != nil {
				t.Errorf("%s: warm-cache %+v", d, warm)
			}
		}
	}
}

func TestEverythingWrongInAllScriptsIsReportedAtOnce(t *testing.T) {
	t.Parallel()
	files := maps.Clone(exampleFiles)
	files["sql/add.up.sql"] = "SELECT 1;\nCOMMIT;\nSET ROLE x;\n"
	files["sql/add.down.sql"] = "-- nothing\n;"
	delete(files, "sql/add.down.postgres.sql")
	delete(files, "sql/index.postgres.sql")
	files["change.yaml"] = strings.Replace(files["change.yaml"], "SELECT count(*) FROM", "DELETE FROM", 1)
	dir := write(t, files)
	c, err := Load(dir)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		"change.yaml:11:22: verify of step add-column must only read: SELECT, VALUES, TABLE or a WITH that leads to one",
		"change.yaml:14:16: step index has no up script for postgres; add sql/index.postgres.sql or sql/index.sql",
		"sql/add.down.sql: the down script of step add-column holds no statement",
		"sql/add.up.sql:2:1: COMMIT: the engine owns the transaction; remove it",
		"sql/add.up.sql:3:1: SET of role: a step runs as the role of its connection",
	}
	_, err = c.Compile(tenant.Postgres)
	if got := problemLines(t, dir, err); !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	stored, err := DecodeChange(c.Encode())
	if err != nil {
		t.Fatal(err)
	}
	_, err = stored.Compile(tenant.Postgres)
	for i, line := range want { // a stored change has its scripts' places left, and no change.yaml
		if _, message, ok := strings.Cut(line, "change.yaml:"); ok {
			_, want[i], _ = strings.Cut(message, ": ")
		}
	}
	slices.Sort(want)
	if got := slices.Sorted(slices.Values(problemLines(t, dir, err))); !slices.Equal(got, want) {
		t.Errorf("stored: got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func TestAVerifyQueryOnlyReads(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		query            string
		postgres, sqlite string // what the problem holds; empty if the query passes
	}{
		{"SELECT 1", "", ""},
		{"-- why\n(select 1);\n", "", ""},
		{"VALUES (1)", "", ""},
		{"TABLE t", "", "must only read"},
		{"WITH x AS (SELECT replace(a, 'b', 'c') FROM t) SELECT count(*) FROM x", "", ""},
		{"SELECT 1 FOR UPDATE", "", ""},
		{"SELECT 1; SELECT 2", "must be one query, not 2", "must be one query, not 2"},
		{"-- nothing", "must be one query, not 0", "must be one query, not 0"},
		{"INSERT INTO t VALUES (1)", "must only read", "must only read"},
		{"EXPLAIN SELECT 1", "must only read", "must only read"},
		{"SELECT 1 INTO t", "must only read", ""},
		{"WITH x AS (DELETE FROM t RETURNING 1) SELECT * FROM x", "must only read", "must only read"},
		{"WITH x AS (UPDATE t SET a = 1 RETURNING 1) SELECT * FROM x", "must only read", "must only read"},
		{"WITH x AS (SELECT 1) UPDATE t SET a = 1", "must only read", "must only read"},
		{"WITH x AS (SELECT 1) INSERT INTO t SELECT * FROM x", "must only read", "must only read"},
		{"WITH x AS (SELECT 1) INSERT OR IGNORE INTO t SELECT * FROM x", "must only read", "must only read"},
		{"WITH x AS (SELECT 1) REPLACE INTO t SELECT * FROM x", "must only read", "must only read"},
		{"WITH x AS (SELECT 1) MERGE INTO t USING x ON true WHEN MATCHED THEN DELETE", "must only read", "must only read"},
		{"SELECT * FROM belay.plan, belay_plan", "verify of step s: the schema belay", "verify of step s: names that begin with belay_"},
		{"COMMIT", "verify of step s: COMMIT:", "verify of step s: COMMIT:"},
		{"SELECT 'a", "verify of step s: this string never ends", "verify of step s: this string never ends"},
	} {
		c := &Change{Version: 1, ID: "a", Steps: []Step{{ID: "s", Kind: Action, Action: &ActionRef{Name: "n"}, Verify: &Verify{Query: tc.query}}}}
		for d, want := range map[tenant.Dialect]string{tenant.Postgres: tc.postgres, tenant.SQLite: tc.sqlite} {
			_, err := c.Compile(d)
			if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %s: %v, want %q", d, tc.query, err, want)
			}
		}
	}
}

func TestAStepWithoutAScriptForTheDatabaseDoesNotCompile(t *testing.T) {
	t.Parallel()
	script := &Script{SQLite: &Source{File: "a.sqlite.sql", Text: "SELECT 1"}}
	other := &Script{Postgres: &Source{File: "b.postgres.sql", Text: "SELECT 1"}}
	c := &Change{Version: 1, ID: "a", Steps: []Step{
		{ID: "s", Kind: SQL, Up: script, Down: other},
		{ID: "t", Kind: SQL, Up: script, Undo: &NoUndo{None: "x"}},
		{ID: "u", Kind: SQL, Up: other, Undo: &NoUndo{None: "x"}},
	}}
	_, err := c.Compile(tenant.SQLite)
	if got, want := problemLines(t, ".", err), []string{
		"step s has no down script for sqlite; add b.sqlite.sql or b.sql", "step u has no up script for sqlite; add b.sqlite.sql or b.sql",
	}; !slices.Equal(got, want) {
		t.Errorf("got %q", got)
	}
	_, err = c.Compile(tenant.Postgres)
	if got := problemLines(t, ".", err); len(got) != 2 || got[0] != "step s has no up script for postgres; add a.postgres.sql or a.sql" {
		t.Errorf("got %q", got)
	}
}
