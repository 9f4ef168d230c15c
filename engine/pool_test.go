package engine

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"sync"
	"testing"
	"time"

	"github.com/belayhq/belay/plan"
	"github.com/belayhq/belay/tenant"
)

// gate is a directory with a database for each tenant. An open waits until as many are under way as there are workers.
type gate struct {
	workers int
	mu      sync.Mutex
	opens   map[tenant.ID]int
	inside  int
	full    chan struct{}
}

func (g *gate) Open(ctx context.Context, t tenant.Tenant) (Store, func(), error) {
	g.mu.Lock()
	g.opens[t.ID]++
	if g.inside++; g.inside == g.workers {
		close(g.full)
	}
	g.mu.Unlock()
	select {
	case <-g.full:
		return &fake{changes: map[plan.Digest]*plan.Change{}}, func() {}, nil
	case <-ctx.Done():
		return nil, nil, context.Cause(ctx)
	}
}

// newGate returns an engine on a gate, and tenants with a database each.
func newGate(t *testing.T, workers, count int) (*Engine, *gate, iter.Seq2[tenant.Tenant, error]) {
	t.Helper()
	g := &gate{workers: workers, opens: map[tenant.ID]int{}, full: make(chan struct{})}
	e, err := New(g, Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(e.Close)
	return e, g, func(yield func(tenant.Tenant, error) bool) {
		for i := range count {
			site := tenant.Tenant{ID: tenant.NewID(), Name: fmt.Sprint("t", i), Target: tenant.Target{Database: fmt.Sprint("db", i)}}
			if !yield(site, nil) {
				return
			}
		}
	}
}

// openedOnce demands that so many databases were opened, each once.
func (g *gate) openedOnce(t *testing.T, count int) {
	t.Helper()
	equal(t, "databases", len(g.opens), count)
	for id, n := range g.opens {
		if n != 1 {
			t.Errorf("the database of tenant %s was opened %d times", id, n)
		}
	}
}

// G10: opening a database costs more than a plan in it, so each is opened once, and as many at a time as there are workers.
func TestADatabaseOfOneTenantIsOpenedOnceByItsWorker(t *testing.T) {
	t.Parallel()
	e, g, sites := newGate(t, 4, 12)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	applied := 0
	err := e.ApplyAll(ctx, sites, changeOf("a"), ApplyOptions{}, PoolOptions{Workers: 4}, func(r Result) {
		if r.Verdict == VerdictApplied {
			applied++
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	equal(t, "tenants applied", applied, 12)
	g.openedOnce(t, 12)
}

// G10
func TestASurveyReadsSeveralDatabasesAtOnce(t *testing.T) {
	t.Parallel()
	e, g, sites := newGate(t, surveyWorkers, 2*surveyWorkers)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	n := 0
	for s, err := range e.Survey(ctx, sites, "") {
		if err = errors.Join(err, s.Err); err != nil {
			t.Fatal(err)
		}
		equal(t, "tenant", s.Tenant.Name, fmt.Sprint("t", n)) // in the order in which they were given
		n++
	}
	equal(t, "tenants", n, 2*surveyWorkers)
	g.openedOnce(t, 2*surveyWorkers)
}
