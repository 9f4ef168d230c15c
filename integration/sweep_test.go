package integration

import (
	"os"
	"slices"
	"sync"
	"syscall"
	"testing"

	"github.com/belayhq/belay/integration/testchild/fake"
	"github.com/belayhq/belay/internal/failpoint"
	"github.com/belayhq/belay/internal/pgproxy"
	"github.com/belayhq/belay/internal/postgrestest"
	"github.com/belayhq/belay/tenant"
)

// sweepEnv has the sweep try every cell instead of a part: see make sweep.
const sweepEnv = "BELAY_TEST_SWEEP"

// lanes is how many cells are tried at once on each database. They wait more than they work.
const lanes = 6

// At each point at which a process may be, each fault leaves the tenant such that the next process brings it to where it was
// going, and nothing that was committed breaks an invariant. Where the process survives the fault it gets there by itself.
// G1, G2, G3, G4, G5, G6, G7
func TestEveryFaultAtEveryPointHeals(t *testing.T) {
	t.Parallel()
	if pooled() {
		t.Skip("the sweep puts a network of its own before the server")
	}
	all := everyCell(t)
	everyPointIsIn(t, all)
	chosen := all
	if os.Getenv(sweepEnv) == "" {
		chosen = pairwise(all)
	}
	everyPointIsIn(t, chosen)
	t.Logf("%d of %d cells", len(chosen), len(all))
	var running sync.WaitGroup
	for _, d := range []tenant.Dialect{tenant.Postgres, tenant.SQLite} {
		queue := queueOf(chosen, d)
		for range lanes {
			w := newSweepWorld(t, d).watched()
			running.Go(func() {
				for c := range queue {
					t.Run(c.String(), func(t *testing.T) { c.run(w.ofTest(t), nil) })
				}
			})
		}
	}
	running.Go(func() {
		restarts(t, slices.DeleteFunc(slices.Clone(chosen), func(c cell) bool { return c.fault != restarted }))
	})
	running.Wait()
}

// queueOf is what the lanes of a database try, those first that wait long.
func queueOf(cells []cell, d tenant.Dialect) chan cell {
	queue := make(chan cell, len(cells))
	defer close(queue)
	for _, waits := range []bool{true, false} {
		for _, c := range cells {
			if c.dialect == d && c.fault != restarted && (c.fault == swallowed) == waits {
				queue <- c
			}
		}
	}
	return queue
}

// everyPointIsIn demands that each failpoint that there is is part of a cell.
func everyPointIsIn(t *testing.T, cells []cell) {
	t.Helper()
	for _, point := range failpoint.Points() {
		if !slices.ContainsFunc(cells, func(c cell) bool { return c.passage.point == point }) {
			t.Errorf("no cell passes %s", point)
		}
	}
}

// newSweepWorld is a world whose network can fail, if it has one.
func newSweepWorld(t *testing.T, d tenant.Dialect) *world {
	t.Helper()
	if d == tenant.Postgres {
		return newWorldBehindANetwork(t, postgrestest.URL(t))
	}
	return newWorld(t, d)
}

// restarts tries the cells in which the server restarts, a batch at a time: all processes wait at their points for one restart.
func restarts(t *testing.T, cells []cell) {
	server, err := postgrestest.Own(nil)
	check(t, err)
	for batch := range slices.Chunk(cells, 2*lanes) {
		var arrived, ended sync.WaitGroup
		restarted := make(chan none)
		for _, c := range batch {
			arrived.Add(1)
			arrive := sync.OnceFunc(arrived.Done)
			ended.Go(func() {
				defer arrive() // also where the cell fails before
				t.Run(c.String(), func(t *testing.T) {
					w := newWorldBehindANetwork(t, server.URL(t))
					if !c.passage.migrates() {
						w = w.watched()
					}
					c.run(w, func() {
						arrive()
						<-restarted
					})
				})
			})
		}
		arrived.Wait()
		server.Restart(t, "immediate")
		close(restarted)
		ended.Wait()
	}
}

// begin makes a tenant and brings it to where the operation begins. It stays in the world's database where it can.
func (c cell) begin(w *world) *site {
	w.t.Helper()
	if c.operation.name == "migration" {
		w = newSweepWorld(w.t, c.dialect) // one without Belay's tables, which nobody can watch then
	} else if w.hasTables() {
		watched := w.witness != nil
		if w = w.renewed(); watched {
			w = w.watched()
		}
	}
	s := c.step.site(w, c.operation.fails)
	if c.operation.begin != nil {
		c.operation.begin(s)
	}
	return s
}

// run tries the cell. restart, of those whose server restarts, returns when that has happened.
func (c cell) run(w *world, restart func()) {
	t := w.t
	t.Helper()
	s := c.begin(w)
	child := startChild(t, numbered(c.passage.point, c.passage.nth), c.args(s)...)
	if !child.reached() {
		t.Fatalf("%s was never passed for the %dth time: %+v", c.passage.point, c.passage.nth, child.wait())
	}
	switch c.fault {
	case killed:
		child.kill()
	case stopped:
		child.signal(syscall.SIGSTOP)
		c.heal(s)
		child.signal(syscall.SIGCONT)
		child.order("go")
		if r := child.wait(); c.holds() && !r.Lost {
			t.Fatalf("the stopped process did not notice: %+v", r)
		}
	case restarted:
		restart()
		c.survives(s, child)
	case cut:
		if s.network.Cut(pgproxy.Steps)+s.network.Cut(pgproxy.Renewals) == 0 {
			t.Fatal("there was no connection to cut")
		}
		c.survives(s, child)
	case swallowed:
		f := s.network.Plan(pgproxy.Order{Class: c.nextAnswer(), Do: pgproxy.Swallow})
		c.survives(s, child)
		if !f.Cancel() {
			t.Error("no answer was swallowed")
		}
	}
	c.heal(s)
	s.sound()
}

// holds says whether the process has the lock at the point, and something left to do under it. With a transaction open it looks
// what became of that, and may find that another has done what it wanted.
func (c cell) holds() bool {
	locks := c.operation.name != "release" && c.operation.name != "migration"
	return locks && c.passage.point != failpoint.BeforeAcquire && !c.passage.last && !c.passage.open()
}

// nextAnswer is the connection on which the process asks next.
func (c cell) nextAnswer() pgproxy.Class {
	if c.passage.point == failpoint.BeforeRenew || c.operation.name == "renewal" {
		return pgproxy.Renewals
	}
	return pgproxy.Steps
}

// survives lets a process go on that was not harmed itself, and demands that it gets to where it was going.
func (c cell) survives(s *site, child *child) {
	s.t.Helper()
	lock := func() string { return s.query("SELECT fence, expires_at FROM " + s.table("site_lock")) }
	before := ""
	if c.operation.name == "renewal" {
		before = lock()
	}
	child.order("go")
	if c.operation.name == "renewal" {
		eventually(s.t, "the lock is renewed", func() bool { return lock() != before })
		check(s.t, fake.Open(s.outside))
	}
	r := child.wait()
	if c.operation.name == "release" && r.Error != "" {
		return // an operator is told, and the hold ends by itself
	}
	if r.Verdict != c.operation.verdict {
		s.t.Fatalf("the process did not get there by itself: %+v\n%s", r, child.stderr.String())
	}
}

// heal has the next process bring the tenant to where the operation was going, and demands that it is there.
func (c cell) heal(s *site) {
	s.t.Helper()
	check(s.t, fake.Open(s.outside))
	if s.hasTables() {
		s.heal(c.operation.heals)
	} else {
		equal(s.t, "verdict", startChild(s.t, "", s.args("apply")...).wait().Verdict, "applied")
	}
	if c.operation.heals == "rollback" {
		s.rolledBack()
		return
	}
	s.appliedWith(c.step.ledger, c.step.outside)
}
