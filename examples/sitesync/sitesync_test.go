package sitesync_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
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
	"github.com/belayhq/belay/plan"
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
var hasty = sitesync.Config{Lease: time.Second, PublishTimeout: 2 * time.Second}

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

func TestASyncMakesTheSiteTheSourceAndTheNextHasNothingToDo(t *testing.T) {
	t.Parallel()
	w := newWorld(t).withSite(t)
	p := w.product(t, nil)
	d, err := p.Diff(t.Context(), acme)
	if err != nil || d.NoTables || len(d.Pages.Put) != 1202 || len(d.Pages.Delete) != 600 || len(d.Settings.Put) != 2 || len(d.Settings.Delete) != 1 {
		t.Fatalf("difference of %d and %d pages, %d and %d settings: %v",
			len(d.Pages.Put), len(d.Pages.Delete), len(d.Settings.Put), len(d.Settings.Delete), err)
	}
	must(t, p.Sync, engine.VerdictApplied)
	w.synced(t)
	must(t, p.Sync, engine.VerdictAlreadyApplied)
	if n := w.count(t, `SELECT count(*) FROM belay.plan`); n != 1 {
		t.Errorf("%d plans after a sync with nothing to do", n)
	}
	if d, err = p.Diff(t.Context(), acme); err != nil || !d.Empty() {
		t.Errorf("a difference is left: %v", err)
	}
}

func TestASiteWithoutTablesGetsThem(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	p := w.product(t, nil)
	must(t, p.Sync, engine.VerdictApplied)
	w.synced(t)
	must(t, p.Undo, engine.VerdictRolledBack)
	if got := w.snapshot(t); got != "pages:\n\nsettings:\n\npublished:\n" {
		t.Errorf("after the undo: %.200s", got)
	}
	must(t, p.Sync, engine.VerdictApplied)
	w.synced(t)
}

func TestUndoRestoresRowsAndManifestByteForByte(t *testing.T) {
	t.Parallel()
	w := newWorld(t).withSite(t)
	p := w.product(t, nil)
	first := w.snapshot(t)
	must(t, p.Sync, engine.VerdictApplied)
	second := w.snapshot(t)
	w.exec(t, "source", `UPDATE pages SET body = 'newest' WHERE slug = 'home'; DELETE FROM settings WHERE key = 'lang'`)
	must(t, p.Sync, engine.VerdictApplied)
	must(t, p.Undo, engine.VerdictRolledBack)
	w.unchanged(t, second)
	must(t, p.Undo, engine.VerdictRolledBack)
	w.unchanged(t, first)
	must(t, p.Undo, engine.VerdictAlreadyRolledBack)
	w.unchanged(t, first)
}

func TestUndoRefusesToOverwriteWhatWasEditedSince(t *testing.T) {
	t.Parallel()
	w := newWorld(t).withSite(t)
	p := w.product(t, nil)
	must(t, p.Sync, engine.VerdictApplied)
	w.exec(t, acme.Target.Scope, `UPDATE pages SET body = 'private' WHERE slug = 'home'; INSERT INTO pages VALUES ('old-7', 'again', 'private')`)
	edited := w.snapshot(t)
	_, err := p.Undo(t.Context(), acme)
	if err == nil || !strings.Contains(err.Error(), "home, old-7") || strings.Contains(err.Error(), "private") {
		t.Errorf("got %v, want an error that names the two pages and no content", err)
	}
	w.unchanged(t, edited)
	w.exec(t, acme.Target.Scope, `DELETE FROM pages WHERE slug = 'old-7'; UPDATE pages SET body = (SELECT body FROM source.pages WHERE slug = 'home') WHERE slug = 'home'`)
	must(t, p.Undo, engine.VerdictRolledBack)
}

// cdn stands before the real one and can be told what Publish does.
type cdn struct {
	sitesync.CDN
	publish func(ctx context.Context, publish func() error) error
}

func (c cdn) Publish(ctx context.Context, site string, manifest []byte) error {
	return c.publish(ctx, func() error { return c.CDN.Publish(ctx, site, manifest) })
}

func TestASyncThatCannotPublishTakesItsRowsBack(t *testing.T) {
	t.Parallel()
	errDown := errors.New("cdn is down")
	for name, publish := range map[string]func(context.Context, func() error) error{
		"error":       func(context.Context, func() error) error { return errDown },
		"late error":  func(_ context.Context, publish func() error) error { return errors.Join(publish(), errDown) },
		"panic":       func(context.Context, func() error) error { panic("cdn is down") },
		"out of time": func(ctx context.Context, _ func() error) error { <-ctx.Done(); return context.Cause(ctx) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t).withSite(t)
			before := w.snapshot(t)
			calls := 0
			p := w.product(t, cdn{w.cdn, func(ctx context.Context, real func() error) error {
				if calls++; calls > 1 { // the undo of an effect in doubt
					return real()
				}
				return publish(ctx, real)
			}})
			result, err := p.Sync(t.Context(), acme)
			step, isStep := errors.AsType[*engine.StepError](err)
			if result.Verdict != engine.VerdictFailed || !isStep || step.Step != "publish" {
				t.Fatalf("verdict %s, error %v", result.Verdict, err)
			}
			w.unchanged(t, before)
			must(t, w.product(t, nil).Sync, engine.VerdictApplied)
			w.synced(t)
		})
	}
}

func TestACancelledSyncLeavesTheSiteAsItWas(t *testing.T) {
	t.Parallel()
	w := newWorld(t).withSite(t)
	before := w.snapshot(t)
	ctx, cancel := context.WithCancel(t.Context())
	calls := 0
	p := w.product(t, cdn{w.cdn, func(ctx context.Context, publish func() error) error {
		if calls++; calls == 1 {
			cancel()
			<-ctx.Done()
			return context.Cause(ctx)
		}
		return publish()
	}})
	result, err := p.Sync(ctx, acme)
	if result.Verdict != engine.VerdictCancelled || !errors.Is(err, context.Canceled) {
		t.Fatalf("verdict %s, error %v", result.Verdict, err)
	}
	w.unchanged(t, before)
	must(t, p.Sync, engine.VerdictApplied)
}

func TestTwoSyncsOfOneSiteDoTheWorkOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t).withSite(t)
	publishing, published := make(chan struct{}, 2), 0
	first := w.product(t, cdn{w.cdn, func(_ context.Context, publish func() error) error {
		publishing <- struct{}{}
		published++
		return publish()
	}})
	second := w.product(t, nil)
	var firstResult engine.Result
	var firstErr error
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		firstResult, firstErr = first.Sync(t.Context(), acme)
	}()
	select {
	case <-publishing: // the second finds the site locked, waits, and finds its work done
	case <-ended:
	}
	must(t, second.Sync, engine.VerdictAlreadyApplied)
	<-ended
	if firstErr != nil || firstResult.Verdict != engine.VerdictApplied || published != 1 {
		t.Errorf("the first came to %s after %d publications: %v", firstResult.Verdict, published, firstErr)
	}
	w.synced(t)
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

func TestAKilledProcessIsHealedByTheNext(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		what, when string
		// heal runs after the kill; again counts how often it has to publish.
		heal  func(*sitesync.Product) operation
		want  engine.Verdict
		again int
		sync  bool // whether the site is then the source, or as it was before
	}{
		{"sync", "before", sync, engine.VerdictApplied, 1, true},
		{"sync", "after", sync, engine.VerdictApplied, 0, true},
		{"sync", "before", undo, engine.VerdictRolledBack, 0, false},
		{"sync", "after", undo, engine.VerdictRolledBack, 1, false},
		{"undo", "before", undo, engine.VerdictRolledBack, 1, false},
		{"undo", "after", undo, engine.VerdictRolledBack, 0, false},
		{"undo", "after", sync, engine.VerdictApplied, 1, true}, // the undo is finished first, then synced again
	} {
		t.Run(fmt.Sprintf("%s killed %s publishing", c.what, c.when), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t).withSite(t)
			before := w.snapshot(t)
			if c.what == "undo" {
				must(t, w.product(t, nil).Sync, engine.VerdictApplied)
			}
			w.kill(t, c.what, c.when)
			published := 0
			p := w.product(t, cdn{w.cdn, func(_ context.Context, publish func() error) error {
				published++
				return publish()
			}})
			result := must(t, c.heal(p), c.want)
			if published != c.again {
				t.Errorf("published %d times, want %d", published, c.again)
			}
			if c.sync {
				w.synced(t)
			} else {
				w.unchanged(t, before)
			}
			if c.what == "sync" && (len(result.Recovered) != 1 || result.Recovered[0].Was != plan.Applying) {
				t.Errorf("recovered %+v", result.Recovered)
			}
		})
	}
}

func sync(p *sitesync.Product) operation { return p.Sync }
func undo(p *sitesync.Product) operation { return p.Undo }

func TestADirCDNKeepsEveryNameInItsDirectory(t *testing.T) {
	t.Parallel()
	parent := t.TempDir()
	dir := filepath.Join(parent, "cdn")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, site := range []string{"..", "../acme", "a/b", ""} {
		if err := sitesync.Dir(dir).Publish(t.Context(), site, []byte(site)); err != nil {
			t.Errorf("publish %q: %v", site, err)
		}
		if got, err := sitesync.Dir(dir).Manifest(t.Context(), site); err != nil || string(got) != site {
			t.Errorf("manifest of %q: %q, %v", site, got, err)
		}
	}
	entries, err := os.ReadDir(parent)
	if err != nil || len(entries) != 1 {
		t.Errorf("%d entries beside the directory: %v", len(entries), err)
	}
}
