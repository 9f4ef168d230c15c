package sitesync_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"go.uber.org/goleak"

	"github.com/belayhq/belay/engine"
	"github.com/belayhq/belay/examples/sitesync"
	"github.com/belayhq/belay/internal/postgrestest"
	"github.com/belayhq/belay/tenant"
)

// A test binary that finds childEnv set is a process that dies while it publishes: see child.
const childEnv = "SITESYNC_CHILD"

func TestMain(m *testing.M) {
	if orders := os.Getenv(childEnv); orders != "" {
		child(orders)
	}
	goleak.VerifyTestMain(m)
}

// acme is the tenant of these tests. Its schema has a name that needs quoting.
var acme = sitesync.Site(`Acme "& Söhne"`)

// world is a source site, the site of a tenant that differs in every way, and what is published of it.
type world struct {
	url  string
	pool *pgxpool.Pool
	cdn  sitesync.Dir
}

const (
	tables = `CREATE TABLE pages (slug text PRIMARY KEY, title text NOT NULL, body text NOT NULL);
		CREATE TABLE settings (key text PRIMARY KEY, value text NOT NULL);`
	sourceRows = `INSERT INTO pages SELECT 'page-' || n, 'Page ' || n, repeat('text ', n % 50) FROM generate_series(1, 1200) n;
		INSERT INTO pages VALUES ('home', 'Welcome', E'a "quoted"\r\n\\ body <b>ü</b> \u2028'), ('new', '', '');
		INSERT INTO settings VALUES ('theme', 'dark'), ('lang', 'de');`
	siteRows = `INSERT INTO pages SELECT 'page-' || n, 'Page ' || n, 'older' FROM generate_series(1, 1100) n;
		INSERT INTO pages SELECT 'old-' || n, E'\tOld', E'tab\there, back\\slash, \U0001F600' FROM generate_series(1, 600) n;
		INSERT INTO settings VALUES ('theme', ''), ('gone', E'line\nbreak');`
	published = `{"pages":   {"written": "by hand"}}` + "\r\n"
)

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{url: postgrestest.URL(t), cdn: sitesync.Dir(t.TempDir())}
	pool, err := pgxpool.New(t.Context(), w.url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	w.pool = pool
	w.exec(t, "", "CREATE SCHEMA source; CREATE SCHEMA "+pgx.Identifier{acme.Target.Scope}.Sanitize())
	w.exec(t, "source", tables+sourceRows)
	return w
}

// withSite gives the tenant a site of its own.
func (w *world) withSite(t *testing.T) *world {
	t.Helper()
	w.exec(t, acme.Target.Scope, tables+siteRows)
	if err := w.cdn.Publish(t.Context(), acme.Name, []byte(published)); err != nil {
		t.Fatal(err)
	}
	return w
}

// product is one process's product; cdn is the world's unless one is given.
func (w *world) product(t *testing.T, cdn sitesync.CDN) *sitesync.Product {
	t.Helper()
	if cdn == nil {
		cdn = w.cdn
	}
	p, err := sitesync.New(t.Context(), w.pool, cdn, "source", hasty)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return p
}

// hasty makes a crash heal within seconds.
var hasty = sitesync.Config{Lease: 4 * time.Second, PublishTimeout: 2 * time.Second}

// exec runs statements in a schema.
func (w *world) exec(t *testing.T, schema, sql string) {
	t.Helper()
	err := pgx.BeginFunc(t.Context(), w.pool, func(tx pgx.Tx) error {
		if schema != "" {
			sql = "SET LOCAL search_path = " + pgx.Identifier{schema}.Sanitize() + ";" + sql
		}
		_, err := tx.Exec(t.Context(), sql, pgx.QueryExecModeSimpleProtocol)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// dump renders every row of a site.
func (w *world) dump(t *testing.T, schema string) string {
	t.Helper()
	var all strings.Builder
	for _, table := range []string{"pages", "settings"} {
		name := pgx.Identifier{schema, table}.Sanitize()
		rows, err := w.pool.Query(t.Context(), "SELECT r::text FROM "+name+" r ORDER BY 1")
		if err != nil {
			t.Fatal(err)
		}
		lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&all, "%s:\n%s\n", table, strings.Join(lines, "\n"))
	}
	return all.String()
}

// count asks for one number.
func (w *world) count(t *testing.T, sql string) (n int) {
	t.Helper()
	if err := w.pool.QueryRow(t.Context(), sql).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

// snapshot is everything that a sync may change.
func (w *world) snapshot(t *testing.T) string {
	t.Helper()
	manifest, err := w.cdn.Manifest(t.Context(), acme.Name)
	if err != nil {
		t.Fatal(err)
	}
	return w.dump(t, acme.Target.Scope) + "published:\n" + string(manifest)
}

// unchanged fails if the site or what is published differ from a snapshot.
func (w *world) unchanged(t *testing.T, before string) {
	t.Helper()
	if after := w.snapshot(t); after != before {
		t.Errorf("the site is not as before: %s", firstDifference(before, after))
	}
}

// synced fails unless the site is the source, and published.
func (w *world) synced(t *testing.T) {
	t.Helper()
	if want, got := w.dump(t, "source"), w.dump(t, acme.Target.Scope); got != want {
		t.Errorf("the site is not the source: %s", firstDifference(want, got))
	}
	manifest, err := w.cdn.Manifest(t.Context(), acme.Name)
	if err != nil || strings.Count(string(manifest), `"page-`) != 1200 || !strings.Contains(string(manifest), `"home"`) {
		t.Errorf("published: %v, %.200s", err, manifest)
	}
}

func firstDifference(want, got string) string {
	a, b := strings.Split(want, "\n"), strings.Split(got, "\n")
	for i := range min(len(a), len(b)) {
		if a[i] != b[i] {
			return fmt.Sprintf("line %d is %.200q, want %.200q", i, b[i], a[i])
		}
	}
	return fmt.Sprintf("%d lines, want %d", len(b), len(a))
}

type operation func(context.Context, tenant.Tenant) (engine.Result, error)

// must runs an operation and demands its verdict.
func must(t *testing.T, run operation, want engine.Verdict) engine.Result {
	t.Helper()
	result, err := run(t.Context(), acme)
	if err != nil || result.Verdict != want {
		t.Fatalf("verdict %s, want %s; error: %v", result.Verdict, want, err)
	}
	return result
}

// cdn stands before the real one and can be told what Publish does.
type cdn struct {
	sitesync.CDN
	publish func(ctx context.Context, publish func() error) error
}

func (c cdn) Publish(ctx context.Context, site string, manifest []byte) error {
	return c.publish(ctx, func() error { return c.CDN.Publish(ctx, site, manifest) })
}

// child is another process: it publishes "before" or "after" it is killed, in a sync or in an undo.
func child(orders string) {
	what, when, _ := strings.Cut(orders, " ")
	ctx := context.Background()
	pool, err := pgxpool.New(ctx, os.Getenv("DATABASE_URL"))
	if err != nil {
		panic(err)
	}
	deadly := cdn{sitesync.Dir(os.Getenv("CDN")), func(_ context.Context, publish func() error) error {
		if when == "after" {
			if err := publish(); err != nil {
				panic(err)
			}
		}
		return syscall.Kill(os.Getpid(), syscall.SIGKILL)
	}}
	p, err := sitesync.New(ctx, pool, deadly, "source", hasty)
	if err != nil {
		panic(err)
	}
	run := p.Sync
	if what == "undo" {
		run = p.Undo
	}
	result, err := run(ctx, acme)
	fmt.Fprintln(os.Stderr, "survived:", result.Verdict, err)
	os.Exit(1)
}

// kill starts a process that is killed while it publishes.
func (w *world) kill(t *testing.T, what, when string) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), self)
	cmd.Env = append(os.Environ(), childEnv+"="+what+" "+when, "DATABASE_URL="+w.url, "CDN="+string(w.cdn))
	out, err := cmd.CombinedOutput()
	exit, ok := errors.AsType[*exec.ExitError](err)
	if !ok || !exit.Sys().(syscall.WaitStatus).Signaled() {
		t.Fatalf("the child was not killed: %v\n%s", err, out)
	}
}
