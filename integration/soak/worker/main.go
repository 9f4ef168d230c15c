// Command worker is a process of the soak. It applies changes to tenants that other processes work on too, and rolls them
// back, until it is told to stop or dies. What it hears of every transaction and tells of every operation it prints as a line
// of JSON. It is built with the failpoints tag.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"iter"
	"math/rand/v2"
	"os"
	"os/signal"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/rs/zerolog"

	"github.com/belayhq/belay/engine"
	"github.com/belayhq/belay/integration/checker"
	"github.com/belayhq/belay/integration/testchild/fake"
	"github.com/belayhq/belay/plan"
	"github.com/belayhq/belay/sitelock"
	"github.com/belayhq/belay/storage"
	"github.com/belayhq/belay/storage/postgres"
	"github.com/belayhq/belay/storage/sqlite"
	"github.com/belayhq/belay/tenant"
)

// Brief is what a worker works on, as its parent writes it to a file.
type Brief struct {
	Tenants []tenant.Tenant
	// Changes are the directories of the changes, in the order in which they are applied.
	Changes []string
	// Resources is the directory of what tenants have outside their databases.
	Resources string
	Lease     time.Duration
}

func main() {
	brief := flag.String("brief", "", "file that says what to work on")
	mode := flag.String("mode", "churn", "churn until told to stop; apply or rollback all once; back: churn, a rollback first")
	seed := flag.Uint64("seed", 1, "of what is chosen at random")
	workers := flag.Int("workers", 8, "tenants at once")
	lose := flag.Int("lose", 0, "lose the answer of one checkpoint in so many")
	flag.Parse()
	w := &worker{
		random: rand.New(rand.NewPCG(*seed, 0)), losing: rand.New(rand.NewPCG(*seed, 1)), lose: *lose,
		pool: engine.PoolOptions{Workers: *workers},
	}
	if err := w.run(*brief, *mode); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func (w *worker) run(path, mode string) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	raw, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(raw, &w.brief); err != nil {
		return err
	}
	for _, dir := range w.brief.Changes {
		change, err := plan.Load(dir)
		if err != nil {
			return err
		}
		w.changes = append(w.changes, change)
	}
	directory, err := storage.NewDirectory(storage.DirectoryConfig{Connections: 24}, postgres.Driver(), sqlite.Driver())
	if err != nil {
		return err
	}
	defer directory.Close()
	actions := engine.NewActions()
	fake.RegisterFenced(actions, w.brief.Resources)
	w.engine, err = engine.New(&witnessed{directory, w}, engine.Config{
		Lease: w.brief.Lease, Actions: actions, StepTimeout: 5 * time.Second, ActionTimeout: 2 * time.Second, ActionGrace: time.Second,
		Log: zerolog.New(os.Stderr),
	})
	if err != nil {
		return err
	}
	defer w.engine.Close()
	return w.work(ctx, mode)
}

type worker struct {
	brief   Brief
	engine  *engine.Engine
	changes []*plan.Change
	random  *rand.Rand
	pool    engine.PoolOptions
	lose    int

	mu     sync.Mutex // of standard output and losing
	losing *rand.Rand
}

// loses says whether the answer of the next checkpoint gets lost, and whether that is committed.
func (w *worker) loses() (lost, committed bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.lose > 0 && w.losing.IntN(w.lose) == 0, w.losing.IntN(2) == 0
}

// say prints a line, whole or not at all.
func (w *worker) say(s checker.Said) {
	s.PID, s.To = os.Getpid(), time.Now().UnixMilli()
	line, err := json.Marshal(s)
	if err != nil {
		panic(err)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	_, _ = os.Stdout.Write(append(line, '\n')) // nobody is left to tell
}

// some is how many tenants one operation of a churning worker is on.
const some = 24

func (w *worker) work(ctx context.Context, mode string) error {
	all := w.brief.Tenants
	switch mode {
	case "apply":
		w.apply(ctx, all, 10*time.Second)
		return nil
	case "rollback":
		w.rollback(ctx, all, 10*time.Second)
		return nil
	}
	for turn := 0; ctx.Err() == nil; turn++ {
		w.random.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
		chosen := slices.Clone(all[:min(some, len(all))])
		if (turn%2 == 0) != (mode == "back") {
			w.apply(ctx, chosen, 0)
		} else {
			w.rollback(ctx, chosen, 0)
		}
	}
	return nil
}

func (w *worker) apply(ctx context.Context, tenants []tenant.Tenant, wait time.Duration) {
	for _, change := range w.changes {
		from := time.Now().UnixMilli()
		opts := engine.ApplyOptions{LockTimeout: wait, Retry: wait > 0}
		_ = w.engine.ApplyAll(ctx, sequence(tenants), change, opts, w.pool, w.tell(from)) // of the sequence, which does not fail
	}
}

func (w *worker) rollback(ctx context.Context, tenants []tenant.Tenant, wait time.Duration) {
	for _, change := range slices.Backward(w.changes) {
		from := time.Now().UnixMilli()
		opts := engine.RollbackOptions{LockTimeout: wait, Retry: wait > 0}
		_ = w.engine.RollbackAll(ctx, sequence(tenants), change.ID, opts, w.pool, w.tell(from))
	}
}

// tell prints what came of an operation on many tenants that began at from. One that was worked on by itself says how long;
// that nothing was to do may be known from what was read of all of them at first.
func (w *worker) tell(from int64) func(engine.Result) {
	return func(r engine.Result) {
		s := checker.Said{Tenant: r.Tenant.ID, Change: r.Change, Verdict: string(r.Verdict), From: from}
		if r.Duration > 0 && r.Verdict != engine.VerdictAlreadyApplied && r.Verdict != engine.VerdictAlreadyRolledBack {
			s.From = max(from, time.Now().Add(-r.Duration).UnixMilli())
		}
		if r.Err != nil {
			s.Error = r.Err.Error()
		}
		w.say(s)
	}
}

func sequence(tenants []tenant.Tenant) iter.Seq2[tenant.Tenant, error] {
	return func(yield func(tenant.Tenant, error) bool) {
		for _, t := range tenants {
			if !yield(t, nil) {
				return
			}
		}
	}
}

// witnessed is a directory whose stores tell what is heard of every checkpoint.
type witnessed struct {
	engine.Directory
	worker *worker
}

func (d *witnessed) Open(ctx context.Context, t tenant.Tenant) (engine.Store, func(), error) {
	store, release, err := d.Directory.Open(ctx, t)
	if err != nil {
		return nil, nil, err
	}
	return telling{store, d.worker}, release, nil // a value, so that one database stays one store
}

type telling struct {
	engine.Store
	worker *worker
}

func (s telling) Checkpoint(ctx context.Context, held sitelock.Held, group engine.Group) error {
	said := checker.Said{
		Tenant: held.Tenant, Fence: held.Fence, Plan: group.Plan, From: time.Now().UnixMilli(), Writes: map[int]plan.StepState{},
	}
	for _, step := range group.Steps {
		said.Writes[step.Ordinal] = step.State
	}
	gone, committed := s.worker.loses()
	var err error
	if !gone || committed {
		err = s.Store.Checkpoint(ctx, held, group)
	}
	if gone && err == nil {
		err = engine.ErrUnknownOutcome
	}
	_, lost := errors.AsType[*sitelock.LockLostError](err)
	switch {
	case err == nil:
		said.Heard = checker.HeardDone
	case lost:
		said.Heard = checker.HeardLost
	case errors.Is(err, engine.ErrUnknownOutcome):
		said.Heard = checker.HeardUnknown
	default:
		said.Heard = checker.HeardFailed
	}
	s.worker.say(said)
	return err
}
