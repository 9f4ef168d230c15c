package storagetest

import (
	"fmt"
	"reflect"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/belayhq/belay/engine"
	"github.com/belayhq/belay/plan"
	"github.com/belayhq/belay/sitelock"
)

var machines = []test{
	{"whatever is called in whatever order, a tenant is as the model says", func(t *testing.T, d *database) {
		if _, _, err := d.db.Migrate(t.Context()); err != nil {
			t.Fatal(err)
		}
		rapid.Check(t, func(rt *rapid.T) {
			m := &machine{t: t, site: d.site(t), model: model{images: map[image]string{}}}
			rt.Repeat(map[string]func(*rapid.T){
				"":           m.agree,
				"acquire":    m.acquireOne,
				"hold":       m.hold,
				"claim":      m.claimOne,
				"checkpoint": m.checkpointAny,
				"announce":   m.announce,
				"progress":   m.progress,
				"finish":     m.finish,
				"give up":    m.giveUp,
				"turn back":  m.turnBack,
				"resolve":    m.resolve,
				"release":    m.releaseOne,
				"renew":      m.renewSome,
				"lapse":      m.lapse,
				"crash":      m.crash,
				"break":      m.breakIt,
				"submit":     m.submitOne,
				"retire":     m.retireOne,
			})
		})
	}},
}

// machine does the same to a tenant in the database and to the model.
type machine struct {
	t *testing.T
	*site
	model model
	// terms are all that anybody ever had of the lock, lost or not, oldest first.
	terms []sitelock.Held
	// images counts the before-images, so that no two are alike.
	images int
}

// changes are what plans of these tests are of, each in two contents. The second change has an image in each step.
var changes = [2][2]*plan.Change{
	{change("0001-first", 2), edited(change("0001-first", 3))},
	{change("0002-second", 2), edited(change("0002-second", 1))},
}

// drawTerm picks a term, the last one most of the time.
func (m *machine) drawTerm(rt *rapid.T) sitelock.Held {
	if len(m.terms) == 0 {
		rt.Skip("nobody ever had the lock")
	}
	back := rapid.SampledFrom([]int{0, 0, 0, 0, 1, 2}).Draw(rt, "terms back")
	return m.terms[max(0, len(m.terms)-1-back)]
}

// drawPlan picks a plan, one in flight if there is one most of the time.
func (m *machine) drawPlan(rt *rapid.T) *plan.Record {
	if len(m.model.plans) == 0 {
		rt.Skip("no plan")
	}
	r := &m.model.plans[rapid.IntRange(0, len(m.model.plans)-1).Draw(rt, "plan")]
	if !rapid.SampledFrom([]bool{false, false, false, true}).Draw(rt, "any") {
		for i := range m.model.plans {
			if m.model.plans[i].Plan.InFlight() {
				r = &m.model.plans[i]
			}
		}
	}
	return r
}

func drawChange(rt *rapid.T) *plan.Change {
	return changes[rapid.IntRange(0, 1).Draw(rt, "change")][rapid.SampledFrom([]int{0, 0, 0, 1}).Draw(rt, "content")]
}

func drawClaim(rt *rapid.T) *sitelock.Claim {
	claim := apply(drawChange(rt))
	if rapid.Bool().Draw(rt, "down") {
		claim.Direction = plan.Down
	}
	odd := rapid.SampledFrom([]bool{false, false, true})
	claim.Retry, claim.Repin = odd.Draw(rt, "retry"), odd.Draw(rt, "repin")
	return claim
}

func (m *machine) acquireOne(rt *rapid.T) {
	req := m.request(nil)
	if rapid.SampledFrom([]bool{true, true, true, false}).Draw(rt, "with a claim") {
		req = m.request(drawClaim(rt))
	}
	switch rapid.SampledFrom([]string{"", "", "", "", "again", "replace"}).Draw(rt, "as") {
	case "again":
		req.Holder = m.drawTerm(rt).Holder
	case "replace":
		req.Replace = m.drawTerm(rt)
	}
	m.acquires(rt, req)
}

func (m *machine) hold(rt *rapid.T) {
	req := m.request(nil)
	req.Operation, req.Reason, req.Lease = sitelock.OpHold, "audit", 48*time.Hour
	m.acquires(rt, req)
}

func (m *machine) acquires(rt *rapid.T, req sitelock.Request) {
	grant, err := m.db.Acquire(m.t.Context(), req)
	recovered, claimed, want := m.model.acquire(req)
	m.sameError(rt, "acquire", err, want)
	if err != nil {
		return
	}
	if held := (sitelock.Held{Tenant: m.id, Holder: req.Holder, Fence: m.model.fence}); grant.Held != held {
		rt.Fatalf("acquired %+v, by the model %+v", grant.Held, held)
	} else if !slices.Contains(m.terms, held) {
		m.terms = append(m.terms, held)
	}
	m.sameRecovered(rt, grant.Recovered, recovered)
	m.sameClaim(rt, grant.Claimed, claimed)
}

func (m *machine) sameRecovered(rt *rapid.T, got []sitelock.Recovered, want []plan.ID) {
	rt.Helper()
	var ids []plan.ID
	for _, r := range got {
		ids = append(ids, r.Plan)
	}
	if !slices.Equal(ids, want) {
		rt.Fatalf("recovered %v, by the model %v", ids, want)
	}
}

func (m *machine) sameClaim(rt *rapid.T, got, want *plan.Record) {
	rt.Helper()
	if (got == nil) != (want == nil) || got != nil && (got.Plan.ID != want.Plan.ID || got.Plan.Status != want.Plan.Status || len(got.Journal) != len(want.Journal)) {
		rt.Fatalf("claimed %+v, by the model %+v", got, want)
	}
}

func (m *machine) claimOne(rt *rapid.T) {
	held, claim := m.drawTerm(rt), drawClaim(rt)
	got, err := m.db.Claim(m.t.Context(), held, *claim)
	want := m.model.lost(held)
	m.sameError(rt, "claim", err, want)
	if want == nil {
		m.sameClaim(rt, got, m.model.claim(*claim))
	}
}

// checkpoints commits a group, or sees it refused, in both.
func (m *machine) checkpoints(rt *rapid.T, held sitelock.Held, g engine.Group) {
	err := m.db.Checkpoint(m.t.Context(), held, g)
	want := m.model.checkpoint(held, g)
	if want != nil && err != nil && g.Move != nil {
		return // a move that no status allows may be told before the lock is looked at
	}
	m.sameError(rt, fmt.Sprintf("checkpoint %+v, move %+v", g, g.Move), err, want)
	for _, s := range g.Steps {
		of := image{g.Plan, s.Ordinal}
		got, err := m.db.Image(m.t.Context(), m.id, g.Plan, s.Ordinal)
		if want, has := m.model.images[of]; err != nil || string(got) != want || (got != nil) != has {
			rt.Fatalf("image of step %d: %q, %v, by the model %q", s.Ordinal, got, err, want)
		}
	}
}

func (m *machine) groupOf(r *plan.Record, steps ...engine.GroupStep) engine.Group {
	return engine.Group{Plan: r.Plan.ID, Scope: m.scope, Direction: plan.Up, Cycle: r.Plan.Cycle, Steps: steps}
}

// drawStep is a step as the journal may go on, or, if wild, as it may not.
func (m *machine) drawStep(rt *rapid.T, r *plan.Record, ordinal int, wild bool) engine.GroupStep {
	states := []plan.StepState{plan.StepIntent, plan.StepDone, plan.StepUndoIntent, plan.StepUndone}
	was := r.State(ordinal)
	if !wild {
		states = slices.DeleteFunc(states, func(s plan.StepState) bool { return !was.CanBecome(s) })
	}
	return m.imaged(r, recorded(ordinal, rapid.SampledFrom(states).Draw(rt, "state")))
}

// imaged gives a step of the second change a before-image.
func (m *machine) imaged(r *plan.Record, step engine.GroupStep) engine.GroupStep {
	if r.Plan.Change == changes[1][0].ID {
		m.images++
		step.Image = fmt.Appendf(nil, "before %d", m.images)
	}
	return step
}

// checkpointAny is any group, by anybody: some of the steps, perhaps a move, perhaps the release.
func (m *machine) checkpointAny(rt *rapid.T) {
	held, r := m.drawTerm(rt), m.drawPlan(rt)
	wild := rapid.SampledFrom([]bool{false, false, true}).Draw(rt, "wild")
	group := m.groupOf(r)
	for ordinal := range r.Plan.StepsTotal {
		if rapid.Bool().Draw(rt, "take part") {
			group.Steps = append(group.Steps, m.drawStep(rt, r, ordinal, wild))
		}
	}
	isDone := func(s engine.GroupStep) bool { return s.State == plan.StepDone }
	if allOf(group.Steps, isDone) && rapid.Bool().Draw(rt, "new") {
		for i := range group.Steps {
			group.Steps[i].New = true
		}
	}
	if len(group.Steps) == 0 || rapid.Bool().Draw(rt, "move") {
		group.Move = m.drawMove(rt, r, wild)
	}
	group.Release = rapid.Bool().Draw(rt, "release")
	m.checkpoints(rt, held, group)
}

func allOf[T any](all []T, is func(T) bool) bool {
	return !slices.ContainsFunc(all, func(one T) bool { return !is(one) })
}

func (m *machine) drawMove(rt *rapid.T, r *plan.Record, wild bool) *engine.Move {
	event := rapid.SampledFrom([]plan.Event{
		plan.EventSucceed, plan.EventFail, plan.EventUndo, plan.EventResolveApplied, plan.EventResolveRolledBack,
	}).Draw(rt, "event")
	move := engine.Move{Event: event, From: r.Plan.Status, Outcome: rapid.SampledFrom([]plan.Outcome{
		"", plan.OutcomeFailed, plan.OutcomeInterrupted, plan.OutcomeApplied, plan.OutcomeRolledBack, plan.OutcomeResolved,
	}).Draw(rt, "outcome")}
	move.To, _ = plan.Next(r.Plan.Status, r.Plan.ClaimedFrom, event)
	if wild || move.To == "" {
		move.To = rapid.SampledFrom(allStatuses).Draw(rt, "to")
	}
	if rapid.Bool().Draw(rt, "failure") {
		move.Failure = &plan.Failure{Step: "step-1", Message: "out of luck"}
	}
	return &move
}

// progress commits the next step of the plan in flight, in its direction.
func (m *machine) progress(rt *rapid.T) {
	held, r := m.drawTerm(rt), m.drawPlan(rt)
	if steps := m.left(r); len(steps) > 0 {
		m.checkpoints(rt, held, m.groupOf(r, m.imaged(r, steps[0])))
	} else {
		rt.Skip("nothing is left")
	}
}

// announce writes the intent of the next step of the plan in flight, once more, or that its call has returned.
func (m *machine) announce(rt *rapid.T) {
	held, r := m.drawTerm(rt), m.drawPlan(rt)
	steps := m.left(r)
	if len(steps) == 0 {
		rt.Skip("nothing is left")
	}
	step := steps[0]
	step.State = plan.StepIntent
	if r.Plan.Status == plan.RollingBack {
		step.State = plan.StepUndoIntent
	}
	if r.State(step.Ordinal) == step.State && rapid.Bool().Draw(rt, "has returned") {
		step.Timeout = 0
	}
	m.checkpoints(rt, held, m.groupOf(r, m.imaged(r, step)))
}

// left are the steps that a plan in flight has left, done or undone.
func (m *machine) left(r *plan.Record) (steps []engine.GroupStep) {
	for ordinal := range r.Plan.StepsTotal {
		was := r.State(ordinal)
		switch {
		case r.Plan.Status == plan.Applying && was != plan.StepDone:
			steps = append(steps, recorded(ordinal, plan.StepDone))
		case r.Plan.Status == plan.RollingBack && was != "" && was != plan.StepUndone:
			steps = append([]engine.GroupStep{recorded(ordinal, plan.StepUndone)}, steps...)
		}
	}
	return steps
}

// finish is the last group of an operation that succeeds.
func (m *machine) finish(rt *rapid.T) {
	held, r := m.drawTerm(rt), m.drawPlan(rt)
	group := m.groupOf(r, m.left(r)...)
	group.Move = &engine.Move{Event: plan.EventSucceed, From: r.Plan.Status, To: plan.Applied, Outcome: plan.OutcomeApplied}
	if r.Plan.Status == plan.RollingBack {
		group.Move.To, group.Move.Outcome = plan.Pending, plan.OutcomeRolledBack
	}
	group.Release = rapid.Bool().Draw(rt, "release")
	m.checkpoints(rt, held, group)
}

func (m *machine) giveUp(rt *rapid.T) {
	held, r := m.drawTerm(rt), m.drawPlan(rt)
	group := m.groupOf(r)
	group.Move = &engine.Move{
		Event: plan.EventFail, From: r.Plan.Status, To: r.Plan.ClaimedFrom, Outcome: plan.OutcomeFailed, Failure: &plan.Failure{Message: "no"},
	}
	group.Release = true
	m.checkpoints(rt, held, group)
}

func (m *machine) turnBack(rt *rapid.T) {
	held, r := m.drawTerm(rt), m.drawPlan(rt)
	group := m.groupOf(r)
	group.Move = &engine.Move{Event: plan.EventUndo, From: r.Plan.Status, To: plan.RollingBack, Failure: &plan.Failure{Message: "no"}}
	m.checkpoints(rt, held, group)
}

// resolve says of a plan that all of it is in place, or nothing.
func (m *machine) resolve(rt *rapid.T) {
	held, r := m.drawTerm(rt), m.drawPlan(rt)
	event, state, to := plan.EventResolveApplied, plan.StepDone, plan.Applied
	if rapid.Bool().Draw(rt, "rolled back") {
		event, state, to = plan.EventResolveRolledBack, plan.StepUndone, plan.Pending
	}
	group := m.groupOf(r)
	group.Cycle = max(group.Cycle, 1)
	for ordinal := range max(r.Plan.StepsTotal, 3) { // also steps of a longer content
		was := r.State(ordinal)
		if was != state && was.CanBecome(state) && (ordinal < r.Plan.StepsTotal || was != "" && was != plan.StepUndone) {
			group.Steps = append(group.Steps, recorded(ordinal, state))
		}
	}
	group.Move = &engine.Move{Event: event, From: r.Plan.Status, To: to, Outcome: plan.OutcomeResolved, Reason: "seen by hand"}
	group.Release = rapid.Bool().Draw(rt, "release")
	m.checkpoints(rt, held, group)
}

func (m *machine) releaseOne(rt *rapid.T) {
	held := m.drawTerm(rt)
	m.sameError(rt, "release", m.db.Release(m.t.Context(), held), m.model.release(held))
}

func (m *machine) renewSome(rt *rapid.T) {
	held := []sitelock.Held{m.drawTerm(rt)}
	if other := m.drawTerm(rt); other != held[0] {
		held = append(held, other)
	}
	lost, err := m.db.Renew(m.t.Context(), held, lease)
	want := m.model.renew(held)
	if err != nil || !sameHeld(lost, want) {
		rt.Fatalf("renew: lost %v, %v, by the model %v", lost, err, want)
	}
}

// lapse lets the lease lapse by the database's clock.
func (m *machine) lapse(rt *rapid.T) {
	if !m.model.live {
		rt.Skip("no lease is live")
	}
	m.expire(m.t)
	m.model.live = false
}

// crash has holders die right after their claim of one plan, one after the other.
func (m *machine) crash(rt *rapid.T) {
	c := changes[rapid.IntRange(0, 1).Draw(rt, "change")][0]
	for range rapid.IntRange(1, plan.MaxAttempts).Draw(rt, "times") {
		m.acquires(rt, m.request(apply(c)))
		m.agree(rt)
		if m.model.live {
			m.lapse(rt)
		}
	}
}

func (m *machine) breakIt(rt *rapid.T) {
	recovered, err := m.db.Break(m.t.Context(), m.id, worker, "stuck")
	want, wantErr := m.model.breaks("stuck")
	m.sameError(rt, "break", err, wantErr)
	m.sameRecovered(rt, recovered, want)
}

func (m *machine) submitOne(rt *rapid.T) {
	c, id := drawChange(rt), plan.NewID()
	p, err := m.db.Submit(m.t.Context(), m.id, m.scope, id, c)
	m.sameError(rt, "submit", err, m.model.submit(id, c))
	if err == nil && !reflect.DeepEqual(p.ID, m.model.of(c.ID).Plan.ID) {
		rt.Fatalf("submitted %+v, by the model %+v", p, m.model.of(c.ID).Plan)
	}
}

// retireOne is rare: not much happens to a tenant that has been removed.
func (m *machine) retireOne(rt *rapid.T) {
	if rapid.IntRange(0, 9).Draw(rt, "one in ten") != 9 {
		return
	}
	held := m.drawTerm(rt)
	m.sameError(rt, "retire", m.db.Retire(m.t.Context(), held), m.model.retire(held))
}
