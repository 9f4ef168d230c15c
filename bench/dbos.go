package main

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/dbos-inc/dbos-transact-golang/dbos"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/belayhq/belay/tenant"
)

// dbosApply is a workflow of one transactional step for each step, in dbos's own database, where a step's effect and its
// record share a transaction.
func (w *world) dbosApply(k task, workers int) contender {
	return contender{name: dbosWorkflow, prepare: func(ctx context.Context) (*trial, error) {
		if err := k.empty(ctx); err != nil {
			return nil, err
		}
		if err := w.exec(ctx, `DROP SCHEMA IF EXISTS dbos CASCADE`); err != nil {
			return nil, err
		}
		pool, err := w.pool(ctx, workers+8, nil) // it listens and polls beside the workers
		if err != nil {
			return nil, err
		}
		d, err := openDBOS(ctx, pool, k.steps)
		if err != nil {
			pool.Close()
			return nil, err
		}
		end := func() { d.close(); pool.Close() }
		if err := d.apply(ctx, w.warm, workers); err != nil {
			end()
			return nil, err
		}
		return &trial{
			count: len(k.sites),
			run:   func(ctx context.Context) error { return d.apply(ctx, k.sites, workers) },
			check: func(ctx context.Context) error { return k.holds(ctx, k.sites, len(k.steps)) },
			close: end,
		}, nil
	}}
}

type dbosRunner struct {
	ctx      dbos.Context
	workflow dbos.Workflow[string, int]
}

func openDBOS(ctx context.Context, pool *pgxpool.Pool, steps []step) (*dbosRunner, error) {
	c, err := dbos.NewContext(ctx, dbos.Config{AppName: "bench", SystemDBPool: pool, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		return nil, err
	}
	source, err := dbos.NewDataSource(c, pool)
	if err != nil {
		return nil, err
	}
	workflow := func(ctx dbos.Context, schema string) (int, error) {
		for i, s := range steps {
			_, err := dbos.RunAsTransaction(ctx, source, func(ctx context.Context, tx dbos.Tx) (int, error) {
				if _, err := tx.Exec(ctx, `SELECT set_config('search_path', $1, true)`, schema); err != nil {
					return 0, err
				}
				_, err := tx.Exec(ctx, s.up)
				return i, err
			})
			if err != nil {
				return i, fmt.Errorf("step %d: %w", i+1, err)
			}
		}
		return len(steps), nil
	}
	dbos.RegisterWorkflow(c, workflow, dbos.WithWorkflowName("steps"))
	if err := dbos.Launch(c); err != nil {
		return nil, err
	}
	return &dbosRunner{ctx: c, workflow: workflow}, nil
}

func (d *dbosRunner) close() { _ = dbos.Shutdown(d.ctx, 10*time.Second) } // nothing runs any more

func (d *dbosRunner) apply(ctx context.Context, sites []tenant.Tenant, workers int) error {
	return every(ctx, sites, workers, func(_ context.Context, t tenant.Tenant) error {
		handle, err := dbos.RunWorkflow(d.ctx, d.workflow, t.Target.Scope, dbos.WithWorkflowID(string(t.ID)))
		if err != nil {
			return err
		}
		_, err = handle.GetResult()
		return err
	})
}
