package storagetest

import (
	"errors"
	"slices"

	"github.com/belayhq/belay/engine"
	"github.com/belayhq/belay/plan"
	"github.com/belayhq/belay/sitelock"
)

// model is the protocol of one tenant as a program without a database: what a store must have become after each call. It
// leans on the three tables of package plan, [plan.Next], [plan.StepState.CanBecome] and [plan.WhyNotClaim], and says for
// itself what they leave open: custody and fences, recovery, attempts and quarantine, the order of plans, their cycles, and the
// history. Time is one bit: whether the lease is live.
type model struct {
	// A lock row is made once and never deleted. Release and break free it and keep its fence.
	locked    bool
	removed   bool
	fence     plan.Fence
	holder    sitelock.HolderID
	live      bool
	operation sitelock.Operation
	reason    string

	plans  []plan.Record
	images map[image]string
	events []engine.Event // oldest first
}

// image is whose before-image it is.
type image struct {
	plan    plan.ID
	ordinal int
}

// errIllegal stands for every error by which a store refuses what no holder may do.
var errIllegal = errors.New("illegal")

func (m *model) lost(held sitelock.Held) error {
	if held.Holder == m.holder && held.Fence == m.fence {
		return nil
	}
	return &sitelock.LockLostError{Held: held}
}

// acquire takes a lock that is free, lapsed, the caller's own, or the one that it replaces. Each change of custody raises the
// fence.
func (m *model) acquire(req sitelock.Request) (recovered []plan.ID, claimed *plan.Record, err error) {
	own, replaces := req.Holder == m.holder, req.Replace.Holder != ""
	switch {
	case m.removed:
		return nil, nil, sitelock.ErrRemoved
	case own:
	case replaces && (req.Replace.Fence != m.fence || m.live && m.holder != req.Replace.Holder):
		return nil, nil, sitelock.ErrRefused // whoever had it in between must not be undone
	case !replaces && m.live:
		return nil, nil, sitelock.ErrRefused
	}
	dead := m.holder
	if !own {
		m.fence++
	}
	m.locked, m.live = true, true
	m.holder, m.operation, m.reason = req.Holder, req.Operation, req.Reason
	recovered = m.recover(dead)
	if req.Claim != nil {
		claimed = m.claim(*req.Claim)
	}
	return recovered, claimed, nil
}

// recover returns what a dead holder left in flight to the status it was claimed from. The journal stays as it is.
func (m *model) recover(dead sitelock.HolderID) (recovered []plan.ID) {
	for i := range m.plans {
		r := &m.plans[i]
		if !r.Plan.InFlight() {
			continue
		}
		was := r.Plan.Status
		r.Plan.Status, _ = plan.Next(was, r.Plan.ClaimedFrom, plan.EventRecover)
		r.Plan.ClaimedFrom, r.Plan.Fence = "", 0
		switch {
		case r.Plan.Attempts >= plan.MaxAttempts:
			r.Plan.Outcome = plan.OutcomeQuarantined
		case r.Touched() || r.Partial():
			r.Plan.Outcome = plan.OutcomeInterrupted
		}
		unnumber(r)
		m.note(engine.Event{Kind: plan.EventRecover, From: was, Holder: dead}, r.Plan)
		recovered = append(recovered, r.Plan.ID)
	}
	return recovered
}

// claim moves a plan in flight, unless something speaks against it. A plan is numbered, and begins a cycle, when it is claimed
// with nothing in place.
func (m *model) claim(c sitelock.Claim) *plan.Record {
	opts := plan.ClaimOptions{Retry: c.Retry, Repin: c.Repin}
	if plan.WhyNotClaim(m.plans, c.Direction, c.Change, c.Digest, opts) != nil {
		return nil
	}
	r := m.of(c.Change)
	if r == nil {
		m.plans = append(m.plans, plan.Record{Plan: plan.Plan{
			ID: c.NewPlan, Change: c.Change, Status: plan.Pending, Outcome: plan.OutcomeNeverRun,
		}})
		r = m.of(c.Change)
	}
	event, p := plan.EventClaimRollback, &r.Plan
	if c.Direction == plan.Up {
		event = plan.EventClaimApply
		p.Digest, p.StepsTotal = c.Digest, len(c.Body.Steps)
		if !r.Touched() {
			p.Cycle++
		}
	}
	if p.Attempts++; p.Outcome == plan.OutcomeQuarantined {
		p.Attempts = 1
	}
	m.number(r)
	p.ClaimedFrom, p.Fence = p.Status, m.fence
	p.Status, _ = plan.Next(p.Status, "", event)
	m.note(engine.Event{Kind: event, From: p.ClaimedFrom, Operation: m.operation, Holder: m.holder}, *p)
	return r
}

// checkpoint commits all of a group or nothing: for the plan that the holder has in flight, or, to resolve it, for one that
// nobody has.
func (m *model) checkpoint(held sitelock.Held, g engine.Group) error {
	if err := m.lost(held); err != nil {
		return err
	}
	at := slices.IndexFunc(m.plans, func(r plan.Record) bool { return r.Plan.ID == g.Plan })
	if at < 0 {
		return errIllegal
	}
	r := m.plans[at]
	r.Journal = slices.Clone(r.Journal)
	resolves := g.Move != nil && (g.Move.Event == plan.EventResolveApplied || g.Move.Event == plan.EventResolveRolledBack)
	if mine := r.Plan.Fence == m.fence; mine == resolves || resolves && r.Plan.InFlight() {
		return errIllegal
	}
	for _, s := range g.Steps {
		if !r.State(s.Ordinal).CanBecome(s.State) || s.New && r.State(s.Ordinal) != "" {
			return errIllegal
		}
		m.enter(&r, g, s)
	}
	was := r.Plan.Status
	if g.Move != nil && !m.move(&r, *g.Move, resolves) {
		return errIllegal
	}
	m.plans[at] = r
	m.keep(g)
	if g.Move != nil {
		m.note(engine.Event{
			Kind: g.Move.Event, From: was, Operation: m.operation, Holder: m.holder, Reason: g.Move.Reason, Failure: g.Move.Failure,
		}, r.Plan)
	}
	if g.Release {
		m.free()
	}
	return nil
}

// enter writes the journal row of a step. One that was carried out is progress, and starts the count of attempts again.
func (m *model) enter(r *plan.Record, g engine.Group, s engine.GroupStep) {
	e := plan.Entry{Ordinal: s.Ordinal, Step: s.ID}
	at := slices.IndexFunc(r.Journal, func(e plan.Entry) bool { return e.Ordinal == s.Ordinal })
	if at >= 0 {
		e = r.Journal[at]
	}
	attempt := e.Attempt
	e = e.Next(s.State)
	if s.Timeout == 0 && (s.State == plan.StepIntent || s.State == plan.StepUndoIntent) {
		e.Attempt = attempt // it says only that the call has returned
	}
	e.Fence, e.Cycle = m.fence, g.Cycle
	if at >= 0 {
		r.Journal[at] = e
	} else {
		r.Journal = append(r.Journal, e)
	}
	if s.State == plan.StepDone || s.State == plan.StepUndone {
		r.Plan.Attempts = 0
	}
}

// move changes the status, as the last thing that happens to a plan in a checkpoint.
func (m *model) move(r *plan.Record, v engine.Move, resolves bool) bool {
	p := &r.Plan
	to, err := plan.Next(p.Status, p.ClaimedFrom, v.Event)
	if err != nil || v.From != p.Status || v.To != to {
		return false
	}
	if p.Status = to; !to.InFlight() {
		p.ClaimedFrom, p.Fence = "", 0
	}
	settles := resolves || v.Event == plan.EventSucceed
	if settles {
		p.Attempts, p.LastError = 0, nil
	}
	if v.Failure != nil {
		p.LastError = v.Failure
	}
	if v.Outcome != "" {
		p.Outcome = v.Outcome
	}
	if (v.Outcome == plan.OutcomeFailed || v.Outcome == plan.OutcomeInterrupted) && p.Attempts >= plan.MaxAttempts {
		p.Outcome = plan.OutcomeQuarantined
	}
	if v.Event == plan.EventResolveApplied { // as if it had been claimed
		m.number(r)
		p.Cycle = max(p.Cycle, 1)
	}
	unnumber(r)
	return !r.Partial() || p.Outcome.Unsettled()
}

// keep stores the before-images of a group: written once, and gone when the step is undone.
func (m *model) keep(g engine.Group) {
	for _, s := range g.Steps {
		of := image{g.Plan, s.Ordinal}
		_, has := m.images[of]
		switch {
		case s.State == plan.StepUndone:
			delete(m.images, of)
		case s.Image != nil && !has:
			m.images[of] = string(s.Image)
		}
	}
}

func (m *model) release(held sitelock.Held) error {
	if m.lost(held) != nil {
		return sitelock.ErrNotHeld
	}
	m.free()
	return nil
}

func (m *model) free() { m.holder, m.live, m.operation, m.reason = "", false, "", "" }

// renew extends what is still the caller's, also what has lapsed, and names the rest.
func (m *model) renew(all []sitelock.Held) (lost []sitelock.Held) {
	for _, held := range all {
		if m.lost(held) != nil {
			lost = append(lost, held)
		} else {
			m.live = true
		}
	}
	return lost
}

// breaks takes the lock over from whoever has it, recovers and frees it.
func (m *model) breaks(reason string) ([]plan.ID, error) {
	switch {
	case m.removed:
		return nil, sitelock.ErrRemoved
	case !m.locked:
		return nil, nil
	}
	broken, operation := m.holder, m.operation
	m.fence++
	recovered := m.recover(broken)
	m.note(engine.Event{Kind: plan.EventBreak, Operation: operation, Holder: broken, Reason: reason}, plan.Plan{})
	m.free()
	return recovered, nil
}

// submit stores a pending plan, or gives one with nothing in place other content.
func (m *model) submit(id plan.ID, c *plan.Change) error {
	if m.removed {
		return sitelock.ErrRemoved
	}
	m.locked = true
	r := m.of(c.ID)
	if r == nil {
		m.plans = append(m.plans, plan.Record{Plan: plan.Plan{
			ID: id, Change: c.ID, Status: plan.Pending, Outcome: plan.OutcomeNeverRun,
		}})
		r = m.of(c.ID)
	}
	if r.Plan.Status == plan.Pending && !r.Touched() {
		r.Plan.Digest, r.Plan.StepsTotal = c.Digest(), len(c.Steps)
	}
	return nil
}

// retire leaves a tombstone that keeps the fence.
func (m *model) retire(held sitelock.Held) error {
	if err := m.lost(held); err != nil {
		return err
	}
	m.free()
	m.removed = true
	return nil
}

func (m *model) of(change string) *plan.Record {
	for i := range m.plans {
		if m.plans[i].Plan.Change == change {
			return &m.plans[i]
		}
	}
	return nil
}

// number puts a plan that has no place in the order of claims behind all others.
func (m *model) number(r *plan.Record) {
	if r.Plan.AppliedSeq > 0 {
		return
	}
	for _, other := range m.plans {
		r.Plan.AppliedSeq = max(r.Plan.AppliedSeq, other.Plan.AppliedSeq)
	}
	r.Plan.AppliedSeq++
}

// unnumber takes its place from a plan that rests with nothing in place.
func unnumber(r *plan.Record) {
	if r.Plan.Status == plan.Pending && !r.Touched() {
		r.Plan.AppliedSeq = 0
	}
}

// note writes the history: a row for each move, in its transaction.
func (m *model) note(e engine.Event, p plan.Plan) {
	e.Fence, e.Plan, e.Change, e.To, e.Outcome = m.fence, p.ID, p.Change, p.Status, p.Outcome
	m.events = append(m.events, e)
}
