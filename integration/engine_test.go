package integration

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/belayhq/belay/engine"
	"github.com/belayhq/belay/plan"
	"github.com/belayhq/belay/sitelock"
	"github.com/belayhq/belay/storage"
	"github.com/belayhq/belay/storage/postgres"
	"github.com/belayhq/belay/storage/sqlite"
	"github.com/belayhq/belay/tenant"
)

// lab is an engine in this process and one tenant, whose table ledger has a row for each step in place.
type lab struct {
	*world
	engine    *engine.Engine
	directory engine.Directory
	tenant    tenant.Tenant
	// calls is what happened to the tenant's plans since it was last taken.
	calls *calls
}

// newLab starts an engine on a world. What the config leaves out is quick, so that no test waits for a default.
func newLab(w *world, config engine.Config) *lab {
	w.t.Helper()
	l := &lab{world: w, directory: newDirectory(w.t), calls: &calls{}}
	watch := config.Observe
	config.Observe = func(p engine.Progress) {
		l.calls.observe(p)
		if watch != nil {
			watch(p)
		}
	}
	l.engine = newEngine(w.t, l.directory, config)
	l.tenant = w.tenant("acme")
	w.exec("CREATE TABLE ledger (step text NOT NULL)")
	return l
}

func newDirectory(t *testing.T) *storage.Directory {
	t.Helper()
	directory, err := storage.NewDirectory(storage.DirectoryConfig{}, postgres.Driver(), sqlite.Driver())
	check(t, err)
	t.Cleanup(directory.Close)
	return directory
}

func newEngine(t *testing.T, directory engine.Directory, config engine.Config) *engine.Engine {
	t.Helper()
	if config.ActionGrace == 0 {
		config.ActionGrace = 100 * time.Millisecond
	}
	e, err := engine.New(directory, config)
	check(t, err)
	t.Cleanup(e.Close)
	return e
}

func (w *world) tenant(name string) tenant.Tenant {
	w.t.Helper()
	target, err := tenant.ParseTarget(w.target, "/")
	check(w.t, err)
	return tenant.Tenant{ID: w.id, Name: name, Target: target}
}

var neighbours atomic.Int64

// neighbour is another tenant: a schema beside the first on PostgreSQL, a file of its own on SQLite.
func (w *world) neighbour(t *testing.T) *world {
	t.Helper()
	n := neighbours.Add(1)
	other := &world{t: t, dialect: w.dialect, id: tenant.NewID(), url: w.url}
	if w.dialect == tenant.Postgres {
		other.scope = fmt.Sprintf("site_%d", n)
		other.target = strings.TrimSuffix(w.target, "schema="+w.scope) + "schema=" + other.scope
		other.exec("CREATE SCHEMA " + other.scope)
		return other
	}
	other.path = filepath.Join(t.TempDir(), "site.db")
	other.target = "sqlite://" + other.path
	other.exec("PRAGMA journal_mode = WAL")
	return other
}

// calls is a log of progress in which the order can be checked by eye: "do:a do:b fail:c undo:b undo:a".
type calls struct {
	mu  sync.Mutex
	log []string
}

func (c *calls) observe(p engine.Progress) {
	switch p.Kind {
	case engine.KindStepDone:
		c.add("do:" + p.Step)
	case engine.KindStepUndone:
		c.add("undo:" + p.Step)
	case engine.KindStepFailed:
		c.add("fail:" + p.Step)
	case engine.KindRecovered:
		c.add("recover:" + p.Change)
	case engine.KindWaiting, engine.KindClaimed, engine.KindUndoing, engine.KindFinished:
	}
}

func (c *calls) add(call string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.log = append(c.log, call)
}

// take returns the calls so far and forgets them.
func (c *calls) take() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	all := strings.Join(c.log, " ")
	c.log = nil
	return all
}

// newChange makes a change from one word for each step, "name" or "name:mark". Each step adds its name to the ledger, and
// takes it away again. The marks:
//
//	fail          the second statement of up writes to the table missing, in line 2 of name.up.sql
//	stuck         so does down, in line 2 of name.down.sql
//	ddl           up makes a table too, which closes the step's group
//	no            the verify query answers something else
//	unable        the verify query reads the table missing
//	none          nothing to undo
//	irreversible  no way back
//	covered       the undo of the first step takes this effect away too
func newChange(id, steps string) *plan.Change {
	c := &plan.Change{Version: 1, ID: id, OnFailure: plan.StopOnFailure, Checkpoint: plan.CheckpointAuto}
	var covered []string
	for word := range strings.FieldsSeq(steps) {
		name, mark, _ := strings.Cut(word, ":")
		up, down := "INSERT INTO ledger VALUES ('"+name+"')", "DELETE FROM ledger WHERE step = '"+name+"'"
		s := sqlStep(name, up, down)
		switch mark {
		case "":
		case "fail":
			s = sqlStep(name, up+";\nINSERT INTO missing VALUES (1)", down)
		case "stuck":
			s = sqlStep(name, up, down+";\nINSERT INTO missing VALUES (1)")
		case "ddl":
			s = sqlStep(name, up+"; CREATE TABLE of_"+name+" (id integer)", down+"; DROP TABLE of_"+name)
		case "no":
			s.Verify = &plan.Verify{Query: "SELECT count(*) FROM ledger", Expect: new("99")}
		case "unable":
			s.Verify = &plan.Verify{Query: "SELECT count(*) FROM missing", Expect: new("0")}
		case "none":
			s.Down, s.Undo = nil, &plan.NoUndo{None: "nobody minds"}
		case "irreversible":
			s.Down, s.Undo = nil, &plan.NoUndo{Irreversible: "gone is gone"}
		case "covered":
			s.Down, s.Undo = nil, &plan.NoUndo{CoveredBy: c.Steps[0].ID}
			covered = append(covered, name)
		default:
			panic("no mark " + mark)
		}
		c.Steps = append(c.Steps, s)
	}
	for _, name := range covered {
		first := c.Steps[0].Down.Default
		first.Text += ";\nDELETE FROM ledger WHERE step = '" + name + "'"
	}
	return c
}

func sqlStep(id, up, down string) plan.Step {
	return plan.Step{
		ID: id, Kind: plan.SQL,
		Up:   &plan.Script{Default: &plan.Source{File: id + ".up.sql", Text: up}},
		Down: &plan.Script{Default: &plan.Source{File: id + ".down.sql", Text: down}},
	}
}

func actionStep(id, action string) plan.Step {
	return plan.Step{ID: id, Kind: plan.Action, Action: &plan.ActionRef{Name: action}}
}

// with returns a change that differs in what edit does to it.
func with(c *plan.Change, edit func(*plan.Change)) *plan.Change {
	other := *c
	other.Steps = slices.Clone(c.Steps)
	edit(&other)
	return &other
}

func rollingBack(c *plan.Change) *plan.Change {
	return with(c, func(c *plan.Change) { c.OnFailure = plan.RollbackOnFailure })
}

func oneByOne(c *plan.Change) *plan.Change {
	return with(c, func(c *plan.Change) { c.Checkpoint = plan.CheckpointStep })
}

func (l *lab) apply(c *plan.Change) engine.Result {
	l.t.Helper()
	return l.applyWith(c, engine.ApplyOptions{})
}

func (l *lab) applyWith(c *plan.Change, opts engine.ApplyOptions) engine.Result {
	l.t.Helper()
	result, _ := l.engine.Apply(l.t.Context(), l.tenant, c, opts)
	return result
}

func (l *lab) rollback(change string) engine.Result {
	l.t.Helper()
	return l.rollbackWith(change, engine.RollbackOptions{})
}

func (l *lab) rollbackWith(change string, opts engine.RollbackOptions) engine.Result {
	l.t.Helper()
	result, _ := l.engine.Rollback(l.t.Context(), l.tenant, change, opts)
	return result
}

// came demands a verdict, and the calls that led to it.
func (l *lab) came(r engine.Result, verdict engine.Verdict, calls string) {
	l.t.Helper()
	if r.Verdict != verdict {
		l.t.Fatalf("verdict %s, want %s: %v", r.Verdict, verdict, r.Err)
	}
	equal(l.t, "calls", l.calls.take(), calls)
}

// rests demands how the plan of a change rests, in words: "pending failed 2/4 partial". Nobody has the lock then.
func (l *lab) rests(change, want string) {
	l.t.Helper()
	r := l.record(change)
	got := fmt.Sprintf("%s %s %d/%d", r.Plan.Status, r.Plan.Outcome, r.InPlace(), r.Plan.StepsTotal)
	if r.Partial() {
		got += " partial"
	}
	equal(l.t, "plan of "+change, got, want)
	equal(l.t, "lock", string(l.lock().Kind()), string(sitelock.StateIdle))
}

// holds demands which steps the ledger has, in any order.
func (l *lab) holds(steps string) {
	l.t.Helper()
	got := strings.Fields(sorted(l.query("SELECT step FROM ledger")))
	equal(l.t, "ledger", strings.Join(got, " "), steps)
}

// store opens the tenant's database for a look at what Belay keeps there.
func (l *lab) store() engine.Store {
	l.t.Helper()
	store, release, err := l.directory.Open(l.t.Context(), l.tenant)
	check(l.t, err)
	l.t.Cleanup(release)
	return store
}

func (l *lab) record(change string) plan.Record {
	l.t.Helper()
	records, err := l.store().Records(l.t.Context(), l.tenant.ID)
	check(l.t, err)
	for _, r := range records {
		if r.Plan.Change == change {
			return r
		}
	}
	l.t.Fatalf("no plan of %s", change)
	return plan.Record{}
}

func (l *lab) lock() sitelock.State {
	l.t.Helper()
	state, err := l.store().State(l.t.Context(), l.tenant.ID)
	check(l.t, err)
	return state
}

// history is the tenant's events in words, oldest first.
func (l *lab) history() string {
	l.t.Helper()
	events, err := l.store().Events(l.t.Context(), l.tenant.ID, 1000)
	check(l.t, err)
	slices.Reverse(events)
	words := make([]string, len(events))
	for i, e := range events {
		words[i] = string(e.Kind)
	}
	return strings.Join(words, " ")
}

// later runs an operation in the background; its result comes from the returned function.
func later[R any](t *testing.T, operation func() R) (wait func() R) {
	t.Helper()
	done := make(chan R, 1)
	go func() { done <- operation() }()
	return func() R {
		t.Helper()
		return receive(t, "the operation's end", done)
	}
}

// receive waits for a signal, but not for ever.
func receive[T any](t *testing.T, what string, from <-chan T) T {
	t.Helper()
	select {
	case v := <-from:
		return v
	case <-time.After(hang):
		t.Fatalf("still waiting for %s", what)
	}
	panic("unreachable")
}
