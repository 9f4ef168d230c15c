package integration

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/belayhq/belay/engine"
	"github.com/belayhq/belay/plan"
	"github.com/belayhq/belay/sitelock"
	"github.com/belayhq/belay/tenant"
)

// Fifty tenants were each left in flight by a process of their own that died, half of them with a step in place. One apply
// heals them all, tells of each who had left it, and does no step twice. G2, G4
func TestTenantsThatManyDeadHoldersLeftInFlightAreHealedByOneApply(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, w *world) {
		const tenants = 50
		f := newFleet(w, tenants, engine.Config{})
		c := newChange("change", "a b")
		directory := newDirectory(t)
		for i, one := range f.tenants {
			abandon(t, directory, one, c, sitelock.Process{Host: "web", PID: 1000 + i}, i%2)
			f.worlds[i].expire()
		}
		got := f.applyAll(c, engine.ApplyOptions{}, engine.PoolOptions{})
		f.tally(got, map[engine.Verdict]int{engine.VerdictApplied: tenants})
		for i, one := range f.tenants {
			recovered := got.byTenant[one.Name][0].Recovered
			if len(recovered) != 1 || recovered[0].Process.PID != 1000+i || recovered[0].Was != plan.Applying {
				t.Errorf("%s: recovered %+v", one.Name, recovered)
			}
			equal(t, one.Name, sorted(f.worlds[i].query("SELECT step FROM ledger")), "a\nb")
		}
	})
}

// abandon claims a change for a process that dies after so many steps.
func abandon(t *testing.T, directory engine.Directory, one tenant.Tenant, c *plan.Change, by sitelock.Process, steps int) {
	t.Helper()
	store, release, err := directory.Open(t.Context(), one)
	check(t, err)
	defer release()
	grant, err := store.Acquire(t.Context(), sitelock.Request{
		Tenant: one.ID, Scope: one.Target.Scope, Holder: sitelock.NewHolderID(), Process: by, Operation: sitelock.OpApply, Lease: hang,
		Claim: &sitelock.Claim{Direction: plan.Up, Change: c.ID, Digest: c.Digest(), Body: c, NewPlan: plan.NewID()},
	})
	check(t, err)
	group := engine.Group{Plan: grant.Claimed.Plan.ID, Scope: one.Target.Scope, Direction: plan.Up, Cycle: grant.Claimed.Plan.Cycle}
	for i := range steps {
		s := c.Steps[i]
		group.Steps = append(group.Steps, engine.GroupStep{
			Ordinal: i, ID: s.ID, State: plan.StepDone, Timeout: hang,
			Statements: []plan.Statement{{SQL: s.Up.Default.Text, File: s.Up.Default.File, Line: 1, RowsOnly: true}},
		})
	}
	if steps > 0 {
		check(t, store.Checkpoint(t.Context(), grant.Held, group))
	}
}

// Two engines in one process work on ten tenants each, which finish in any order. Each end frees the lock of its own tenant,
// and of no other. G1
func TestTheEndOfATenantsOperationFreesItsLockAlone(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, w *world) {
		const tenants = 20
		leave, entered := map[tenant.ID]chan struct{}{}, make(chan tenant.ID, tenants)
		// Outside the database, where no connection is kept meanwhile.
		actions := only(engine.External[none]{Do: func(ctx context.Context, c engine.ActionCall[none]) error {
			entered <- c.Tenant.ID
			select {
			case <-leave[c.Tenant.ID]:
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		}})
		f := newFleet(w, tenants, engine.Config{Actions: actions})
		other := newEngine(t, newDirectory(t), engine.Config{Actions: actions})
		c := newChange("change", "a")
		wait := actionStep("x", "outside")
		wait.Undo = &plan.NoUndo{None: "nothing happens"}
		c.Steps = append(c.Steps, wait)
		ended := make(map[tenant.ID]func() engine.Result, tenants)
		for _, one := range f.tenants {
			leave[one.ID] = make(chan struct{})
		}
		for i, one := range f.tenants {
			e := []*engine.Engine{f.engine, other}[i%2]
			ended[one.ID] = later(t, func() engine.Result {
				r, _ := e.Apply(t.Context(), one, c, engine.ApplyOptions{})
				return r
			})
		}
		for range tenants {
			receive(t, "all to be at work", entered)
		}
		watch := newDirectory(t)
		held := tenants
		for _, i := range rand.Perm(tenants) {
			id := f.tenants[i].ID
			close(leave[id])
			if r := ended[id](); r.Verdict != engine.VerdictApplied {
				t.Fatalf("%s: %v", r.Tenant.Name, r.Err)
			}
			held--
			equal(t, "locks held", fmt.Sprint(f.held(watch)), fmt.Sprint(held))
		}
	})
}

// held counts the fleet's tenants whose lock is live.
func (f *fleet) held(directory engine.Directory) int {
	f.t.Helper()
	n := 0
	for _, one := range f.tenants {
		store, release, err := directory.Open(f.t.Context(), one)
		check(f.t, err)
		state, err := store.State(f.t.Context(), one.ID)
		release()
		check(f.t, err)
		if state.Live {
			n++
		}
	}
	return n
}
