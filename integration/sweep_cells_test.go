package integration

import (
	"cmp"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/belayhq/belay/integration/testchild/fake"
	"github.com/belayhq/belay/internal/failpoint"
	"github.com/belayhq/belay/plan"
	"github.com/belayhq/belay/tenant"
)

// disturbance is a fault: what befalls a process that is at a failpoint.
type disturbance string

const (
	killed    disturbance = "killed"
	stopped   disturbance = "stopped past the lease"
	restarted disturbance = "server restarted"
	cut       disturbance = "connections cut"
	swallowed disturbance = "next answer swallowed"
)

var everyFault = []disturbance{killed, stopped, restarted, cut, swallowed}

// specimen is a step of a kind, and what it leaves behind.
type specimen struct {
	name, step, ledger, outside string
}

// specimens are the shapes of each kind of step. A kind without one fails the sweep.
var specimens = map[plan.Kind][]specimen{
	plan.SQL: {{"sql", "sql: {up: it.up.sql, down: it.down.sql}", "it\nlast", "old"}},
	plan.Action: {
		{"action inside", "action: {name: ledger.insert, args: {value: x}}", "it\nlast", "old"},
		{"action outside", "action: {name: file.set, args: {value: new}}", "last", "new"},
	},
}

// waiting is a step during which the lock is renewed.
var waiting = specimen{"action that waits", "action: {name: file.await, args: {value: new}}", "last", "new"}

// everySpecimen lists them in the order of the kinds.
func everySpecimen(t *testing.T) (all []specimen) {
	t.Helper()
	for _, kind := range plan.Kinds() {
		if len(specimens[kind]) == 0 {
			t.Fatalf("the sweep has no step of the kind %s", kind)
		}
		all = append(all, specimens[kind]...)
	}
	return all
}

// site makes a tenant with a change of a step and another one behind it, which ends with a third that fails if it is to.
func (sp specimen) site(w *world, fails bool) *site {
	change := "version: 1\nid: every-kind\ncheckpoint: step\nsteps:\n" +
		"  - id: it\n    " + sp.step + "\n" +
		"  - id: last\n    sql: {up: last.up.sql, down: last.down.sql}\n"
	files := map[string]string{
		"it.up.sql":     "CREATE TABLE made (id integer); INSERT INTO ledger VALUES ('it');",
		"it.down.sql":   "DROP TABLE made; DELETE FROM ledger WHERE step = 'it';",
		"last.up.sql":   "INSERT INTO ledger VALUES ('last');",
		"last.down.sql": "DELETE FROM ledger WHERE step = 'last';",
	}
	if fails {
		change += "  - id: broken\n    sql: {up: broken.up.sql, down: broken.down.sql}\n"
		files["broken.up.sql"], files["broken.down.sql"] = "INSERT INTO missing VALUES (1);", "DELETE FROM missing;"
	}
	files["change.yaml"] = change
	return siteOf(w, files)
}

// operation is what a process does when a fault befalls it.
type operation struct {
	name string
	// op is testchild's, and verdict what it says if it succeeds.
	op, verdict string
	// lease is the process's, if it must not be a long one.
	lease string
	// heals is what the next process does, and brings the tenant to where the operation was going.
	heals string
	// begin brings the tenant to where the operation begins; nil if that is a new one.
	begin func(s *site)
	// steps chooses the steps that it is tried with; nil are those of every kind.
	steps []specimen
	// own chooses the passages that belong to it; nil are all.
	own func(passage) bool
	// fails says that its last step does.
	fails bool
}

// operations are all of them.
var operations = []operation{
	{name: "apply", op: "apply", verdict: "applied", heals: "apply"},
	{
		name: "rollback", op: "rollback", verdict: "rolled_back", heals: "rollback",
		begin: func(s *site) {
			equal(s.t, "verdict", startChild(s.t, "", s.args("apply")...).wait().Verdict, "applied")
		},
	},
	{
		name: "recovery", op: "apply", verdict: "applied", heals: "apply",
		begin: func(s *site) {
			dead := startChild(s.t, failpoint.AfterCheckpoint, s.args("apply")...)
			if !dead.reached() {
				s.t.Fatal("nothing to recover")
			}
			dead.kill()
			s.expire()
		},
	},
	{
		// Until it has claimed the plan it is the apply's.
		name: "giving up", op: "apply", verdict: "partial", heals: "rollback", fails: true,
		own: func(p passage) bool { return p.point != failpoint.BeforeAcquire },
	},
	{
		// Where all goes well a lock is freed by the last checkpoint, so it is an operator's hold that is released.
		name: "release", op: "release", verdict: "released", heals: "apply",
		steps: specimens[plan.SQL],
	},
	{
		// What happens before a step's effect and behind it is the apply's. The first renewal is the proof before the effect.
		name: "renewal", op: "apply", verdict: "applied", heals: "apply", lease: "6s",
		steps: []specimen{waiting},
		own:   func(p passage) bool { return p.renews() && p.nth == 2 },
	},
	{
		// What happens behind it is the apply's.
		name: "migration", op: "apply", verdict: "applied", heals: "apply",
		steps: specimens[plan.SQL],
		own:   func(p passage) bool { return p.migrates() },
	},
}

// passage is one time that a process passes a point.
type passage struct {
	point string
	nth   int
	// last says that it passes nothing after that.
	last bool
}

func (p passage) renews() bool   { return strings.HasPrefix(p.point, "renew.") }
func (p passage) migrates() bool { return strings.HasPrefix(p.point, "migrate.") }

// open says that a transaction is open there.
func (p passage) open() bool { return strings.HasSuffix(p.point, ".before_commit") }

// cell is one thing to try.
type cell struct {
	dialect   tenant.Dialect
	operation operation
	step      specimen
	passage   passage
	fault     disturbance
}

func (c cell) String() string {
	at := fmt.Sprintf("%s.%d", c.passage.point, c.passage.nth)
	return strings.ReplaceAll(fmt.Sprintf("%s/%s/%s/%s/%s", c.dialect, c.operation.name, c.step.name, at, c.fault), " ", "_")
}

// meaningless says why there is no such cell; empty if there is.
func (c cell) meaningless() string {
	onServer := c.fault == restarted || c.fault == cut || c.fault == swallowed
	switch {
	case c.dialect == tenant.SQLite && onServer:
		return "a file has no server and no connection"
	case c.dialect == tenant.SQLite && c.fault == stopped && c.passage.open():
		return "nobody ends the transaction of a stopped process that has the file: it keeps everybody out until it goes on"
	case c.fault == swallowed && c.passage.last:
		return "nothing is sent behind it, so that there is no answer"
	}
	return ""
}

// traits are what a cell is one of: a part of the sweep has each pair of traits that some cell has.
func (c cell) traits() [5]string {
	return [5]string{string(c.dialect), c.operation.name, c.step.name, c.passage.point, string(c.fault)}
}

// everyCell is all there is to try: each passage that an undisturbed process tells of, with each fault.
var everyCell = func() func(t *testing.T) []cell {
	var mu sync.Mutex
	var all []cell
	return func(t *testing.T) []cell {
		t.Helper()
		mu.Lock()
		defer mu.Unlock()
		if all != nil {
			return all
		}
		var found []cell
		for _, d := range []tenant.Dialect{tenant.Postgres, tenant.SQLite} {
			w := newSweepWorld(t, d).watched()
			for _, o := range operations {
				for _, step := range o.stepsOf(t) {
					for _, p := range (cell{dialect: d, operation: o, step: step}).passages(w) {
						for _, f := range everyFault {
							if c := (cell{d, o, step, p, f}); c.meaningless() == "" {
								found = append(found, c)
							}
						}
					}
				}
			}
		}
		all = found
		return all
	}
}()

func (o operation) stepsOf(t *testing.T) []specimen {
	if o.steps != nil {
		return o.steps
	}
	return everySpecimen(t)
}

// args are those of the process. If it does not survive, others wait out the time of its action. If it is stopped, it goes on
// while it still trusts its lock, so that it is the database that stops it; with a transaction open it has a short lease, because
// others wait for half of it, which is when the server ends the transaction.
func (c cell) args(s *site) []string {
	lease, call := cmp.Or(c.operation.lease, "20s"), "10s"
	switch c.fault {
	case killed:
		call = "3s"
	case stopped:
		call = "3s"
		if c.passage.open() {
			lease = "3s"
		}
	case restarted:
		lease, call = "20s", "40s" // all processes are brought to their points first
	case cut, swallowed:
	}
	return append(s.args(c.operation.op), "-lease", lease, "-wait", "20s", "-step-timeout", "1s", "-action-timeout", call)
}

// passages has a process do the operation undisturbed, and returns what it tells of.
func (c cell) passages(w *world) []passage {
	w.t.Helper()
	s := c.begin(w)
	child := startChild(w.t, failpoint.Every, c.args(s)...)
	var all []passage
	times := map[string]int{}
	for {
		point, ok := child.passed()
		if !ok {
			break
		}
		times[point]++
		all = append(all, passage{point: point, nth: times[point]})
		if c.step == waiting && point == failpoint.AfterRenew && times[point] == 2 {
			check(w.t, fake.Open(s.outside))
		}
	}
	if r := child.wait(); r.Verdict != c.operation.verdict {
		w.t.Fatalf("%s on %s, undisturbed: %+v", c.operation.name, c.dialect, r)
	}
	all[len(all)-1].last = true
	if c.operation.own == nil {
		return all
	}
	var own []passage
	for _, p := range all {
		if c.operation.own(p) {
			own = append(own, p)
		}
	}
	return own
}

// pairwise chooses a part of the cells that has every pair of traits that any of them has, always the same one.
func pairwise(all []cell) (part []cell) {
	type pair struct {
		i, j int
		a, b string
	}
	pairs := func(c cell) (ps []pair) {
		is := c.traits()
		for j := range is {
			for i := range j {
				ps = append(ps, pair{i, j, is[i], is[j]})
			}
		}
		return ps
	}
	missing := map[pair]bool{}
	for _, c := range all {
		for _, p := range pairs(c) {
			missing[p] = true
		}
	}
	for len(missing) > 0 {
		best, most := 0, 0
		for i, c := range all {
			adds := 0
			for _, p := range pairs(c) {
				if missing[p] {
					adds++
				}
			}
			if adds > most {
				best, most = i, adds
			}
		}
		for _, p := range pairs(all[best]) {
			delete(missing, p)
		}
		part = append(part, all[best])
	}
	return part
}
