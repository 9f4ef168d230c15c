package main

import (
	"testing"

	"github.com/belayhq/belay/internal/render"
	"github.com/belayhq/belay/plan"
	"github.com/belayhq/belay/sitelock"
	"github.com/belayhq/belay/storage"
)

func TestAHoldKeepsEveryoneOffAndSaysWhy(t *testing.T) {
	t.Parallel()
	w := fleet(t, "acme")
	path := w.customers("stop")
	contains(t, w.want(exitUsage, "lock", "hold", "acme").stderr, "--reason")
	w.ok("lock", "hold", "acme", "--ttl", "10m", "--reason", "repairing by hand")
	r := w.want(exitLocked, "apply", path, "--all", "-y", "--lock-timeout", "0")
	contains(t, r.stderr, "repairing by hand", "belay lock release acme")
	contains(t, w.ok("lock", "list").stdout, "held", "repairing by hand")
	contains(t, w.ok("status").stdout, "1 held", "repairing by hand")
	w.ok("lock", "release", "acme")
	w.want(exitError, "lock", "release", "acme")
	lacks(t, w.ok("lock", "list").stdout, "acme")
	w.ok("apply", path, "--all", "-y")
}

// abandon leaves a tenant as a process does that dies while it applies a change: its lease is still live.
func (w *world) abandon(name, path string) {
	w.t.Helper()
	change, err := plan.Load(w.dir + "/" + path)
	if err != nil {
		w.t.Fatal(err)
	}
	id := decode[render.TenantList](w.t, w.ok("tenant", "show", name, "-o", "json").stdout).Tenants[0].TenantID
	w.inTarget(name, func(db storage.Database) error {
		_, err := db.Acquire(w.t.Context(), sitelock.Request{
			Tenant: id, Holder: sitelock.NewHolderID(), Process: sitelock.Process{Host: "host-7", PID: 4711}, Operation: sitelock.OpApply,
			Lease: sitelock.MaxLease,
			Claim: &sitelock.Claim{Direction: plan.Up, Change: change.ID, Digest: change.Digest(), Body: change, NewPlan: plan.NewID()},
		})
		return err
	})
}

func TestALiveHolderIsNamedAndWaitedFor(t *testing.T) {
	t.Parallel()
	w := fleet(t, "acme")
	path := w.customers("stop")
	w.abandon("acme", path)
	r := w.want(exitLocked, "apply", path, "--all", "-y", "--lock-timeout", "0", "-o", "json")
	lock := decode[render.Report](t, r.stdout).Tenants[0].Error.Lock
	if lock == nil || *lock.Host != "host-7" || *lock.PID != 4711 || !lock.Alive {
		t.Errorf("the error names %+v", lock)
	}
	contains(t, r.stderr, "locked by apply of 0001-customer on host-7 (pid 4711, alive)", "belay lock show acme")
	r = w.want(exitLocked, "apply", path, "--all", "-y", "--lock-timeout", "300ms")
	contains(t, r.stderr, "acme: waiting until", "apply of 0001-customer on host-7 (pid 4711, alive) since", "lapses at")
	status := decode[render.Status](t, w.ok("status", "-o", "json").stdout).Tenants[0]
	if status.Lock.State != sitelock.StateRunning || status.Plans[0].RecoversTo != nil || len(status.Attention) > 0 {
		t.Errorf("a live holder's tenant is %+v", status)
	}
	contains(t, w.ok("status").stdout, "acme", "running", "apply of 0001-customer on host-7 (pid 4711, alive)")
}

func TestAnAbandonedPlanIsShownAndHealed(t *testing.T) {
	t.Parallel()
	w := fleet(t, "acme")
	path := w.customers("stop")
	w.abandon("acme", path)
	w.exec("acme", "UPDATE belay_site_lock SET expires_at = 1")
	status := decode[render.Status](t, w.ok("status", "-o", "json").stdout).Tenants[0]
	if to := status.Plans[0].RecoversTo; status.Lock.State != sitelock.StateInterrupted || to == nil || *to != plan.Pending {
		t.Errorf("an abandoned plan is shown as %+v", status)
	}
	contains(t, w.ok("status").stdout, "applying (abandoned)", "recovers to pending", "host-7", "1 interrupted")
	contains(t, w.ok("lock", "list").stdout, "interrupted")

	r := w.ok("apply", path, "--all", "-y", "-o", "json")
	recovered := decode[render.Report](t, r.stdout).Tenants[0].Recovered
	if len(recovered) != 1 || recovered[0].Was != plan.Applying || recovered[0].Status != plan.Pending {
		t.Errorf("recovered %+v", recovered)
	}
	contains(t, r.stderr, "acme: recovered 0001-customer from host-7 (pid 4711)", "this tenant may be partly changed, apply again or roll back")
	contains(t, w.ok("history", "acme").stdout, "recover")
}

func TestABrokenLockIsRecoveredAtOnce(t *testing.T) {
	t.Parallel()
	w := fleet(t, "acme")
	path := w.customers("stop")
	w.abandon("acme", path)
	contains(t, w.want(exitUsage, "lock", "break", "acme").stderr, "--reason")
	r := w.ok("lock", "break", "acme", "--reason", "host-7 hangs")
	contains(t, r.stdout, "0001-customer is pending again")
	contains(t, w.ok("history", "acme").stdout, "host-7 hangs")
	w.ok("apply", path, "--all", "-y", "--lock-timeout", "0")
}

func TestResolveSaysWhatIsTrue(t *testing.T) {
	t.Parallel()
	w := fleet(t, "acme", "bolt")
	w.exec("bolt", "CREATE TABLE customer (id integer PRIMARY KEY, name text)")
	path := w.customers("stop")
	contains(t, w.want(exitUsage, "resolve", "bolt", path, "--as", "applied").stderr, "--reason")
	contains(t, w.want(exitUsage, "resolve", "bolt", path, "--as", "done", "--reason", "x").stderr, "--as")
	contains(t, w.want(exitUsage, "resolve", path, "--as", "applied", "--reason", "x").stderr, "no command that writes defaults to all")
	w.ok("resolve", "bolt", path, "--as", "applied", "--reason", "made by hand")
	r := w.ok("apply", path, "--all", "-y")
	contains(t, r.stdout, "1 applied, 1 already applied")
	contains(t, w.ok("history", "bolt").stdout, "made by hand")
	w.ok("resolve", "0001-customer", "--all", "--as", "rolled-back", "--reason", "dropped by hand")
	contains(t, w.ok("rollback", "0001-customer", "--all", "-y").stdout, "2 already rolled back")
}
