package soak

import (
	"context"
	"fmt"
	"slices"
	"syscall"
	"time"

	"github.com/belayhq/belay/engine"
	"github.com/belayhq/belay/integration/checker"
	"github.com/belayhq/belay/internal/failpoint"
	"github.com/belayhq/belay/internal/postgrestest"
	"github.com/belayhq/belay/storage"
	"github.com/belayhq/belay/storage/postgres"
	"github.com/belayhq/belay/storage/sqlite"
	"github.com/belayhq/belay/tenant"
)

// fault is something that goes wrong. strike makes it happen, and says whether there was anything for it to happen to.
type fault struct {
	name   string
	strike func(s *soak) bool
}

// faults are all that can go wrong with the database at hand. A proxy between the processes and the server is one more: its
// faults join the list, and the brief then names tenants by its address.
func (s *soak) faults() []fault {
	list := []fault{
		{"kill", (*soak).kill},
		{"kill at a failpoint", (*soak).killAtAPoint},
		{"stop past the lease", (*soak).stall},
		{"break a lock", (*soak).breakLock},
	}
	if s.dialect == tenant.Postgres {
		list = append(list, fault{"terminate sessions", (*soak).terminate})
		if s.superuser {
			list = append(list, fault{"crash the server", once((*soak).crash)})
		}
	}
	s.random.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
	return list
}

// once strikes one time only.
func once(strike func(*soak) bool) func(*soak) bool {
	struck := false
	return func(s *soak) bool {
		if struck {
			return false
		}
		struck = true
		return strike(s)
	}
}

// points are where processes die.
var points = []string{
	failpoint.AfterAcquire, failpoint.BeforeCheckpoint, failpoint.BeforeCommit, failpoint.AfterCheckpoint, failpoint.BeforeEffect,
	failpoint.AfterEffect,
}

// churner starts a process that may stop at a point, where it dies once somebody looks.
func (s *soak) churner() *process {
	point := fmt.Sprintf("%s#%d", points[s.random.IntN(len(points))], 1+s.random.IntN(20))
	return s.spawn(point, "-lose", "60", "-mode", []string{"churn", "back"}[s.random.IntN(2)])
}

// halfWayBack brings all tenants to where everything is in place, and a process to the middle of a rollback, where it waits.
func (s *soak) halfWayBack() *process {
	s.t.Helper()
	s.settle("apply")
	p := s.spawn(failpoint.AfterCheckpoint+"#3", "-mode", "back", "-workers", "1")
	if !s.reaches(p) {
		s.t.Fatal("the process never came to the middle of a rollback")
	}
	return p
}

// victim is a process that is at work.
func (s *soak) victim() *process {
	alive := slices.DeleteFunc(slices.Clone(s.churn), func(p *process) bool { return !p.alive() })
	if len(alive) == 0 {
		return nil
	}
	return alive[s.random.IntN(len(alive))]
}

// replace starts a new process for each that has ended.
func (s *soak) replace() {
	for i, p := range s.churn {
		if !p.alive() {
			s.churn[i] = s.churner()
		}
	}
}

func (s *soak) kill() bool {
	p := s.victim()
	if p == nil {
		return false
	}
	p.kill()
	return true
}

// killAtAPoint kills a process that waits at its failpoint.
func (s *soak) killAtAPoint() bool {
	for _, p := range s.churn {
		select {
		case <-p.at:
			p.kill()
			return true
		default:
		}
	}
	return false
}

// stall stops a process for longer than its lease.
func (s *soak) stall() bool {
	p := s.victim()
	if p == nil {
		return false
	}
	p.signal(syscall.SIGSTOP)
	s.pause(lease*3/2, lease*5/2)
	p.signal(syscall.SIGCONT)
	return true
}

// breakLock takes a tenant's lock away, as an operator would.
func (s *soak) breakLock() bool {
	directory, err := storage.NewDirectory(storage.DirectoryConfig{}, postgres.Driver(), sqlite.Driver())
	check(s.t, err)
	defer directory.Close()
	e, err := engine.New(directory, engine.Config{Lease: lease})
	check(s.t, err)
	defer e.Close()
	ctx, cancel := context.WithTimeout(s.t.Context(), 10*time.Second)
	defer cancel()
	_, err = e.Break(ctx, s.tenants[s.random.IntN(len(s.tenants)-idle)], "soak")
	return err == nil // the database may be busy
}

func (s *soak) terminate() bool {
	opened := s.open(s.databases[0])
	defer opened.Close()
	var n int
	err := opened.QueryRow(`SELECT count(pg_terminate_backend(pid)) FROM (SELECT pid FROM pg_stat_activity
		WHERE datname = current_database() AND application_name LIKE 'belay%' AND pid <> pg_backend_pid() ORDER BY random() LIMIT 4) chosen`).Scan(&n)
	return err == nil && n > 0
}

// crash ends the server at once, and starts it again.
func (s *soak) crash() bool {
	postgrestest.Cluster(s.t).Restart(s.t, "immediate")
	return true
}

func (s *soak) allFired() bool {
	for _, n := range s.fired {
		if n == 0 {
			return false
		}
	}
	return true
}

// calm ends all faults: whoever stops is woken, whoever waits goes on, and everybody is asked to end.
func (s *soak) calm() {
	s.quiet = time.Now()
	for _, p := range s.churn {
		s.stop(p)
	}
}

// stop asks a process to end, which first finishes what it is at, and waits until it has.
func (s *soak) stop(p *process) {
	s.t.Helper()
	p.signal(syscall.SIGCONT)
	_, _ = p.orders.WriteString("go\n") // it may have ended
	p.signal(syscall.SIGTERM)
	if !s.waitFor(hang, func() bool { return !p.alive() }) {
		s.t.Fatalf("a process hangs: %s", p.stderr)
	}
}

// pass goes over all tenants once.
func (s *soak) pass(mode string) []checker.Said {
	s.t.Helper()
	p := s.spawn("", "-mode", mode)
	if !s.waitFor(hang, func() bool { return !p.alive() }) {
		s.t.Fatalf("a process hangs: %s", p.stderr)
	}
	said, err := p.said()
	check(s.t, err)
	return said
}

// settle is a pass that must bring every tenant where it is to be.
func (s *soak) settle(mode string) {
	s.t.Helper()
	said := s.pass(mode)
	good := map[string][]string{"apply": {"applied", "already_applied"}, "rollback": {"rolled_back", "already_rolled_back"}}[mode]
	told := 0
	for _, one := range said {
		if one.Verdict == "" || mode == "apply" && poison[one.Change] {
			continue
		}
		if told++; !slices.Contains(good, one.Verdict) {
			s.t.Errorf("tenant %s: after all faults, %s of %s was %s: %s", one.Tenant, mode, one.Change, one.Verdict, one.Error)
		}
	}
	if wanted := (len(s.tenants) - idle) * (len(changes) - map[string]int{"apply": 1}[mode]); told != wanted {
		s.t.Errorf("after all faults, %s told of %d plans, not %d", mode, told, wanted)
	}
}

// reaches waits until a process stops at its failpoint.
func (s *soak) reaches(p *process) bool {
	select {
	case <-p.at:
		return true
	case <-p.exited:
	case <-time.After(hang):
	}
	return false
}

// freeze stops a process for good. On SQLite a process that is stopped while it writes keeps the file's write lock, so it is
// stopped again if it did: nobody could finish.
func (s *soak) freeze(p *process) {
	s.t.Helper()
	for !s.waitFor(hang, func() bool {
		p.signal(syscall.SIGSTOP)
		if s.dialect == tenant.Postgres || s.writable() {
			return true
		}
		p.signal(syscall.SIGCONT)
		return false
	}) {
		s.t.Fatal("the process cannot be stopped without a file's write lock")
	}
}

// writable says that no file is locked for writing.
func (s *soak) writable() bool {
	for _, db := range s.databases {
		opened := s.open(db)
		_, err := opened.Exec("PRAGMA busy_timeout = 0; BEGIN IMMEDIATE; ROLLBACK")
		_ = opened.Close()
		if err != nil {
			return false
		}
	}
	return true
}

// thaw lets a process that was frozen go on.
func (s *soak) thaw(p *process) {
	p.signal(syscall.SIGCONT)
	_, _ = p.orders.WriteString("go\n")
}

// pause waits for a time between two, of the seed's choice.
func (s *soak) pause(least, most time.Duration) {
	s.waitFor(least+time.Duration(s.random.Int64N(int64(most-least))), func() bool { return false })
}

// waitFor waits until something is so, for a time at most.
func (s *soak) waitFor(most time.Duration, so func() bool) bool {
	deadline := time.After(most)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for !so() {
		select {
		case <-tick.C:
		case <-deadline:
			return false
		}
	}
	return true
}

// end leaves no process behind.
func (s *soak) end() {
	for _, p := range s.all {
		p.signal(syscall.SIGCONT)
		p.kill()
	}
	s.running.Wait()
}
