package engine

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/belayhq/belay/plan"
	"github.com/belayhq/belay/sitelock"
	"github.com/belayhq/belay/tenant"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fake is a store of one tenant without a database: it grants every lock and claim that the plans' statuses allow, and keeps
// what it is told to commit. Calls that no test here makes are not answered.
type fake struct {
	Store

	mu      sync.Mutex
	fence   sitelock.Fence
	records []plan.Record
	changes map[plan.Digest]*plan.Change
	// groups tells the checkpoints in words, oldest first: "a b +succeed release".
	groups []string
	// refuse, if set, gives the error of the next checkpoints, each before it commits.
	refuse func(Group) error
	// deny, if set, gives the error of the next acquires.
	deny func() error
}

func (f *fake) Dialect() tenant.Dialect { return tenant.SQLite }

func (f *fake) Acquire(_ context.Context, req sitelock.Request) (sitelock.Grant, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.deny != nil {
		if err := f.deny(); err != nil {
			return sitelock.Grant{}, err
		}
	}
	f.fence++
	grant := sitelock.Grant{Held: sitelock.Held{Tenant: req.Tenant, Holder: req.Holder, Fence: f.fence}}
	if req.Claim != nil {
		grant.Claimed = f.claim(*req.Claim)
	}
	return grant, nil
}

func (f *fake) claim(c sitelock.Claim) *plan.Record {
	mine := find(f.records, c.Change)
	if mine == nil {
		if c.Direction == plan.Down {
			return nil
		}
		f.records = append(f.records, plan.Record{Plan: plan.Plan{
			ID: c.NewPlan, Change: c.Change, Digest: c.Digest, Status: plan.Pending, StepsTotal: len(c.Body.Steps),
		}})
		f.changes[c.Digest] = c.Body
		mine = find(f.records, c.Change)
	}
	event := plan.EventClaimApply
	if c.Direction == plan.Down {
		event = plan.EventClaimRollback
	}
	to, err := plan.Next(mine.Plan.Status, "", event)
	if err != nil {
		return nil
	}
	mine.Plan.ClaimedFrom, mine.Plan.Status, mine.Plan.Fence = mine.Plan.Status, to, f.fence
	claimed := *mine
	claimed.Journal = slices.Clone(mine.Journal)
	return &claimed
}

func (f *fake) Claim(_ context.Context, _ sitelock.Held, c sitelock.Claim) (*plan.Record, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.claim(c), nil
}

func (f *fake) Checkpoint(_ context.Context, _ sitelock.Held, g Group) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	var words []string
	for i := range g.Steps {
		words = append(words, g.Steps[i].ID)
	}
	if g.Move != nil {
		words = append(words, "+"+string(g.Move.Event))
	}
	if g.Release {
		words = append(words, "release")
	}
	if f.refuse != nil {
		if err := f.refuse(g); err != nil {
			f.groups = append(f.groups, strings.Join(words, " ")+" failed")
			return err
		}
	}
	f.groups = append(f.groups, strings.Join(words, " "))
	for i := range f.records {
		if r := &f.records[i]; r.Plan.ID == g.Plan {
			commitTo(r, g)
		}
	}
	return nil
}

func commitTo(r *plan.Record, g Group) {
	for i := range g.Steps {
		s := &g.Steps[i]
		entry := plan.Entry{Ordinal: s.Ordinal, Step: s.ID, State: s.State}
		if at := slices.IndexFunc(r.Journal, func(e plan.Entry) bool { return e.Ordinal == s.Ordinal }); at >= 0 {
			r.Journal[at] = entry
			continue
		}
		r.Journal = append(r.Journal, entry)
	}
	if g.Move != nil {
		r.Plan.Status = g.Move.To
		if !g.Move.To.InFlight() {
			r.Plan.ClaimedFrom, r.Plan.Fence = "", 0
		}
	}
}

func (f *fake) Renew(context.Context, []sitelock.Held, time.Duration) ([]sitelock.Held, error) {
	return nil, nil
}

func (f *fake) Release(context.Context, sitelock.Held) error { return nil }

func (f *fake) Records(context.Context, tenant.ID) ([]plan.Record, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.records), nil
}

func (f *fake) Survey(ctx context.Context, ids []tenant.ID, _ string) ([]Survey, error) {
	records, err := f.Records(ctx, ids[0])
	return []Survey{{Tenant: ids[0], Records: records}}, err
}

func (f *fake) Change(_ context.Context, d plan.Digest) (*plan.Change, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if c := f.changes[d]; c != nil {
		return c, nil
	}
	return nil, ErrChangeUnknown
}

func (f *fake) Image(context.Context, tenant.ID, plan.ID, int) ([]byte, error) { return []byte{}, nil }

// newFake returns an engine on a fake store and the tenant in it.
func newFake(t *testing.T, config Config) (*Engine, *fake, tenant.Tenant) {
	t.Helper()
	f := &fake{changes: map[plan.Digest]*plan.Change{}}
	if config.Actions == nil {
		config.Actions = someActions()
	}
	e, err := New(Fixed(f), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(e.Close)
	return e, f, tenant.Tenant{ID: tenant.NewID(), Name: "acme"}
}

type none = struct{}

// someActions are one on the tenant's database and one outside it.
func someActions() *Actions {
	s := NewActions()
	Register(s, "inside", Transactional[none]{
		Do:   func(context.Context, Tx, ActionCall[none]) ([]byte, error) { return nil, nil },
		Undo: func(context.Context, Tx, ActionCall[none]) error { return nil },
	})
	RegisterExternal(s, "outside", External[none]{
		Do:   func(context.Context, ActionCall[none]) error { return nil },
		Undo: func(context.Context, ActionCall[none]) error { return nil },
	})
	return s
}

// changeOf makes a change from words: "a" writes rows, "a:ddl" makes a table, "a:inside" and "a:outside" are actions,
// "a:irreversible" has no way back.
func changeOf(words string) *plan.Change {
	c := &plan.Change{Version: 1, ID: "change", OnFailure: plan.StopOnFailure, Checkpoint: plan.CheckpointAuto}
	for word := range strings.FieldsSeq(words) {
		id, mark, _ := strings.Cut(word, ":")
		up, down := "INSERT INTO t VALUES (1)", "DELETE FROM t"
		switch mark {
		case "inside", "outside":
			c.Steps = append(c.Steps, plan.Step{ID: id, Kind: plan.Action, Action: &plan.ActionRef{Name: mark}})
			continue
		case "ddl":
			up, down = "CREATE TABLE t_"+id+" (n integer)", "DROP TABLE t_"+id
		}
		s := plan.Step{
			ID: id, Kind: plan.SQL,
			Up:   &plan.Script{Default: &plan.Source{File: id + ".up.sql", Text: up}},
			Down: &plan.Script{Default: &plan.Source{File: id + ".down.sql", Text: down}},
		}
		if mark == "irreversible" {
			s.Down, s.Undo = nil, &plan.NoUndo{Irreversible: "gone is gone"}
		}
		c.Steps = append(c.Steps, s)
	}
	return c
}

// recordOf makes a plan with its journal from words: "applied a:done b:undone" of so many steps in all.
func recordOf(t *testing.T, change, words string, total int) plan.Record {
	t.Helper()
	fields := strings.Fields(words)
	r := plan.Record{Plan: plan.Plan{
		ID: plan.ID("plan-of-" + change), Change: change, Digest: "d1", Status: plan.Status(fields[0]), StepsTotal: total,
	}}
	for _, word := range fields[1:] {
		id, state, ok := strings.Cut(word, ":")
		if !ok || len(id) != 1 {
			t.Fatalf("no journal row: %s", word)
		}
		r.Journal = append(r.Journal, plan.Entry{Ordinal: int(id[0] - 'a'), Step: id, State: plan.StepState(state)})
	}
	return r
}

func equal[T comparable](t *testing.T, what string, got, want T) {
	t.Helper()
	if got != want {
		t.Errorf("%s\n got %s\nwant %s", what, fmt.Sprint(got), fmt.Sprint(want))
	}
}
