package storagetest

import (
	"testing"
	"time"

	"github.com/belayhq/belay/engine"
	"github.com/belayhq/belay/plan"
	"github.com/belayhq/belay/sitelock"
)

// abandonment is a way to die: what had happened before, and what the next holder must make of it.
type abandonment struct {
	name    string
	before  func(t *testing.T, s *site, c *plan.Change) term
	was, is plan.Status
	outcome plan.Outcome
	partial bool
	seq     int64
}

// abandonments cover both directions × none, some and all steps of a change of two.
var abandonments = []abandonment{
	{"an apply before its first step", applying(0), plan.Applying, plan.Pending, plan.OutcomeNeverRun, false, 0},
	{"an apply after one step", applying(1), plan.Applying, plan.Pending, plan.OutcomeInterrupted, true, 1},
	{"an apply after its last step", applying(2), plan.Applying, plan.Pending, plan.OutcomeInterrupted, true, 1},
	{"a rollback before its first step", rollingBack(0), plan.RollingBack, plan.Applied, plan.OutcomeInterrupted, false, 1},
	{"a rollback after one step", rollingBack(1), plan.RollingBack, plan.Applied, plan.OutcomeInterrupted, true, 1},
	{"a rollback after its last step", rollingBack(2), plan.RollingBack, plan.Applied, plan.OutcomeInterrupted, true, 1},
	{"a rollback of a partial plan before its first step", undoing(0), plan.RollingBack, plan.Pending, plan.OutcomeInterrupted, true, 1},
	{"a rollback of a partial plan after its last step", undoing(1), plan.RollingBack, plan.Pending, plan.OutcomeFailed, false, 0},
	{"an apply that has turned back", turnedBack(plan.Pending), plan.RollingBack, plan.Pending, plan.OutcomeInterrupted, true, 1},
	{"an apply that does not say where it came from", forgotten(applying(1)), plan.Applying, plan.Pending, plan.OutcomeInterrupted, true, 1},
	{"a rollback that does not say where it came from", forgotten(undoing(0)), plan.RollingBack, plan.Applied, plan.OutcomeInterrupted, true, 1},
}

func applying(steps int) func(t *testing.T, s *site, c *plan.Change) term {
	return func(t *testing.T, s *site, c *plan.Change) term {
		x := s.begin(t, apply(c))
		for i := range steps {
			x.checkpoint(t, x.group(recorded(i, plan.StepDone)))
		}
		return x
	}
}

func rollingBack(steps int) func(t *testing.T, s *site, c *plan.Change) term {
	return func(t *testing.T, s *site, c *plan.Change) term {
		s.applied(t, c)
		x := s.begin(t, rollback(c))
		for i := range steps {
			x.checkpoint(t, x.group(recorded(1-i, plan.StepUndone)))
		}
		return x
	}
}

func undoing(steps int) func(t *testing.T, s *site, c *plan.Change) term {
	return func(t *testing.T, s *site, c *plan.Change) term {
		s.partial(t, c)
		x := s.begin(t, rollback(c))
		for i := range steps {
			x.checkpoint(t, x.group(recorded(i, plan.StepUndone)))
		}
		return x
	}
}

func turnedBack(from plan.Status) func(t *testing.T, s *site, c *plan.Change) term {
	return func(t *testing.T, s *site, c *plan.Change) term {
		x := applying(1)(t, s, c)
		group := x.group()
		group.Move = &engine.Move{Event: plan.EventUndo, From: plan.Applying, To: plan.RollingBack}
		x.checkpoint(t, group)
		if p := s.plan(t, c).Plan; p.ClaimedFrom != from {
			t.Errorf("claimed from %q, want %q", p.ClaimedFrom, from)
		}
		return x
	}
}

func forgotten(before func(t *testing.T, s *site, c *plan.Change) term) func(t *testing.T, s *site, c *plan.Change) term {
	return func(t *testing.T, s *site, c *plan.Change) term {
		x := before(t, s, c)
		s.setPlan(t, x.claimed.Plan.ID, "claimed_from = NULL")
		return x
	}
}

// dead is the process that abandons plans in these tests.
var dead = sitelock.Process{Host: "dead.example", PID: 13}

func (a abandonment) check(t *testing.T, d *database) {
	s := d.site(t)
	c := change("0001-first", 2)
	x := a.before(t, s, c)
	s.setLock(t, "host = 'dead.example', pid = 13")
	s.expire(t)
	grant := s.acquire(t, nil)

	want := sitelock.Recovered{Plan: x.claimed.Plan.ID, Change: c.ID, Was: a.was, Status: a.is, Process: dead}
	for i := range grant.Recovered {
		grant.Recovered[i].Process.StartedAt = time.Time{} // events do not keep it
	}
	if len(grant.Recovered) != 1 || grant.Recovered[0] != want {
		t.Errorf("recovered %+v, want %+v", grant.Recovered, want)
	}
	record := s.plan(t, c)
	p := record.Plan
	if p.Status != a.is || p.Outcome != a.outcome || p.AppliedSeq != a.seq || p.Fence != 0 || p.ClaimedFrom != "" || record.Partial() != a.partial {
		t.Errorf("plan %+v (partial %v), want %+v", p, record.Partial(), a)
	}
	event := s.lastEvent(t, plan.EventRecover)
	if event.From != a.was || event.To != a.is || event.Outcome != a.outcome || event.Plan != p.ID || event.Change != c.ID ||
		event.Host != dead.Host || event.PID != dead.PID {
		t.Errorf("event %+v", event)
	}
	next, err := d.db.Claim(t.Context(), grant.Held, *apply(change("0002-second", 1)))
	if blocked := next == nil; err != nil || blocked != a.partial {
		t.Errorf("the next plan is blocked: %v, error %v", blocked, err)
	}
}

var recoveries = append(recoveryOf(abandonments), []test{
	{"a lock row that had been freed names no dead holder", func(t *testing.T, d *database) {
		s := d.site(t)
		x := s.begin(t, apply(change("0001-first", 1)))
		s.setLock(t, "holder = NULL, expires_at = 0") // as a release leaves it
		grant := s.acquire(t, nil)
		if len(grant.Recovered) != 1 || grant.Recovered[0].Plan != x.claimed.Plan.ID || grant.Recovered[0].Process != (sitelock.Process{}) {
			t.Errorf("recovered %+v", grant.Recovered)
		}
	}},
	{"a plan is recovered and claimed in one acquire", func(t *testing.T, d *database) {
		s := d.site(t)
		c := change("0001-first", 2)
		applying(1)(t, s, c)
		s.expire(t)
		x := s.begin(t, apply(c))
		if len(x.recovered) != 1 || x.claimed.Plan.Status != plan.Applying || x.claimed.Plan.Fence != 2 || x.claimed.State(0) != plan.StepDone {
			t.Errorf("recovered %+v, claimed %+v", x.recovered, x.claimed)
		}
		x.succeed(t, recorded(1, plan.StepDone))
	}},
	{"a recovered plan that is partial blocks the claim of another in the same acquire", func(t *testing.T, d *database) {
		s := d.site(t)
		applying(1)(t, s, change("0001-first", 2))
		s.expire(t)
		grant := s.acquire(t, apply(change("0002-second", 1)))
		if len(grant.Recovered) != 1 || grant.Claimed != nil {
			t.Errorf("grant %+v", grant)
		}
	}},
	{"a clean tenant has nothing to recover", func(t *testing.T, d *database) {
		s := d.site(t)
		s.partial(t, change("0001-first", 2))
		if grant := s.acquire(t, nil); len(grant.Recovered) != 0 {
			t.Errorf("recovered %+v", grant.Recovered)
		}
	}},
	{"another tenant's abandoned plan is left to its own next holder", func(t *testing.T, d *database) {
		s, other := d.site(t), d.site(t)
		s.begin(t, apply(change("0001-first", 1)))
		s.expire(t)
		if grant := other.acquire(t, nil); len(grant.Recovered) != 0 || len(s.state(t).InFlight) != 1 {
			t.Errorf("recovered %+v", grant.Recovered)
		}
	}},
}...)

func recoveryOf(all []abandonment) []test {
	var tests []test
	for _, a := range all {
		tests = append(tests, test{"the next holder recovers " + a.name, a.check})
	}
	return tests
}
