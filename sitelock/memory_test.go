package sitelock

import (
	"context"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/belayhq/belay/plan"
	"github.com/belayhq/belay/tenant"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// memory is a Store and a LeaseStore by the rules that the databases follow. Before each call it runs the hook of that
// call, if there is one, and returns the hook's error instead of an answer.
type memory struct {
	mu     sync.Mutex
	rows   map[tenant.ID]*row
	leases map[string]*row
	log    []string // the calls in order

	onAcquire, onRenew, onRelease, onState, onBreak hook
	onLease                                         hook // all calls about named leases
}

// hook sees the call's number, from 1. apply makes the change that the call is for; a hook that returns an error without
// calling it is a call that never arrived, one that returns an error after it an answer lost.
type hook func(ctx context.Context, call int, apply func()) error

type row struct {
	held    Held
	process Process
	op      Operation
	since   time.Time
	expires time.Time
	plans   []plan.Plan
}

func (r *row) live() bool { return r.held.Holder != "" && !r.expires.Before(time.Now()) }

func newMemory() *memory {
	return &memory{rows: make(map[tenant.ID]*row), leases: make(map[string]*row)}
}

// call logs one call, and runs it through the hook.
func (m *memory) call(ctx context.Context, name string, at *hook, apply func()) error {
	m.mu.Lock()
	h := *at
	m.log = append(m.log, name)
	n := 0
	for _, logged := range m.log {
		if logged == name {
			n++
		}
	}
	m.mu.Unlock()
	locked := func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		apply()
	}
	if h != nil {
		return h(ctx, n, locked)
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	locked()
	return nil
}

// set changes a hook while calls may be under way.
func (m *memory) set(at *hook, h hook) {
	m.mu.Lock()
	defer m.mu.Unlock()
	*at = h
}

func (m *memory) count(name string) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	n := 0
	for _, logged := range m.log {
		if logged == name {
			n++
		}
	}
	return n
}

func (m *memory) row(id tenant.ID) *row {
	if m.rows[id] == nil {
		m.rows[id] = &row{held: Held{Tenant: id}}
	}
	return m.rows[id]
}

func (m *memory) Acquire(ctx context.Context, req Request) (grant Grant, err error) {
	callErr := m.call(ctx, "acquire", &m.onAcquire, func() {
		r := m.row(req.Tenant)
		own := r.held.Holder == req.Holder
		replaces := req.Replace.Holder != "" && r.held == req.Replace
		overtaken := req.Replace.Holder != "" && r.held.Fence != req.Replace.Fence
		if (r.live() && !replaces || overtaken) && !own {
			err = ErrRefused
			return
		}
		if !own {
			r.held.Holder, r.since = req.Holder, time.Now()
			r.held.Fence++
		}
		r.process, r.op, r.expires = req.Process, req.Operation, time.Now().Add(req.Lease)
		grant = Grant{Held: r.held, Expires: r.expires}
	})
	if callErr != nil {
		return Grant{}, callErr
	}
	return grant, err
}

func (m *memory) Renew(ctx context.Context, held []Held, lease time.Duration) (lost []Held, err error) {
	callErr := m.call(ctx, "renew", &m.onRenew, func() {
		for _, h := range held {
			if r := m.row(h.Tenant); r.held == h {
				r.expires = time.Now().Add(lease)
			} else {
				lost = append(lost, h)
			}
		}
	})
	if callErr != nil {
		return nil, callErr
	}
	return lost, err
}

func (m *memory) Release(ctx context.Context, held Held) (err error) {
	callErr := m.call(ctx, "release", &m.onRelease, func() {
		if r := m.row(held.Tenant); r.held == held {
			r.held.Holder, r.expires = "", time.Now().Add(-time.Millisecond)
		} else {
			err = ErrNotHeld
		}
	})
	if callErr != nil {
		return callErr
	}
	return err
}

func (m *memory) State(ctx context.Context, id tenant.ID) (state State, err error) {
	err = m.call(ctx, "state", &m.onState, func() {
		r := m.row(id)
		state = State{
			Holder: r.held.Holder, Fence: r.held.Fence, Process: r.process, Operation: r.op, Since: r.since, Expires: r.expires,
			Now: time.Now(), Live: r.live(), InFlight: r.plans,
		}
	})
	return state, err
}

func (m *memory) Break(ctx context.Context, id tenant.ID, _ Process, _ string) ([]Recovered, error) {
	return nil, m.call(ctx, "break", &m.onBreak, func() {
		r := m.row(id)
		r.held.Holder = ""
		r.held.Fence++
	})
}

// take is what another process does that takes a lapsed lock, or breaks a live one.
func (m *memory) take(id tenant.ID, lease time.Duration) Held {
	m.mu.Lock()
	defer m.mu.Unlock()
	r := m.row(id)
	r.held.Holder, r.held.Fence = NewHolderID(), r.held.Fence+1
	r.process, r.op = Process{Host: "other.example", PID: 7}, OpApply
	r.since, r.expires = time.Now(), time.Now().Add(lease)
	return r.held
}

// giveBack makes a released lock held again, as if the transaction that freed it had been rolled back.
func (m *memory) giveBack(held Held) {
	m.mu.Lock()
	defer m.mu.Unlock()
	r := m.row(held.Tenant)
	r.held, r.expires = held, time.Now().Add(time.Minute)
}

// expires returns when a tenant's lock lapses.
func (m *memory) expires(id tenant.ID) time.Time {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.row(id).expires
}

func (m *memory) AcquireLease(ctx context.Context, name string, holder HolderID, by Process, ttl time.Duration) (lease Lease, ok bool, err error) {
	err = m.call(ctx, "acquire lease", &m.onLease, func() {
		r := m.leases[name]
		if r == nil {
			r = &row{}
			m.leases[name] = r
		}
		if r.live() && r.held.Holder != holder {
			return
		}
		r.held.Holder, r.process, r.expires = holder, by, time.Now().Add(ttl)
		r.held.Fence++
		lease, ok = Lease{Name: name, Holder: holder, Fence: r.held.Fence, Process: by, Expires: r.expires, Live: true}, true
	})
	if err != nil {
		return Lease{}, false, err
	}
	return lease, ok, nil
}

func (m *memory) RenewLease(ctx context.Context, held HeldLease, ttl time.Duration) (err error) {
	callErr := m.call(ctx, "renew lease", &m.onLease, func() {
		if r := m.leases[held.Name]; r.held.Holder == held.Holder && r.held.Fence == held.Fence {
			r.expires = time.Now().Add(ttl)
		} else {
			err = ErrNotHeld
		}
	})
	if callErr != nil {
		return callErr
	}
	return err
}

func (m *memory) ReleaseLease(ctx context.Context, held HeldLease) (err error) {
	callErr := m.call(ctx, "release lease", &m.onLease, func() {
		if r := m.leases[held.Name]; r.held.Holder == held.Holder && r.held.Fence == held.Fence {
			r.held.Holder = ""
		} else {
			err = ErrNotHeld
		}
	})
	if callErr != nil {
		return callErr
	}
	return err
}

func (m *memory) Lease(context.Context, string) (Lease, bool, error) { panic("not used") }
func (m *memory) Leases(context.Context) ([]Lease, error)            { panic("not used") }

var (
	_ Store      = (*memory)(nil)
	_ LeaseStore = (*memory)(nil)
)
