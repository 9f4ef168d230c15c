package sqlite

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/belayhq/belay/engine"
	"github.com/belayhq/belay/plan"
	"github.com/belayhq/belay/sitelock"
	"github.com/belayhq/belay/tenant"
)

// native gives the driver's connection of the writer to fn.
func native(t *testing.T, s *Store, fn func(c *conn)) {
	t.Helper()
	connection, err := s.writer.Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer connection.Close()
	_ = connection.Raw(func(c any) error { fn(c.(*conn)); return nil })
}

// The commit is what a plan costs.
func TestAPlanOfTenStepsIsTwoCommits(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	acquire(t, s.Store, tenant.NewID(), nil) // makes the tables
	commits := 0
	native(t, s.Store, func(c *conn) { c.RegisterCommitHook(func() int { commits++; return 0 }) })
	grant := acquire(t, s.Store, tenant.NewID(), apply(change("0001-first", 10)))
	var steps []engine.GroupStep
	for i := range 10 {
		steps = append(steps, sqlStep(i, fmt.Sprintf("INSERT INTO item (v) VALUES ('row %d')", i)))
	}
	if err := s.Checkpoint(t.Context(), grant.Held, finish(grant, steps...)); err != nil {
		t.Fatal(err)
	}
	if commits != 2 {
		t.Errorf("%d commits, want 2", commits)
	}
	s.want("SELECT count(*) FROM item", "11")
}

// A commit that SQLite turns into a rollback for a reason of its own is a definite failure.
func TestARefusedCommitLeavesNothing(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	grant := acquire(t, s.Store, tenant.NewID(), apply(change("0001-first", 1)))
	native(t, s.Store, func(c *conn) { c.RegisterCommitHook(func() int { return 1 }) })
	err := s.Checkpoint(t.Context(), grant.Held, finish(grant, sqlStep(0, "DELETE FROM item")))
	if err == nil || errors.Is(err, engine.ErrUnknownOutcome) {
		t.Errorf("got %v", err)
	}
	s.want("SELECT count(*) FROM item", "1")
	// The hook went with the connection, which was dropped.
	if err := s.Checkpoint(t.Context(), grant.Held, finish(grant, sqlStep(0, "DELETE FROM item"))); err != nil {
		t.Errorf("again: %v", err)
	}
}

func TestALiveHolderIsReportedWhileTheFileIsBusy(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	other := s.open(t)
	id := tenant.NewID()
	grant := acquire(t, s.Store, id, apply(change("0001-first", 1)))
	step := actionStep(0, func(*Tx) error {
		if _, err := other.Acquire(t.Context(), request(id)); !errors.Is(err, sitelock.ErrRefused) {
			t.Errorf("another process, the same tenant: got %v, want ErrRefused", err)
		}
		tries := 0
		err := other.writeUnless(t.Context(), func(context.Context) error { tries++; return sitelock.ErrRefused }, nil)
		if !errors.Is(err, sitelock.ErrRefused) || tries != 1 {
			t.Errorf("a caller that gives up as soon as it knows better: got %v after %d tries, want 1", err, tries)
		}
		if _, err := s.Acquire(t.Context(), request(id)); !errors.Is(err, sitelock.ErrRefused) {
			t.Errorf("this process, the same tenant: got %v, want ErrRefused", err)
		}
		var all sync.WaitGroup
		for where, db := range map[string]*Store{"another": other, "this": s.Store} {
			all.Go(func() {
				if _, err := db.Acquire(t.Context(), request(tenant.NewID())); !errors.Is(err, sitelock.ErrContended) {
					t.Errorf("%s process, another tenant: got %v, want ErrContended", where, err)
				}
			})
		}
		all.Wait()
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := other.Acquire(ctx, request(tenant.NewID())); !errors.Is(err, context.Canceled) {
			t.Errorf("a caller that gave up: got %v", err)
		}
		return nil
	})
	if err := s.Checkpoint(t.Context(), grant.Held, finish(grant, step)); err != nil {
		t.Fatal(err)
	}
}

func TestProcessesTakeTurnsOnOneFile(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	const processes, terms = 4, 12
	id := tenant.NewID()
	var inside atomic.Int64
	var all sync.WaitGroup
	for n := range processes {
		db := s.open(t)
		all.Go(func() {
			for k := 0; k < terms; {
				req := request(id)
				req.Claim = apply(change(fmt.Sprintf("%04d-of-%d", k, n), 1))
				grant, err := db.Acquire(t.Context(), req)
				if errors.Is(err, sitelock.ErrRefused) || errors.Is(err, sitelock.ErrContended) {
					continue
				}
				if err != nil || grant.Claimed == nil {
					t.Errorf("acquire: %v", err)
					return
				}
				if inside.Add(1) != 1 {
					t.Error("two holders at once")
				}
				step := sqlStep(0, "INSERT INTO item (v) VALUES ('term')")
				// The lock is free the moment the checkpoint commits, so the count goes down before.
				last := actionStep(0, func(*Tx) error { inside.Add(-1); return nil })
				step.Action = last.Action
				if err := db.Checkpoint(t.Context(), grant.Held, finish(grant, step)); err != nil {
					t.Errorf("checkpoint: %v", err)
					return
				}
				k++
			}
		})
	}
	all.Wait()
	s.want("SELECT count(*) FROM item WHERE v = 'term'", fmt.Sprint(processes*terms))
	s.want("SELECT max(fence) FROM belay_site_lock", fmt.Sprint(processes*terms))
}

func TestACheckpointExtendsTheLease(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	id := tenant.NewID()
	grant := acquire(t, s.Store, id, apply(change("0001-first", 1)))
	s.exec(t, "UPDATE belay_site_lock SET expires_at = 1")
	g := group(grant, sqlStep(0))
	g.Lease = time.Minute
	if err := s.Checkpoint(t.Context(), grant.Held, g); err != nil {
		t.Fatal(err)
	}
	if state, err := s.State(t.Context(), id); err != nil || !state.Live || state.Expires.Sub(state.Now) < 30*time.Second {
		t.Errorf("state %+v, %v", state, err)
	}
}

// G10
func TestABudgetBindsAGroupOfSeveralSteps(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	slow := actionStep(0, func(*Tx) error {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Millisecond)
		defer cancel()
		<-ctx.Done()
		return nil
	})
	for steps, want := range map[int]error{1: nil, 2: engine.ErrBudgetSpent} {
		grant := acquire(t, s.Store, tenant.NewID(), apply(change("0001-first", 2)))
		g := group(grant, []engine.GroupStep{slow, sqlStep(1, "DELETE FROM item")}[:steps]...)
		g.Budget = time.Millisecond
		if err := s.Checkpoint(t.Context(), grant.Held, g); !errors.Is(err, want) {
			t.Errorf("%d steps: got %v, want %v", steps, err, want)
		}
	}
	s.want("SELECT count(*) FROM item", "1")
}

// Every statement that runs for one tenant, or for some, must find its rows by key, however many tenants there are.
func TestNoStatementScansATableThatGrowsWithTenants(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	acquire(t, s.Store, tenant.NewID(), nil)
	for name, text := range map[string]string{
		"lockSQL": lockSQL, "renewLocksSQL": renewLocksSQL, "releaseLockSQL": releaseLockSQL, "extendLockSQL": extendLockSQL, "takeLockSQL": takeLockSQL,
		"aboutSQL": aboutSQL, "planSQL": planSQL, "findNewerSQL": findNewerSQL, "addPlanSQL": addPlanSQL, "putPlanSQL": putPlanSQL,
		"movePlanSQL": movePlanSQL, "journalSQL": journalSQL, "addJournalSQL": addJournalSQL, "writeJournalSQL": writeJournalSQL,
		"plansSQL": plansSQL, "imageSQL": imageSQL,
		"eventsSQL": eventsSQL, "storeChangeSQL": storeChangeSQL, "changeByIDSQL": changeByIDSQL,
		"tenantSQL": tenantSQL, "tenantsSQL": tenantsSQL, "putTenantSQL": putTenantSQL, "acquireLeaseSQL": acquireLeaseSQL,
	} {
		var stmtArgs []any
		native(t, s.Store, func(c *conn) {
			stmt, _, err := c.prepare(t.Context(), text)
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			stmtArgs = make([]any, stmt.NumInput())
			_ = stmt.Close()
		})
		rows, err := s.writer.QueryContext(t.Context(), "EXPLAIN QUERY PLAN "+text, stmtArgs...)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		for rows.Next() {
			var id, parent, unused int
			var detail string
			if err := rows.Scan(&id, &parent, &unused, &detail); err != nil {
				t.Fatal(err)
			}
			harmless := strings.Contains(detail, "json_each") || strings.Contains(detail, "VIRTUAL TABLE") ||
				strings.Contains(detail, "belay_setting") || strings.Contains(detail, "mine") || strings.Contains(detail, "CONSTANT ROW")
			if strings.Contains(detail, "SCAN") && !harmless {
				t.Errorf("%s: %s", name, detail)
			}
		}
		if err := errors.Join(rows.Err(), rows.Close()); err != nil { //nolint:sqlclosecheck // one after the other
			t.Fatal(err)
		}
	}
}

func TestARepeatedAcquireStoresItsChangeOnce(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	c := change("0001-first", 1)
	for range 2 {
		grant := acquire(t, s.Store, tenant.NewID(), apply(c))
		if err := s.Checkpoint(t.Context(), grant.Held, finish(grant, sqlStep(0))); err != nil {
			t.Fatal(err)
		}
	}
	s.want("SELECT count(*) FROM belay_change", "1")
	if got, err := s.Change(t.Context(), c.Digest()); err != nil || got.ID != c.ID {
		t.Errorf("got %v, %v", got, err)
	}
	// A change is known only once its commit is: this one's claim is refused.
	other := change("0002-second", 1)
	req := request(tenant.NewID())
	req.Claim = &sitelock.Claim{Direction: plan.Down, Change: other.ID, Digest: other.Digest()}
	if grant, err := s.Acquire(t.Context(), req); err != nil || grant.Claimed != nil || s.isStored(other.Digest()) {
		t.Errorf("claimed %v, %v", grant.Claimed, err)
	}
}
