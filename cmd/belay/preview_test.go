package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/belayhq/belay/internal/render"
)

// onBoth runs a test over tenants of these names, on SQLite files and on schemas of a PostgreSQL.
func onBoth(t *testing.T, names []string, test func(t *testing.T, w *world)) {
	t.Helper()
	t.Run("sqlite", func(t *testing.T) { t.Parallel(); test(t, fleet(t, names...)) })
	t.Run("postgres", func(t *testing.T) { t.Parallel(); test(t, schemas(t, names...)) })
}

// orders writes a second change, which requires customers.
func (w *world) orders() string {
	w.t.Helper()
	return w.change("0002-orders", map[string]string{
		"change.yaml": "version: 1\nid: 0002-orders\nrequires: [0001-customer]\nsteps:\n  - id: orders\n    sql: { up: up.sql, down: down.sql }\n",
		"up.sql":      "CREATE TABLE orders (id integer);\n", "down.sql": "DROP TABLE orders;\n",
	})
}

// saved runs a dry run and writes what it printed to plan.json.
func (w *world) saved(code int, args ...string) render.Preview {
	w.t.Helper()
	r := w.want(code, append([]string{"apply", "--dry-run", "-o", "json"}, args...)...)
	w.write("plan.json", r.stdout)
	return decode[render.Preview](w.t, r.stdout)
}

// results says in words what a preview has for each tenant.
func results(p render.Preview) string {
	var words []string
	for _, t := range p.Tenants {
		word := t.Tenant + ":" + t.Result
		for _, c := range t.Changes {
			word += ":" + c.Change + "=" + strings.Join(c.Steps, "+")
		}
		words = append(words, word)
	}
	return strings.Join(words, " ")
}

func TestADryRunShowsWhatWouldRunAndWritesNothing(t *testing.T) {
	t.Parallel()
	onBoth(t, []string{"acme", "bolt"}, func(t *testing.T, w *world) {
		path := w.customers("stop")
		before := w.ok("history", "-o", "json").stdout + w.ok("lock", "list", "-v", "-o", "json").stdout
		p := w.saved(exitDone, path, "--all")
		if got, want := results(p), "acme:would_apply:0001-customer=table+fill bolt:would_apply:0001-customer=table+fill"; got != want {
			t.Errorf("preview\n got %s\nwant %s", got, want)
		}
		statements := p.Changes[0].Steps[1].Statements
		if len(statements) != 1 || statements[0].File != "fill.up.sql" || statements[0].Line != 1 || !strings.HasPrefix(statements[0].SQL, "INSERT INTO customer") {
			t.Errorf("statements of fill: %+v", statements)
		}
		r := w.ok("apply", path, "--all", "--dry-run")
		contains(t, r.stdout, "-- 0001-customer: table: table.up.sql:1, on ", "CREATE TABLE customer", "2 of 2: table, fill", "2 to apply; nothing was run")
		if after := w.ok("history", "-o", "json").stdout + w.ok("lock", "list", "-v", "-o", "json").stdout; after != before {
			t.Errorf("the dry run left something behind\nbefore: %s\nafter: %s", before, after)
		}
		w.want(exitRefused, "change", "show", "0001-customer") // not registered either

		w.want(exitPending, "apply", path, "--all", "--dry-run", "--detailed-exitcode")
		w.ok("apply", path, "--all", "-y")
		r = w.ok("apply", path, "--all", "--dry-run", "--detailed-exitcode")
		contains(t, r.stdout, "2 already applied; nothing was run")
		lacks(t, r.stdout, "CREATE TABLE")
	})
}

func TestADryRunOfADirectoryShowsWhatEachTenantLacks(t *testing.T) {
	t.Parallel()
	onBoth(t, []string{"acme", "bolt", "crate"}, func(t *testing.T, w *world) {
		first, second := w.customers("stop"), w.orders()
		w.ok("apply", "changes", "-t", "bolt", "-y")
		w.ok("apply", first, "-t", "acme", "-y")
		p := w.saved(exitDone, "changes", "--all")
		want := "acme:would_apply:0002-orders=orders bolt:already_applied crate:would_apply:0001-customer=table+fill:0002-orders=orders"
		if got := results(p); got != want {
			t.Errorf("preview\n got %s\nwant %s", got, want)
		}
		lines := w.ok("apply", "changes", "--all", "--dry-run", "-o", "jsonl").stdout
		if n := strings.Count(lines, "\n"); n != 4 || !strings.Contains(lines, `{"type":"summary","schema":"belay.apply-preview/v1"`) {
			t.Errorf("%d lines:\n%s", n, lines)
		}
		r := w.want(exitRefused, "apply", second, "--all", "--dry-run", "--detailed-exitcode")
		contains(t, r.stdout, "1 to apply, 1 already applied, 1 refused")
		contains(t, r.stderr, "requires 0001-customer", "belay apply 0001-customer -t crate")
	})
}

func TestADryRunTellsALockedTenantAndOneInNeedOfAPerson(t *testing.T) {
	t.Parallel()
	onBoth(t, []string{"acme", "bolt"}, func(t *testing.T, w *world) {
		w.want(exitPerson, "apply", w.broken("stop"), "-t", "acme", "-y")
		w.ok("lock", "hold", "bolt", "--reason", "by hand")
		r := w.want(exitPerson, "apply", w.orders(), "--all", "--dry-run")
		contains(t, r.stderr, "0001-customer is partial on this tenant")
		p := w.saved(exitDone, w.broken("stop"), "--all")
		if got, want := results(p), "acme:would_apply:0001-customer=fill bolt:would_apply:0001-customer=table+fill"; got != want {
			t.Errorf("preview\n got %s\nwant %s", got, want)
		}
		contains(t, w.ok("apply", w.broken("stop"), "--all", "--dry-run").stdout, "by hand")
	})
}

func TestAnApplyThatExpectsAPlanRefusesTenantsThatMoved(t *testing.T) {
	t.Parallel()
	onBoth(t, []string{"acme", "bolt", "crate"}, func(t *testing.T, w *world) {
		w.customers("stop")
		w.ok("apply", "changes", "--all", "-y")
		w.orders()
		w.saved(exitDone, "changes", "-t", "acme,bolt")
		w.ok("rollback", "0001-customer", "-t", "bolt", "-y") // it would need more now than the plan says
		r := w.want(exitRefused, "apply", "changes", "--all", "--expect-plan", "plan.json", "-y", "-o", "json")
		report := decode[render.Report](t, r.stdout)
		for _, one := range report.Tenants {
			if moved := one.Error != nil && one.Error.Refusal == "moved"; moved != (one.Tenant != "acme") {
				t.Errorf("%s: %s, %+v", one.Tenant, one.Result, one.Error)
			}
		}
		contains(t, r.stderr, "no longer those of the preview", "says nothing of this tenant", "belay apply changes -t bolt --dry-run")
		p := w.saved(exitDone, "changes", "--all")
		if got, want := results(p), "acme:already_applied bolt:would_apply:0001-customer=table+fill:0002-orders=orders crate:would_apply:0002-orders=orders"; got != want {
			t.Errorf("after it\n got %s\nwant %s", got, want)
		}
		w.ok("apply", "changes", "--all", "--expect-plan", "plan.json", "-y")

		// Where there is nothing to do, a plan that had something to do has moved.
		w.want(exitRefused, "apply", "changes", "--all", "--expect-plan", "plan.json", "-y")
	})
}

func TestAPlanAllowsNothingThatItDidNotShow(t *testing.T) {
	t.Parallel()
	onBoth(t, []string{"acme", "bolt"}, func(t *testing.T, w *world) {
		path := w.change("0009-purge", map[string]string{
			"change.yaml": "version: 1\nid: 0009-purge\nsteps:\n  - id: purge\n    sql: { up: up.sql }\n    undo: { irreversible: the rows are gone }\n",
			"up.sql":      "CREATE TABLE purged (id integer);",
		})
		apply := []string{"apply", path, "--all", "--allow-irreversible", "--expect-plan", "plan.json", "-y"}
		w.saved(exitRefused, path, "--all") // the flag was not there
		contains(t, w.want(exitRefused, apply...).stderr, "or that it is refused")
		w.saved(exitDone, path, "--all", "--allow-irreversible")
		w.ok("apply", path, "-t", "acme", "--allow-irreversible", "-y")
		r := w.want(exitRefused, apply...)
		contains(t, r.stdout, "1 applied, 1 refused")
		contains(t, r.stderr, "acme", "no longer those of the preview")
	})
}

func TestAPlanIsOfTheVeryChanges(t *testing.T) {
	t.Parallel()
	w := fleet(t, "acme")
	path := w.customers("stop")
	w.saved(exitDone, path, "--all")
	w.write(path+"/fill.up.sql", "INSERT INTO customer (id, name) VALUES (1, 'Ada'), (2, 'Barbara');\n")
	r := w.want(exitRefused, "apply", path, "--all", "--expect-plan", "plan.json", "-y")
	contains(t, r.stderr, "of other changes, or they have been edited")
	w.customers("stop")
	w.want(exitRefused, "apply", w.orders(), "--all", "--expect-plan", "plan.json", "-y")
	w.write("status.json", w.ok("status", "-o", "json").stdout)
	for _, args := range [][]string{
		{"--expect-plan", ""},
		{"--expect-plan", "missing.json"},
		{"--expect-plan", "belay.yaml"},
		{"--expect-plan", "status.json"},
		{"--dry-run", "--expect-plan", "plan.json"},
		{"--dry-run", "--repin"},
	} {
		w.want(exitUsage, append([]string{"apply", path, "--all", "-y"}, args...)...)
	}
	w.ok("apply", path, "--all", "--expect-plan", "plan.json", "-y")
}

func TestADryRunShowsScriptsWithoutWhatATerminalObeys(t *testing.T) {
	t.Parallel()
	w := fleet(t, "acme")
	path := w.customers("stop")
	w.write(path+"/fill.up.sql", "INSERT INTO customer (id, name)\n\tVALUES (1, 'Ada\x1b[2J'), (2, 'Grace');\n")
	r := w.ok("apply", path, "--all", "--dry-run")
	contains(t, r.stdout, "\n    VALUES (1, 'Ada\\x1b[2J')")
	lacks(t, r.stdout, "\x1b")
}

func TestADryRunWritesNoByteOfAFile(t *testing.T) {
	t.Parallel()
	w := fleet(t, "acme")
	file := filepath.Join(w.dir, "tenants", "acme.db")
	before, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	w.ok("apply", w.customers("stop"), "--all", "--dry-run")
	after, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if string(before) != string(after) {
		t.Error("the tenant's file was written")
	}
	if log, err := os.Stat(file + "-wal"); err == nil && log.Size() > 0 {
		t.Errorf("%d bytes were written to the log", log.Size())
	}
}

func TestTheDocumentOfADryRun(t *testing.T) {
	t.Parallel()
	w := fleet(t, "acme", "bolt")
	w.want(exitPerson, "apply", w.broken("stop"), "-t", "acme", "-y")
	r := w.ok("apply", w.broken("stop"), "--all", "--dry-run", "-o", "json")
	golden(t, "apply-preview.json", r.stdout)
}
