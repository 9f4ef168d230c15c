package main

import (
	"context"
	"fmt"

	"golang.org/x/sync/errgroup"

	"github.com/belayhq/belay/plan"
	"github.com/belayhq/belay/tenant"
)

// task is what contenders apply.
type task struct {
	steps []step
	// sites are the tenants that it is applied to and timed on.
	sites []tenant.Tenant
	// empty undoes what a lap left behind, on the warm tenants too.
	empty func(ctx context.Context) error
	// holds checks that so many steps are in place on some tenants.
	holds func(ctx context.Context, sites []tenant.Tenant, want int) error
}

// on is the same task on the first n tenants at most.
func (k task) on(n int) task {
	k.sites = k.sites[:min(n, len(k.sites))]
	return k
}

// rowTask has ten steps that write a row each.
func (w *world) rowTask() task {
	return task{steps: rowSteps(10), sites: w.sites, empty: w.empty, holds: w.holds}
}

// tableTask has ten steps that make a table each.
func (w *world) tableTask(schemas int) task {
	k := task{steps: tableSteps(10), sites: w.sites[:schemas], holds: w.holdsTables}
	k.empty = func(ctx context.Context) error { return w.dropTables(ctx, k.sites, k.steps) }
	return k
}

// step is what every contender carries out, and takes back, in a tenant's schema.
type step struct{ up, down string }

// rowSteps are n steps that write a row each.
func rowSteps(n int) []step {
	steps := make([]step, n)
	for i := range steps {
		steps[i] = step{
			up:   fmt.Sprintf("INSERT INTO item (id, amount) VALUES (%d, %d)", i+1, 10*(i+1)),
			down: fmt.Sprintf("DELETE FROM item WHERE id = %d", i+1),
		}
	}
	return steps
}

// tableSteps are n steps that make a table each.
func tableSteps(n int) []step {
	steps := make([]step, n)
	for i := range steps {
		steps[i] = step{
			up:   fmt.Sprintf("CREATE TABLE made_%d (id integer PRIMARY KEY, amount integer NOT NULL)", i+1),
			down: fmt.Sprintf("DROP TABLE made_%d", i+1),
		}
	}
	return steps
}

// changeOf makes Belay's change of steps.
func changeOf(steps []step, checkpoint plan.Checkpointing) *plan.Change {
	c := &plan.Change{Version: 1, ID: "0001-" + string(checkpoint), OnFailure: plan.StopOnFailure, Checkpoint: checkpoint}
	source := func(name, text string) *plan.Script {
		return &plan.Script{Default: &plan.Source{File: name, Text: text}}
	}
	for i, s := range steps {
		id := fmt.Sprintf("step-%d", i+1)
		c.Steps = append(c.Steps, plan.Step{
			ID: id, Kind: plan.SQL, Up: source(id+".up.sql", s.up), Down: source(id+".down.sql", s.down),
		})
	}
	return c
}

// every calls fn for each tenant, so many at a time.
func every(ctx context.Context, sites []tenant.Tenant, workers int, fn func(ctx context.Context, t tenant.Tenant) error) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(workers)
	for _, t := range sites {
		group.Go(func() error { return fn(ctx, t) })
	}
	return group.Wait()
}
