package storagetest

import (
	"testing"

	"github.com/belayhq/belay/engine"
	"github.com/belayhq/belay/plan"
	"github.com/belayhq/belay/sitelock"
)

var moves = []test{
	{"a success writes what it has made true", func(t *testing.T, d *database) {
		s := d.site(t)
		c := change("0001-first", 1)
		s.begin(t, apply(c)).fail(t)
		x := s.begin(t, apply(c))
		x.succeed(t, x.put(0))
		p := s.plan(t, c).Plan
		if p.Status != plan.Applied || p.Outcome != plan.OutcomeApplied || p.ClaimedFrom != "" || p.Fence != 0 || p.Attempts != 0 || p.LastError != nil || p.AppliedSeq == 0 {
			t.Errorf("plan %+v", p)
		}
		e := s.lastEvent(t, plan.EventSucceed)
		if e.From != plan.Applying || e.To != plan.Applied || e.Outcome != plan.OutcomeApplied || e.Fence != x.held.Fence || e.Plan != p.ID || e.Change != c.ID ||
			e.Operation != sitelock.OpApply || e.Holder != x.held.Holder || e.Host != worker.Host || e.PID != worker.PID || e.Failure != nil || e.At.IsZero() {
			t.Errorf("event %+v", e)
		}
	}},
	{"a failure returns the plan to where it was claimed from and says why", func(t *testing.T, d *database) {
		s := d.site(t)
		c := change("0001-first", 2)
		x := s.begin(t, apply(c))
		x.checkpoint(t, x.group(x.put(0)))
		x.fail(t)
		want := plan.Failure{Step: "step-9", Message: "out of luck"}
		p := s.plan(t, c).Plan
		if p.Status != plan.Pending || p.Outcome != plan.OutcomeFailed || p.AppliedSeq != 1 || p.LastError == nil || *p.LastError != want {
			t.Errorf("plan %+v, last error %+v", p, p.LastError)
		}
		if e := s.lastEvent(t, plan.EventFail); e.Failure == nil || *e.Failure != want || e.Outcome != plan.OutcomeFailed {
			t.Errorf("event %+v", e)
		}
	}},
	{"an apply that turns back keeps its fence and where it came from", func(t *testing.T, d *database) {
		s := d.site(t)
		c := change("0001-first", 2)
		x := s.begin(t, apply(c))
		x.checkpoint(t, x.group(x.put(0)))
		failure := plan.Failure{Step: "step-1", Message: "no", UndoMessage: "but undone"}
		group := x.group()
		group.Move = &engine.Move{Event: plan.EventUndo, From: plan.Applying, To: plan.RollingBack, Failure: &failure}
		x.checkpoint(t, group)
		if p := s.plan(t, c).Plan; p.Status != plan.RollingBack || p.Fence != x.held.Fence || p.ClaimedFrom != plan.Pending || p.AppliedSeq != 1 {
			t.Errorf("plan %+v", p)
		}
		x.direction = plan.Down
		x.finish(t, engine.Move{Event: plan.EventSucceed, From: plan.RollingBack, To: plan.Pending, Outcome: plan.OutcomeFailed, Failure: &failure}, x.take(0))
		p := s.plan(t, c).Plan
		if p.Status != plan.Pending || p.Outcome != plan.OutcomeFailed || p.AppliedSeq != 0 || p.LastError == nil || *p.LastError != failure {
			t.Errorf("plan %+v", p)
		}
		if e := s.lastEvent(t, plan.EventUndo); e.From != plan.Applying || e.To != plan.RollingBack {
			t.Errorf("event %+v", e)
		}
	}},
	{"a move from another status is refused", func(t *testing.T, d *database) {
		s := d.site(t)
		x := s.begin(t, apply(change("0001-first", 1)))
		for _, move := range []engine.Move{
			{Event: plan.EventSucceed, From: plan.RollingBack, To: plan.Pending, Outcome: plan.OutcomeRolledBack},
			{Event: plan.EventFail, From: plan.RollingBack, To: plan.Pending, Outcome: plan.OutcomeFailed},
			{Event: plan.EventResolveApplied, From: plan.Pending, To: plan.Applied, Outcome: plan.OutcomeResolved},
			{Event: plan.EventSucceed, From: plan.Pending, To: plan.Applied, Outcome: plan.OutcomeApplied},
		} {
			group := x.group(x.put(0))
			group.Move, group.Release = &move, true
			x.fails(t, group)
		}
	}},
	{"steps and moves of a plan that this term did not claim are refused", func(t *testing.T, d *database) {
		s := d.site(t)
		c := change("0001-first", 1)
		x := s.begin(t, apply(c))
		s.setLock(t, "holder = NULL, expires_at = 0")
		next := term{site: s, held: s.acquire(t, nil).Held, claimed: x.claimed, direction: plan.Up}
		group := next.group(next.put(0))
		next.fails(t, group)
		group.Move = &engine.Move{Event: plan.EventSucceed, From: plan.Applying, To: plan.Applied, Outcome: plan.OutcomeApplied}
		next.fails(t, group)
	}},
	{"a plan that used up its attempts without a step is quarantined instead of failed", func(t *testing.T, d *database) {
		s := d.site(t)
		c := change("0001-first", 2)
		for range plan.MaxAttempts - 1 {
			s.begin(t, apply(c)).fail(t)
		}
		if o := s.plan(t, c).Plan.Outcome; o != plan.OutcomeFailed {
			t.Fatalf("outcome %s before the last attempt", o)
		}
		s.begin(t, apply(c)).fail(t)
		p := s.plan(t, c).Plan
		if !p.Quarantined() || p.Attempts != plan.MaxAttempts || p.LastError == nil {
			t.Errorf("plan %+v", p)
		}
		if e := s.lastEvent(t, plan.EventFail); e.Outcome != plan.OutcomeQuarantined {
			t.Errorf("event %+v", e)
		}
		s.refused(t, apply(c))
	}},
	{"a plan whose last attempt got a step through is not quarantined", func(t *testing.T, d *database) {
		s := d.site(t)
		c := change("0001-first", 2)
		for range plan.MaxAttempts - 1 {
			s.begin(t, apply(c)).fail(t)
		}
		s.partial(t, c)
		if p := s.plan(t, c).Plan; p.Outcome != plan.OutcomeFailed || p.Attempts != 0 {
			t.Errorf("plan %+v", p)
		}
	}},
	{"an outcome that the move leaves out stays", func(t *testing.T, d *database) {
		s := d.site(t)
		c := change("0001-first", 2)
		x := s.begin(t, apply(c))
		x.finish(t, engine.Move{Event: plan.EventFail, From: plan.Applying, To: plan.Pending})
		if p := s.plan(t, c).Plan; p.Outcome != plan.OutcomeNeverRun || p.Status != plan.Pending {
			t.Errorf("plan %+v", p)
		}
	}},
	{"no move leaves a plan partial that does not say so", func(t *testing.T, d *database) {
		s := d.site(t)
		c := change("0001-first", 2)
		x := s.begin(t, apply(c))
		x.checkpoint(t, x.group(x.put(0)))
		for _, move := range []engine.Move{
			{Event: plan.EventSucceed, From: plan.Applying, To: plan.Applied, Outcome: plan.OutcomeApplied},
			{Event: plan.EventFail, From: plan.Applying, To: plan.Pending},
			{Event: plan.EventFail, From: plan.Applying, To: plan.Pending, Outcome: plan.OutcomeRolledBack},
		} {
			group := x.group()
			group.Move, group.Release = &move, true
			x.fails(t, group)
		}
		x.succeed(t, x.put(1))
		x = s.begin(t, rollback(c))
		for _, move := range []engine.Move{
			{Event: plan.EventSucceed, From: plan.RollingBack, To: plan.Pending, Outcome: plan.OutcomeRolledBack},
			{Event: plan.EventFail, From: plan.RollingBack, To: plan.Applied},
		} {
			group := x.group(x.take(1))
			group.Move, group.Release = &move, true
			x.fails(t, group)
		}
		x.fail(t, x.take(1))
		x = s.resolving(t, c)
		group := x.group()
		group.Move = &engine.Move{Event: plan.EventResolveApplied, From: plan.Applied, To: plan.Applied, Outcome: plan.OutcomeResolved}
		x.fails(t, group)
		group.Move = &engine.Move{Event: plan.EventResolveRolledBack, From: plan.Applied, To: plan.Pending, Outcome: plan.OutcomeResolved}
		x.fails(t, group)
	}},
	{"a person says that a plan is applied", func(t *testing.T, d *database) {
		s := d.site(t)
		s.applied(t, change("0000-older", 1))
		c := change("0001-first", 2)
		x := s.resolving(t, c)
		x.finish(t, engine.Move{
			Event: plan.EventResolveApplied, From: plan.Pending, To: plan.Applied, Outcome: plan.OutcomeResolved, Reason: "done by hand in 2019",
		}, recorded(0, plan.StepDone), recorded(1, plan.StepDone))
		r := s.plan(t, c)
		if p := r.Plan; p.Status != plan.Applied || p.Outcome != plan.OutcomeResolved || p.AppliedSeq != 2 || p.Cycle != 1 || p.Attempts != 0 || p.LastError != nil || r.Partial() {
			t.Errorf("record %+v", r)
		}
		if e := s.lastEvent(t, plan.EventResolveApplied); e.Reason != "done by hand in 2019" || e.Operation != sitelock.OpResolve || e.From != plan.Pending || e.To != plan.Applied {
			t.Errorf("event %+v", e)
		}
		s.begin(t, rollback(c)).succeed(t, recorded(1, plan.StepUndone), recorded(0, plan.StepUndone))
	}},
	{"a person says that a plan is rolled back", func(t *testing.T, d *database) {
		s := d.site(t)
		c := change("0001-first", 2)
		s.partial(t, c)
		x := s.resolving(t, c)
		x.direction = plan.Down
		x.finish(t, engine.Move{
			Event: plan.EventResolveRolledBack, From: plan.Pending, To: plan.Pending, Outcome: plan.OutcomeResolved, Reason: "cleaned up by hand",
		}, recorded(0, plan.StepUndone))
		if p := s.plan(t, c).Plan; p.Status != plan.Pending || p.Outcome != plan.OutcomeResolved || p.AppliedSeq != 0 || p.LastError != nil {
			t.Errorf("plan %+v", p)
		}
		s.applied(t, change("0002-second", 1))
	}},
	{"a person lifts a quarantine", func(t *testing.T, d *database) {
		s := d.site(t)
		c := change("0001-first", 1)
		for range plan.MaxAttempts {
			s.begin(t, apply(c)).fail(t)
		}
		s.resolving(t, c).finish(t, engine.Move{
			Event: plan.EventResolveRolledBack, From: plan.Pending, To: plan.Pending, Outcome: plan.OutcomeResolved, Reason: "fixed the disk",
		})
		s.applied(t, c)
	}},
	{"a plan in flight is not resolved", func(t *testing.T, d *database) {
		s := d.site(t)
		x := s.begin(t, apply(change("0001-first", 1)))
		group := x.group(x.put(0))
		group.Move = &engine.Move{Event: plan.EventResolveApplied, From: plan.Applying, To: plan.Applied, Outcome: plan.OutcomeResolved, Reason: "impatience"}
		x.fails(t, group)
	}},
	{"only the moves of plan.Next commit", func(t *testing.T, d *database) {
		statuses := []plan.Status{plan.Pending, plan.Applying, plan.Applied, plan.RollingBack}
		events := []plan.Event{
			plan.EventClaimApply, plan.EventClaimRollback, plan.EventUndo, plan.EventSucceed, plan.EventFail, plan.EventRecover, plan.EventResolveApplied, plan.EventResolveRolledBack,
			plan.EventBreak,
		}
		for _, stage := range stages {
			x := stage.set(t, d)
			is, from := x.claimed.Plan.Status, x.claimed.Plan.ClaimedFrom
			var legal []engine.Move
			d.unchanged(t, func() {
				for _, event := range events {
					for _, to := range statuses {
						move := engine.Move{Event: event, From: is, To: to, Outcome: plan.OutcomeFailed}
						next, err := plan.Next(is, from, event)
						// A claim is not a checkpoint's move; see claims.
						if err == nil && next == to && event != plan.EventClaimApply && event != plan.EventClaimRollback {
							legal = append(legal, move)
							continue
						}
						group := x.group()
						group.Move = &move
						if x.db.Checkpoint(t.Context(), x.held, group) == nil {
							t.Errorf("a plan that is %s moved to %s by %s", stage.name, to, event)
						}
					}
				}
			})
			for _, move := range legal {
				x := stage.set(t, d)
				group := x.group()
				group.Move = &move
				x.checkpoint(t, group)
				if is := x.plan(t, change("0001-first", 1)).Plan.Status; is != move.To {
					t.Errorf("a plan that is %s became %s by %s, want %s", stage.name, is, move.Event, move.To)
				}
			}
		}
	}},
}

// stages are the ways in which a plan can stand when it is moved.
var stages = []struct {
	name string
	set  func(t *testing.T, d *database) term
}{
	{"pending", func(t *testing.T, d *database) term {
		return d.site(t).resolving(t, change("0001-first", 1))
	}},
	{"applying", func(t *testing.T, d *database) term {
		return d.site(t).begin(t, apply(change("0001-first", 1)))
	}},
	{"applied", func(t *testing.T, d *database) term {
		s := d.site(t)
		s.applied(t, change("0001-first", 1))
		return s.resolving(t, change("0001-first", 1))
	}},
	{"rolling back from applied", func(t *testing.T, d *database) term {
		s := d.site(t)
		s.applied(t, change("0001-first", 1))
		return s.begin(t, rollback(change("0001-first", 1)))
	}},
	{"rolling back from pending", func(t *testing.T, d *database) term {
		s := d.site(t)
		s.partial(t, change("0001-first", 2))
		return s.begin(t, rollback(change("0001-first", 2)))
	}},
	{"applying, claimed from nobody knows where", func(t *testing.T, d *database) term {
		return d.site(t).begin(t, apply(change("0001-first", 1))).forgetting(t)
	}},
	{"rolling back, claimed from nobody knows where", func(t *testing.T, d *database) term {
		s := d.site(t)
		s.partial(t, change("0001-first", 2))
		return s.begin(t, rollback(change("0001-first", 2))).forgetting(t)
	}},
}

// forgetting is the term without a note of where its plan was claimed from, as an operator's edit may leave it.
func (x term) forgetting(t *testing.T) term {
	t.Helper()
	x.setPlan(t, x.claimed.Plan.ID, "claimed_from = NULL")
	x.claimed.Plan.ClaimedFrom = ""
	return x
}

// resolving holds the site's lock without a claim, as a person does who says what is true of a plan.
func (s *site) resolving(t *testing.T, c *plan.Change) term {
	t.Helper()
	if _, err := s.db.Submit(t.Context(), s.id, s.scope, plan.NewID(), c); err != nil {
		t.Fatal(err)
	}
	return term{site: s, held: s.acquire(t, nil).Held, claimed: s.plan(t, c), direction: plan.Up}
}
