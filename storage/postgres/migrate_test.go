package postgres_test

import (
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/belayhq/belay/internal/postgrestest"
	"github.com/belayhq/belay/migrations"
	"github.com/belayhq/belay/sitelock"
	"github.com/belayhq/belay/tenant"
)

// G2: a migration that needs the lock table to itself gives way to an open checkpoint, again and again, so that twenty leases
// are renewed beside it; it is made once the checkpoint has ended.
func TestLeasesAreRenewedBesideAMigrationOfTheLockTable(t *testing.T) {
	t.Parallel()
	url := postgrestest.URL(t)
	db := open(t, url)
	var all []sitelock.Held
	for range 20 {
		held, _ := begin(t, db, newSite(t, url), applyOf(1))
		all = append(all, held)
	}
	site := newSite(t, url)
	held, group := begin(t, db, site, applyOf(1))
	finish := sync.OnceValue(openCheckpoint(t, db, held, group))
	t.Cleanup(func() { _ = finish() })
	newer := slices.Concat(migrations.For(tenant.Postgres), []migrations.Migration{{Version: 2, Name: "later", SQL: `ALTER TABLE belay.site_lock ADD COLUMN later integer`}})
	migrated := make(chan error, 1)
	go func() {
		_, _, err := open(t, url).MigrateTo(t.Context(), newer)
		migrated <- err
	}()
	waiting := `SELECT count(*) FROM pg_locks WHERE mode = 'AccessExclusiveLock' AND NOT granted AND relation = 'belay.site_lock'::regclass`
	for deadline := time.Now().Add(20 * time.Second); scalar(t, url, "", waiting) == "0"; {
		if time.Now().After(deadline) {
			t.Fatal("the migration never waited")
		}
	}
	renewed := 0
	for deadline := time.Now().Add(20 * time.Second); renewed < 5; {
		if lost, err := db.Renew(t.Context(), all, time.Minute); err == nil && len(lost) == 0 {
			renewed++
		}
		if time.Now().After(deadline) {
			t.Fatalf("only %d renewals", renewed)
		}
	}
	select {
	case err := <-migrated:
		t.Fatalf("the migration did not wait for the checkpoint: %v", err)
	default:
	}
	if err := finish(); err != nil {
		t.Error(err)
	}
	if err := <-migrated; err != nil {
		t.Error(err)
	}
}
