package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/belayhq/belay/engine"
	"github.com/belayhq/belay/internal/postgrestest"
	"github.com/belayhq/belay/sitelock"
	"github.com/belayhq/belay/storage/postgres"
	"github.com/belayhq/belay/tenant"
)

func TestSixteenProcessesComeUpOnAnEmptyDatabase(t *testing.T) {
	t.Parallel()
	url := postgrestest.URL(t)
	var all [16]*postgres.Store
	for i := range all {
		all[i] = open(t, url)
	}
	var group sync.WaitGroup
	errs := make(chan error, len(all))
	for _, db := range all {
		group.Go(func() {
			_, to, err := db.Migrate(t.Context())
			if err == nil && to != 1 {
				err = fmt.Errorf("migrated to %d", to)
			}
			errs <- err
		})
	}
	group.Wait()
	for range all {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
}

// G7
func TestACommitWhoseAnswerIsLostIsUnknown(t *testing.T) {
	t.Parallel()
	url := postgrestest.URL(t)
	var w wire
	db, _ := embedded(t, url, func(cfg *pgxpool.Config) {
		cfg.MaxConns = 1
		cfg.ConnConfig.DialFunc = w.dial
	})
	site := newSite(t, url)
	held, group := begin(t, db, site, applyOf(1))
	group.Steps = []engine.GroupStep{step(0, `INSERT INTO t VALUES (1)`)}
	w.cut.Store(true)
	if err := db.Checkpoint(t.Context(), held, group); !errors.Is(err, engine.ErrUnknownOutcome) {
		t.Fatalf("got %v, want ErrUnknownOutcome", err)
	}
	req := request(site, nil)
	req.Replace = held
	for {
		grant, err := db.Acquire(t.Context(), req)
		if errors.Is(err, sitelock.ErrContended) {
			continue // the server has not noticed yet
		}
		if err != nil {
			t.Fatal(err)
		}
		if len(grant.Recovered) != 1 {
			t.Errorf("recovered %+v", grant.Recovered)
		}
		break
	}
	records, err := db.Records(t.Context(), site)
	if err != nil || len(records) != 1 {
		t.Fatalf("%+v, %v", records, err)
	}
	if rows := scalar(t, url, string(site), `SELECT count(*) FROM t`); rows != fmt.Sprint(records[0].InPlace()) {
		t.Errorf("%s rows, but the journal has %d steps in place", rows, records[0].InPlace())
	}
}

// G7
func TestASessionEndedBeforeCommitLeavesNothingAndIsNotUnknown(t *testing.T) {
	t.Parallel()
	url := postgrestest.URL(t)
	db := open(t, url)
	site := newSite(t, url)
	held, group := begin(t, db, site, applyOf(1))
	kill := step(0, `INSERT INTO t VALUES (1)`)
	kill.Action = func(ctx context.Context, tx engine.Tx) ([]byte, error) {
		_, err := tx.Exec(ctx, `SELECT pg_terminate_backend(pg_backend_pid())`)
		return nil, err
	}
	group.Steps = []engine.GroupStep{kill}
	err := db.Checkpoint(t.Context(), held, group)
	_, failed := errors.AsType[*engine.StepFailure](err)
	if err == nil || errors.Is(err, engine.ErrUnknownOutcome) || failed {
		t.Errorf("got %v, want a plain connection error", err)
	}
	if rows := scalar(t, url, string(site), `SELECT count(*) FROM t`); rows != "0" {
		t.Errorf("%s rows, want none", rows)
	}
	group.Steps = []engine.GroupStep{step(0, `INSERT INTO t VALUES (1)`)}
	if err := db.Checkpoint(t.Context(), held, group); err != nil {
		t.Errorf("the next checkpoint: %v", err)
	}
}

func TestBelaysStatementsArePreparedAndAStepsAreNot(t *testing.T) {
	t.Parallel()
	url := postgrestest.URL(t)
	db := openWith(t, url, 1)
	wholePlan(t, db, newSite(t, url))
	held, group := begin(t, db, newSite(t, url), applyOf(1))
	look := step(0, `SELECT 42`)
	look.Action = func(ctx context.Context, tx engine.Tx) ([]byte, error) {
		return nil, tx.Query(ctx, `SELECT count(*) FILTER (WHERE statement LIKE '%belay.%'),
				count(*) FILTER (WHERE statement LIKE '%INTO t %' OR statement LIKE '%42%'),
				COALESCE(min(generic_plans + custom_plans) FILTER (WHERE statement LIKE '%lock lost%'), 0) FROM pg_prepared_statements`,
			nil, func(scan func(...any) error) error {
				var own, steps, proofs int
				if err := scan(&own, &steps, &proofs); err != nil {
					return err
				}
				if own < 10 || steps != 0 || proofs < 2 {
					t.Errorf("%d of Belay's and %d of the steps' statements are prepared, the proof was used %d times", own, steps, proofs)
				}
				return nil
			})
	}
	group.Steps = []engine.GroupStep{look}
	if err := db.Checkpoint(t.Context(), held, group); err != nil {
		t.Fatal(err)
	}
}

func TestAPoolerThatLosesPreparedStatementsIsLivedWith(t *testing.T) {
	t.Parallel()
	url := postgrestest.URL(t)
	db, pool := embedded(t, url, func(cfg *pgxpool.Config) { cfg.MaxConns = 1 })
	wholePlan(t, db, newSite(t, url))
	if _, err := pool.Exec(t.Context(), `DEALLOCATE ALL`); err != nil {
		t.Fatal(err)
	}
	wholePlan(t, db, newSite(t, url))
}

func TestPreparedStatementsLostBehindAnActionAskForAnotherTry(t *testing.T) {
	t.Parallel()
	url := postgrestest.URL(t)
	db := openWith(t, url, 1)
	wholePlan(t, db, newSite(t, url)) // prepares everything
	site := newSite(t, url)
	held, group := begin(t, db, site, applyOf(1))
	runs := 0
	lose := step(0)
	lose.Action = func(ctx context.Context, tx engine.Tx) ([]byte, error) {
		runs++
		_, err := tx.Exec(ctx, `DEALLOCATE ALL`)
		return nil, err
	}
	group.Steps = []engine.GroupStep{lose}
	if err := db.Checkpoint(t.Context(), held, group); !errors.Is(err, engine.ErrRetryTransaction) || runs != 1 {
		t.Fatalf("got %v after %d runs, want ErrRetryTransaction after one", err, runs)
	}
	if err := db.Checkpoint(t.Context(), held, group); err != nil {
		t.Errorf("the second try: %v", err)
	}
}

// G8
func TestAStepLeavesNothingInItsSession(t *testing.T) {
	t.Parallel()
	url := postgrestest.URL(t)
	db := openWith(t, url, 1)
	for range 2 {
		site := newSite(t, url)
		held, group := begin(t, db, site, applyOf(2))
		s := step(0, `CREATE TEMP TABLE scratch AS SELECT 1`, `SET work_mem = '1MB'`, `SELECT pg_advisory_lock(7)`)
		s.Statements[0].RowsOnly = false
		group.Steps = []engine.GroupStep{s}
		if err := db.Checkpoint(t.Context(), held, group); err != nil {
			t.Fatal(err)
		}
		check := step(1)
		check.Action = func(ctx context.Context, tx engine.Tx) ([]byte, error) {
			var memory string
			var locks int
			err := tx.Query(ctx, `SELECT current_setting('work_mem'), (SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid())`,
				nil, func(scan func(...any) error) error { return scan(&memory, &locks) })
			if memory == "1MB" || locks != 0 {
				t.Errorf("work_mem is %s and %d advisory locks are held", memory, locks)
			}
			return nil, err
		}
		group.Steps = []engine.GroupStep{check}
		if err := db.Checkpoint(t.Context(), held, group); err != nil {
			t.Fatal(err)
		}
	}
}

func TestTheIsolationLevelIsNotTheRolesDefault(t *testing.T) {
	t.Parallel()
	url := postgrestest.URL(t)
	execute(t, url, "", `DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET default_transaction_isolation = ''serializable''', current_database()); END $$`)
	db := open(t, url)
	target := session(t, url, "")
	for _, sql := range []string{`CREATE SCHEMA s`, `CREATE TABLE s.t (level text)`} {
		if _, err := target.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	held, group := begin(t, db, tenant.NewID(), applyOf(1))
	group.Scope = "s"
	group.Steps = []engine.GroupStep{step(0, `INSERT INTO t VALUES (current_setting('transaction_isolation'))`)}
	if err := db.Checkpoint(t.Context(), held, group); err != nil {
		t.Fatal(err)
	}
	if level := scalar(t, url, "s", `SELECT level FROM t`); level != "read committed" {
		t.Errorf("a step ran under %s", level)
	}
}
