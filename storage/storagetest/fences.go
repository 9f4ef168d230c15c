package storagetest

import (
	"errors"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/belayhq/belay/engine"
	"github.com/belayhq/belay/plan"
	"github.com/belayhq/belay/sitelock"
	"github.com/belayhq/belay/storage"
)

// write is one way to write under a lock. It works on a term of which step 0 of 3 is in place, or, with idle, on a lock
// held without a claim.
type write struct {
	method string
	name   string
	idle   bool
	do     func(t *testing.T, x term, held sitelock.Held) error
}

// writes lists every writing method in every shape that takes another path to the database.
var writes = []write{
	{"Claim", "of an apply", true, func(t *testing.T, x term, held sitelock.Held) error {
		return claim(t, x, held, apply(change("0002-second", 1)))
	}},
	{"Claim", "of a rollback", true, func(t *testing.T, x term, held sitelock.Held) error {
		return claim(t, x, held, rollback(change("0000-older", 1)))
	}},
	{"Checkpoint", "of sql steps", false, func(t *testing.T, x term, held sitelock.Held) error {
		return x.db.Checkpoint(t.Context(), held, x.group(x.put(1), x.put(2)))
	}},
	{"Checkpoint", "of an action", false, func(t *testing.T, x term, held sitelock.Held) error {
		return x.db.Checkpoint(t.Context(), held, x.group(x.action(1, func(tx *actionTx) {
			tx.image = []byte("before")
			tx.exec("INSERT INTO " + x.table + " VALUES (1, 'up')")
		})))
	}},
	{"Checkpoint", "of an intent with its image", false, func(t *testing.T, x term, held sitelock.Held) error {
		return x.db.Checkpoint(t.Context(), held, x.group(withImage(recorded(1, plan.StepIntent), "before")))
	}},
	{"Checkpoint", "of a table", false, func(t *testing.T, x term, held sitelock.Held) error {
		return x.db.Checkpoint(t.Context(), held, x.group(x.step(1, plan.StepDone, "CREATE TABLE "+x.table+"_more (k integer)")))
	}},
	{"Checkpoint", "of a step on the way back", false, func(t *testing.T, x term, held sitelock.Held) error {
		group := x.group(x.take(0))
		group.Direction = plan.Down
		return x.db.Checkpoint(t.Context(), held, group)
	}},
	{"Checkpoint", "of a move", false, func(t *testing.T, x term, held sitelock.Held) error {
		group := x.group()
		group.Move = &engine.Move{Event: plan.EventFail, From: plan.Applying, To: plan.Pending, Outcome: plan.OutcomeFailed}
		return x.db.Checkpoint(t.Context(), held, group)
	}},
	{"Checkpoint", "of steps, a move and a release", false, func(t *testing.T, x term, held sitelock.Held) error {
		group := x.group(x.put(1), x.put(2))
		group.Move, group.Release = &engine.Move{Event: plan.EventSucceed, From: plan.Applying, To: plan.Applied, Outcome: plan.OutcomeApplied}, true
		return x.db.Checkpoint(t.Context(), held, group)
	}},
	{"Checkpoint", "of a release", false, func(t *testing.T, x term, held sitelock.Held) error {
		group := x.group()
		group.Release = true
		return x.db.Checkpoint(t.Context(), held, group)
	}},
	{"Checkpoint", "of a longer lease", false, func(t *testing.T, x term, held sitelock.Held) error {
		group := x.group(x.put(1))
		group.Lease = 10 * time.Minute
		return x.db.Checkpoint(t.Context(), held, group)
	}},
	{"Checkpoint", "of what a person says", true, func(t *testing.T, x term, held sitelock.Held) error {
		group := x.group(recorded(0, plan.StepUndone))
		group.Plan, group.Direction = x.plan(t, change("0000-older", 1)).Plan.ID, plan.Down
		group.Move = &engine.Move{Event: plan.EventResolveRolledBack, From: plan.Applied, To: plan.Pending, Outcome: plan.OutcomeResolved, Reason: "so it is"}
		return x.db.Checkpoint(t.Context(), held, group)
	}},
	{"Renew", "", false, func(t *testing.T, x term, held sitelock.Held) error {
		gone, err := x.db.Renew(t.Context(), []sitelock.Held{held}, lease)
		if len(gone) > 0 {
			return &sitelock.LockLostError{Held: gone[0]}
		}
		return err
	}},
	{"Release", "", false, func(t *testing.T, x term, held sitelock.Held) error {
		return x.db.Release(t.Context(), held)
	}},
	{"Retire", "", true, func(t *testing.T, x term, held sitelock.Held) error {
		return x.db.Retire(t.Context(), held)
	}},
}

func claim(t *testing.T, x term, held sitelock.Held, claim *sitelock.Claim) error {
	record, err := x.db.Claim(t.Context(), held, *claim)
	if err == nil && record == nil {
		t.Error("the claim was refused")
	}
	return err
}

// stage makes the term that a write works on, beside an older plan that is applied.
func (w write) stage(t *testing.T, d *database) term {
	t.Helper()
	s := d.site(t)
	s.applied(t, change("0000-older", 1))
	if w.idle {
		return term{site: s, held: s.acquire(t, nil).Held, direction: plan.Up}
	}
	x := s.begin(t, apply(change("0001-first", 3)))
	x.checkpoint(t, x.group(x.put(0)))
	return x
}

// thief is a way to lose the lock, or never to have had it: it returns the custody that the write then claims.
type thief struct {
	name  string
	steal func(t *testing.T, x term) sitelock.Held
}

var thieves = []thief{
	{"the lock was taken over", func(t *testing.T, x term) sitelock.Held {
		x.expire(t)
		x.acquire(t, nil)
		return x.held
	}},
	{"the lock was taken over and the plan claimed again", func(t *testing.T, x term) sitelock.Held {
		x.expire(t)
		x.acquire(t, apply(change("0001-first", 3)))
		return x.held
	}},
	{"the lock was taken over and freed", func(t *testing.T, x term) sitelock.Held {
		x.expire(t)
		x.release(t, x.acquire(t, nil).Held)
		return x.held
	}},
	{"the lock was broken", func(t *testing.T, x term) sitelock.Held {
		if _, err := x.db.Break(t.Context(), x.id, worker, "to see"); err != nil {
			t.Fatal(err)
		}
		return x.held
	}},
	{"the lock was released", func(t *testing.T, x term) sitelock.Held {
		x.release(t, x.held)
		return x.held
	}},
	{"the fence number is guessed right after a take-over", func(t *testing.T, x term) sitelock.Held {
		x.expire(t)
		now := x.acquire(t, nil).Held
		return sitelock.Held{Tenant: x.id, Holder: x.held.Holder, Fence: now.Fence}
	}},
	{"the fence is one that is yet to come", func(t *testing.T, x term) sitelock.Held {
		return sitelock.Held{Tenant: x.id, Holder: x.held.Holder, Fence: x.held.Fence + 1}
	}},
	{"the holder is someone else", func(t *testing.T, x term) sitelock.Held {
		return sitelock.Held{Tenant: x.id, Holder: sitelock.NewHolderID(), Fence: x.held.Fence}
	}},
	{"the custody is that of another tenant, with the same fence", func(t *testing.T, x term) sitelock.Held {
		other := x.database.site(t)
		other.release(t, other.acquire(t, nil).Held)
		held := other.acquire(t, nil).Held
		if held.Fence != x.held.Fence {
			t.Fatalf("fence %d, want %d", held.Fence, x.held.Fence)
		}
		return sitelock.Held{Tenant: x.id, Holder: held.Holder, Fence: held.Fence}
	}},
	{"the tenant is one that was never locked", func(t *testing.T, x term) sitelock.Held {
		return sitelock.Held{Tenant: x.database.site(t).id, Holder: x.held.Holder, Fence: x.held.Fence}
	}},
}

// fences is the heart of the suite.
var fences = slices.Concat(fencesOf(writes), fencesOfLeases(leaseWrites), []test{
	{"every method that writes for a holder is in a table of writes", func(t *testing.T, _ *database) {
		held, many, lease := reflect.TypeFor[sitelock.Held](), reflect.TypeFor[[]sitelock.Held](), reflect.TypeFor[sitelock.HeldLease]()
		var listed, missing []string
		for _, w := range writes {
			listed = append(listed, w.method)
		}
		for _, w := range leaseWrites {
			listed = append(listed, w.method)
		}
		writing := 0
		for method := range reflect.TypeFor[storage.Database]().Methods() {
			for in := range method.Type.Ins() {
				if in != held && in != many && in != lease {
					continue
				}
				writing++
				if !slices.Contains(listed, method.Name) {
					missing = append(missing, method.Name)
				}
			}
		}
		if len(missing) > 0 || writing < 7 {
			t.Errorf("not in a table: %v of %d writing methods", missing, writing)
		}
	}},
})

// fencesOf checks each write with a live fence and with each thief's.
func fencesOf(all []write) []test {
	var tests []test
	for _, w := range all {
		sentence := w.method
		if w.name != "" {
			sentence += " " + w.name
		}
		tests = append(tests, test{sentence, func(t *testing.T, d *database) {
			t.Run("works under a live fence", func(t *testing.T) {
				x := w.stage(t, d)
				before := d.dump(t)
				if err := w.do(t, x, x.held); err != nil {
					t.Fatal(err)
				}
				if d.dump(t) == before {
					t.Error("nothing was written")
				}
			})
			t.Run("works under a lease that lapsed and was not taken", func(t *testing.T) {
				x := w.stage(t, d)
				x.expire(t)
				if err := w.do(t, x, x.held); err != nil {
					t.Fatal(err)
				}
			})
			for _, thief := range thieves {
				t.Run("writes nothing if "+thief.name, func(t *testing.T) {
					x := w.stage(t, d)
					held := thief.steal(t, x)
					d.unchanged(t, func() {
						if err := w.do(t, x, held); !lost(err) {
							t.Errorf("got %v, want a lost lock", err)
						}
					})
				})
			}
		}})
	}
	return tests
}

// leaseWrite is one way to write under a named lease.
type leaseWrite struct {
	method string
	do     func(t *testing.T, d *database, held sitelock.HeldLease) error
}

var leaseWrites = []leaseWrite{
	{"RenewLease", func(t *testing.T, d *database, held sitelock.HeldLease) error {
		return d.db.RenewLease(t.Context(), held, 10*time.Minute)
	}},
	{"ReleaseLease", func(t *testing.T, d *database, held sitelock.HeldLease) error {
		return d.db.ReleaseLease(t.Context(), held)
	}},
}

// leaseThieves are the thieves of named leases.
var leaseThieves = []struct {
	name  string
	steal func(t *testing.T, d *database, held sitelock.HeldLease) sitelock.HeldLease
}{
	{"the lease was taken over", func(t *testing.T, d *database, held sitelock.HeldLease) sitelock.HeldLease {
		d.lapse(t, held.Name)
		d.lead(t, held.Name, sitelock.NewHolderID())
		return held
	}},
	{"the holder acquired the lease again", func(t *testing.T, d *database, held sitelock.HeldLease) sitelock.HeldLease {
		d.lead(t, held.Name, held.Holder)
		return held
	}},
	{"the lease was released", func(t *testing.T, d *database, held sitelock.HeldLease) sitelock.HeldLease {
		if err := d.db.ReleaseLease(t.Context(), held); err != nil {
			t.Fatal(err)
		}
		return held
	}},
	{"the fence number is guessed right after a take-over", func(t *testing.T, d *database, held sitelock.HeldLease) sitelock.HeldLease {
		d.lapse(t, held.Name)
		held.Fence = d.lead(t, held.Name, sitelock.NewHolderID()).Fence
		return held
	}},
	{"the holder is someone else", func(_ *testing.T, _ *database, held sitelock.HeldLease) sitelock.HeldLease {
		held.Holder = sitelock.NewHolderID()
		return held
	}},
	{"the custody is that of another lease, with the same fence", func(t *testing.T, d *database, held sitelock.HeldLease) sitelock.HeldLease {
		other := d.lead(t, "other "+held.Name, sitelock.NewHolderID()).Held()
		other.Name = held.Name
		return other
	}},
	{"the lease is one that was never taken", func(_ *testing.T, _ *database, held sitelock.HeldLease) sitelock.HeldLease {
		held.Name = "untaken"
		return held
	}},
}

// fencesOfLeases checks each write with a live fence and with each thief's.
func fencesOfLeases(all []leaseWrite) []test {
	var tests []test
	for _, w := range all {
		tests = append(tests, test{w.method, func(t *testing.T, d *database) {
			t.Run("works under a live fence", func(t *testing.T) {
				held := d.lead(t, "live", sitelock.NewHolderID()).Held()
				before := d.dump(t)
				if err := w.do(t, d, held); err != nil {
					t.Fatal(err)
				}
				if d.dump(t) == before {
					t.Error("nothing was written")
				}
			})
			for _, thief := range leaseThieves {
				t.Run("writes nothing if "+thief.name, func(t *testing.T) {
					held := thief.steal(t, d, d.lead(t, thief.name, sitelock.NewHolderID()).Held())
					d.unchanged(t, func() {
						if err := w.do(t, d, held); !errors.Is(err, sitelock.ErrNotHeld) {
							t.Errorf("got %v, want ErrNotHeld", err)
						}
					})
				})
			}
		}})
	}
	return tests
}
