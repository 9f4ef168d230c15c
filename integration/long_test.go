package integration

import (
	"fmt"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/belayhq/belay/internal/failpoint"
	"github.com/belayhq/belay/tenant"
)

// newBusySite is a tenant whose change burns processor time for several leases, outside the database and between two steps.
func newBusySite(w *world, duration time.Duration) *site {
	w.t.Helper()
	w.exec("CREATE TABLE ledger (step text NOT NULL)")
	s := &site{world: w, outside: w.t.TempDir() + "/outside"}
	s.changeDir = w.change(map[string]string{
		"change.yaml": `version: 1
id: busy
steps:
  - id: before
    sql: {up: before.sql, down: down.sql}
  - id: burn
    action: {name: processor.burn, args: {value: ` + duration.String() + `}}
    timeout: 30s
    undo: {none: it only takes time}
  - id: after
    sql: {up: after.sql, down: down.sql}
`,
		"before.sql": "INSERT INTO ledger VALUES ('before');", "after.sql": "INSERT INTO ledger VALUES ('after');",
		"down.sql": "DELETE FROM ledger;",
	})
	return s
}

// A step may last many times as long as the lease, and keep the only processor busy meanwhile: renewals do not pause, nobody
// else gets the tenant, and the result is kept. G1, G10
func TestAStepThatOutlastsTheLeaseAndLeavesNoProcessorKeepsTheTenant(t *testing.T) {
	t.Parallel()
	const lease = 2 * time.Second
	onBoth(t, func(t *testing.T, w *world) {
		s := newBusySite(w, 3*lease)
		path, err := testchild()
		check(t, err)
		args := []string{"-target", s.target, "-id", string(s.id), "-ledger", s.outside, "-change", s.changeDir, "-lease", lease.String()}
		cmd := exec.Command(path, args...)
		cmd.Env = append(os.Environ(), "GOMAXPROCS=1")
		holder := start(t, failpoint.BeforeEffect, cmd)
		if !holder.reached() {
			t.Fatal("never passed")
		}
		holder.order("go")
		// Whoever waits for longer than a lease finds the holder alive all the same.
		other := startChild(t, "", append(args, "-wait", (lease+lease/2).String())...).wait()
		if !other.Busy {
			t.Errorf("another process got the tenant: %+v", other)
		}
		equal(t, "verdict", holder.wait().Verdict, "applied")
		equal(t, "ledger", sorted(s.query("SELECT step FROM ledger")), "after\nbefore")
		equal(t, "fence", s.query("SELECT fence FROM "+s.table("site_lock")), "1")
	})
}

// A process that is killed has its tenant until its lease is over: whoever waits gets the tenant then and not before, with a new
// fence, and history names the dead. G1, G2
func TestADeadHolderKeepsItsTenantForTheRestOfItsLease(t *testing.T) {
	t.Parallel()
	const lease = 3 * time.Second
	onBoth(t, func(t *testing.T, w *world) {
		s := newSite(w, "step")
		args := append(s.args("apply"), "-lease", lease.String(), "-wait", (5 * lease).String())
		dead := startChild(t, numbered(failpoint.BeforeCheckpoint, 2), args...)
		if !dead.reached() {
			t.Fatal("never passed")
		}
		dead.kill()
		expiry := s.query("SELECT expires_at FROM " + s.table("site_lock"))
		if r := startChild(t, "", args...).wait(); r.Verdict != "applied" || r.Recovered != 1 {
			t.Fatalf("the next process: %+v", r)
		}
		equal(t, "recovery", s.query("SELECT fence, status_from, status_to, pid, at > "+expiry+" FROM "+s.table("event")+" WHERE kind = 'recover'"),
			fmt.Sprintf("2|applying|pending|%d|%s", dead.cmd.Process.Pid, map[tenant.Dialect]string{tenant.Postgres: "true", tenant.SQLite: "1"}[w.dialect]))
		s.appliedOnce()
	})
}

// A client dies while its statement runs. The server may still finish the statement, and even the COMMIT behind it, or may not:
// the next apply waits for that to be decided, and the step is in place once. G4, G7
func TestAStatementWhoseClientDiedTakesEffectOnce(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, w *world) {
		slow := map[tenant.Dialect]string{
			tenant.Postgres: "SELECT pg_sleep(n) FROM pace;",
			tenant.SQLite:   "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c, pace WHERE x < n * 10000000) SELECT count(*) FROM c;",
		}[w.dialect]
		w.exec("CREATE TABLE ledger (step text NOT NULL)", "CREATE TABLE pace (n integer NOT NULL)", "INSERT INTO pace VALUES (2)")
		s := &site{world: w, outside: w.t.TempDir() + "/outside"}
		s.changeDir = w.change(map[string]string{
			"change.yaml": "version: 1\nid: slow\nsteps:\n  - id: slow\n    sql: {up: up.sql, down: down.sql}\n",
			"up.sql":      "INSERT INTO ledger VALUES ('slow'); " + slow,
			"down.sql":    "DELETE FROM ledger;",
		})
		c := startChild(t, "", s.args("apply")...)
		w.until("the statement runs", map[tenant.Dialect]string{
			tenant.Postgres: "SELECT count(*) > 0 FROM pg_stat_activity WHERE query LIKE '%pg_sleep(n)%' AND wait_event = 'PgSleep'",
			tenant.SQLite:   "SELECT count(*) > 0 FROM belay_plan WHERE status = 'applying'",
		}[w.dialect])
		c.kill()
		if w.dialect == tenant.SQLite { // where nobody is left to finish it
			w.exec("UPDATE pace SET n = 0")
		}
		s.heal("apply")
		equal(t, "ledger", s.query("SELECT step FROM ledger"), "slow")
		equal(t, "plan", s.query("SELECT status, outcome FROM "+s.table("plan")), "applied|applied")
	})
}

// until asks the database again and again, until it says yes.
func (w *world) until(what, query string) {
	w.t.Helper()
	deadline := time.After(hang)
	ticker := time.NewTicker(5 * time.Millisecond)
	defer ticker.Stop()
	for {
		if yes := w.hasTables() && w.yes(query); yes {
			return
		}
		select {
		case <-ticker.C:
		case <-deadline:
			w.t.Fatalf("still waiting until %s", what)
		}
	}
}

func (w *world) yes(query string) bool {
	answer := w.query(query)
	return answer == "true" || answer == "1"
}
