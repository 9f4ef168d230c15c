package integration

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/belayhq/belay/internal/failpoint"
	"github.com/belayhq/belay/internal/postgrestest"
	"github.com/belayhq/belay/tenant"
)

// cliFleet is a folder with a control database and tenants, worked on by the command line itself.
type cliFleet struct {
	t       *testing.T
	dir     string
	change  string
	tenants []*world
	names   []string
	before  []string
}

// fleetKind is what the tenants of a fleet are.
type fleetKind string

const (
	// sqliteFiles has a control database in a file, too.
	sqliteFiles fleetKind = "sqlite"
	// postgresSchemas are of one database, which is the control database, too.
	postgresSchemas fleetKind = "postgres"
	// postgresDatabases are one for each tenant, and one for control.
	postgresDatabases fleetKind = "postgres-databases"
)

const cliFleetSize = 6

// onBothFleets runs a test on a fleet of SQLite files, and on one of schemas in a PostgreSQL.
func onBothFleets(t *testing.T, test func(t *testing.T, f *cliFleet)) {
	t.Helper()
	onFleets(t, test, postgresSchemas, sqliteFiles)
}

func onFleets(t *testing.T, test func(t *testing.T, f *cliFleet), kinds ...fleetKind) {
	t.Helper()
	for _, kind := range kinds {
		t.Run(string(kind), func(t *testing.T) {
			t.Parallel()
			test(t, newCLIFleet(t, kind))
		})
	}
}

func newCLIFleet(t *testing.T, kind fleetKind) *cliFleet {
	t.Helper()
	f := &cliFleet{t: t, dir: t.TempDir()}
	w := &world{t: t}
	f.change = w.change(map[string]string{
		"change.yaml": `version: 1
id: 0001-locale
checkpoint: step
steps:
  - id: column
    sql: {up: column.up.sql, down: column.down.sql}
  - id: fill
    sql: {up: fill.up.sql, down: fill.down.sql}
    verify: {query: "SELECT count(*) FROM customer WHERE locale IS NULL", expect: 0}
  - id: count
    sql: {up: count.up.sql, down: count.down.sql}
`,
		"column.up.sql":   "ALTER TABLE customer ADD COLUMN locale text;",
		"column.down.sql": "ALTER TABLE customer DROP COLUMN locale;",
		"fill.up.sql":     "UPDATE customer SET locale = 'en';",
		"fill.down.sql":   "UPDATE customer SET locale = NULL;",
		"count.up.sql":    "UPDATE counter SET n = n + 1;",
		"count.down.sql":  "UPDATE counter SET n = n - 1;",
	})
	control := ""
	if kind == sqliteFiles {
		f.must("init", ".")
	} else {
		control = postgrestest.URL(t)
		f.must("init", ".", "--database-url", control)
	}
	for i := range cliFleetSize {
		f.add(fmt.Sprintf("tenant-%d", i+1), f.place(kind, control, i+1))
	}
	return f
}

// place is where the n-th tenant's data are.
func (f *cliFleet) place(kind fleetKind, control string, n int) *world {
	f.t.Helper()
	w := &world{t: f.t, dialect: tenant.Postgres}
	switch kind {
	case sqliteFiles:
		w.dialect, w.path = tenant.SQLite, filepath.Join(f.dir, fmt.Sprintf("tenant-%d.db", n))
		w.target = "sqlite://" + w.path
	case postgresSchemas:
		w.url, w.scope = control, fmt.Sprintf("tenant_%d", n)
		w.target = withSchema(control, w.scope)
	case postgresDatabases:
		w.url, w.scope = postgrestest.URL(f.t), "public"
		w.target = w.url
	}
	return w
}

// add registers a tenant and gives it some data.
func (f *cliFleet) add(name string, w *world) {
	f.t.Helper()
	f.must("tenant", "add", name, w.target, "--create", "--label", "n="+name[len(name)-1:])
	w.exec("CREATE TABLE customer (id integer PRIMARY KEY, name text NOT NULL)", "CREATE TABLE counter (n integer NOT NULL)",
		"INSERT INTO customer VALUES (1, 'Ada'), (2, 'Grace')", "INSERT INTO counter VALUES (0)")
	f.tenants, f.names, f.before = append(f.tenants, w), append(f.names, name), append(f.before, w.dump())
}

// belay is the command line in the fleet's folder; point names a failpoint.
func (f *cliFleet) belay(point string, args ...string) *child {
	f.t.Helper()
	path, err := belay()
	check(f.t, err)
	cmd := exec.Command(path, args...)
	cmd.Dir = f.dir
	cmd.Env = append(cmd.Environ(), "BELAY_LEASE=20s", "NO_COLOR=1")
	return start(f.t, point, cmd)
}

// runs runs a command and returns its exit code and what it printed.
func (f *cliFleet) runs(args ...string) (code int, stdout, stderr string) {
	f.t.Helper()
	c := f.belay("", args...)
	code = c.ended()
	return code, c.stdout.String(), c.stderr.String()
}

func (f *cliFleet) must(args ...string) string {
	f.t.Helper()
	return f.exits(0, args...)
}

// exits demands an exit code and returns what the command printed.
func (f *cliFleet) exits(want int, args ...string) string {
	f.t.Helper()
	code, stdout, stderr := f.runs(args...)
	if code != want {
		f.t.Fatalf("belay %s: exit %d, want %d\n%s%s", strings.Join(args, " "), code, want, stdout, stderr)
	}
	return stdout + stderr
}

func (f *cliFleet) apply(more ...string) []string {
	return append([]string{"apply", f.change, "--all", "-y", "-p", "2"}, more...)
}

// appliedOnce demands that every tenant has every effect exactly once.
func (f *cliFleet) appliedOnce() {
	f.t.Helper()
	for i, w := range f.tenants {
		equal(f.t, f.names[i], w.query("SELECT n FROM counter")+" "+w.query("SELECT count(*) FROM customer WHERE locale = 'en'"), "1 2")
	}
}

func (f *cliFleet) asBefore() {
	f.t.Helper()
	for i, w := range f.tenants {
		equal(f.t, f.names[i], w.dump(), f.before[i])
	}
}

// The whole promise on one page: apply to a fleet, die at any moment, run the same command again, roll back. G2 G4 G6
func TestAFleetKilledHalfWayIsHealedByTheSameCommandAndRollsBack(t *testing.T) {
	t.Parallel()
	onFleets(t, func(t *testing.T, f *cliFleet) {
		for _, point := range []string{failpoint.AfterAcquire + "#3", failpoint.AfterCheckpoint + "#4", failpoint.BeforeCheckpoint + "#8"} {
			c := f.belay(point, f.apply()...)
			if !c.reached() {
				t.Fatalf("%s was never passed", point)
			}
			c.kill()
			contains(t, "status while the lease lives", f.must("status", "--all", "-o", "json"), `"state": "running"`)
			f.expire()
			lapsed := f.must("status", "--all", "-o", "json")
			contains(t, "status after it lapsed", lapsed, `"state": "interrupted"`)
			contains(t, "status after it lapsed", lapsed, `"recovers_to": "pending"`)
			f.must(f.apply()...)
			f.appliedOnce()
			contains(t, "a second apply", f.must(f.apply()...), "nothing to do")

			c = f.belay(point, "rollback", "0001-locale", "--all", "-y", "-p", "2")
			if !c.reached() {
				t.Fatalf("%s was never passed by the rollback", point)
			}
			c.kill()
			f.expire()
			f.must("rollback", "0001-locale", "--all", "-y")
			f.asBefore()
		}
	}, postgresSchemas, postgresDatabases, sqliteFiles)
}

// expire makes all locks of the fleet lapse.
func (f *cliFleet) expire() {
	f.t.Helper()
	for _, w := range f.tenants {
		if w.hasTables() {
			w.expire()
		}
	}
}

// Two processes given the same tenants share the work: each plan runs once, and neither sees an error.
func TestTwoProcessesShareAFleet(t *testing.T) {
	t.Parallel()
	onBothFleets(t, func(t *testing.T, f *cliFleet) {
		first := f.belay(failpoint.BeforeCheckpoint+"#2", f.apply()...)
		if !first.reached() {
			t.Fatal("never passed")
		}
		second := f.belay("", f.apply("--lock-timeout", "60s")...)
		first.order("go")
		for _, c := range []*child{first, second} {
			if code := c.ended(); code != 0 {
				t.Errorf("exit %d\n%s%s", code, c.stdout.String(), c.stderr.String())
			}
		}
		f.appliedOnce()
	})
}

// A tenant that someone else works on is exit 5, and the message says who, whether alive, and how it heals.
func TestABusyTenantIsItsOwnExitCode(t *testing.T) {
	t.Parallel()
	onBothFleets(t, func(t *testing.T, f *cliFleet) {
		holder := f.belay(failpoint.AfterAcquire, "apply", f.change, "-t", "tenant-1", "-y")
		if !holder.reached() {
			t.Fatal("never passed")
		}
		out := f.exits(5, "apply", f.change, "-t", "tenant-1", "-y", "--lock-timeout", "0")
		for _, part := range []string{"locked by apply of 0001-locale", fmt.Sprintf("pid %d", holder.cmd.Process.Pid), "alive", "the next apply or rollback recovers it"} {
			contains(t, "busy message", out, part)
		}
		contains(t, "lock list", f.must("lock", "list", "--all"), "tenant-1")
		holder.order("go")
		equal(t, "exit", fmt.Sprint(holder.ended()), "0")
	})
}

// The first signal stops at the next checkpoint, with its own exit code, a true status and free locks.
func TestASignalStopsAFleetAtTheNextCheckpoint(t *testing.T) {
	t.Parallel()
	onBothFleets(t, func(t *testing.T, f *cliFleet) {
		c := f.belay(failpoint.AfterCheckpoint+"#4", f.apply("-p", "1")...)
		if !c.reached() {
			t.Fatal("never passed")
		}
		c.signal(syscall.SIGTERM)
		c.sees("stop")
		c.order("go")
		equal(t, "exit", fmt.Sprint(c.ended()), "143")
		for i, w := range f.tenants {
			if w.hasTables() {
				equal(t, f.names[i], w.query("SELECT count(*) FROM "+w.table("site_lock")+" WHERE holder IS NOT NULL"), "0")
			}
		}
		f.must(f.apply()...)
		f.appliedOnce()
	})
}

// Several names for one tenant, a tenant that fails: the others are applied, and the exit code says which case it is. G3
func TestOneBadTenantDoesNotStopTheOthers(t *testing.T) {
	t.Parallel()
	onBothFleets(t, func(t *testing.T, f *cliFleet) {
		f.tenants[2].exec("DROP TABLE counter")
		out := f.exits(4, f.apply()...)
		for _, part := range []string{"tenant-3", "0001-locale", "step count", "count.up.sql:1", "counter", "column, fill", "belay rollback 0001-locale", "belay apply"} {
			contains(t, "error", out, part)
		}
		for i, w := range f.tenants {
			if i != 2 {
				equal(t, f.names[i], w.query("SELECT n FROM counter"), "1")
			}
		}
		f.tenants[2].exec("CREATE TABLE counter (n integer NOT NULL)", "INSERT INTO counter VALUES (0)")
		f.must(f.apply()...)
		f.appliedOnce()
	})
}
