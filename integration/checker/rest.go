package checker

import (
	"time"

	"github.com/belayhq/belay/plan"
	"github.com/belayhq/belay/tenant"
)

// rest checks how everything stands now that nobody works any more.
func (c *check) rest() {
	for _, l := range c.Locks {
		if l.Holder != "" {
			c.report("I15", "tenant %s: the lock is still held, with fence %d by process %d", l.Tenant, l.Fence, l.PID)
		}
	}
	clean := map[tenant.ID]bool{}
	for id := range c.Data {
		clean[id] = true
	}
	for _, p := range c.Plans {
		record := plan.Record{Plan: plan.Plan{Status: p.Status, StepsTotal: p.StepsTotal}, Journal: c.journalOf(p)}
		if p.Status != plan.Pending || record.Touched() {
			clean[p.Tenant] = false
		}
		if p.Status.InFlight() {
			c.report("I15", "tenant %s: plan %s of %s is still %s", p.Tenant, p.ID, p.Change, p.Status)
			continue
		}
		partial := record.Partial()
		if partial && !c.Poison[p.Change] {
			c.report("I16", "tenant %s: %s rests %s with %d of %d steps in place", p.Tenant, p.Change, p.Status, record.InPlace(), p.StepsTotal)
		}
		if partial && p.Outcome != plan.OutcomeInterrupted && p.Outcome != plan.OutcomeFailed && p.Outcome != plan.OutcomeQuarantined {
			c.report("I18", "tenant %s: %s has %d of %d steps in place and calls itself %s", p.Tenant, p.Change, record.InPlace(), p.StepsTotal, p.Outcome)
		}
	}
	c.inTime()
	for id, data := range c.Data {
		if clean[id] && data.Before != data.Now {
			invariant, what := "I19", "after all was rolled back"
			if !c.touched(id) {
				invariant, what = "I20", "though nobody worked on it"
			}
			c.report(invariant, "tenant %s: the data differ %s:\n%s\nbefore:\n%s", id, what, data.Now, data.Before)
		}
	}
}

// touched says that something was written for the tenant.
func (c *check) touched(id tenant.ID) bool {
	for _, m := range c.History {
		if m.Tenant == id && m.Event != nil {
			return true
		}
	}
	return false
}

func (c *check) journalOf(p Plan) []plan.Entry {
	var entries []plan.Entry
	for _, s := range c.Journal {
		if s.Tenant == p.Tenant && s.Plan == p.ID {
			entries = append(entries, plan.Entry{Ordinal: s.Ordinal, Step: s.ID, State: s.State})
		}
	}
	return entries
}

// inTime checks that what was under way when the faults ended came to rest within the bound.
func (c *check) inTime() {
	if c.Quiet.IsZero() {
		return
	}
	type key struct {
		tenant tenant.ID
		plan   plan.ID
	}
	since := map[key]int64{} // when a plan began to be unfinished, as of the end of the faults or later
	for _, m := range c.History {
		e := m.Event
		if e == nil || e.Kind == plan.EventBreak || c.Poison[e.Change] {
			continue
		}
		k := key{m.Tenant, e.Plan}
		if _, waiting := since[k]; !waiting {
			since[k] = max(m.At, c.Quiet.UnixMilli())
		}
		if e.Kind != plan.EventSucceed {
			continue
		}
		if took := time.Duration(m.At-since[k]) * time.Millisecond; took > c.Bound {
			c.report("I16", "tenant %s: %s rested %s after the faults had ended, and %s is the bound", m.Tenant, e.Change, took, c.Bound)
		}
		delete(since, k)
	}
}

// storage checks what the database itself says, and that history tells of everything that the tables hold.
func (c *check) storage() {
	for _, what := range c.Left {
		c.report("I23", "left behind: %s", what)
	}
	for _, what := range c.Unsound {
		c.report("I24", "the database says: %s", what)
	}
	locks, plans, steps := map[tenant.ID]Lock{}, map[plan.ID]Plan{}, map[step]Step{}
	for _, m := range c.History {
		switch {
		case m.Lock != nil && m.Lock.Now != nil:
			locks[m.Tenant] = *m.Lock.Now
		case m.Plan != nil && m.Plan.Now != nil:
			plans[m.Plan.Now.ID] = *m.Plan.Now
		case m.Step != nil && m.Step.Now != nil:
			steps[step{m.Step.Now.Plan, m.Step.Now.Ordinal}] = *m.Step.Now
		}
	}
	for _, l := range c.Locks {
		if l != locks[l.Tenant] {
			c.report("I24", "tenant %s: the lock row was changed without a trace in history", l.Tenant)
		}
	}
	for _, p := range c.Plans {
		if p != plans[p.ID] {
			c.report("I24", "tenant %s: the row of plan %s was changed without a trace in history", p.Tenant, p.ID)
		}
	}
	for _, s := range c.Journal {
		if s != steps[step{s.Plan, s.Ordinal}] {
			c.report("I24", "tenant %s: the journal row of step %s was changed without a trace in history", s.Tenant, s.ID)
		}
	}
	if len(c.Plans) != len(plans) || len(c.Journal) != len(steps) {
		c.report("I24", "%d plans and %d journal rows are left of %d and %d", len(c.Plans), len(c.Journal), len(plans), len(steps))
	}
}

// Void says what a run did not show, because it never happened: a run of which that is true is not green. fired counts how
// often each planned fault took place.
func Void(e Evidence, fired map[string]int) []Violation {
	c := &check{Evidence: e}
	happened := map[string]int{"a take-over that recovered a plan": 0, "a resumed rollback": 0, "a commit with an unknown outcome": 0}
	abandoned := map[plan.ID]bool{} // in the middle of a rollback
	for _, m := range e.History {
		if m.Event == nil {
			continue
		}
		switch m.Event.Kind {
		case plan.EventRecover:
			happened["a take-over that recovered a plan"]++
			abandoned[m.Event.Plan] = m.Event.From == plan.RollingBack
		case plan.EventClaimRollback:
			if abandoned[m.Event.Plan] {
				happened["a resumed rollback"]++
			}
			delete(abandoned, m.Event.Plan)
		case plan.EventClaimApply, plan.EventUndo, plan.EventSucceed, plan.EventFail, plan.EventResolveApplied,
			plan.EventResolveRolledBack, plan.EventBreak:
		}
	}
	for _, s := range e.Said {
		if s.Heard == HeardUnknown {
			happened["a commit with an unknown outcome"]++
		}
	}
	for what, n := range happened {
		if n == 0 {
			c.report("I26", "void: there was never %s", what)
		}
	}
	for fault, n := range fired {
		if n == 0 {
			c.report("I26", "void: the fault %q never took place", fault)
		}
	}
	return c.found
}
