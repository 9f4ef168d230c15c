package storagetest

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/belayhq/belay/engine"
	"github.com/belayhq/belay/plan"
	"github.com/belayhq/belay/sitelock"
	"github.com/belayhq/belay/tenant"
)

// endless is a query that no timeout of a test lets end.
const endless = "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 0 FROM c) SELECT count(*) FROM c"

var checkpoints = []test{
	{"steps, journal, move and release commit together", func(t *testing.T, d *database) {
		s := d.site(t)
		c := change("0001-first", 3)
		x := s.begin(t, apply(c))
		x.checkpoint(t, x.group(x.put(0)))
		x.succeed(t, x.put(1), x.put(2))
		record := s.plan(t, c)
		if s.rows(t) != "3" || record.Plan.Status != plan.Applied || record.InPlace() != 3 || s.state(t).Kind() != sitelock.StateIdle {
			t.Errorf("%s rows, record %+v, state %+v", s.rows(t), record, s.state(t))
		}
		for i, e := range record.Journal {
			if e.Ordinal != i || e.Step != stepID(i) || e.State != plan.StepDone || e.Fence != 1 || e.Cycle != 1 || e.WaitLeft != 0 || e.UpdatedAt.IsZero() {
				t.Errorf("entry %+v", e)
			}
		}
	}},
	{"a plan's time of change moves with its moves, not with each step", func(t *testing.T, d *database) {
		s := d.site(t)
		c := change("0001-first", 3)
		x := s.begin(t, apply(c))
		x.checkpoint(t, x.group(x.put(0)))
		s.setPlan(t, x.claimed.Plan.ID, "updated_at = 1")
		x.checkpoint(t, x.group(x.put(1)))
		if at := s.plan(t, c).Plan.UpdatedAt.UnixMilli(); at != 1 {
			t.Errorf("a step moved it to %d", at)
		}
		x.succeed(t, x.put(2))
		if at := s.plan(t, c).Plan.UpdatedAt.UnixMilli(); at == 1 {
			t.Error("the end of the plan did not move it")
		}
	}},
	{"steps are undone newest first in one group", func(t *testing.T, d *database) {
		s := d.site(t)
		c := change("0001-first", 2)
		x := s.begin(t, apply(c))
		x.succeed(t, x.put(0), x.put(1))
		x = s.begin(t, rollback(c))
		x.succeed(t, x.take(1), x.take(0))
		if record := s.plan(t, c); s.rows(t) != "0" || record.Touched() || len(record.Journal) != 2 {
			t.Errorf("%s rows, record %+v", s.rows(t), record)
		}
	}},
	{"a failing second step leaves nothing of the group, and the lock held", func(t *testing.T, d *database) {
		s := d.site(t)
		c := change("0001-first", 2)
		x := s.begin(t, apply(c))
		group := x.group(x.put(0), x.step(1, plan.StepDone, "INSERT INTO "+s.table+" VALUES (0, 'again')"))
		group.Move = &engine.Move{Event: plan.EventSucceed, From: plan.Applying, To: plan.Applied, Outcome: plan.OutcomeApplied}
		group.Release = true
		x.failsIn(t, 1, group)
		if state := s.state(t); state.Holder != x.held.Holder || !state.Live {
			t.Errorf("state %+v", state)
		}
		x.succeed(t, x.put(0), x.put(1))
	}},
	{"a failure names the statement's file and line", func(t *testing.T, d *database) {
		s := d.site(t)
		x := s.begin(t, apply(change("0001-first", 2)))
		step := x.step(1, plan.StepDone, "INSERT INTO "+s.table+" VALUES (1, 'one')", "INSERT INTO nowhere VALUES (1)")
		step.Statements[1].File, step.Statements[1].Line = "sql/second.sql", 17
		failure := x.failsIn(t, 1, x.group(x.put(0), step))
		if failure.File != "sql/second.sql" || failure.Line != 17 || !strings.Contains(failure.Error(), "sql/second.sql:17: ") || !strings.Contains(failure.Error(), "nowhere") {
			t.Errorf("failure %q", failure.Error())
		}
	}},
	{"a failure inside a long statement is within its lines", func(t *testing.T, d *database) {
		s := d.site(t)
		x := s.begin(t, apply(change("0001-first", 1)))
		step := x.step(0, plan.StepDone, "INSERT\nINTO\nnowhere\nVALUES (1)")
		step.Statements[0].Line = 10
		// SQLite tells no position; PostgreSQL points at the table's name.
		want := map[tenant.Dialect]int{tenant.SQLite: 10, tenant.Postgres: 12}[d.Dialect]
		if failure := x.failsIn(t, 0, x.group(step)); failure.Line != want {
			t.Errorf("line %d, want %d: %v", failure.Line, want, failure.Err)
		}
	}},
	{"a step in place is not done again", func(t *testing.T, d *database) {
		s := d.site(t)
		x := s.begin(t, apply(change("0001-first", 2)))
		x.checkpoint(t, x.group(x.put(0)))
		again := x.step(0, plan.StepDone, "INSERT INTO "+s.table+" VALUES (100, 'twice')")
		x.fails(t, x.group(again))
		x.fails(t, x.group(x.put(1), again))
		x.succeed(t, x.put(1))
	}},
	{"a step that was undone is not undone again", func(t *testing.T, d *database) {
		s := d.site(t)
		c := change("0001-first", 1)
		x := s.begin(t, apply(c))
		x.succeed(t, x.put(0))
		x = s.begin(t, rollback(c))
		x.checkpoint(t, x.group(x.take(0)))
		x.fails(t, x.group(x.step(0, plan.StepUndone, "INSERT INTO "+s.table+" VALUES (100, 'twice')")))
	}},
	{"a step's table appears and disappears with its checkpoint", func(t *testing.T, d *database) {
		s := d.site(t)
		x := s.begin(t, apply(change("0001-first", 2)))
		create := x.step(0, plan.StepDone, "CREATE TABLE made_here (k integer PRIMARY KEY)")
		x.failsIn(t, 1, x.group(create, x.step(1, plan.StepDone, "INSERT INTO nowhere VALUES (1)")))
		x.checkpoint(t, x.group(create))
		s.Exec(t, s.scope, "INSERT INTO made_here VALUES (1)")
	}},
	{"a statement with an empty result and one that returns rows are both fine", func(t *testing.T, d *database) {
		s := d.site(t)
		x := s.begin(t, apply(change("0001-first", 1)))
		x.checkpoint(t, x.group(x.step(0, plan.StepDone,
			"SELECT 1 WHERE 1 = 0", "SELECT 1 UNION ALL SELECT 2", "DELETE FROM "+s.table)))
	}},
	{"a broken foreign key that is checked late fails the group for certain", func(t *testing.T, d *database) {
		s := d.site(t)
		s.Exec(t, s.scope, "CREATE TABLE parent (k integer PRIMARY KEY)")
		s.Exec(t, s.scope, "CREATE TABLE child (k integer REFERENCES parent (k) DEFERRABLE INITIALLY DEFERRED)")
		x := s.begin(t, apply(change("0001-first", 2)))
		x.failsIn(t, 1, x.group(x.put(0), x.step(1, plan.StepDone, "INSERT INTO child VALUES (1)")))
		x.succeed(t, x.put(0), x.step(1, plan.StepDone, "INSERT INTO child VALUES (1)", "INSERT INTO parent VALUES (1)"))
	}},
	{"a statement that runs longer than its step's timeout is stopped", func(t *testing.T, d *database) {
		s := d.site(t)
		x := s.begin(t, apply(change("0001-first", 2)))
		step := x.step(1, plan.StepDone, endless)
		step.Timeout = 100 * time.Millisecond
		if err := x.failsIn(t, 1, x.group(x.put(0), step)).Err; !strings.Contains(err.Error(), "timed out after 100ms") {
			t.Errorf("got %v", err)
		}
		x.succeed(t, x.put(0), x.put(1))
	}},
	{"a caller who gives up leaves nothing of a running group", func(t *testing.T, d *database) {
		s := d.site(t)
		x := s.begin(t, apply(change("0001-first", 2)))
		ctx, cancel := context.WithCancelCause(t.Context())
		action := s.action(1, func(tx *actionTx) {
			tx.exec("INSERT INTO " + s.table + " VALUES (7, 'seven')")
			cancel(errBoom)
			tx.count(endless)
		})
		s.unchanged(t, func() {
			err := d.db.Checkpoint(ctx, x.held, x.group(x.put(0), action))
			if err == nil || errors.Is(err, engine.ErrUnknownOutcome) {
				t.Errorf("got %v", err)
			}
		})
		x.succeed(t, x.put(0), x.put(1))
	}},
	{"a caller who had given up before leaves nothing", func(t *testing.T, d *database) {
		s := d.site(t)
		x := s.begin(t, apply(change("0001-first", 1)))
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		s.unchanged(t, func() {
			if err := d.db.Checkpoint(ctx, x.held, x.group(x.put(0))); !errors.Is(err, context.Canceled) {
				t.Errorf("got %v, want context.Canceled", err)
			}
		})
	}},
	{"a group of several steps stops when its budget is spent", func(t *testing.T, d *database) {
		s := d.site(t)
		x := s.begin(t, apply(change("0001-first", 2)))
		slow := x.step(0, plan.StepDone, "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c WHERE x < 200000) SELECT count(*) FROM c")
		group := x.group(slow, x.put(1))
		group.Budget = time.Millisecond
		if err := x.failure(t, group); !errors.Is(err, engine.ErrBudgetSpent) {
			t.Errorf("got %v, want ErrBudgetSpent", err)
		}
		group.Steps = group.Steps[:1]
		x.checkpoint(t, group)
		group.Steps, group.Budget = []engine.GroupStep{x.put(1)}, time.Hour
		x.checkpoint(t, group)
	}},
	{"an open transaction extends its lease where it keeps renewals out", func(t *testing.T, d *database) {
		s := d.site(t)
		x := s.begin(t, apply(change("0001-first", 1)))
		group := x.group(x.put(0))
		group.Lease = 20 * time.Minute
		before := s.state(t).Expires
		x.checkpoint(t, group)
		gained := s.state(t).Expires.Sub(before)
		// On PostgreSQL the keeper renews beside an open transaction.
		if extended := gained > 10*time.Minute; extended != (d.Dialect == tenant.SQLite) {
			t.Errorf("the lease gained %v", gained)
		}
	}},
	{"a renewal does not wait for an open checkpoint, and does not count the lock as lost", func(t *testing.T, d *database) {
		s := d.site(t)
		x := s.begin(t, apply(change("0001-first", 1)))
		other := d.Open(t)
		x.checkpoint(t, x.group(s.action(0, func(*actionTx) {
			lost, err := other.Renew(t.Context(), []sitelock.Held{x.held}, lease)
			if len(lost) != 0 {
				t.Errorf("lost %v", lost)
			}
			// On SQLite the open transaction is the only writer.
			if busy := err != nil; busy != (d.Dialect == tenant.SQLite) {
				t.Errorf("renewal: %v", err)
			}
		})))
	}},
	{"a lock whose row is locked at this moment is neither renewed nor lost", func(t *testing.T, d *database) {
		x, free := d.site(t).begin(t, apply(change("0001-first", 1))), d.site(t)
		held := []sitelock.Held{x.held, free.acquire(t, nil).Held}
		other := d.Open(t)
		x.checkpoint(t, x.group(x.action(0, func(tx *actionTx) {
			if d.Dialect == tenant.Postgres { // on SQLite the open transaction locks everything
				tx.count("SELECT count(*) FROM (SELECT FROM belay.site_lock WHERE tenant_id::text = ? FOR UPDATE) l", string(x.id))
			}
			lost, err := other.Renew(t.Context(), held, lease)
			if len(lost) != 0 || !errors.Is(err, sitelock.ErrContended) {
				t.Errorf("lost %v, error %v, want ErrContended", lost, err)
			}
			if part, ok := errors.AsType[*sitelock.NotRenewedError](err); ok && !slices.Equal(part.Held, held[:1]) {
				t.Errorf("not renewed: %v, want %v", part.Held, held[:1])
			}
		})))
	}},
	{"a plan of another tenant is out of reach", func(t *testing.T, d *database) {
		c := change("0001-first", 1)
		x, victim := d.site(t).begin(t, apply(c)), d.site(t).begin(t, apply(c))
		group := x.group(x.put(0))
		group.Plan = victim.claimed.Plan.ID
		group.Move = &engine.Move{Event: plan.EventSucceed, From: plan.Applying, To: plan.Applied, Outcome: plan.OutcomeApplied}
		x.fails(t, group)
		group.Move = nil
		x.fails(t, group)
	}},
	{"tenants work side by side in their own scopes", func(t *testing.T, d *database) {
		var terms []term
		for range 4 {
			terms = append(terms, d.again(t).site(t).begin(t, apply(change("0001-first", 8))))
		}
		race(len(terms), func(i int) error {
			x := terms[i]
			for k := range 8 {
				if err := retrying(func() error { return x.db.Checkpoint(t.Context(), x.held, x.group(x.put(k))) }); err != nil {
					t.Errorf("tenant %d, step %d: %v", i, k, err)
				}
			}
			return nil
		})
		for i, x := range terms {
			if n := x.rows(t); n != "8" {
				t.Errorf("tenant %d has %s rows", i, n)
			}
		}
	}},
}

// retrying calls fn until the database is not busy.
func retrying(fn func() error) error {
	for {
		err := fn()
		if !errors.Is(err, sitelock.ErrContended) && !errors.Is(err, engine.ErrRetryTransaction) {
			return err
		}
	}
}
