package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/belayhq/belay/internal/render"
)

// files returns the text of every file in a folder of the world.
func (w *world) files(dir string) map[string]string {
	w.t.Helper()
	entries, err := os.ReadDir(filepath.Join(w.dir, dir))
	if err != nil {
		w.t.Fatal(err)
	}
	found := map[string]string{}
	for _, e := range entries {
		if e.IsDir() {
			continue
		}
		text, err := os.ReadFile(filepath.Join(w.dir, dir, e.Name()))
		if err != nil {
			w.t.Fatal(err)
		}
		found[e.Name()] = string(text)
	}
	return found
}

func (w *world) writeAll(files map[string]string) {
	w.t.Helper()
	for name, text := range files {
		w.write(name, text)
	}
}

// byHand runs on a tenant what another tool has run there.
func (w *world) byHand(tenant string, statements ...string) {
	w.t.Helper()
	if w.url != "" {
		w.onSchema(tenant, statements...)
		return
	}
	for _, s := range statements {
		w.exec(tenant, s)
	}
}

var gooseHistory = map[string]string{
	"migrations/00001_users.sql": "-- +goose Up\nCREATE TABLE users (id integer PRIMARY KEY, name text);\n\n-- +goose Down\nDROP TABLE users;\n",
	"migrations/00002_view.sql": "-- +goose NO TRANSACTION\n-- +goose Up\n-- +goose StatementBegin\nCREATE VIEW names AS\n  SELECT name FROM users;\n" +
		"-- +goose StatementEnd\n-- +goose Down\nDROP VIEW names;\n",
	"migrations/00010_noop.sql": "-- +goose Up\n-- nothing any more\n-- +goose Down\n",
	"migrations/00011_seed.sql": "-- +goose Up\nINSERT INTO users VALUES (1, 'a; b');\n",
}

func TestTheHistoryOfGooseIsAdoptedAsItLies(t *testing.T) {
	t.Parallel()
	onBoth(t, []string{"acme", "bolt", "fresh"}, func(t *testing.T, w *world) {
		for _, old := range []string{"acme", "bolt"} {
			w.byHand(old, "CREATE TABLE users (id integer PRIMARY KEY, name text)", "CREATE VIEW names AS SELECT name FROM users",
				"INSERT INTO users VALUES (1, 'a; b')", "INSERT INTO users VALUES (2, 'theirs')")
		}
		w.writeAll(gooseHistory)
		before := w.files("migrations")
		r := w.ok("change", "new", "--from", "goose", "migrations", "--id", "0000-history")
		contains(t, r.stderr, "0000-history: 3 steps, valid for postgres and sqlite", "without a way back: 00011_seed",
			"left out, no statement in it: 00010_noop.sql", "belay resolve ./migrations <selection> --as applied")
		after := w.files("migrations")
		contains(t, after["change.yaml"], "id: 0000-history", "goose: 00002_view.sql")
		delete(after, "change.yaml")
		for name, text := range before {
			if after[name] != text || len(after) != len(before) {
				t.Errorf("%s was touched", name)
			}
		}
		r = w.ok("resolve", "migrations", "-t", "acme,bolt", "--as", "applied", "--reason", "from goose")
		contains(t, r.stdout, "2 resolved")
		r = w.ok("apply", "migrations", "--all", "-y", "--allow-irreversible")
		contains(t, r.stdout, "1 applied, 2 already applied")
		if names := w.ok("status", "--behind", "migrations", "-o", "name").stdout; names != "" {
			t.Errorf("behind: %s", names)
		}
		// The step without a way back is in the way, and the tenant is left alone.
		w.want(exitRefused, "rollback", "0000-history", "--all", "-y")
	})
}

func TestAnAdoptedHistoryGoesBackByItsDownSections(t *testing.T) {
	t.Parallel()
	onBoth(t, []string{"acme", "bolt"}, func(t *testing.T, w *world) {
		w.writeAll(map[string]string{
			"m/2_more.sql":  "-- +goose Up\nCREATE TABLE more (id integer);\n-- +goose Down\nDROP TABLE more;\n",
			"m/10_last.sql": "-- +goose Up\nINSERT INTO more VALUES (1);\n-- +goose Down\nDELETE FROM more;\n",
		})
		w.ok("change", "new", "--from", "goose", "m")
		w.byHand("acme", "CREATE TABLE more (id integer)", "INSERT INTO more VALUES (1)")
		w.ok("resolve", "m", "-t", "acme", "--as", "applied", "--reason", "from goose")
		w.ok("apply", "m", "--all", "-y") // 2 before 10, else it fails
		contains(t, w.ok("rollback", "m", "--all", "-y").stdout, "2 rolled back")
		w.byHand("acme", "CREATE TABLE more (id integer)")
	})
}

func TestPairsOfGolangMigrateAreSteps(t *testing.T) {
	t.Parallel()
	w := fleet(t, "acme")
	w.writeAll(map[string]string{
		"db/000009_b.up.sql": "INSERT INTO a VALUES (1);", "db/000009_b.down.sql": "DELETE FROM a;",
		"db/10_c.up.sql": "INSERT INTO a VALUES (2);",
		"db/1_a.up.sql":  "CREATE TABLE a (id integer);", "db/1_a.down.sql": "DROP TABLE a;",
		"db/README.md": "how we migrate",
	})
	r := w.ok("change", "new", "--from", "golang-migrate", "db", "-o", "json")
	golden(t, "change-new.json", r.stdout)
	contains(t, w.files("db")["change.yaml"], "up: 000009_b.up.sql", "down: 000009_b.down.sql", "no file takes it back")
	w.ok("apply", "db", "--all", "-y", "--allow-irreversible")
	if n := w.scalar("acme", "SELECT group_concat(id) FROM a"); n != "1,2" {
		t.Errorf("a holds %s", n)
	}
}

func TestPlainFilesKeepTheirOrder(t *testing.T) {
	t.Parallel()
	w := fleet(t, "acme")
	w.writeAll(map[string]string{
		"s/z.sql": "CREATE TABLE z (id integer);", "s/z.down.sql": "DROP TABLE z;",
		"s/a.sqlite.sql": "INSERT INTO z VALUES (1);", "s/a.down.sql": "DELETE FROM z;",
	})
	w.ok("change", "new", "--from", "sql", "s/z.sql", "s/a.sqlite.sql", "s/z.down.sql", "s/a.down.sql")
	w.ok("apply", "s", "--all", "-y")
	w.ok("rollback", "s", "--all", "-y")
}

func TestWhatCannotRunIsNamedWithItsPlaceAndNothingIsWritten(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	const up, down = "-- +goose Up\n", "-- +goose Down\nSELECT 1;\n"
	for name, c := range map[string]struct {
		tool  string
		files map[string]string
		says  string // parts, separated by |
	}{
		"psql": {
			"sql",
			map[string]string{"a.sql": "SELECT 1;\n\\i other.sql\n  \\copy a FROM 'x.csv'\n\\set ON_ERROR_STOP on\n"},
			`x-psql/a.sql:2:1: \i is a command of psql|a.sql:3:3: \copy is a command of psql|a.sql:4:1: \set is a command of psql|NAME.postgres.sql or NAME.sqlite.sql beside`,
		},
		"transaction":  {"golang-migrate", map[string]string{"1_a.up.sql": "BEGIN;\nSELECT 1;\nCOMMIT;"}, "1_a.up.sql:1:1: BEGIN|1_a.up.sql:3:1: COMMIT"},
		"concurrently": {"goose", map[string]string{"1_a.sql": up + "CREATE INDEX CONCURRENTLY i ON a (b);\n" + down}, "1_a.sql:2:1: "},
		"annotations":  {"goose", map[string]string{"1_a.sql": up + "SELECT 1;\n-- +goose ENVSUB ON\n" + down, "2_b.sql": "SELECT 1;"}, "1_a.sql:3:1: |2_b.sql:1:1: "},
		"go":           {"goose", map[string]string{"1_a.sql": up, "2_b.go": "package migrations"}, "2_b.go is a migration in Go"},
		"misnamed":     {"goose", map[string]string{"first.sql": up}, "first.sql is not named"},
		"one version":  {"goose", map[string]string{"1_a.sql": up, "001_b.sql": up}, "have one version"},
		"no pair":      {"golang-migrate", map[string]string{"1_a.sql": up}, "1_a.sql is not named"},
		"only down":    {"golang-migrate", map[string]string{"1_a.down.sql": "SELECT 1;"}, "takes back what no file does"},
		"plain down":   {"sql", map[string]string{"a.sql": "SELECT 1;", "b.down.sql": "SELECT 1;"}, "there is no b.sql"},
		"same pair":    {"golang-migrate", map[string]string{"1_a.up.sql": "SELECT 1;", "1_b.up.sql": "SELECT 1;"}, "have one version"},
		"nothing":      {"goose", map[string]string{"README.md": ""}, "there is no migration of goose"},
		"there":        {"sql", map[string]string{"a.sql": "SELECT 1;", "change.yaml": "mine"}, "change.yaml is there already"},
	} {
		dir := "x-" + strings.ReplaceAll(name, " ", "-")
		for file, text := range c.files {
			w.write(dir+"/"+file, text)
		}
		r := w.want(exitRefused, "change", "new", "--from", c.tool, dir, "--on", "postgres")
		contains(t, r.stderr, strings.Split(c.says, "|")...)
		if text := w.files(dir)["change.yaml"]; text != c.files["change.yaml"] {
			t.Errorf("%s: change.yaml was written: %s", name, text)
		}
	}
	w.write("one/a.sql", "SELECT 1;")
	w.write("two/b.sql", "SELECT 1;")
	for _, args := range []string{
		"--from sql one/a.sql two/b.sql", "--from sql one two", "--from flyway one", "--from sql one --step x", "--from sql one --on oracle", "one two", "--from sql none.sql",
	} {
		w.want(exitUsage, append([]string{"change", "new"}, strings.Fields(args)...)...)
	}
}

// A file that cannot run as it is stays so: its variant for a database runs instead.
func TestAVariantHelpsWhereAFileCannotRun(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.write("m/1_a.sql", "-- +goose NO TRANSACTION\n-- +goose Up\nCREATE INDEX CONCURRENTLY i ON a (b);\n-- +goose Down\nDROP INDEX i;\n")
	contains(t, w.ok("change", "new", "--from", "goose", "m").stderr, "not for postgres:", "m/1_a.sql:3:1: ", "1 step, valid for sqlite\n")
	if err := os.Remove(filepath.Join(w.dir, "m", "change.yaml")); err != nil {
		t.Fatal(err)
	}
	w.want(exitRefused, "change", "new", "--from", "goose", "m/1_a.sql", "--on", "postgres", "--id", "x") // before it is there
	w.write("m/1_a.postgres.sql", "-- +goose Up\nCREATE INDEX i ON a (b);\n-- +goose Down\nDROP INDEX i;\n")
	w.ok("change", "new", "--from", "goose", "m", "--on", "postgres")
	w.ok("change", "validate", "m", "--on", "postgres")
}

func TestANewChangeIsFilledInAndApplied(t *testing.T) {
	t.Parallel()
	w := fleet(t, "acme")
	r := w.ok("change", "new", "changes/0007-Notes", "--title", "Notes: for everyone", "--step", "table,fill", "--requires", "0001-customer")
	contains(t, r.stdout, "changes/0007-Notes/sql/table.up.sql", "changes/0007-Notes/change.yaml")
	contains(t, w.files("changes/0007-Notes")["change.yaml"], "id: 0007-notes", "requires: [0001-customer]")
	r = w.want(exitRefused, "change", "validate", "changes/0007-Notes")
	contains(t, r.stdout, "the up script of step table holds no statement", "the down script of step fill holds no statement")
	for name, text := range map[string]string{
		"table.up.sql": "CREATE TABLE note (t text);", "table.down.sql": "DROP TABLE note;",
		"fill.up.sql": "INSERT INTO note VALUES ('x');", "fill.down.sql": "DELETE FROM note;",
	} {
		w.write("changes/0007-Notes/sql/"+name, text)
	}
	w.ok("change", "validate", "changes/0007-Notes")
	w.customers("stop")
	contains(t, w.ok("apply", "changes", "--all", "-y").stdout, "1 applied")
	w.want(exitRefused, "change", "new", "changes/0007-Notes")
	for _, args := range [][]string{
		{"changes/x", "--step", "a,a"}, {"changes/x", "--step", "../../up"}, {"changes/x", "--id", "Not One"}, {"changes/x", "--requires", "x"},
	} {
		w.want(exitUsage, append([]string{"change", "new"}, args...)...)
	}
	if entries, err := os.ReadDir(filepath.Join(w.dir, "changes")); err != nil || len(entries) != 2 {
		t.Errorf("what was refused left something behind: %v, %v", entries, err)
	}
	report := decode[changeNewDocument](t, w.ok("change", "new", "changes/0008", "-o", "json").stdout)
	if report.Schema != render.Schema("change-new") || len(report.Files) != 3 {
		t.Errorf("%+v", report)
	}
}
