package main

import (
	"context"
	"fmt"
	"iter"

	"github.com/belayhq/belay/engine"
	"github.com/belayhq/belay/plan"
	"github.com/belayhq/belay/storage"
	"github.com/belayhq/belay/storage/postgres"
	"github.com/belayhq/belay/tenant"
)

// opener opens the databases of tenants for so many workers.
type opener func(ctx context.Context, workers int) (engine.Directory, func(), error)

// byDirectory opens a storage.Directory with a connection for each worker.
func byDirectory(_ context.Context, workers int) (engine.Directory, func(), error) {
	return directory(storage.DirectoryConfig{Connections: 2 * (workers + 1), PerDatabase: workers})
}

// byDefault opens a storage.Directory with its own caps.
func byDefault(context.Context, int) (engine.Directory, func(), error) {
	return directory(storage.DirectoryConfig{})
}

func directory(cfg storage.DirectoryConfig) (engine.Directory, func(), error) {
	d, err := storage.NewDirectory(cfg, postgres.Driver())
	if err != nil {
		return nil, nil, err
	}
	return d, d.Close, nil
}

// byPool embeds Belay in a program that has a pool.
func (w *world) byPool(ctx context.Context, workers int) (engine.Directory, func(), error) {
	pool, err := w.pool(ctx, workers, nil)
	if err != nil {
		return nil, nil, err
	}
	store, err := postgres.New(ctx, pool, storage.Options{})
	if err != nil {
		pool.Close()
		return nil, nil, err
	}
	return engine.Fixed(store), func() { store.Close(); pool.Close() }, nil
}

// forgetBelay empties Belay's tables.
func (w *world) forgetBelay(ctx context.Context) error {
	return w.exec(ctx, `DO $$ BEGIN IF to_regclass('belay.plan') IS NOT NULL THEN
		TRUNCATE belay.site_lock, belay.plan, belay.journal, belay.before_image, belay.event, belay.change; END IF; END $$`)
}

// belay is an engine with what it works through.
type belay struct {
	engine *engine.Engine
	close  func()
}

func openBelay(ctx context.Context, open opener, workers int) (*belay, error) {
	directory, closeDirectory, err := open(ctx, workers)
	if err != nil {
		return nil, err
	}
	e, err := engine.New(directory, engine.Config{})
	if err != nil {
		closeDirectory()
		return nil, err
	}
	return &belay{engine: e, close: func() { e.Close(); closeDirectory() }}, nil
}

// apply brings a change to tenants, and fails unless every one of them ends with the verdict.
func (b *belay) apply(ctx context.Context, sites []tenant.Tenant, change *plan.Change, workers int, want engine.Verdict) error {
	t := tally{want: want}
	err := b.engine.ApplyAll(ctx, sequence(sites), change, engine.ApplyOptions{}, engine.PoolOptions{Workers: workers}, t.add)
	return t.end(err, len(sites))
}

func (b *belay) rollback(ctx context.Context, sites []tenant.Tenant, change *plan.Change, workers int) error {
	t := tally{want: engine.VerdictRolledBack}
	err := b.engine.RollbackAll(ctx, sequence(sites), change.ID, engine.RollbackOptions{}, engine.PoolOptions{Workers: workers}, t.add)
	return t.end(err, len(sites))
}

// tally counts the results with the verdict that is wanted, and keeps the first other one.
type tally struct {
	want  engine.Verdict
	count int
	other *engine.Result
}

func (t *tally) add(r engine.Result) {
	switch {
	case r.Verdict == t.want:
		t.count++
	case t.other == nil:
		t.other = &r
	}
}

func (t *tally) end(err error, want int) error {
	switch {
	case err != nil:
		return err
	case t.other != nil:
		return fmt.Errorf("%s: %s: %w", t.other.Tenant.Name, t.other.Verdict, t.other.Err)
	case t.count != want:
		return fmt.Errorf("%d tenants are %s, want %d", t.count, t.want, want)
	}
	return nil
}

func sequence(sites []tenant.Tenant) iter.Seq2[tenant.Tenant, error] {
	return func(yield func(tenant.Tenant, error) bool) {
		for _, t := range sites {
			if !yield(t, nil) {
				return
			}
		}
	}
}

// belayApply applies steps with Belay.
func (w *world) belayApply(name string, open opener, checkpoint plan.Checkpointing, k task, workers int) contender {
	change := changeOf(k.steps, checkpoint)
	return contender{name: name, prepare: func(ctx context.Context) (*trial, error) {
		b, err := w.warmBelay(ctx, open, k, change, workers)
		if err != nil {
			return nil, err
		}
		return &trial{
			count: len(k.sites),
			run:   func(ctx context.Context) error { return b.apply(ctx, k.sites, change, workers, engine.VerdictApplied) },
			check: func(ctx context.Context) error { return k.holds(ctx, k.sites, len(k.steps)) },
			close: b.close,
		}, nil
	}}
}

// belayRollback takes back what belayApply applies.
func (w *world) belayRollback(name string, open opener, checkpoint plan.Checkpointing, k task, workers int) contender {
	change := changeOf(k.steps, checkpoint)
	return contender{name: name, prepare: func(ctx context.Context) (*trial, error) {
		b, err := w.warmBelay(ctx, open, k, change, workers)
		if err != nil {
			return nil, err
		}
		err = b.apply(ctx, k.sites, change, workers, engine.VerdictApplied)
		if err == nil {
			err = b.rollback(ctx, w.warm, change, workers)
		}
		if err != nil {
			b.close()
			return nil, err
		}
		return &trial{
			count: len(k.sites),
			run:   func(ctx context.Context) error { return b.rollback(ctx, k.sites, change, workers) },
			check: func(ctx context.Context) error { return k.holds(ctx, k.sites, 0) },
			close: b.close,
		}, nil
	}}
}

// warmBelay empties the tables and applies the change to the warm tenants.
func (w *world) warmBelay(ctx context.Context, open opener, k task, change *plan.Change, workers int) (*belay, error) {
	if err := k.empty(ctx); err != nil {
		return nil, err
	}
	if err := w.forgetBelay(ctx); err != nil {
		return nil, err
	}
	b, err := openBelay(ctx, open, workers)
	if err != nil {
		return nil, err
	}
	if err := b.apply(ctx, w.warm, change, workers, engine.VerdictApplied); err != nil {
		b.close()
		return nil, err
	}
	return b, nil
}
