package storagetest

import (
	"errors"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/belayhq/belay/engine"
	"github.com/belayhq/belay/plan"
	"github.com/belayhq/belay/sitelock"
	"github.com/belayhq/belay/tenant"
)

// submit makes a pending plan.
func (s *site) submit(t *testing.T, c *plan.Change) plan.Plan {
	t.Helper()
	p, err := s.db.Submit(t.Context(), s.id, s.scope, plan.NewID(), c)
	if err != nil {
		t.Fatalf("submit: %v", err)
	}
	return p
}

// known stores a change beforehand, because a submit that comes to nothing may leave its content behind.
func (d *database) known(t *testing.T, c *plan.Change) {
	t.Helper()
	if err := d.db.PutChange(t.Context(), c); err != nil {
		t.Fatalf("put change: %v", err)
	}
}

// sameRecords compares records but for the clock.
func sameRecords(a, b []plan.Record) bool {
	return slices.EqualFunc(a, b, func(a, b plan.Record) bool {
		return reflect.DeepEqual(a.Plan, b.Plan) && slices.Equal(a.Journal, b.Journal)
	})
}

// fleet makes tenants in every condition that a survey tells apart.
func fleet(t *testing.T, d *database) []*site {
	t.Helper()
	first, second := change("0001-first", 2), change("0002-second", 2)
	applied, partial, running, abandoned, held, untouched, released := d.site(t), d.site(t), d.site(t), d.site(t), d.site(t), d.site(t), d.site(t)
	applied.applied(t, first)
	applied.applied(t, second)
	partial.applied(t, first)
	partial.partial(t, second)
	running.begin(t, apply(first))
	abandoned.applied(t, second)
	x := abandoned.begin(t, apply(first))
	x.checkpoint(t, x.group(recorded(0, plan.StepDone)))
	abandoned.expire(t)
	hold := held.request(nil)
	hold.Operation, hold.Reason, hold.Lease = sitelock.OpHold, "audit", 30*time.Hour
	if _, err := d.db.Acquire(t.Context(), hold); err != nil {
		t.Fatal(err)
	}
	held.submit(t, first)
	released.begin(t, apply(first)).fail(t)
	return []*site{released, untouched, held, abandoned, running, partial, applied}
}

var reads = []test{
	{"a tenant's plans are read in the order of their claims, the others last as they were made", func(t *testing.T, d *database) {
		s := d.site(t)
		for i, id := range []string{"0009-waiting", "0005-waiting"} {
			s.submit(t, change(id, 1))
			s.Exec(t, "", "UPDATE "+s.Table("plan")+" SET created_at = created_at - "+[]string{"5000", "4000"}[i]+" WHERE change_id = '"+id+"'")
		}
		s.applied(t, change("0003-first", 1))
		s.applied(t, change("0001-second", 1))
		records, err := d.db.Records(t.Context(), s.id)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, r := range records {
			got = append(got, r.Plan.Change)
		}
		if want := []string{"0003-first", "0001-second", "0009-waiting", "0005-waiting"}; !slices.Equal(got, want) {
			t.Errorf("read %v, want %v", got, want)
		}
	}},
	{"a survey says of every tenant what reading it alone says", func(t *testing.T, d *database) {
		sites := fleet(t, d)
		ids := []tenant.ID{tenant.NewID()}
		for _, s := range sites {
			ids = append(ids, s.id)
		}
		survey, err := d.db.Survey(t.Context(), ids, "")
		if err != nil || len(survey) != len(ids) {
			t.Fatalf("survey of %d: %v", len(survey), err)
		}
		for i, id := range ids {
			if survey[i].Tenant != id {
				t.Fatalf("tenant %d of the survey is %s, want %s", i, survey[i].Tenant, id)
			}
			records, err := d.db.Records(t.Context(), id)
			if err != nil || !sameRecords(survey[i].Records, records) {
				t.Errorf("tenant %d: surveyed %+v\nread %+v, %v", i, survey[i].Records, records, err)
			}
			state, err := d.db.State(t.Context(), id)
			if err != nil {
				t.Fatal(err)
			}
			surveyed := survey[i].Lock
			if surveyed.Now.IsZero() != state.Now.IsZero() {
				t.Errorf("tenant %d: surveyed at %v, read at %v", i, surveyed.Now, state.Now)
			}
			surveyed.Now, state.Now = time.Time{}, time.Time{}
			if len(surveyed.InFlight) == 0 && len(state.InFlight) == 0 {
				surveyed.InFlight, state.InFlight = nil, nil
			}
			if !reflect.DeepEqual(surveyed, state) {
				t.Errorf("tenant %d: surveyed %+v\nread %+v", i, surveyed, state)
			}
		}
	}},
	{"a survey of one change reads its plan and those that are partial", func(t *testing.T, d *database) {
		sites := fleet(t, d)
		var ids []tenant.ID
		for _, s := range sites {
			ids = append(ids, s.id)
		}
		for _, id := range []string{"0001-first", "0002-second", "0003-unknown"} {
			survey, err := d.db.Survey(t.Context(), ids, id)
			if err != nil || len(survey) != len(ids) {
				t.Fatalf("survey of %d: %v", len(survey), err)
			}
			for i, s := range sites {
				want, err := d.db.Records(t.Context(), s.id)
				if err != nil {
					t.Fatal(err)
				}
				want = slices.DeleteFunc(want, func(r plan.Record) bool { return r.Plan.Change != id && !r.Partial() })
				if !sameRecords(survey[i].Records, want) {
					t.Errorf("change %s, tenant %d: surveyed %+v\nwant %+v", id, i, survey[i].Records, want)
				}
			}
		}
	}},
	{"a survey of nobody is empty", func(t *testing.T, d *database) {
		d.site(t).acquire(t, nil)
		if survey, err := d.db.Survey(t.Context(), nil, ""); err != nil || len(survey) != 0 {
			t.Errorf("survey %+v, %v", survey, err)
		}
	}},
	{"events are read newest first, at most as many as asked for", func(t *testing.T, d *database) {
		s, other := d.site(t), d.site(t)
		c := change("0001-first", 1)
		s.applied(t, c)
		other.applied(t, c)
		s.begin(t, rollback(c)).succeed(t, recorded(0, plan.StepUndone))
		var kinds []plan.Event
		events := s.events(t)
		for i, e := range events {
			kinds = append(kinds, e.Kind)
			if i > 0 && (e.Seq >= events[i-1].Seq || e.At.After(events[i-1].At)) {
				t.Errorf("event %d is newer than the one before", i)
			}
		}
		if want := []plan.Event{plan.EventSucceed, plan.EventClaimRollback, plan.EventSucceed, plan.EventClaimApply}; !slices.Equal(kinds, want) {
			t.Errorf("events %v, want %v", kinds, want)
		}
		newest, err := d.db.Events(t.Context(), s.id, 2)
		if err != nil || len(newest) != 2 || newest[0].Seq != events[0].Seq || newest[1].Seq != events[1].Seq {
			t.Errorf("newest %+v, %v", newest, err)
		}
	}},
	{"a checkpoint without a move is no event", func(t *testing.T, d *database) {
		s := d.site(t)
		x := s.begin(t, apply(change("0001-first", 2)))
		before := len(s.events(t))
		x.checkpoint(t, x.group(x.put(0)))
		if after := len(s.events(t)); after != before {
			t.Errorf("%d events, were %d", after, before)
		}
	}},
	{"a submitted plan is pending and was never run", func(t *testing.T, d *database) {
		s := d.site(t)
		c := change("0001-first", 3)
		id := plan.NewID()
		p, err := d.db.Submit(t.Context(), s.id, s.scope, id, c)
		if err != nil || p.ID != id || p.Digest != c.Digest() {
			t.Fatalf("plan %+v, %v", p, err)
		}
		r := s.plan(t, c)
		want := plan.Plan{
			ID: id, Tenant: s.id, Change: c.ID, Digest: c.Digest(), Status: plan.Pending, Outcome: plan.OutcomeNeverRun, StepsTotal: 3, Format: plan.Format,
			CreatedAt: r.Plan.CreatedAt, UpdatedAt: r.Plan.UpdatedAt,
		}
		if r.Plan != want || len(r.Journal) != 0 {
			t.Errorf("plan %+v, want %+v", r.Plan, want)
		}
		if _, err := d.db.Change(t.Context(), c.Digest()); err != nil {
			t.Error(err)
		}
		if state := s.state(t); state.Kind() != sitelock.StateIdle {
			t.Errorf("state %+v", state)
		}
	}},
	{"a plan submitted twice is one plan, whatever became of it", func(t *testing.T, d *database) {
		s := d.site(t)
		c := change("0001-first", 1)
		first := s.submit(t, c)
		s.unchanged(t, func() {
			if second := s.submit(t, c); second.ID != first.ID || second.Digest != first.Digest {
				t.Errorf("submitted %+v, then %+v", first, second)
			}
		})
		s.applied(t, c)
		s.known(t, edited(c))
		s.unchanged(t, func() {
			if p := s.submit(t, edited(c)); p.ID != first.ID || p.Digest != c.Digest() || p.Status != plan.Applied {
				t.Errorf("submitted %+v, then %+v", first, p)
			}
		})
	}},
	{"a submitted plan takes the latest content while nothing is in place", func(t *testing.T, d *database) {
		s := d.site(t)
		c := change("0001-first", 1)
		first := s.submit(t, c)
		longer := change("0001-first", 3)
		if p := s.submit(t, longer); p.ID != first.ID || p.Digest != longer.Digest() || p.StepsTotal != 3 {
			t.Errorf("submitted %+v, then %+v", first, p)
		}
		if p := s.plan(t, c).Plan; p.Digest != longer.Digest() || p.Status != plan.Pending || p.Cycle != 0 || p.AppliedSeq != 0 {
			t.Errorf("plan %+v", p)
		}
		if _, err := d.db.Change(t.Context(), longer.Digest()); err != nil {
			t.Error(err)
		}
		s.begin(t, apply(longer)).fail(t, recorded(0, plan.StepIntent))
		if p := s.submit(t, c); p.Digest != longer.Digest() {
			t.Errorf("a plan with a step in doubt took another content: %+v", p)
		}
	}},
	{"many processes submit the same change at once and agree on its plan", func(t *testing.T, d *database) {
		s := d.site(t)
		c := change("0001-first", 1)
		handles := []*database{d, d.again(t), d.again(t)}
		ids := make(chan plan.ID, 12)
		race(12, func(i int) error {
			return retrying(func() error {
				p, err := handles[i%len(handles)].db.Submit(t.Context(), s.id, s.scope, plan.NewID(), c)
				if err == nil {
					ids <- p.ID
				} else if !errors.Is(err, sitelock.ErrContended) && !errors.Is(err, engine.ErrRetryTransaction) {
					t.Errorf("submit: %v", err)
				}
				return err
			})
		})
		stored := s.plan(t, c).Plan.ID
		for range len(ids) {
			if id := <-ids; id != stored {
				t.Errorf("one was told %s, the plan is %s", id, stored)
			}
		}
	}},
	{"a plan cannot be submitted to a scope of another tenant, or to a removed one", func(t *testing.T, d *database) {
		s, removed := d.site(t), d.site(t)
		s.release(t, s.acquire(t, nil).Held)
		if err := d.db.Retire(t.Context(), removed.acquire(t, nil).Held); err != nil {
			t.Fatal(err)
		}
		c := change("0001-first", 1)
		s.known(t, c)
		s.unchanged(t, func() {
			if _, err := d.db.Submit(t.Context(), tenant.NewID(), s.scope, plan.NewID(), c); !errors.Is(err, sitelock.ErrScopeTaken) {
				t.Errorf("got %v, want ErrScopeTaken", err)
			}
			if _, err := d.db.Submit(t.Context(), removed.id, removed.scope, plan.NewID(), c); !errors.Is(err, sitelock.ErrRemoved) {
				t.Errorf("got %v, want ErrRemoved", err)
			}
		})
	}},
	{"a plan may be submitted while someone works on the tenant", func(t *testing.T, d *database) {
		s := d.site(t)
		s.begin(t, apply(change("0001-first", 1)))
		s.submit(t, change("0002-second", 1))
		if records, err := d.db.Records(t.Context(), s.id); err != nil || len(records) != 2 {
			t.Errorf("records %+v, %v", records, err)
		}
	}},
}
