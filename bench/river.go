package main

import (
	"context"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"

	"github.com/belayhq/belay/tenant"
)

// planArgs is a job: the steps of one tenant from First on.
type planArgs struct {
	Schema string `json:"schema"`
	First  int    `json:"first"`
}

func (planArgs) Kind() string { return "plan" }

// planWorker carries out so many steps in one transaction, which also completes the job and makes the next one.
type planWorker struct {
	river.WorkerDefaults[planArgs]
	pool      *pgxpool.Pool
	steps     []step
	groupSize int
	finished  atomic.Int64
	// wanted is how many plans are waited for; all is written to when they are finished.
	wanted atomic.Int64
	all    chan struct{}
}

func (p *planWorker) Work(ctx context.Context, job *river.Job[planArgs]) error {
	end := min(job.Args.First+p.groupSize, len(p.steps))
	err := pgx.BeginFunc(ctx, p.pool, func(tx pgx.Tx) error {
		batch := &pgx.Batch{}
		batch.Queue(`SELECT set_config('search_path', $1, true)`, job.Args.Schema)
		for _, s := range p.steps[job.Args.First:end] {
			batch.Queue(s.up)
		}
		// River's tables are in the schema public.
		batch.Queue(`SELECT set_config('search_path', 'public', true)`)
		if err := tx.SendBatch(ctx, batch).Close(); err != nil {
			return err
		}
		if end < len(p.steps) {
			next := planArgs{Schema: job.Args.Schema, First: end}
			if _, err := river.ClientFromContext[pgx.Tx](ctx).InsertTx(ctx, tx, next, nil); err != nil {
				return err
			}
		}
		_, err := river.JobCompleteTx[*riverpgxv5.Driver](ctx, tx, job)
		return err
	})
	if err == nil && end == len(p.steps) && p.finished.Add(1) == p.wanted.Load() {
		p.all <- struct{}{}
	}
	return err
}

// riverApply is a job for each plan, or for each step, which a worker carries out and completes in one transaction.
func (w *world) riverApply(name string, k task, groupSize, workers int) contender {
	return contender{name: name, prepare: func(ctx context.Context) (*trial, error) {
		if err := k.empty(ctx); err != nil {
			return nil, err
		}
		pool, err := w.pool(ctx, workers+4, nil) // it fetches and listens beside the workers
		if err != nil {
			return nil, err
		}
		r, err := openRiver(ctx, pool, &planWorker{pool: pool, steps: k.steps, groupSize: groupSize, all: make(chan struct{}, 1)}, workers)
		if err != nil {
			pool.Close()
			return nil, err
		}
		end := func() { _ = r.client.Stop(context.WithoutCancel(ctx)); pool.Close() } // every job has ended
		if err := r.apply(ctx, w.warm); err != nil {
			end()
			return nil, err
		}
		return &trial{
			count: len(k.sites),
			run:   func(ctx context.Context) error { return r.apply(ctx, k.sites) },
			check: func(ctx context.Context) error { return k.holds(ctx, k.sites, len(k.steps)) },
			close: end,
		}, nil
	}}
}

type riverRunner struct {
	client *river.Client[pgx.Tx]
	worker *planWorker
}

func openRiver(ctx context.Context, pool *pgxpool.Pool, worker *planWorker, workers int) (*riverRunner, error) {
	driver := riverpgxv5.New(pool)
	migrator, err := rivermigrate.New(driver, &rivermigrate.Config{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		return nil, err
	}
	if _, err := migrator.Migrate(ctx, rivermigrate.DirectionUp, nil); err != nil {
		return nil, err
	}
	if _, err := pool.Exec(ctx, `TRUNCATE river_job`); err != nil {
		return nil, err
	}
	registry := river.NewWorkers()
	if err := river.AddWorkerSafely(registry, worker); err != nil {
		return nil, err
	}
	client, err := river.NewClient(driver, &river.Config{
		Queues: map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: workers}}, Workers: registry,
		Logger: slog.New(slog.DiscardHandler),
		// By default it fetches ten times a second at most, which would be all that is measured.
		FetchCooldown: time.Millisecond, FetchPollInterval: 10 * time.Millisecond,
	})
	if err != nil {
		return nil, err
	}
	return &riverRunner{client: client, worker: worker}, client.Start(ctx)
}

// apply enqueues a job for each tenant and waits for the last plan.
func (r *riverRunner) apply(ctx context.Context, sites []tenant.Tenant) error {
	r.worker.finished.Store(0)
	r.worker.wanted.Store(int64(len(sites)))
	jobs := make([]river.InsertManyParams, len(sites))
	for i, t := range sites {
		jobs[i].Args = planArgs{Schema: t.Target.Scope}
	}
	if _, err := r.client.InsertManyFast(ctx, jobs); err != nil {
		return err
	}
	select {
	case <-r.worker.all:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(5 * time.Minute):
		return context.DeadlineExceeded
	}
}
