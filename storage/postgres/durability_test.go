package postgres_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/belayhq/belay/engine"
	"github.com/belayhq/belay/internal/postgrestest"
	"github.com/belayhq/belay/sitelock"
	"github.com/belayhq/belay/storage/postgres"
	"github.com/belayhq/belay/tenant"
)

// G1, G7: what a writing method has acknowledged outlives a crash of the server, where role, database and server all say that a
// commit need not be on disk, and a step says so too. Each is crashed right behind its answer, because the next commit on
// disk takes those before it along. A row of the test's own, written last and asynchronously, shows that crashes do lose.
// And no fence is given twice.
func TestWhatWasAcknowledgedOutlivesACrashOfAServerThatCommitsAsynchronously(t *testing.T) {
	t.Parallel()
	server, err := postgrestest.Own(nil, "synchronous_commit=off", "wal_writer_delay=10s")
	if err != nil {
		t.Fatal(err)
	}
	url := server.URL(t)
	execute(t, url, "", `DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET synchronous_commit = off', current_database()); END $$;
		ALTER ROLE postgres SET synchronous_commit = off; CREATE TABLE lost (n text)`)
	for _, write := range durableWrites {
		t.Run(write.sentence, func(t *testing.T) {
			c := &crash{t: t, server: server, url: url, db: open(t, url), site: newSite(t, url)}
			c.held, c.group = begin(t, c.db, c.site, applyOf(1))
			write.run(c)
			c.now()
			if scalar(t, url, string(c.site), strings.ReplaceAll(write.look, "{id}", string(c.site))) != "t" {
				t.Error("what was acknowledged is gone")
			}
			lapse(t, url, c.site)
			grant, err := open(t, url).Acquire(t.Context(), request(c.site, applyOf(1)))
			if err == nil && grant.Held.Fence <= c.held.Fence || err != nil && !errors.Is(err, sitelock.ErrRemoved) {
				t.Errorf("fence %d came after %d (%v)", grant.Held.Fence, c.held.Fence, err)
			}
		})
	}
	// One may have been written by chance, where it began a new page of the log.
	if kept := scalar(t, url, "", `SELECT count(*) FROM lost`); kept > "3" {
		t.Errorf("the crashes lost nothing: %s rows are still there", kept)
	}
}

// crash is a server about to crash, and a holder on it.
type crash struct {
	t      *testing.T
	server *postgrestest.Server
	url    string
	db     *postgres.Store
	site   tenant.ID
	held   sitelock.Held
	group  engine.Group
}

// now crashes the server behind a commit that is lost, and starts it again.
func (c *crash) now() {
	c.t.Helper()
	execute(c.t, c.url, "", `INSERT INTO lost VALUES ('`+string(c.site)+`')`)
	c.server.Restart(c.t, "immediate")
}

func (c *crash) must(err error) {
	c.t.Helper()
	if err != nil {
		c.t.Fatal(err)
	}
}

// durableWrites are the methods that write. look says whether what one has written for the tenant is there.
var durableWrites = []struct {
	sentence string
	run      func(c *crash)
	look     string
}{
	{
		"a claim with its fence", func(*crash) {},
		`SELECT fence = 1 FROM belay.plan WHERE tenant_id = '{id}' AND status = 'applying'`,
	},
	{"a checkpoint", func(c *crash) {
		c.group.Steps = []engine.GroupStep{step(0, `INSERT INTO t VALUES (1)`)}
		c.must(c.db.Checkpoint(c.t.Context(), c.held, c.group))
	}, `SELECT EXISTS (SELECT FROM t)`},
	{"a checkpoint whose step does not care", func(c *crash) {
		c.group.Steps = []engine.GroupStep{step(0, `SELECT set_config('synchronous_commit', 'off', true)`, `INSERT INTO t VALUES (1)`)}
		c.must(c.db.Checkpoint(c.t.Context(), c.held, c.group))
	}, `SELECT EXISTS (SELECT FROM t)`},
	{"a renewal", func(c *crash) {
		lost, err := c.db.Renew(c.t.Context(), []sitelock.Held{c.held}, 30*time.Minute)
		c.must(err)
		if len(lost) > 0 {
			c.t.Fatal("the lock is lost")
		}
	}, `SELECT expires_at > belay.now_ms() + 1500000 FROM belay.site_lock WHERE tenant_id = '{id}'`},
	{
		"a release", func(c *crash) { c.must(c.db.Release(c.t.Context(), c.held)) },
		`SELECT holder IS NULL FROM belay.site_lock WHERE tenant_id = '{id}'`,
	},
	{"a break", func(c *crash) {
		_, err := c.db.Break(c.t.Context(), c.site, sitelock.Process{}, "test")
		c.must(err)
		c.held.Fence++
	}, `SELECT fence = 2 FROM belay.site_lock WHERE tenant_id = '{id}'`},
	{
		"a tombstone", func(c *crash) { c.must(c.db.Retire(c.t.Context(), c.held)) },
		`SELECT removed_at IS NOT NULL FROM belay.site_lock WHERE tenant_id = '{id}'`,
	},
	{"a named lease", func(c *crash) {
		_, taken, err := c.db.AcquireLease(c.t.Context(), "sweeper", sitelock.NewHolderID(), sitelock.Process{}, time.Minute)
		c.must(err)
		if !taken {
			c.t.Fatal("not taken")
		}
	}, `SELECT holder IS NOT NULL FROM belay.lease WHERE name = 'sweeper'`},
}
