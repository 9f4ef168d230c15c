package sitesync_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/belayhq/belay/engine"
	"github.com/belayhq/belay/examples/sitesync"
	"github.com/belayhq/belay/plan"
)

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

func TestASiteThatDoesNotExistIsAnErrorAndNothingIsPublished(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	nowhere := sitesync.Site("nowhere")
	if result, err := w.product(t, nil).Sync(t.Context(), nowhere); err == nil || !strings.Contains(err.Error(), "no schema nowhere") {
		t.Errorf("verdict %s, error %v", result.Verdict, err)
	}
	if manifest, err := w.cdn.Manifest(t.Context(), nowhere.Name); manifest != nil || err != nil {
		t.Errorf("published %q, %v", manifest, err)
	}
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

// G6
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

func TestAnEditDuringAnUndoIsNotOverwrittenAndTheNextUndoGoesOn(t *testing.T) {
	t.Parallel()
	w := newWorld(t).withSite(t)
	before := w.snapshot(t)
	must(t, w.product(t, nil).Sync, engine.VerdictApplied)
	p := w.product(t, cdn{w.cdn, func(_ context.Context, publish func() error) error {
		w.exec(t, acme.Target.Scope, `DELETE FROM settings WHERE key = 'lang'`)
		return publish()
	}})
	result, err := p.Undo(t.Context(), acme)
	if result.Verdict != engine.VerdictPartial || err == nil || !strings.Contains(err.Error(), "settings edited since: lang") {
		t.Fatalf("verdict %s, error %v", result.Verdict, err)
	}
	if n := w.count(t, `SELECT count(*) FROM `+pgx.Identifier{acme.Target.Scope, "pages"}.Sanitize()); n != 1202 {
		t.Errorf("%d pages, want those of the sync", n)
	}
	w.exec(t, acme.Target.Scope, `INSERT INTO settings VALUES ('lang', 'de')`)
	must(t, w.product(t, nil).Undo, engine.VerdictRolledBack)
	w.unchanged(t, before)
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

// G2
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

func TestTheExampleRuns(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	change := t.TempDir()
	for name, text := range map[string]string{
		"up.sql":   "CREATE TABLE locale (code text PRIMARY KEY);",
		"down.sql": "DROP TABLE locale;",
		"change.yaml": "version: 1\nid: 0042-customer-locale\ntitle: Add locales\n" +
			"steps:\n  - id: table\n    sql: {up: up.sql, down: down.sql}\n",
	} {
		if err := os.WriteFile(filepath.Join(change, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := applyAndRollBack(t.Context(), w.pool, acme, change); err != nil {
		t.Fatal(err)
	}
	if n := w.count(t, `SELECT count(*) FROM belay.event WHERE kind = 'succeed'`); n != 2 {
		t.Errorf("%d plans came to an end, want an apply and a rollback", n)
	}
}
