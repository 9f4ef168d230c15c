package checker

import (
	"github.com/belayhq/belay/plan"
)

// paths checks how plans and steps moved.
func (h *history) paths() {
	p := &walk{history: h, plans: map[plan.ID]*Plan{}, steps: map[plan.ID]map[int]Step{}, told: map[plan.ID]plan.Status{}}
	for _, m := range h.moments {
		switch {
		case m.Plan != nil:
			p.plan(m.Plan.Was, m.Plan.Now)
		case m.Step != nil:
			p.step(m.Step.Was, m.Step.Now)
		case m.Event != nil && m.Event.Plan != "" && m.Event.Kind != plan.EventBreak:
			p.event(*m.Event)
		}
	}
	for id, told := range p.told {
		if now := p.plans[id]; now != nil && now.Status != told {
			h.report("I4", "plan %s is %s, and its events end with %s", id, now.Status, told)
		}
	}
}

// walk follows a tenant's plans through its history.
type walk struct {
	*history
	plans map[plan.ID]*Plan
	steps map[plan.ID]map[int]Step
	// told is the status that the last event of a plan led to.
	told map[plan.ID]plan.Status
}

// plan follows a plan's row, and counts its claims.
func (w *walk) plan(was, now *Plan) {
	if now == nil {
		w.report("I4", "the row of plan %s was deleted", was.ID)
		return
	}
	defer func() { w.plans[now.ID] = now }()
	from, attempts := plan.Pending, 0
	if was != nil {
		from, attempts = was.Status, was.Attempts
		if last := w.plans[now.ID]; last != nil && last.Status != was.Status {
			w.report("I4", "plan %s was %s, and then moved from %s", now.ID, last.Status, was.Status)
		}
	}
	claim := now.Status.InFlight() && !from.InFlight()
	again := was != nil && was.Outcome == plan.OutcomeQuarantined
	switch {
	case claim && now.ClaimedFrom != from:
		w.report("I4", "plan %s was claimed from %s, and its row says %s", now.ID, from, now.ClaimedFrom)
	case claim && now.Attempts != attempts+1 && (!again || now.Attempts != 1):
		w.report("I17", "a claim of plan %s took its attempts from %d to %d", now.ID, attempts, now.Attempts)
	case claim && now.Attempts > plan.MaxAttempts:
		w.report("I17", "plan %s was claimed a %dth time and not quarantined", now.ID, now.Attempts)
	case !claim && now.Attempts != attempts && now.Attempts != 0:
		w.report("I17", "without a claim, the attempts of plan %s went from %d to %d", now.ID, attempts, now.Attempts)
	}
}

// event follows the chain of events of a plan.
func (w *walk) event(e Event) {
	from := plan.Pending
	if told, ok := w.told[e.Plan]; ok {
		from = told
	}
	if e.From != from {
		w.report("I4", "plan %s: %s starts from %s, and the event before ended with %s", e.Plan, e.Kind, e.From, from)
	}
	w.told[e.Plan] = e.To
	if !edge(e) {
		w.report("I4", "plan %s: %s leads from %s to %s", e.Plan, e.Kind, e.From, e.To)
	}
	if e.Kind == plan.EventRecover {
		touched := w.record(e.Plan).Touched()
		if told := e.Outcome == plan.OutcomeInterrupted || e.Outcome == plan.OutcomeQuarantined; touched && !told {
			w.report("I18", "plan %s was recovered with steps in place or in doubt, and calls itself %s", e.Plan, e.Outcome)
		}
	}
}

// edge reports whether an event's move is one that plans make. Where it depends on what the plan was claimed from, the
// plan's row has been checked against that.
func edge(e Event) bool {
	for _, claimedFrom := range []plan.Status{"", plan.Pending, plan.Applied} {
		if to, err := plan.Next(e.From, claimedFrom, e.Kind); err == nil && to == e.To {
			return true
		}
	}
	return false
}

// step follows the journal: legal moves, and steps in place from the first one on without a gap.
func (w *walk) step(was, now *Step) {
	if now == nil {
		w.report("I4", "the journal row of step %s was deleted", was.ID)
		return
	}
	steps := w.steps[now.Plan]
	if steps == nil {
		steps = map[int]Step{}
		w.steps[now.Plan] = steps
	}
	last := steps[now.Ordinal]
	if was != nil && was.State != last.State {
		w.report("I4", "step %s was %q, and then moved from %s", now.ID, last.State, was.State)
	}
	if !last.State.CanBecome(now.State) {
		w.report("I4", "step %s moved from %q to %s", now.ID, last.State, now.State)
	}
	steps[now.Ordinal] = *now
	forward := now.State == plan.StepDone || now.State == plan.StepIntent
	for ordinal, other := range steps {
		inPlace := other.State != plan.StepUndone
		if !forward && ordinal > now.Ordinal && inPlace {
			w.report("I9", "step %s was undone while the later step %s was %s", now.ID, other.ID, other.State)
		}
	}
	for ordinal := range now.Ordinal {
		if before, ok := steps[ordinal]; forward && (!ok || before.State != plan.StepDone) {
			w.report("I9", "step %s ran while step %d was %q", now.ID, ordinal, before.State)
		}
	}
}

// record is a plan with its journal as it stands at this point of the walk.
func (w *walk) record(id plan.ID) plan.Record {
	var r plan.Record
	for _, s := range w.steps[id] {
		r.Journal = append(r.Journal, plan.Entry{Ordinal: s.Ordinal, State: s.State})
	}
	return r
}
