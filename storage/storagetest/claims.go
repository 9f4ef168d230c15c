package storagetest

import (
	"errors"
	"testing"

	"github.com/belayhq/belay/plan"
	"github.com/belayhq/belay/sitelock"
)

var claims = []test{
	{"a claim makes the plan in the transaction that takes the lock", func(t *testing.T, d *database) {
		s := d.site(t)
		c := change("0001-first", 3)
		claim := apply(c)
		grant := s.acquire(t, claim)
		if grant.Claimed == nil {
			t.Fatal("the claim was refused")
		}
		p := grant.Claimed.Plan
		want := plan.Plan{
			ID: claim.NewPlan, Tenant: s.id, Change: c.ID, Digest: c.Digest(), Status: plan.Applying, ClaimedFrom: plan.Pending,
			Fence: 1, Outcome: plan.OutcomeNeverRun, Attempts: 1, AppliedSeq: 1, Cycle: 1, StepsTotal: 3, Format: plan.Format,
			CreatedAt: p.CreatedAt, UpdatedAt: p.UpdatedAt,
		}
		if p != want || p.CreatedAt.IsZero() || len(grant.Claimed.Journal) != 0 {
			t.Errorf("claimed %+v\nwant %+v", grant.Claimed, want)
		}
		stored, err := d.db.Change(t.Context(), c.Digest())
		if err != nil || stored.Digest() != c.Digest() {
			t.Errorf("stored change %+v, error %v", stored, err)
		}
		event := s.lastEvent(t, plan.EventClaimApply)
		if event.From != plan.Pending || event.To != plan.Applying || event.Fence != 1 || event.Plan != p.ID || event.Change != c.ID ||
			event.Operation != sitelock.OpApply || event.Holder != grant.Held.Holder || event.Host != worker.Host || event.PID != worker.PID {
			t.Errorf("event %+v", event)
		}
	}},
	{"a plan made by submit is claimed under its own id", func(t *testing.T, d *database) {
		s := d.site(t)
		c := change("0001-first", 1)
		p, err := d.db.Submit(t.Context(), s.id, s.scope, plan.NewID(), c)
		if err != nil {
			t.Fatal(err)
		}
		if x := s.begin(t, apply(c)); x.claimed.Plan.ID != p.ID || x.claimed.Plan.Cycle != 1 || x.claimed.Plan.AppliedSeq != 1 {
			t.Errorf("claimed %+v", x.claimed.Plan)
		}
	}},
	{"a lock may be held without a claim, and the claim made later", func(t *testing.T, d *database) {
		s := d.site(t)
		c := change("0001-first", 2)
		grant := s.acquire(t, nil)
		if grant.Claimed != nil {
			t.Errorf("claimed %+v", grant.Claimed)
		}
		record, err := d.db.Claim(t.Context(), grant.Held, *apply(c))
		if err != nil || record == nil || record.Plan.Status != plan.Applying || record.Plan.Fence != grant.Held.Fence || record.Plan.Attempts != 1 {
			t.Fatalf("record %+v, error %v", record, err)
		}
		if state := s.state(t); len(state.InFlight) != 1 || state.InFlight[0].ID != record.Plan.ID {
			t.Errorf("state %+v", state)
		}
		x := term{site: s, held: grant.Held, claimed: *record, direction: plan.Up}
		x.succeed(t, x.put(0), x.put(1))
	}},
	{"a refused claim under a lock already held is no error and changes nothing", func(t *testing.T, d *database) {
		s := d.site(t)
		c := change("0001-first", 1)
		s.applied(t, c)
		held := s.acquire(t, nil).Held
		s.unchanged(t, func() {
			if record, err := d.db.Claim(t.Context(), held, *apply(c)); record != nil || err != nil {
				t.Errorf("record %+v, error %v", record, err)
			}
		})
	}},
	{"a refused claim leaves the lock held and the plans as they were", func(t *testing.T, d *database) {
		s := d.site(t)
		c := change("0001-first", 1)
		s.applied(t, c)
		before := s.plan(t, c)
		grant := s.acquire(t, apply(c))
		if grant.Claimed != nil || s.state(t).Holder != grant.Held.Holder {
			t.Errorf("grant %+v, state %+v", grant, s.state(t))
		}
		if after := s.plan(t, c); after.Plan != before.Plan {
			t.Errorf("plan %+v, was %+v", after.Plan, before.Plan)
		}
	}},
	{"an applied plan is not applied again", func(t *testing.T, d *database) {
		s := d.site(t)
		c := change("0001-first", 2)
		s.applied(t, c)
		s.refused(t, apply(c))
	}},
	{"an applied plan is rolled back, and is pending afterwards", func(t *testing.T, d *database) {
		s := d.site(t)
		c := change("0001-first", 2)
		s.applied(t, c)
		x := s.begin(t, rollback(c))
		if p := x.claimed.Plan; p.Status != plan.RollingBack || p.ClaimedFrom != plan.Applied || p.Fence != 2 || p.AppliedSeq != 1 || p.Cycle != 1 || len(x.claimed.Journal) != 2 {
			t.Errorf("claimed %+v", x.claimed)
		}
		if event := s.lastEvent(t, plan.EventClaimRollback); event.From != plan.Applied || event.To != plan.RollingBack {
			t.Errorf("event %+v", event)
		}
		x.succeed(t, recorded(1, plan.StepUndone), recorded(0, plan.StepUndone))
		if p := s.plan(t, c).Plan; p.Status != plan.Pending || p.Outcome != plan.OutcomeRolledBack || p.AppliedSeq != 0 || p.Fence != 0 || p.ClaimedFrom != "" {
			t.Errorf("plan %+v", p)
		}
	}},
	{"a pending plan is rolled back only if something is in place", func(t *testing.T, d *database) {
		s := d.site(t)
		c := change("0001-first", 2)
		s.begin(t, apply(c)).fail(t)
		s.refused(t, rollback(c))
		s.partial(t, c)
		if x := s.begin(t, rollback(c)); x.claimed.Plan.ClaimedFrom != plan.Pending {
			t.Errorf("claimed %+v", x.claimed.Plan)
		}
	}},
	{"a rollback makes no plan", func(t *testing.T, d *database) {
		s := d.site(t)
		s.refused(t, rollback(change("0001-first", 1)))
		if records, err := d.db.Records(t.Context(), s.id); err != nil || len(records) != 0 {
			t.Errorf("records %+v, error %v", records, err)
		}
	}},
	{"the digest is pinned while anything is in place, except for a repin", func(t *testing.T, d *database) {
		s := d.site(t)
		c := change("0001-first", 2)
		s.partial(t, c)
		other := edited(c)
		s.refused(t, apply(other))
		s.refused(t, rollback(other))
		claim := apply(other)
		claim.Repin = true
		x := s.begin(t, claim)
		if x.claimed.Plan.Digest != other.Digest() || x.claimed.Plan.Cycle != 1 {
			t.Errorf("claimed %+v", x.claimed.Plan)
		}
	}},
	{"a step in doubt pins the digest too", func(t *testing.T, d *database) {
		s := d.site(t)
		c := change("0001-first", 2)
		x := s.begin(t, apply(c))
		x.checkpoint(t, x.group(recorded(0, plan.StepIntent)))
		x.fail(t)
		s.refused(t, apply(edited(c)))
	}},
	{"the digest is free while nothing is in place", func(t *testing.T, d *database) {
		s := d.site(t)
		c := change("0001-first", 1)
		x := s.begin(t, apply(c))
		x.checkpoint(t, x.group(recorded(0, plan.StepDone)))
		x.fail(t, recorded(0, plan.StepUndone))
		longer := change("0001-first", 4)
		x = s.begin(t, apply(longer))
		if p := x.claimed.Plan; p.Digest != longer.Digest() || p.StepsTotal != 4 || p.Cycle != 2 {
			t.Errorf("claimed %+v", p)
		}
		if _, err := d.db.Change(t.Context(), longer.Digest()); err != nil {
			t.Errorf("the new content is not stored: %v", err)
		}
	}},
	{"a partial plan blocks every other plan of its tenant until it is whole", func(t *testing.T, d *database) {
		s := d.site(t)
		first, second, third := change("0001-first", 2), change("0002-second", 2), change("0003-third", 1)
		s.applied(t, first)
		s.partial(t, second)
		s.refused(t, apply(third))
		s.refused(t, rollback(first))
		s.begin(t, apply(second)).succeed(t, recorded(1, plan.StepDone))
		s.applied(t, third)
	}},
	{"an applied plan that is partial blocks the others", func(t *testing.T, d *database) {
		s := d.site(t)
		first, second := change("0001-first", 2), change("0002-second", 2)
		s.applied(t, first)
		s.begin(t, rollback(first)).fail(t, recorded(1, plan.StepUndone))
		if r := s.plan(t, first); r.Plan.Status != plan.Applied || !r.Partial() {
			t.Fatalf("the plan is not a half-done rollback: %+v", r)
		}
		s.refused(t, apply(second))
		s.refused(t, apply(first))
		s.begin(t, rollback(first)).succeed(t, recorded(0, plan.StepUndone))
		s.applied(t, second)
	}},
	{"an undo in doubt is no step in place, and blocks the others", func(t *testing.T, d *database) {
		s := d.site(t)
		older, first := change("0000-older", 1), change("0001-first", 1)
		s.applied(t, older)
		s.applied(t, first)
		s.begin(t, rollback(first)).fail(t, recorded(0, plan.StepUndoIntent))
		s.refused(t, apply(change("0002-second", 1)))
		s.refused(t, rollback(older))
		s.begin(t, rollback(first)).succeed(t, recorded(0, plan.StepUndone))
		s.begin(t, rollback(older))
	}},
	{"a partial plan of one tenant blocks no other tenant", func(t *testing.T, d *database) {
		c := change("0001-first", 2)
		d.site(t).partial(t, c)
		d.site(t).applied(t, change("0002-second", 1))
	}},
	{"a partial older plan blocks the rollback of a newer one", func(t *testing.T, d *database) {
		// No sequence of claims leads here: an operator's hand does.
		s := d.site(t)
		first, second := change("0001-first", 1), change("0002-second", 1)
		s.applied(t, first)
		s.applied(t, second)
		s.setPlan(t, s.plan(t, first).Plan.ID, "outcome = 'failed', steps_total = 2")
		s.refused(t, rollback(second))
	}},
	{"a failed plan with nothing in place blocks nobody", func(t *testing.T, d *database) {
		s := d.site(t)
		s.begin(t, apply(change("0001-first", 2))).fail(t)
		s.applied(t, change("0002-second", 1))
	}},
	{"plans are rolled back newest first", func(t *testing.T, d *database) {
		s := d.site(t)
		first, second := change("0002-first", 1), change("0001-second", 1)
		s.applied(t, first)
		s.applied(t, second)
		s.refused(t, rollback(first))
		for _, c := range []*plan.Change{second, first} {
			s.begin(t, rollback(c)).succeed(t, recorded(0, plan.StepUndone))
		}
	}},
	{"plans are numbered when they are first claimed, and again when they come back", func(t *testing.T, d *database) {
		s := d.site(t)
		first, second := change("0001-first", 1), change("0002-second", 1)
		s.applied(t, first)
		s.applied(t, second)
		if a, b := s.plan(t, first).Plan.AppliedSeq, s.plan(t, second).Plan.AppliedSeq; a != 1 || b != 2 {
			t.Errorf("numbered %d and %d", a, b)
		}
		s.begin(t, rollback(second)).succeed(t, recorded(0, plan.StepUndone))
		s.begin(t, rollback(first)).succeed(t, recorded(0, plan.StepUndone))
		s.applied(t, second)
		s.applied(t, first)
		if a, b := s.plan(t, first).Plan, s.plan(t, second).Plan; a.AppliedSeq <= b.AppliedSeq || a.Cycle != 2 || b.Cycle != 2 {
			t.Errorf("numbered %+v and %+v", a, b)
		}
	}},
	{"a partial plan keeps its number and its cycle when it is claimed again", func(t *testing.T, d *database) {
		s := d.site(t)
		c := change("0001-first", 2)
		s.partial(t, c)
		if p := s.begin(t, apply(c)).claimed.Plan; p.AppliedSeq != 1 || p.Cycle != 1 || p.Outcome != plan.OutcomeFailed {
			t.Errorf("claimed %+v", p)
		}
	}},
	{"a plan loses its number when it fails with nothing in place", func(t *testing.T, d *database) {
		s := d.site(t)
		c := change("0001-first", 2)
		s.begin(t, apply(c)).fail(t)
		if p := s.plan(t, c).Plan; p.AppliedSeq != 0 || p.Status != plan.Pending {
			t.Errorf("plan %+v", p)
		}
		if p := s.begin(t, apply(c)).claimed.Plan; p.AppliedSeq != 1 || p.Cycle != 2 {
			t.Errorf("claimed %+v", p)
		}
	}},
	{"attempts count claims since a step last committed", func(t *testing.T, d *database) {
		s := d.site(t)
		c := change("0001-first", 3)
		s.begin(t, apply(c))
		s.expire(t)
		x := s.begin(t, apply(c))
		if x.claimed.Plan.Attempts != 2 {
			t.Errorf("attempts %d, want 2", x.claimed.Plan.Attempts)
		}
		x.checkpoint(t, x.group(recorded(0, plan.StepIntent)))
		if n := s.plan(t, c).Plan.Attempts; n != 2 {
			t.Errorf("attempts %d after an intent, want 2", n)
		}
		x.checkpoint(t, x.group(recorded(0, plan.StepDone)))
		if n := s.plan(t, c).Plan.Attempts; n != 0 {
			t.Errorf("attempts %d after a step, want 0", n)
		}
		s.expire(t)
		if n := s.begin(t, apply(c)).claimed.Plan.Attempts; n != 1 {
			t.Errorf("attempts %d, want 1", n)
		}
	}},
	{"a plan that kills its holder every time is quarantined, until a person retries it", func(t *testing.T, d *database) {
		s := d.site(t)
		c := change("0001-poison", 2)
		for i := range plan.MaxAttempts {
			if x := s.begin(t, apply(c)); x.claimed.Plan.Attempts != i+1 {
				t.Fatalf("claim %d has attempts %d", i+1, x.claimed.Plan.Attempts)
			}
			s.expire(t)
		}
		s.refused(t, apply(c))
		if r := s.plan(t, c); !r.Plan.Quarantined() || r.Plan.Attempts != plan.MaxAttempts || r.Plan.Status != plan.Pending {
			t.Errorf("plan %+v", r.Plan)
		}
		s.applied(t, change("0002-second", 1)) // quarantine blocks the tenant only while the plan is partial
		claim := apply(c)
		claim.Retry = true
		if p := s.begin(t, claim).claimed.Plan; p.Attempts != 1 || p.Status != plan.Applying {
			t.Errorf("claimed %+v", p)
		}
	}},
	{"a partial plan in quarantine blocks its tenant, and its rollback waits for a person too", func(t *testing.T, d *database) {
		s := d.site(t)
		c := change("0001-poison", 2)
		s.partial(t, c)
		for range plan.MaxAttempts {
			s.begin(t, apply(c))
			s.expire(t)
		}
		s.refused(t, apply(c))
		s.refused(t, rollback(c))
		s.refused(t, apply(change("0002-second", 1)))
		claim := rollback(c)
		claim.Retry = true
		s.begin(t, claim).succeed(t, recorded(0, plan.StepUndone))
		s.applied(t, change("0002-second", 1))
	}},
	{"a plan in flight of a newer form is left alone", func(t *testing.T, d *database) {
		s := d.site(t)
		x := s.begin(t, apply(change("0001-first", 2)))
		s.setPlan(t, x.claimed.Plan.ID, "format = 99")
		s.expire(t)
		s.unchanged(t, func() {
			if _, err := d.db.Acquire(t.Context(), s.request(nil)); !errors.Is(err, sitelock.ErrNewerBinary) {
				t.Errorf("got %v, want ErrNewerBinary", err)
			}
		})
		if !s.state(t).NeedsNewerBinary() {
			t.Errorf("state %+v", s.state(t))
		}
	}},
	{"a tenant has one plan in flight at a time", func(t *testing.T, d *database) {
		s := d.site(t)
		x := s.begin(t, apply(change("0001-first", 2)))
		record, err := d.db.Claim(t.Context(), x.held, *apply(change("0002-second", 1)))
		if record != nil {
			t.Errorf("claimed %+v beside another, error %v", record, err)
		}
		if state := s.state(t); len(state.InFlight) != 1 || state.InFlight[0].ID != x.claimed.Plan.ID {
			t.Errorf("state %+v", state)
		}
		x.succeed(t, x.put(0), x.put(1))
	}},
	{"a change is stored once for all tenants", func(t *testing.T, d *database) {
		c := change("0001-first", 1)
		d.site(t).applied(t, c)
		d.site(t).applied(t, c)
		d.again(t).site(t).applied(t, c)
		if n := d.Query(t, "", "SELECT count(*) FROM "+d.Table("change")); n != "1" {
			t.Errorf("%s changes stored", n)
		}
	}},
	{"a change whose storing was rolled back is stored by the next claim", func(t *testing.T, d *database) {
		s := d.site(t)
		s.acquire(t, nil)
		c := change("0001-first", 1)
		if _, err := d.db.Acquire(t.Context(), s.request(apply(c))); !errors.Is(err, sitelock.ErrRefused) {
			t.Fatalf("got %v, want ErrRefused", err)
		}
		s.expire(t)
		s.begin(t, apply(c))
		if _, err := d.db.Change(t.Context(), c.Digest()); err != nil {
			t.Error(err)
		}
	}},
}
