package main

import (
	"strings"
	"testing"

	"github.com/belayhq/belay/engine"
	"github.com/belayhq/belay/internal/render"
)

func TestAChangeIsAppliedAndRolledBackEverywhere(t *testing.T) {
	t.Parallel()
	w := fleet(t, "acme", "bolt", "crate")
	path := w.customers("stop")

	r := w.ok("apply", path, "--all", "-y")
	contains(t, r.stdout, "0001-customer: 3 applied")
	contains(t, r.stderr, "3 of 3 tenants selected", "acme: table done (1/2)", "acme: fill done (2/2)")
	if n := w.scalar("bolt", "SELECT count(*) FROM customer"); n != "2" {
		t.Errorf("bolt has %s customers", n)
	}

	r = w.ok("apply", path, "--all", "-y")
	contains(t, r.stdout, "nothing to do, 3 already applied")

	w.ok("verify", "0001-customer", "--all")
	w.exec("bolt", "DELETE FROM customer WHERE id = 1")
	r = w.want(exitFailed, "verify", "0001-customer", "--all")
	contains(t, r.stderr, "bolt", "verify says no")
	w.exec("bolt", "INSERT INTO customer VALUES (1, 'Ada')")

	r = w.ok("rollback", "0001-customer", "--all", "-y")
	contains(t, r.stdout, "0001-customer: 3 rolled back")
	r = w.ok("rollback", "0001-customer", "--all", "-y")
	contains(t, r.stdout, "nothing to do, 3 already rolled back")
	if n := w.scalar("bolt", "SELECT count(*) FROM sqlite_schema WHERE name = 'customer'"); n != "0" {
		t.Error("the table is still there")
	}
}

func TestARegisteredChangeIsAppliedByItsID(t *testing.T) {
	t.Parallel()
	w := fleet(t, "acme", "bolt")
	r := w.want(exitRefused, "apply", "0001-customer", "--all", "-y")
	contains(t, r.stderr, "no change is registered as 0001-customer")
	w.ok("apply", w.customers("stop"), "-t", "acme", "-y")
	r = w.ok("apply", "0001-customer", "-t", "bolt", "-y")
	contains(t, r.stdout, "1 applied")
	contains(t, w.ok("change", "show", "0001-customer").stdout, "Customers", "down script")
}

func TestAFailedStepLeavesAPartialPlanAndSaysWhatIsSafeNext(t *testing.T) {
	t.Parallel()
	w := fleet(t, "acme")
	path := w.broken("stop")
	r := w.want(exitPerson, "apply", path, "-t", "acme", "-y")
	contains(t, r.stderr, "error: acme: 0001-customer: step fill (fill.up.sql:2)", "in place now: table",
		"belay apply changes/0001-customer -t acme", "belay rollback 0001-customer -t acme",
		"belay resolve acme 0001-customer --as applied|rolled-back")
	lacks(t, r.stdout+r.stderr, "s3cret")

	r = w.ok("status")
	contains(t, r.stdout, "1 of them partial", "pending (partial)", "1/2", "step fill")
	lacks(t, r.stdout, "s3cret")
	r = w.ok("history", "acme")
	contains(t, r.stdout, "claim_apply", "fail", "step fill")

	// The repaired files are the same change to a plan that has only the first step in place, if a person says so.
	w.customers("stop")
	r = w.want(exitRefused, "apply", path, "-t", "acme", "-y")
	contains(t, r.stderr, "in place: sha256:", "given:    sha256:", "--repin")
	w.ok("apply", path, "-t", "acme", "-y", "--repin")
	w.ok("rollback", "0001-customer", "-t", "acme", "-y")
}

func TestAFailedStepThatTurnsBackLeavesACleanTenant(t *testing.T) {
	t.Parallel()
	w := fleet(t, "acme", "bolt")
	w.exec("acme", "CREATE TABLE customer (id integer)")
	path := w.customers("rollback")
	r := w.want(exitFailed, "apply", path, "--all", "-y")
	contains(t, r.stderr, "error: acme: ", "step table (table.up.sql:1)", "in place now: nothing of this change")
	contains(t, r.stdout, "1 applied, 1 failed")
}

func TestOneBadTenantDoesNotStopTheOthersUnlessAsked(t *testing.T) {
	t.Parallel()
	w := fleet(t, "a", "b", "c", "d")
	w.exec("a", "CREATE TABLE customer (id integer)")
	path := w.customers("rollback")
	r := w.want(exitFailed, "apply", path, "--all", "-y", "-p", "1", "--max-failures", "0", "-o", "json")
	report := decode[render.Report](t, r.stdout)
	if report.Summary.Failed != 1 || report.Summary.Skipped != 3 {
		t.Errorf("with --max-failures 0, one at a time: %+v", report.Summary)
	}
	r = w.want(exitFailed, "apply", path, "--all", "-y", "-o", "json")
	report = decode[render.Report](t, r.stdout)
	if report.Summary.Failed != 1 || report.Summary.Applied+report.Summary.AlreadyApplied != 3 {
		t.Errorf("without: %+v", report.Summary)
	}
	for _, one := range report.Tenants {
		if one.Tenant == "a" && (one.Result != engine.VerdictFailed || one.Error == nil || one.Error.Step != "table" || one.Error.Line != 1) {
			t.Errorf("a: %+v", one)
		}
	}
}

func TestAnEditedChangeIsRefusedWithBothDigests(t *testing.T) {
	t.Parallel()
	w := fleet(t, "acme")
	path := w.customers("stop")
	w.ok("apply", path, "--all", "-y")
	w.write(path+"/fill.up.sql", "INSERT INTO customer (id, name) VALUES (1, 'Ada'), (2, 'Barbara');\r\n")
	r := w.want(exitRefused, "apply", path, "--all", "-y")
	contains(t, r.stderr, "in place: sha256:", "given:    sha256:")

	w.customers("stop")
	w.write(path+"/fill.up.sql", "\ufeffINSERT INTO customer (id, name) VALUES (1, 'Ada'), (2, 'Grace');\r\n")
	w.ok("apply", path, "--all", "-y")
}

func TestAnEditThatEveryTenantRefusesDoesNotTakeTheID(t *testing.T) {
	t.Parallel()
	w := fleet(t, "acme", "bolt")
	path := w.customers("stop")
	edit := func() {
		w.write(path+"/fill.up.sql", "INSERT INTO customer (id, name) VALUES (1, 'Ada'), (2, 'Barbara');\n")
	}
	w.ok("apply", path, "-t", "acme", "-y")
	edit()
	w.want(exitRefused, "apply", path, "-t", "acme", "-y")
	w.ok("apply", "0001-customer", "--all", "-y")
	if name := w.scalar("bolt", "SELECT name FROM customer WHERE id = 2"); name != "Grace" {
		t.Errorf("the id means the edit that was refused: bolt has %s", name)
	}

	w.ok("rollback", "0001-customer", "-t", "bolt", "-y")
	w.want(exitRefused, "apply", path, "--all", "-y") // bolt takes the edit, acme does not
	w.ok("rollback", "0001-customer", "-t", "bolt", "-y")
	w.ok("apply", "0001-customer", "-t", "bolt", "-y")
	if name := w.scalar("bolt", "SELECT name FROM customer WHERE id = 2"); name != "Barbara" {
		t.Errorf("the id does not mean the edit that was taken: bolt has %s", name)
	}
}

func TestAResolveTakesTheIDLikeAnApply(t *testing.T) {
	t.Parallel()
	w := fleet(t, "acme", "bolt")
	path := w.customers("stop")
	w.ok("apply", path, "-t", "acme", "-y")
	w.write(path+"/fill.up.sql", "INSERT INTO customer (id, name) VALUES (1, 'Ada'), (2, 'Barbara');\n")
	w.ok("lock", "hold", "bolt", "--reason", "by hand")
	w.want(exitLocked, "resolve", "bolt", path, "--as", "applied", "--reason", "by hand", "--lock-timeout", "0")
	contains(t, w.ok("apply", "0001-customer", "-t", "acme", "-y").stdout, "1 already applied")
	w.ok("lock", "release", "bolt")
	w.ok("resolve", "bolt", path, "--as", "applied", "--reason", "by hand")
	contains(t, w.ok("apply", "0001-customer", "-t", "bolt", "-y").stdout, "1 already applied")
	w.want(exitRefused, "apply", "0001-customer", "-t", "acme", "-y")
}

func TestNewerChangesAreInTheWayOfARollback(t *testing.T) {
	t.Parallel()
	w := fleet(t, "acme")
	first := w.customers("stop")
	second := w.change("0002-note", map[string]string{
		"change.yaml": "version: 1\nid: 0002-note\nrequires: [0001-customer]\nsteps:\n  - id: note\n    sql: { up: up.sql, down: down.sql }\n",
		"up.sql":      "CREATE TABLE note (id integer);", "down.sql": "DROP TABLE note;",
	})
	r := w.want(exitRefused, "apply", second, "--all", "-y")
	contains(t, r.stderr, "requires 0001-customer", "belay apply changes/0001-customer -t acme")
	w.ok("apply", first, "--all", "-y")
	w.ok("apply", second, "--all", "-y")

	r = w.want(exitRefused, "rollback", "0001-customer", "--all", "-y")
	contains(t, r.stderr, "0002-note", "belay rollback 0001-customer -t acme --cascade")
	r = w.ok("rollback", "--to", "0001-customer", "--all", "-y", "-o", "json")
	if report := decode[render.Report](t, r.stdout); report.Summary.RolledBack != 1 {
		t.Errorf("rollback --to: %+v", report.Summary)
	}
	w.ok("apply", second, "--all", "-y")
	r = w.ok("rollback", "0001-customer", "--all", "-y", "--cascade", "-o", "json")
	report := decode[render.Report](t, r.stdout)
	if also := strings.Join(report.Tenants[0].Also, ","); also != "0002-note" {
		t.Errorf("the cascade says it also rolled back %q", also)
	}
}

func TestAnIrreversibleStepNeedsAWord(t *testing.T) {
	t.Parallel()
	w := fleet(t, "acme")
	path := w.change("0009-purge", map[string]string{
		"change.yaml": "version: 1\nid: 0009-purge\nsteps:\n  - id: purge\n    sql: { up: up.sql }\n    undo: { irreversible: the rows are gone }\n",
		"up.sql":      "CREATE TABLE purged (id integer);",
	})
	contains(t, w.ok("change", "show", path).stdout, "irreversible: the rows are gone")
	r := w.want(exitRefused, "apply", path, "--all", "-y")
	contains(t, r.stderr, "the rows are gone", "--allow-irreversible")
	w.ok("apply", path, "--all", "-y", "--allow-irreversible")
	r = w.want(exitRefused, "rollback", "0009-purge", "--all", "-y")
	contains(t, r.stderr, "cannot be undone")
}

func TestApplyAsksOnATerminalAndOnlyThere(t *testing.T) {
	t.Parallel()
	w := fleet(t, "acme", "bolt")
	path := w.customers("stop")
	r := w.want(exitUsage, "apply", path, "--all")
	contains(t, r.stderr, "no terminal to ask on", "-y")

	w.terminal, w.stdin = true, "n\n"
	r = w.want(exitCancelled, "apply", path, "--all")
	contains(t, r.stderr, "2 to apply", "Apply 0001-customer to 2 tenants?", "nothing was touched")
	w.stdin = "yes\n"
	r = w.ok("apply", path, "--all")
	contains(t, r.stdout, "2 applied")
	w.stdin = ""
	r = w.ok("apply", path, "--all")
	contains(t, r.stderr, "2 already applied")
	lacks(t, r.stderr, "[y/N]")
}

func TestAChangeThatNoTenantCanTakeIsRefusedAtOnce(t *testing.T) {
	t.Parallel()
	w := fleet(t, "acme")
	for name, c := range map[string]struct{ yaml, says string }{
		"an action":   {"version: 1\nid: x\nsteps:\n  - id: warm\n    action: { name: cache.warm }\n    undo: { none: it expires }\n", "cache.warm"},
		"a wrong key": {"version: 1\nid: x\nstepz: []\n", "change.yaml:3:"},
		"a guard":     {"version: 1\nid: x\nsteps:\n  - id: s\n    sql: { up: up.sql }\n    undo: { none: nothing }\n", "up.sql:1:"},
	} {
		t.Run(name, func(t *testing.T) {
			path := w.change("x", map[string]string{"change.yaml": c.yaml, "up.sql": "COMMIT;"})
			r := w.want(exitRefused, "apply", path, "--all", "-y")
			contains(t, r.stderr, c.says)
			lacks(t, r.stdout, "acme")
		})
	}
}

func TestADirectoryOfChangesBringsTenantsUpToDate(t *testing.T) {
	t.Parallel()
	w := fleet(t, "acme", "bolt")
	w.ok("apply", w.customers("stop"), "-t", "acme", "-y")
	w.change("0002-note", map[string]string{
		"change.yaml": "version: 1\nid: 0002-note\nrequires: [0001-customer]\nsteps:\n  - id: note\n    sql: { up: up.sql, down: down.sql }\n",
		"up.sql":      "CREATE TABLE note (id integer);", "down.sql": "DROP TABLE note;",
	})
	w.want(exitUsage, "apply", "changes", "--all", "--repin", "-y")
	w.want(exitUsage, "apply", "changes/0002-note", "--all", "--out-of-order", "-y")

	r := w.ok("apply", "changes", "--all", "-y", "-o", "json")
	report := decode[render.Report](t, r.stdout)
	if len(report.Changes) != 2 || report.Changes[1].Change != "0002-note" || report.Change != "" {
		t.Errorf("the document says it is about %q and %v", report.Change, report.Changes)
	}
	for name, also := range map[string]string{"acme": "", "bolt": "0001-customer"} {
		for _, one := range report.Tenants {
			if one.Tenant == name && (one.Change != "0002-note" || strings.Join(one.Also, ",") != also) {
				t.Errorf("%s came to %s, after %v", name, one.Change, one.Also)
			}
		}
	}
	contains(t, w.ok("apply", "changes", "--all", "-y").stdout, "changes: nothing to do, 2 already applied")

	// What comes late is not slipped in.
	w.change("0000-earlier", map[string]string{
		"change.yaml": "version: 1\nid: 0000-earlier\nsteps:\n  - id: s\n    sql: { up: up.sql }\n    undo: { none: it reads }\n",
		"up.sql":      "SELECT 1;",
	})
	r = w.want(exitRefused, "apply", "changes", "-t", "acme", "-t", "bolt", "-y")
	contains(t, r.stderr, "older than 0001-customer, which is in place, and not applied: 0000-earlier",
		"belay apply changes -t acme --out-of-order")
	w.ok("apply", "changes", "--all", "--out-of-order", "-y")
	w.ok("rollback", "--to", "0001-customer", "-t", "acme", "-y")
	if n := w.scalar("acme", "SELECT count(*) FROM sqlite_schema WHERE name = 'note'"); n != "0" {
		t.Error("the table is still there")
	}
}

func TestWhatIsWrongWithADirectoryOfChangesIsSaidWhereItStands(t *testing.T) {
	t.Parallel()
	w := fleet(t, "acme")
	step := "steps:\n  - id: s\n    sql: { up: up.sql }\n    undo: { none: it reads }\n"
	for id, requires := range map[string]string{"a": "c", "b": "a", "c": "b", "d": "nowhere"} {
		w.change(id, map[string]string{
			"change.yaml": "version: 1\nid: " + id + "\nrequires: [" + requires + "]\n" + step, "up.sql": "SELECT 1;",
		})
	}
	r := w.want(exitRefused, "apply", "changes", "--all", "-y")
	contains(t, r.stderr, "changes in changes are not valid", "circle", "d/change.yaml:3:", "nowhere")
}

func TestLinesOfJSONTellEventsTenantsAndTheSummary(t *testing.T) {
	t.Parallel()
	w := fleet(t, "acme")
	r := w.ok("apply", w.customers("stop"), "--all", "-y", "-o", "jsonl")
	golden(t, "apply.jsonl", r.stdout)
	lacks(t, r.stderr, "acme: table done")
	golden(t, "rollback.json", w.ok("rollback", "0001-customer", "--all", "-y", "-o", "json").stdout)
}

func TestDocumentsKeepTheirForm(t *testing.T) {
	t.Parallel()
	w := fleet(t, "acme")
	golden(t, "apply.json", w.want(exitPerson, "apply", w.broken("stop"), "--all", "-y", "-o", "json").stdout)
	golden(t, "status.json", w.ok("status", "-o", "json").stdout)
	golden(t, "history.json", w.ok("history", "-n", "1", "-o", "json").stdout)
	golden(t, "resolve.json", w.ok("resolve", "acme", "0001-customer", "--as", "applied", "--reason", "by hand", "-o", "json").stdout)
	golden(t, "locks.json", w.ok("lock", "show", "acme", "-o", "json").stdout)
}
