// Package soak has processes work on many tenants at once, and die, stall and lose answers while they do, at random. When
// all is quiet again, the checker looks at everything that happened. The seed is printed first; it decides what is done to
// whom, not how the processes take turns.
package soak

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/belayhq/belay/integration/checker"
	"github.com/belayhq/belay/internal/postgrestest"
	"github.com/belayhq/belay/tenant"
)

var (
	duration = flag.Duration("duration", 8*time.Second, "of all parts together")
	seed     = flag.Uint64("seed", 0, "to do the same again; 0 takes one from the clock")
)

const (
	// bound is how long after the last fault all tenants may take to come to rest: a lease, and some time to work on
	// all of them, on a machine that does much else.
	bound = lease + 30*time.Second
	// hang is how long a process may take for what it must do.
	hang = 90 * time.Second
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// soak is one part: one database, one mode.
type soak struct {
	t       *testing.T
	dialect tenant.Dialect
	random  *rand.Rand
	dir     string
	worker  string // the program
	// superuser says that the server is the test's own, which it may stop, and have examine itself.
	superuser bool

	brief, resources string
	databases        []*database
	tenants          []tenant.Tenant
	before           map[tenant.ID]string

	spawned int
	running sync.WaitGroup
	all     []*process
	churn   []*process
	// fired counts how often each fault took place. Those planned are there from the start.
	fired map[string]int
	quiet time.Time
}

// Faults everywhere: nothing is ever done twice, by two, or not at all. Then one process that is gone for good, without having
// died: the others finish. G1 G2 G3 G4 G5 G6 G7
func TestSoak(t *testing.T) {
	if *seed == 0 {
		*seed = uint64(time.Now().UnixNano())
	}
	fmt.Printf("soak: seed %d\n", *seed)
	worker := filepath.Join(t.TempDir(), "worker")
	out, err := exec.Command("go", "build", "-tags", "failpoints", "-o", worker, "./worker").CombinedOutput()
	if err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	for _, part := range []struct {
		dialect tenant.Dialect
		tenants int
		mode    string
		run     func(s *soak, d time.Duration)
		share   int // of the duration, in hundredths; the rest is for the setup and the end
	}{
		{tenant.Postgres, 200, "safety", (*soak).safety, 35},
		{tenant.Postgres, 60, "liveness", (*soak).liveness, 10},
		{tenant.SQLite, 60, "safety", (*soak).safety, 25},
		{tenant.SQLite, 30, "liveness", (*soak).liveness, 10},
	} {
		t.Run(string(part.dialect)+"/"+part.mode, func(t *testing.T) {
			s := &soak{
				t: t, dialect: part.dialect, random: rand.New(rand.NewPCG(*seed, 0)), dir: t.TempDir(), worker: worker,
				superuser: part.dialect == tenant.SQLite || os.Getenv(postgrestest.Env) == "",
				before:    map[tenant.ID]string{}, fired: map[string]int{},
			}
			t.Cleanup(s.end)
			if *duration < time.Minute {
				part.tenants /= 3 // a short run is for what it costs
			}
			s.makeFleet(part.tenants)
			part.run(s, *duration*time.Duration(part.share)/100)
		})
	}
}

// safety lets processes churn under every fault there is, and then looks.
func (s *soak) safety(d time.Duration) {
	const processes = 3
	faults := s.faults()
	for _, f := range faults {
		s.fired[f.name] = 0
	}
	s.halfWayBack().kill()
	for range processes {
		s.churn = append(s.churn, s.churner())
	}
	deadline := time.Now().Add(d)
	// Until every fault took place, but not for ever: what never does makes the run void.
	latest := deadline.Add(max(d, 20*time.Second))
	for turn := 0; ; turn++ {
		s.pause(50*time.Millisecond, 450*time.Millisecond)
		if now := time.Now(); now.After(latest) || now.After(deadline) && s.allFired() {
			break
		}
		// Those that never took place come first, so that a short run has them all.
		choice := slices.DeleteFunc(slices.Clone(faults), func(f fault) bool { return s.fired[f.name] > 0 })
		if len(choice) == 0 || turn%2 == 1 {
			choice = faults
		}
		if f := choice[s.random.IntN(len(choice))]; f.strike(s) {
			s.fired[f.name]++
		}
		s.replace()
	}
	s.calm()
	s.finish()
	s.judge()
}

// finish brings every tenant to where nothing is in place, to where all is, and back. A rollback that was interrupted is
// finished first: an apply refuses what is half undone.
func (s *soak) finish() {
	s.pass("rollback") // of what was ever applied
	s.settle("apply")
	s.settle("rollback")
}

// liveness freezes one process for good in the middle of a rollback; the others must finish all the same.
func (s *soak) liveness(d time.Duration) {
	frozen := s.halfWayBack()
	s.freeze(frozen)
	s.quiet = time.Now()
	s.churn = append(s.churn, s.spawn("", "-mode", "back", "-lose", "20"), s.spawn("", "-lose", "20"))
	s.waitFor(d, func() bool { return false })
	for _, p := range s.churn {
		s.stop(p)
	}
	s.finish()
	// It wakes up when all is over, and must notice.
	s.thaw(frozen)
	s.stop(frozen)
	s.judge()
}

// judge has the checker look at everything, and fails a run that shows nothing.
func (s *soak) judge() {
	s.t.Helper()
	var said []checker.Said
	texts := map[string]string{}
	for _, p := range s.all {
		lines, err := p.said()
		check(s.t, err)
		said = append(said, lines...)
		for _, file := range []string{p.stdout, p.stderr} {
			raw, err := os.ReadFile(file)
			check(s.t, err)
			texts[filepath.Base(file)] = string(raw)
		}
		if text := texts[filepath.Base(p.stderr)]; strings.Contains(text, "panic") || !p.doomed && p.cmd.ProcessState.ExitCode() != 0 {
			s.t.Errorf("%s: %s\n%s", filepath.Base(p.stderr), p.cmd.ProcessState, text)
		}
	}
	var whole checker.Evidence // of all databases, to see what happened at all
	violations, moments := 0, 0
	for _, db := range s.databases {
		e := s.evidence(s.t.Context(), db, said, texts)
		whole.History, whole.Said = append(whole.History, e.History...), append(whole.Said, e.Said...)
		moments += len(e.History)
		for _, v := range checker.Check(e) {
			if violations++; violations <= 20 {
				s.t.Error(v)
			}
		}
	}
	for _, v := range checker.Void(whole, s.fired) {
		s.t.Error(v)
	}
	s.t.Logf("%d processes, %d rows of history, %d violations, faults %v", len(s.all), moments, violations, s.fired)
	if s.t.Failed() {
		s.t.Logf("replay: make soak SEED=%d", *seed)
	}
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
