package engine

import (
	"context"
	"errors"
	"iter"
	"slices"

	"golang.org/x/sync/errgroup"

	"github.com/belayhq/belay/plan"
	"github.com/belayhq/belay/sitelock"
	"github.com/belayhq/belay/tenant"
)

const (
	// batchSize is how many tenants of one database one survey reads at most.
	batchSize = 1000
	// surveyWorkers is how many databases are surveyed at once.
	surveyWorkers = 8
)

// Surveyed is a tenant with what its database says of it.
type Surveyed struct {
	Tenant  tenant.Tenant
	Lock    sitelock.State
	Records []plan.Record
	// Err is why the tenant's database could not be read; nil otherwise.
	Err error
}

// Records reads all plans of one tenant with their journals, oldest first, without a lock. One for which
// [plan.Record.Unfinished] is true needs another operation: apply its change again, or roll it back.
func (e *Engine) Records(ctx context.Context, t tenant.Tenant) ([]plan.Record, error) {
	store, closeStore, err := e.open(ctx, t)
	if err != nil {
		return nil, err
	}
	defer closeStore()
	records, err := store.Records(ctx, t.ID)
	return records, AsRefusal(err)
}

// Change reads a change that the tenant's database keeps, by digest.
func (e *Engine) Change(ctx context.Context, t tenant.Tenant, digest plan.Digest) (*plan.Change, error) {
	store, closeStore, err := e.open(ctx, t)
	if err != nil {
		return nil, err
	}
	defer closeStore()
	change, err := store.Change(ctx, digest)
	return change, AsRefusal(err)
}

// Survey reads the locks and plans of tenants, in a constant number of round trips for each thousand tenants of one
// database, without a lock. With a change id it reads only that plan and those that are partial. One database that cannot
// be read does not keep the others from being. The tenants of a batch come grouped by database.
func (e *Engine) Survey(ctx context.Context, tenants iter.Seq2[tenant.Tenant, error], change string) iter.Seq2[Surveyed, error] {
	return func(yield func(Surveyed, error) bool) {
		for batch, err := range batches(tenants) {
			if err != nil {
				yield(Surveyed{}, err)
				return
			}
			for _, s := range e.surveyBatch(ctx, batch, change) {
				if !yield(s, nil) {
					return
				}
			}
			if err := ctx.Err(); err != nil {
				yield(Surveyed{}, context.Cause(ctx))
				return
			}
		}
	}
}

// surveyBatch reads tenants, several databases at a time.
func (e *Engine) surveyBatch(ctx context.Context, batch []tenant.Tenant, change string) []Surveyed {
	groups := byDatabase(batch)
	found := make([][]Surveyed, len(groups))
	var workers errgroup.Group
	workers.SetLimit(surveyWorkers)
	for i, group := range groups {
		workers.Go(func() error {
			found[i] = e.surveyOne(ctx, group, change)
			return nil
		})
	}
	_ = workers.Wait() // what befell a database is with its tenants
	return slices.Concat(found...)
}

// surveyOne reads tenants that share a database.
func (e *Engine) surveyOne(ctx context.Context, group []tenant.Tenant, change string) []Surveyed {
	all := make([]Surveyed, len(group))
	for i := range group {
		all[i].Tenant = group[i]
	}
	found, err := e.surveyDatabase(ctx, group, change)
	for i := range all {
		if err != nil {
			all[i].Err = err
			continue
		}
		// Not nil even if there are none: that is known, too.
		all[i].Lock, all[i].Records = found[i].Lock, append([]plan.Record{}, found[i].Records...)
	}
	return all
}

func (e *Engine) surveyDatabase(ctx context.Context, group []tenant.Tenant, change string) ([]Survey, error) {
	store, closeStore, err := e.open(ctx, group[0])
	if err != nil {
		return nil, err
	}
	defer closeStore()
	return surveyStore(ctx, store, group, change)
}

func surveyStore(ctx context.Context, store Store, group []tenant.Tenant, change string) ([]Survey, error) {
	ids := make([]tenant.ID, len(group))
	for i := range group {
		ids[i] = group[i].ID
	}
	surveyed, err := store.Survey(ctx, ids, change)
	if err == nil && len(surveyed) != len(group) {
		err = errors.New("survey returned another number of tenants")
	}
	return surveyed, AsRefusal(err)
}

// batches cuts a sequence into slices of at most batchSize.
func batches(tenants iter.Seq2[tenant.Tenant, error]) iter.Seq2[[]tenant.Tenant, error] {
	return func(yield func([]tenant.Tenant, error) bool) {
		var batch []tenant.Tenant
		for t, err := range tenants {
			if err != nil {
				yield(nil, err)
				return
			}
			if batch = append(batch, t); len(batch) == batchSize {
				if !yield(batch, nil) {
					return
				}
				batch = nil
			}
		}
		if len(batch) > 0 {
			yield(batch, nil)
		}
	}
}

// byDatabase groups tenants that share a database, in order of first appearance.
func byDatabase(batch []tenant.Tenant) [][]tenant.Tenant {
	type key struct {
		dialect  tenant.Dialect
		database string
	}
	at := make(map[key]int)
	var groups [][]tenant.Tenant
	for _, t := range batch {
		k := key{t.Target.Dialect, t.Target.Database}
		i, seen := at[k]
		if !seen {
			i = len(groups)
			at[k] = i
			groups = append(groups, nil)
		}
		groups[i] = append(groups[i], t)
	}
	return groups
}
