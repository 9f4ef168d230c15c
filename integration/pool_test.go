package integration

import (
	"context"
	"fmt"
	"iter"
	"sync"
	"testing"
	"time"

	"github.com/belayhq/belay/engine"
	"github.com/belayhq/belay/plan"
	"github.com/belayhq/belay/tenant"
)

// fleet is many tenants of one kind and an engine for them.
type fleet struct {
	t       *testing.T
	engine  *engine.Engine
	worlds  []*world
	tenants []tenant.Tenant
}

// newFleet makes tenants, each with a ledger of its own, beside a world's own.
func newFleet(w *world, n int, config engine.Config) *fleet {
	w.t.Helper()
	f := &fleet{t: w.t, engine: newEngine(w.t, newDirectory(w.t), config)}
	for i := range n {
		other := w.neighbour(w.t)
		other.exec("CREATE TABLE ledger (step text NOT NULL)")
		f.worlds = append(f.worlds, other)
		f.tenants = append(f.tenants, other.tenant(fmt.Sprintf("tenant-%02d", i)))
	}
	return f
}

func (f *fleet) all() iter.Seq2[tenant.Tenant, error] { return each(f.tenants) }

func each(tenants []tenant.Tenant) iter.Seq2[tenant.Tenant, error] {
	return func(yield func(tenant.Tenant, error) bool) {
		for _, t := range tenants {
			if !yield(t, nil) {
				return
			}
		}
	}
}

// results collects what a pool reports, by tenant name.
type results struct {
	mu       sync.Mutex
	byTenant map[string][]engine.Result
	order    []string
}

func (r *results) add(one engine.Result) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.byTenant == nil {
		r.byTenant = map[string][]engine.Result{}
	}
	r.byTenant[one.Tenant.Name] = append(r.byTenant[one.Tenant.Name], one)
	r.order = append(r.order, one.Tenant.Name)
}

func (r *results) count(v engine.Verdict) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := 0
	for _, all := range r.byTenant {
		for _, one := range all {
			if one.Verdict == v {
				n++
			}
		}
	}
	return n
}

// applyAll applies a change to the fleet, and fails if that hangs.
func (f *fleet) applyAll(c *plan.Change, opts engine.ApplyOptions, pool engine.PoolOptions) *results {
	f.t.Helper()
	var got results
	err := later(f.t, func() error { return f.engine.ApplyAll(f.t.Context(), f.all(), c, opts, pool, got.add) })()
	check(f.t, err)
	return &got
}

// tally demands how often each verdict came.
func (f *fleet) tally(r *results, want map[engine.Verdict]int) {
	f.t.Helper()
	total := 0
	for verdict, n := range want {
		total += n
		if got := r.count(verdict); got != n {
			f.t.Errorf("%d tenants %s, want %d", got, verdict, n)
		}
	}
	if total != len(r.order) {
		f.t.Errorf("%d results, want %d", len(r.order), total)
	}
	for name, all := range r.byTenant {
		for _, one := range all {
			if one.Err != nil && want[one.Verdict] == 0 {
				f.t.Errorf("%s: %v", name, one.Err)
			}
		}
	}
}

// insideStep is a step of the transactional action "inside", with nothing to undo.
func insideStep() plan.Step {
	s := actionStep("x", "inside")
	s.Undo = &plan.NoUndo{None: "nothing happens"}
	return s
}

func inside(do func(context.Context, engine.ActionCall[none]) error) *engine.Actions {
	actions := engine.NewActions()
	engine.Register(actions, "inside", engine.Transactional[none]{
		Do: func(ctx context.Context, _ engine.Tx, c engine.ActionCall[none]) ([]byte, error) {
			return nil, do(ctx, c)
		},
	})
	return actions
}

// As many tenants as there are workers are worked on at once, not one more, though all live in one database.
func TestThePoolWorksOnAsManyTenantsAsItHasWorkers(t *testing.T) {
	t.Parallel()
	const workers = 4
	onBoth(t, func(t *testing.T, w *world) {
		var mu sync.Mutex
		running, most := 0, 0
		full := make(chan none) // closed when all workers are busy at once
		actions := inside(func(ctx context.Context, _ engine.ActionCall[none]) error {
			mu.Lock()
			if running++; running > most {
				if most = running; most == workers {
					close(full)
				}
			}
			mu.Unlock()
			defer func() { mu.Lock(); running--; mu.Unlock() }()
			select {
			case <-full:
				return w.do("SELECT 1", nil) // time enough for one more to begin, if it could
			case <-ctx.Done():
				return ctx.Err()
			}
		})
		f := newFleet(w, 12, engine.Config{Actions: actions, ActionTimeout: hang / 2})
		c := newChange("change", "a")
		c.Steps = append(c.Steps, insideStep())
		f.tally(f.applyAll(c, engine.ApplyOptions{}, engine.PoolOptions{Workers: workers}), map[engine.Verdict]int{engine.VerdictApplied: 12})
		if most != workers {
			t.Errorf("%d tenants at once, with %d workers", most, workers)
		}
	})
}

// A tenant that is listed twice is worked on once, and never twice at the same time.
func TestATenantListedTwiceIsWorkedOnOnce(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, w *world) {
		var mu sync.Mutex
		busy := map[tenant.ID]int{}
		actions := inside(func(_ context.Context, c engine.ActionCall[none]) error {
			mu.Lock()
			defer mu.Unlock()
			if busy[c.Tenant.ID]++; busy[c.Tenant.ID] > 1 {
				return fmt.Errorf("%s is worked on twice", c.Tenant.Name)
			}
			return nil
		})
		f := newFleet(w, 4, engine.Config{Actions: actions})
		f.tenants = append(f.tenants, f.tenants...)
		c := newChange("change", "a")
		c.Steps = append(c.Steps, insideStep())
		got := f.applyAll(c, engine.ApplyOptions{LockTimeout: hang}, engine.PoolOptions{})
		f.tally(got, map[engine.Verdict]int{engine.VerdictApplied: 4, engine.VerdictAlreadyApplied: 4})
	})
}

// One tenant that hangs keeps one worker; the others go on, and its own step ends when its time is up.
func TestAHungTenantDoesNotStopTheOthers(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, w *world) {
		othersDone, hangs := make(chan none), make(chan none)
		actions := inside(func(ctx context.Context, c engine.ActionCall[none]) error {
			if c.Tenant.Name != "tenant-00" {
				return nil
			}
			close(hangs)
			select {
			case <-othersDone:
				<-ctx.Done() // it never ends by itself
			case <-ctx.Done():
			}
			return ctx.Err()
		})
		f := newFleet(w, 8, engine.Config{Actions: actions})
		c := newChange("change", "a")
		step := insideStep()
		step.Timeout = hang / 2
		c.Steps = append(c.Steps, step)
		ctx, cancel := context.WithCancel(t.Context())
		var got results
		wait := later(t, func() error {
			return f.engine.ApplyAll(ctx, f.all(), c, engine.ApplyOptions{}, engine.PoolOptions{Workers: 2}, func(r engine.Result) {
				if got.add(r); len(got.order) == 7 {
					close(othersDone)
				}
			})
		})
		receive(t, "the tenant to hang", hangs)
		receive(t, "the others to be done", othersDone)
		cancel()
		check(t, wait())
		f.tally(&got, map[engine.Verdict]int{engine.VerdictApplied: 7, engine.VerdictCancelled: 1})
	})
}

// Steps that hang free their workers when their time is up, also when all workers hang.
func TestStepsThatHangFreeTheirWorkersInTime(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, w *world) {
		actions := inside(func(ctx context.Context, c engine.ActionCall[none]) error {
			if c.Tenant.Name < "tenant-04" {
				<-ctx.Done()
			}
			return ctx.Err()
		})
		f := newFleet(w, 8, engine.Config{Actions: actions, ActionTimeout: time.Second})
		c := newChange("change", "a")
		c.OnFailure = plan.RollbackOnFailure
		c.Steps = append(c.Steps, insideStep())
		got := f.applyAll(c, engine.ApplyOptions{}, engine.PoolOptions{Workers: 4})
		f.tally(got, map[engine.Verdict]int{engine.VerdictApplied: 4, engine.VerdictFailed: 4})
	})
}

// A tenant that fails is reported with its error, and stops nobody, unless too many do.
func TestFailuresStopTheRunOnlyWhenTheyAreTooMany(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, w *world) {
		f := newFleet(w, 6, engine.Config{})
		for _, i := range []int{0, 1, 2, 4, 5} {
			f.worlds[i].exec("CREATE TABLE missing (n integer)")
		}
		c := newChange("change", "a b:fail")
		got := f.applyAll(c, engine.ApplyOptions{}, engine.PoolOptions{Workers: 1, StopAfter: 1})
		f.tally(got, map[engine.Verdict]int{engine.VerdictApplied: 3, engine.VerdictPartial: 1, engine.VerdictSkipped: 2})
		equal(t, "order", join(got.order[:4]), "tenant-00 tenant-01 tenant-02 tenant-03")
		contains(t, "error", got.byTenant["tenant-03"][0].Err.Error(), "tenant tenant-03, change change: step b (b.up.sql:2)")

		got = f.applyAll(c, engine.ApplyOptions{}, engine.PoolOptions{})
		f.tally(got, map[engine.Verdict]int{engine.VerdictApplied: 2, engine.VerdictPartial: 1, engine.VerdictAlreadyApplied: 3})
	})
}

// A database that cannot be opened is one tenant's trouble.
func TestATenantWithoutADatabaseIsReportedAlone(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, w *world) {
		f := newFleet(w, 3, engine.Config{})
		f.tenants[1].Target.Database += "_is_not_there"
		got := f.applyAll(newChange("change", "a"), engine.ApplyOptions{}, engine.PoolOptions{})
		f.tally(got, map[engine.Verdict]int{engine.VerdictApplied: 2, engine.VerdictFailed: 1})
	})
}

// After the context has ended nothing begins; what runs ends at its next checkpoint.
func TestACancelledPoolSkipsWhatItHasNotBegun(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, w *world) {
		ctx, cancel := context.WithCancel(t.Context())
		f := newFleet(w, 6, engine.Config{Observe: func(p engine.Progress) {
			if p.Kind == engine.KindStepDone && p.Name == "tenant-02" {
				cancel()
			}
		}})
		var got results
		c := oneByOne(newChange("change", "a b"))
		err := f.engine.ApplyAll(ctx, f.all(), c, engine.ApplyOptions{}, engine.PoolOptions{Workers: 1}, got.add)
		check(t, err)
		f.tally(&got, map[engine.Verdict]int{engine.VerdictApplied: 2, engine.VerdictCancelled: 1, engine.VerdictSkipped: 3})
	})
}

// A panic is the trouble of the tenant it befell: the others are worked on, and the next apply heals that one. G10
func TestAPanicIsTheResultOfItsTenant(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, w *world) {
		var once sync.Once
		f := newFleet(w, 4, engine.Config{Observe: func(p engine.Progress) {
			if p.Kind == engine.KindStepDone && p.Name == "tenant-01" {
				once.Do(func() { panic("the observer fell over") })
			}
		}})
		c := oneByOne(newChange("change", "a b"))
		got := f.applyAll(c, engine.ApplyOptions{}, engine.PoolOptions{Workers: 2})
		f.tally(got, map[engine.Verdict]int{engine.VerdictApplied: 3, engine.VerdictFailed: 1})
		contains(t, "error", got.byTenant["tenant-01"][0].Err.Error(), "tenant tenant-01, change change: panic: the observer fell over")
		got = f.applyAll(c, engine.ApplyOptions{}, engine.PoolOptions{})
		f.tally(got, map[engine.Verdict]int{engine.VerdictAlreadyApplied: 3, engine.VerdictApplied: 1})
	})
}

// What a pool did not begin it reports about the change that it was asked for, whatever the operation.
func TestWhatAPoolSkippedNamesItsChange(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, w *world) {
		f := newFleet(w, 2, engine.Config{})
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		var got results
		err := f.engine.Each(ctx, f.all(), "change", engine.PoolOptions{}, func(context.Context, tenant.Tenant) engine.Result {
			return engine.Result{}
		}, got.add)
		check(t, err)
		for _, all := range got.byTenant {
			equal(t, "verdict", string(all[0].Verdict), string(engine.VerdictSkipped))
			equal(t, "change", all[0].Change, "change")
		}
	})
}

// Two processes given the same tenants share the work without an error: every step runs once.
func TestTwoEnginesGivenTheSameTenantsShareTheWork(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, w *world) {
		const tenants = 30
		f := newFleet(w, tenants, engine.Config{})
		other := *f
		other.engine = newEngine(t, newDirectory(t), engine.Config{})
		c := oneByOne(newChange("change", "a b c"))
		share := func(f *fleet) func() *results {
			return later(t, func() *results {
				var got results
				if err := f.engine.ApplyAll(t.Context(), f.all(), c, engine.ApplyOptions{LockTimeout: hang}, engine.PoolOptions{Workers: 4}, got.add); err != nil {
					t.Error(err)
				}
				return &got
			})
		}
		first, second := share(f), share(&other)
		a, b := first(), second()
		for _, got := range []*results{a, b} {
			if n := got.count(engine.VerdictApplied) + got.count(engine.VerdictAlreadyApplied); n != tenants {
				t.Errorf("%d of %d tenants applied", n, tenants)
			}
		}
		if n := a.count(engine.VerdictApplied) + b.count(engine.VerdictApplied); n != tenants {
			t.Errorf("%d tenants were applied by one or the other, want %d", n, tenants)
		}
		for _, one := range f.worlds {
			equal(t, "ledger", sorted(one.query("SELECT step FROM ledger")), "a\nb\nc")
		}
	})
}

// Many tenants at once through the same connections: each gets what is its own. G8
func TestEachOfManyTenantsContainsOnlyItsOwn(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, w *world) {
		actions := engine.NewActions()
		placeholder := map[tenant.Dialect]string{tenant.Postgres: "$1", tenant.SQLite: "?"}[w.dialect]
		engine.Register(actions, "inside", engine.Transactional[none]{
			Do: func(ctx context.Context, tx engine.Tx, c engine.ActionCall[none]) ([]byte, error) {
				_, err := tx.Exec(ctx, "INSERT INTO ledger VALUES ("+placeholder+")", c.Tenant.Name)
				return []byte(c.Tenant.Name), err
			},
			Undo: func(ctx context.Context, tx engine.Tx, c engine.ActionCall[none]) error {
				n, err := tx.Exec(ctx, "DELETE FROM ledger WHERE step = "+placeholder, string(c.Before))
				if err == nil && n != 2 {
					return fmt.Errorf("%d rows of %s", n, c.Before)
				}
				return err
			},
		})
		f := newFleet(w, 50, engine.Config{Actions: actions})
		c := newChange("change", "a")
		copying := sqlStep("copy", "INSERT INTO ledger SELECT step FROM ledger WHERE step <> 'a'", "SELECT 1")
		c.Steps = append(c.Steps, actionStep("own", "inside"), copying)
		pool := engine.PoolOptions{Workers: 16}
		f.tally(f.applyAll(c, engine.ApplyOptions{}, pool), map[engine.Verdict]int{engine.VerdictApplied: 50})
		for i, one := range f.worlds {
			own := f.tenants[i].Name
			equal(t, "ledger of "+own, sorted(one.query("SELECT step FROM ledger")), "a\n"+own+"\n"+own)
		}
		var back results
		check(t, f.engine.RollbackAll(t.Context(), f.all(), "change", engine.RollbackOptions{}, pool, back.add))
		f.tally(&back, map[engine.Verdict]int{engine.VerdictRolledBack: 50})
		check(t, f.engine.RollbackAll(t.Context(), f.all(), "change", engine.RollbackOptions{}, pool, back.add))
		if n := back.count(engine.VerdictAlreadyRolledBack); n != 50 {
			t.Errorf("%d already rolled back", n)
		}
		for _, one := range f.worlds {
			equal(t, "ledger", one.query("SELECT step FROM ledger"), "")
		}
	})
}
