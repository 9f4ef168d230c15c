package main

import (
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/belayhq/belay/internal/postgrestest"
	"github.com/belayhq/belay/internal/render"
)

// schemas is a world whose control database is a PostgreSQL that holds the tenants as schemas too.
func schemas(t *testing.T, names ...string) *world {
	t.Helper()
	url := postgrestest.URL(t)
	w := newWorld(t)
	w.url = url
	w.ok("init", "--database-url", url)
	for _, name := range names {
		w.ok("tenant", "add", name, withSchema(url, name), "--create")
	}
	return w
}

func withSchema(url, schema string) string {
	if strings.Contains(url, "?") {
		return url + "&schema=" + schema
	}
	return url + "?schema=" + schema
}

func TestTenantsAsSchemasOfOnePostgreSQL(t *testing.T) {
	t.Parallel()
	w := schemas(t, "acme", "bolt", "crate")
	path := w.customers("stop")
	contains(t, w.ok("apply", path, "--all", "-y").stdout, "3 applied")
	contains(t, w.ok("apply", path, "--all", "-y").stdout, "nothing to do, 3 already applied")
	w.ok("verify", "0001-customer", "--all")
	w.ok("rollback", "0001-customer", "-t", "bolt", "-y")
	status := decode[render.Status](t, w.ok("status", "--change", "0001-customer", "-o", "json").stdout)
	if status.Summary.Applied != 2 || status.Summary.Pending != 1 || status.Summary.Attention != 0 {
		t.Errorf("status: %+v", status.Summary)
	}
	contains(t, w.ok("history", "bolt").stdout, "claim_rollback")
	w.ok("lock", "hold", "crate", "--reason", "by hand")
	w.want(exitLocked, "rollback", "0001-customer", "--all", "-y", "--lock-timeout", "0")
	w.ok("lock", "release", "crate")
	w.ok("tenant", "remove", "bolt", "-y")
	contains(t, w.ok("db", "status", "--all").stdout, "(control)")
}

func TestAFailedStepOnPostgreSQLShowsNoValue(t *testing.T) {
	t.Parallel()
	w := schemas(t, "acme")
	r := w.want(exitPerson, "apply", w.broken("stop"), "--all", "-y")
	contains(t, r.stderr, "step fill (fill.up.sql:2)", "in place now: table", "belay rollback 0001-customer -t acme")
	lacks(t, r.stdout+r.stderr+w.ok("status").stdout+w.ok("history").stdout, "s3cret")
	contains(t, w.ok("rollback", "0001-customer", "--all", "-y").stdout, "1 rolled back")
}

func TestASchemaThatIsMissingIsNamed(t *testing.T) {
	t.Parallel()
	w := schemas(t)
	r := w.want(exitRefused, "tenant", "add", "acme", withSchema(w.url, "acme"))
	contains(t, r.stderr, "no such schema", "--create")
}

func TestATenantsFileBesideAPostgreSQLControlDatabase(t *testing.T) {
	t.Parallel()
	w := schemas(t, "acme")
	w.ok("tenant", "add", "file", "sqlite://tenants/file.db", "--create")
	contains(t, w.ok("apply", w.customers("stop"), "--all", "-y").stdout, "2 applied")
}

// onSchema runs statements in a tenant's schema, outside belay.
func (w *world) onSchema(schema string, statements ...string) {
	w.t.Helper()
	ctx := w.t.Context()
	conn, err := pgx.Connect(ctx, w.url)
	if err != nil {
		w.t.Fatal(err)
	}
	for _, s := range append([]string{"SET search_path = " + pgx.Identifier{schema}.Sanitize()}, statements...) {
		if _, err := conn.Exec(ctx, s); err != nil {
			w.t.Errorf("%s: %v", s, err)
		}
	}
	if err := conn.Close(ctx); err != nil {
		w.t.Error(err)
	}
}
