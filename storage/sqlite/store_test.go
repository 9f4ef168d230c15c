package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/belayhq/belay/engine"
	"github.com/belayhq/belay/plan"
	"github.com/belayhq/belay/sitelock"
	"github.com/belayhq/belay/storage"
	"github.com/belayhq/belay/storage/storagetest"
	"github.com/belayhq/belay/tenant"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestSQLiteKeepsTheContract(t *testing.T) {
	storagetest.Run(t, func(t *testing.T) storagetest.Harness { return newDatabase(t).harness() })
}

// database is an empty file with a plain connection beside Belay's.
type database struct {
	path  string
	plain *sql.DB
}

func newDatabase(t *testing.T) *database {
	t.Helper()
	return newDatabaseAt(t, filepath.Join(t.TempDir(), "tenant.db"))
}

func newDatabaseAt(t *testing.T, path string) *database {
	t.Helper()
	if err := Create(t.Context(), path); err != nil {
		t.Fatalf("create: %v", err)
	}
	plain := sql.OpenDB(&connector{file: &file{path: path}, dsn: dsn(path, "rw", nil)})
	t.Cleanup(func() { plain.Close() })
	return &database{path: path, plain: plain}
}

func (d *database) open(t *testing.T) *Store {
	t.Helper()
	s, err := Open(t.Context(), d.path, storage.Options{})
	if err != nil {
		t.Fatalf("open: %v", err)
	}
	t.Cleanup(s.Close)
	return s
}

func (d *database) exec(t *testing.T, query string) {
	t.Helper()
	if _, err := d.plain.ExecContext(context.WithoutCancel(t.Context()), query); err != nil {
		t.Fatalf("%s: %v", query, err)
	}
}

func (d *database) query(t *testing.T, query string) string {
	t.Helper()
	var value sql.NullString
	if err := d.plain.QueryRowContext(context.WithoutCancel(t.Context()), query).Scan(&value); err != nil {
		t.Fatalf("%s: %v", query, err)
	}
	return value.String
}

func (d *database) harness() storagetest.Harness {
	var scopes atomic.Int64
	return storagetest.Harness{
		Dialect: tenant.SQLite,
		Open:    func(t *testing.T) storage.Database { return d.open(t) },
		Scope:   func(*testing.T) string { return fmt.Sprintf("scope-%d", scopes.Add(1)) },
		Exec:    func(t *testing.T, _, query string) { d.exec(t, query) },
		Query:   func(t *testing.T, _, query string) string { return d.query(t, query) },
		Table:   func(name string) string { return "belay_" + name },
		SetVersion: func(t *testing.T, version int) {
			d.exec(t, fmt.Sprintf("UPDATE belay_schema_version SET version = %d", version))
		},
	}
}

// path returns the store's file.
func (s *Store) path(t *testing.T) string {
	t.Helper()
	var path string
	if err := s.reader.QueryRowContext(t.Context(), "SELECT file FROM pragma_database_list WHERE name = 'main'").Scan(&path); err != nil {
		t.Fatal(err)
	}
	return path
}

func change(id string, steps int) *plan.Change {
	c := &plan.Change{Version: 1, ID: id, OnFailure: plan.StopOnFailure, Checkpoint: plan.CheckpointAuto}
	for i := range steps {
		c.Steps = append(c.Steps, plan.Step{
			ID: fmt.Sprint("step-", i), Kind: plan.SQL,
			Up:   &plan.Script{Default: &plan.Source{File: "up.sql", Text: "SELECT 1"}},
			Down: &plan.Script{Default: &plan.Source{File: "down.sql", Text: "SELECT 1"}},
		})
	}
	return c
}

func apply(c *plan.Change) *sitelock.Claim {
	return &sitelock.Claim{Direction: plan.Up, Change: c.ID, Digest: c.Digest(), Body: c, NewPlan: plan.NewID()}
}

func request(id tenant.ID) sitelock.Request {
	return sitelock.Request{
		Tenant: id, Scope: string(id), Holder: sitelock.NewHolderID(), Process: sitelock.Process{Host: "here", PID: 1},
		Operation: sitelock.OpApply, Lease: time.Minute,
	}
}

func acquire(t *testing.T, s *Store, id tenant.ID, claim *sitelock.Claim) sitelock.Grant {
	t.Helper()
	req := request(id)
	req.Claim = claim
	grant, err := s.Acquire(t.Context(), req)
	if err != nil {
		t.Fatalf("acquire: %v", err)
	}
	if claim != nil && grant.Claimed == nil {
		t.Fatal("the claim was refused")
	}
	return grant
}

// group is a checkpoint of the plan that was claimed with the grant.
func group(grant sitelock.Grant, steps ...engine.GroupStep) engine.Group {
	p := grant.Claimed.Plan
	return engine.Group{Plan: p.ID, Direction: plan.Up, Cycle: p.Cycle, Steps: steps}
}

// finish is a group that ends the term.
func finish(grant sitelock.Grant, steps ...engine.GroupStep) engine.Group {
	g := group(grant, steps...)
	g.Move = &engine.Move{Event: plan.EventSucceed, From: plan.Applying, To: plan.Applied, Outcome: plan.OutcomeApplied}
	g.Release = true
	return g
}

func sqlStep(ordinal int, statements ...string) engine.GroupStep {
	step := engine.GroupStep{Ordinal: ordinal, ID: fmt.Sprint("step-", ordinal), State: plan.StepDone, Timeout: 20 * time.Second}
	for i, text := range statements {
		step.Statements = append(step.Statements, plan.Statement{SQL: text, File: "up.sql", Line: i + 1})
	}
	return step
}

func actionStep(ordinal int, fn func(tx *Tx) error) engine.GroupStep {
	step := sqlStep(ordinal)
	step.Action = func(_ context.Context, tx engine.Tx) ([]byte, error) { return nil, fn(Unwrap(tx)) }
	return step
}

// failure demands that err is a step's failure, and returns it.
func failure(t *testing.T, err error) *engine.StepFailure {
	t.Helper()
	f, ok := errors.AsType[*engine.StepFailure](err)
	if !ok {
		t.Fatalf("not a step's failure: %v", err)
	}
	return f
}
