package postgres_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/belayhq/belay/engine"
	"github.com/belayhq/belay/internal/postgrestest"
	"github.com/belayhq/belay/sitelock"
	"github.com/belayhq/belay/storage/postgres"
	"github.com/belayhq/belay/tenant"
)

// openCheckpoint runs a checkpoint up to the middle of its action. The returned function lets it go on and gives its
// error.
func openCheckpoint(t *testing.T, db *postgres.Store, held sitelock.Held, group engine.Group) (finish func() error) {
	t.Helper()
	entered, leave, ended := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	s := step(0)
	s.Action = func(ctx context.Context, tx engine.Tx) ([]byte, error) {
		close(entered)
		<-leave
		_, err := tx.Exec(ctx, `INSERT INTO t VALUES (1)`)
		return nil, err
	}
	group.Steps = []engine.GroupStep{s}
	go func() { ended <- db.Checkpoint(t.Context(), held, group) }()
	select {
	case <-entered:
	case err := <-ended:
		t.Fatalf("the checkpoint ended before its action: %v", err)
	}
	return func() error {
		close(leave)
		return <-ended
	}
}

func lapse(t *testing.T, url string, id tenant.ID) {
	t.Helper()
	execute(t, url, "", `UPDATE belay.site_lock SET expires_at = belay.now_ms() - 1000 WHERE tenant_id = '`+string(id)+`'`)
}

// G1: a take-over cannot overtake an open checkpoint, however long its holder has been thought dead.
func TestAnOpenCheckpointKeepsEveryTakeOverOut(t *testing.T) {
	t.Parallel()
	url := postgrestest.URL(t)
	db, other := open(t, url), open(t, url)
	site := newSite(t, url)
	held, group := begin(t, db, site, applyOf(1))
	finish := openCheckpoint(t, db, held, group)
	lapse(t, url, site)

	// Whoever waited for the row would wait for ever: the checkpoint ends after these calls.
	if _, err := other.Acquire(t.Context(), request(site, applyOf(1))); !errors.Is(err, sitelock.ErrContended) {
		t.Errorf("acquire: got %v, want ErrContended", err)
	}
	if _, err := other.Break(t.Context(), site, sitelock.Process{}, "test"); !errors.Is(err, sitelock.ErrContended) {
		t.Errorf("break: got %v, want ErrContended", err)
	}
	if lost, err := other.Renew(t.Context(), []sitelock.Held{held}, time.Minute); err != nil || len(lost) != 0 {
		t.Errorf("a renewal beside the checkpoint: lost %v, %v", lost, err)
	}
	lapse(t, url, site)
	if err := finish(); err != nil {
		t.Fatalf("checkpoint: %v", err)
	}
	grant, err := other.Acquire(t.Context(), request(site, applyOf(1)))
	if err != nil || grant.Held.Fence != held.Fence+1 || grant.Claimed == nil || grant.Claimed.InPlace() != 1 {
		t.Errorf("after the checkpoint: %+v, %v", grant, err)
	}
}

// Any change of custody, by whatever statement, waits for an open proof, because the fence is part of a unique key that
// the proof's row lock covers. Without site_lock_fence_key this update would go through. G1
func TestTheProofLocksTheFenceItself(t *testing.T) {
	t.Parallel()
	url := postgrestest.URL(t)
	db := open(t, url)
	site := newSite(t, url)
	held, group := begin(t, db, site, applyOf(1))
	finish := openCheckpoint(t, db, held, group)

	conn := session(t, url, "")
	if _, err := conn.Exec(t.Context(), `SET lock_timeout = '50ms'`); err != nil {
		t.Fatal(err)
	}
	_, err := conn.Exec(t.Context(), `UPDATE belay.site_lock SET fence = fence + 1 WHERE tenant_id = $1`, string(site))
	if refused, ok := errors.AsType[*pgconn.PgError](err); !ok || refused.Code != "55P03" {
		t.Errorf("the fence changed under an open proof: %v", err)
	}
	if err := finish(); err != nil {
		t.Errorf("checkpoint: %v", err)
	}
}
