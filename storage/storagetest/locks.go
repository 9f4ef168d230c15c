package storagetest

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/belayhq/belay/plan"
	"github.com/belayhq/belay/sitelock"
	"github.com/belayhq/belay/storage"
	"github.com/belayhq/belay/tenant"
)

var locks = []test{
	{"the first acquire gives fence 1 and says who has the lock", func(t *testing.T, d *database) {
		s := d.site(t)
		req := s.request(apply(change("0001-first", 2)))
		grant, err := s.db.Acquire(t.Context(), req)
		if err != nil {
			t.Fatal(err)
		}
		if want := (sitelock.Held{Tenant: s.id, Holder: req.Holder, Fence: 1}); grant.Held != want {
			t.Errorf("held %+v, want %+v", grant.Held, want)
		}
		state := s.state(t)
		if state.Kind() != sitelock.StateRunning || !state.Live || state.Holder != req.Holder || state.Fence != 1 || state.Operation != sitelock.OpApply {
			t.Errorf("state %+v", state)
		}
		if state.Host != worker.Host || state.PID != worker.PID || !state.StartedAt.Equal(worker.StartedAt) {
			t.Errorf("process %+v, want %+v", state.Process, worker)
		}
		if state.Plan != grant.Claimed.Plan.ID || state.Change != "0001-first" {
			t.Errorf("plan %q of %q, want %q", state.Plan, state.Change, grant.Claimed.Plan.ID)
		}
		if !state.Expires.Equal(grant.Expires) || state.Expires.Sub(state.Since) != lease {
			t.Errorf("since %v, expires %v; the grant says %v", state.Since, state.Expires, grant.Expires)
		}
	}},
	{"a tenant that was never locked is idle", func(t *testing.T, d *database) {
		s := d.site(t)
		if state := s.state(t); state.Kind() != sitelock.StateIdle || state.Fence != 0 || state.Live {
			t.Errorf("state %+v", state)
		}
	}},
	{"a release frees the lock and keeps the fence, and the next acquire raises it", func(t *testing.T, d *database) {
		s := d.site(t)
		s.release(t, s.begin(t, apply(change("0001-first", 1))).held)
		state := s.state(t)
		if state.Live || state.Fence != 1 || state.Holder != "" || state.Operation != "" || state.Plan != "" {
			t.Errorf("state %+v", state)
		}
		if grant := s.acquire(t, nil); grant.Held.Fence != 2 {
			t.Errorf("fence %d, want 2", grant.Held.Fence)
		}
	}},
	{"a live lock is refused to anyone else, and nothing changes", func(t *testing.T, d *database) {
		older, second := change("0000-older", 1), change("0002-second", 1)
		// Only a change's text, kept under its digest, may be stored before it is known who gets the lock.
		if err := d.db.PutChange(t.Context(), second); err != nil {
			t.Fatal(err)
		}
		for _, holders := range []*sitelock.Claim{apply(change("0001-first", 1)), nil} {
			s := d.site(t)
			s.applied(t, older)
			s.acquire(t, holders)
			for _, claim := range []*sitelock.Claim{apply(second), rollback(older), nil} {
				s.unchanged(t, func() {
					if _, err := s.db.Acquire(t.Context(), s.request(claim)); !errors.Is(err, sitelock.ErrRefused) {
						t.Errorf("got %v, want ErrRefused", err)
					}
				})
			}
		}
	}},
	{"a lapsed lock is taken over, and its former holder cannot release it", func(t *testing.T, d *database) {
		s := d.site(t)
		former := s.acquire(t, nil).Held
		s.expire(t)
		if taken := s.acquire(t, nil).Held; taken.Fence != 2 {
			t.Errorf("fence %d, want 2", taken.Fence)
		}
		s.unchanged(t, func() {
			if err := s.db.Release(t.Context(), former); !errors.Is(err, sitelock.ErrNotHeld) {
				t.Errorf("got %v, want ErrNotHeld", err)
			}
		})
	}},
	{"a lock released twice is not held the second time", func(t *testing.T, d *database) {
		s := d.site(t)
		held := s.acquire(t, nil).Held
		s.release(t, held)
		s.unchanged(t, func() {
			if err := s.db.Release(t.Context(), held); !errors.Is(err, sitelock.ErrNotHeld) {
				t.Errorf("got %v, want ErrNotHeld", err)
			}
		})
	}},
	{"the same holder recognises its row, with the same fence and its own claim", func(t *testing.T, d *database) {
		s := d.site(t)
		req := s.request(apply(change("0001-first", 1)))
		for range 2 {
			grant, err := s.db.Acquire(t.Context(), req)
			if err != nil {
				t.Fatal(err)
			}
			if grant.Held.Fence != 1 || grant.Claimed == nil || grant.Claimed.Plan.ID != req.Claim.NewPlan || grant.Claimed.Plan.Status != plan.Applying {
				t.Errorf("grant %+v", grant)
			}
		}
	}},
	{"the same holder recognises its row after the lease lapsed", func(t *testing.T, d *database) {
		s := d.site(t)
		req := s.request(nil)
		if _, err := s.db.Acquire(t.Context(), req); err != nil {
			t.Fatal(err)
		}
		s.setLock(t, "acquired_at = 1000")
		s.expire(t)
		grant, err := s.db.Acquire(t.Context(), req)
		if state := s.state(t); err != nil || grant.Held.Fence != 1 || !state.Live || state.Since.UnixMilli() != 1000 {
			t.Errorf("grant %+v, error %v, state %+v", grant, err, state)
		}
	}},
	{"an acquire takes over from the acquisition that it replaces", func(t *testing.T, d *database) {
		s := d.site(t)
		x := s.begin(t, apply(change("0001-first", 1)))
		req := s.request(apply(change("0001-first", 1)))
		req.Replace = x.held
		grant, err := s.db.Acquire(t.Context(), req)
		if err != nil {
			t.Fatal(err)
		}
		if grant.Held.Fence != 2 || grant.Held.Holder != req.Holder || len(grant.Recovered) != 1 || grant.Claimed == nil {
			t.Errorf("grant %+v", grant)
		}
		if err := s.db.Checkpoint(t.Context(), x.held, x.group(x.put(0))); !lost(err) {
			t.Errorf("the replaced holder got %v", err)
		}
	}},
	{"an acquire that replaces what is no longer there is refused", func(t *testing.T, d *database) {
		s := d.site(t)
		req := s.request(nil)
		req.Replace = sitelock.Held{Tenant: s.id, Holder: sitelock.NewHolderID(), Fence: 1}
		if _, err := s.db.Acquire(t.Context(), req); !errors.Is(err, sitelock.ErrRefused) || s.state(t).Live {
			t.Errorf("of a tenant without a lock row: got %v, want ErrRefused", err)
		}
		held := s.acquire(t, nil).Held
		for name, replace := range map[string]sitelock.Held{
			"another fence":  {Tenant: s.id, Holder: held.Holder, Fence: held.Fence + 1},
			"another holder": {Tenant: s.id, Holder: sitelock.NewHolderID(), Fence: held.Fence},
		} {
			s.unchanged(t, func() {
				req := s.request(nil)
				req.Replace = replace
				if _, err := s.db.Acquire(t.Context(), req); !errors.Is(err, sitelock.ErrRefused) {
					t.Errorf("%s: got %v, want ErrRefused", name, err)
				}
			})
		}
	}},
	{"a renewal extends all locks that are still the caller's and names the others", func(t *testing.T, d *database) {
		var held, gone []sitelock.Held
		kept, freed, taken := d.site(t), d.site(t), d.site(t)
		for _, s := range []*site{kept, freed, taken} {
			held = append(held, s.acquire(t, nil).Held)
		}
		never := sitelock.Held{Tenant: d.site(t).id, Holder: sitelock.NewHolderID(), Fence: 1}
		freed.release(t, held[1])
		taken.expire(t)
		gone = append(slices.Clone(held[1:]), never)
		held = append(held, never, taken.acquire(t, nil).Held) // both custodies of one tenant in one call

		before := kept.state(t).Expires
		lost, err := d.db.Renew(t.Context(), held, 10*time.Minute)
		if err != nil {
			t.Fatal(err)
		}
		if !sameHeld(lost, gone) {
			t.Errorf("lost %v, want %v", lost, gone)
		}
		if gained := kept.state(t).Expires.Sub(before); gained < 8*time.Minute || gained > 11*time.Minute {
			t.Errorf("the renewal gained %v", gained)
		}
	}},
	{"a renewal of nothing does nothing", func(t *testing.T, d *database) {
		if lost, err := d.db.Renew(t.Context(), nil, lease); err != nil || len(lost) != 0 {
			t.Errorf("lost %v, error %v", lost, err)
		}
	}},
	{"a lock that lapsed and was not taken is renewed", func(t *testing.T, d *database) {
		s := d.site(t)
		held := s.acquire(t, nil).Held
		s.expire(t)
		lost, err := s.db.Renew(t.Context(), []sitelock.Held{held}, lease)
		if err != nil || len(lost) != 0 || !s.state(t).Live {
			t.Errorf("lost %v, error %v, state %+v", lost, err, s.state(t))
		}
	}},
	{"a renewal changes the expiry and nothing else", func(t *testing.T, d *database) {
		s := d.site(t)
		x := s.begin(t, apply(change("0001-first", 1)))
		s.setLock(t, "expires_at = 1")
		s.unchanged(t, func() {
			if lost, err := s.db.Renew(t.Context(), []sitelock.Held{x.held}, lease); err != nil || len(lost) != 0 {
				t.Errorf("lost %v, error %v", lost, err)
			}
			if !s.state(t).Live {
				t.Error("the lock was not renewed")
			}
			s.setLock(t, "expires_at = 1")
		})
	}},
	{"of many who race for a lapsed lock one gets it, with its claim", func(t *testing.T, d *database) {
		s := d.site(t)
		c := change("0001-first", 1)
		handles := []storage.Database{d.db, d.Open(t), d.Open(t)}
		s.begin(t, apply(c))
		for round := range 3 {
			s.expire(t)
			won := race(50, func(i int) error {
				grant, err := handles[i%len(handles)].Acquire(t.Context(), s.request(apply(c)))
				switch {
				case errors.Is(err, sitelock.ErrRefused), errors.Is(err, sitelock.ErrContended):
					return err
				case err != nil:
					t.Errorf("acquire: %v", err)
				case grant.Claimed == nil || len(grant.Recovered) != 1:
					t.Errorf("grant %+v", grant)
				}
				return err
			})
			if won != 1 {
				t.Fatalf("%d got the lock", won)
			}
			if state := s.state(t); state.Fence != sitelock.Fence(round+2) || len(state.InFlight) != 1 {
				t.Errorf("state %+v", state)
			}
		}
	}},
	{"of many who race for the first lock one gets it", func(t *testing.T, d *database) {
		s := d.site(t)
		handles := []storage.Database{d.db, d.Open(t), d.Open(t)}
		for _, h := range handles {
			if _, _, err := h.Migrate(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		won := race(30, func(i int) error {
			_, err := handles[i%len(handles)].Acquire(t.Context(), s.request(nil))
			if err != nil && !errors.Is(err, sitelock.ErrRefused) && !errors.Is(err, sitelock.ErrContended) {
				t.Errorf("acquire: %v", err)
			}
			return err
		})
		if state := s.state(t); won != 1 || state.Fence != 1 {
			t.Errorf("%d got the lock, the fence is %d", won, state.Fence)
		}
	}},
	{"an open checkpoint keeps every take-over out, also after the lease lapsed", func(t *testing.T, d *database) {
		s := d.site(t)
		x := s.begin(t, apply(change("0001-first", 2)))
		s.expire(t)
		step := s.action(0, func(tx *actionTx) {
			if _, err := d.Open(t).Acquire(t.Context(), s.request(nil)); !errors.Is(err, sitelock.ErrContended) {
				t.Errorf("got %v, want ErrContended", err)
			}
		})
		x.checkpoint(t, x.group(step))
		next := s.begin(t, apply(change("0001-first", 2)))
		if next.held.Fence != 2 || next.claimed.State(0) != plan.StepDone {
			t.Errorf("the next holder found %+v", next.claimed)
		}
	}},
	{"a scope belongs to one tenant id", func(t *testing.T, d *database) {
		s := d.site(t)
		s.release(t, s.acquire(t, nil).Held)
		other := &site{database: d, id: d.site(t).id, scope: s.scope}
		s.unchanged(t, func() {
			if _, err := d.db.Acquire(t.Context(), other.request(nil)); !errors.Is(err, sitelock.ErrScopeTaken) {
				t.Errorf("acquire: got %v, want ErrScopeTaken", err)
			}
			if err := d.db.Register(t.Context(), other.id, s.scope); !errors.Is(err, sitelock.ErrScopeTaken) {
				t.Errorf("register: got %v, want ErrScopeTaken", err)
			}
			if err := d.db.Register(t.Context(), s.id, s.scope); err != nil {
				t.Errorf("register again: %v", err)
			}
		})
	}},
	{"a tenant's next acquire moves it to another scope, which must be free", func(t *testing.T, d *database) {
		s, other := d.site(t), d.site(t)
		s.release(t, s.acquire(t, nil).Held)
		other.release(t, other.acquire(t, nil).Held)
		was := s.scope
		s.scope = d.Scope(t)
		s.release(t, s.acquire(t, nil).Held)
		for scope, want := range map[string]tenant.ID{was: "", s.scope: s.id} {
			if owner, err := d.db.Owner(t.Context(), scope); err != nil || owner != want {
				t.Errorf("scope %s belongs to %q, %v, want %q", scope, owner, err, want)
			}
		}
		other.scope = s.scope
		other.unchanged(t, func() {
			if _, err := d.db.Acquire(t.Context(), other.request(nil)); !errors.Is(err, sitelock.ErrScopeTaken) {
				t.Errorf("got %v, want ErrScopeTaken", err)
			}
		})
	}},
	{"a registered tenant is idle until its first acquire, which gives fence 1", func(t *testing.T, d *database) {
		s := d.site(t)
		if err := d.db.Register(t.Context(), s.id, s.scope); err != nil {
			t.Fatal(err)
		}
		if state := s.state(t); state.Kind() != sitelock.StateIdle || state.Fence != 0 {
			t.Errorf("state %+v", state)
		}
		if held := s.acquire(t, nil).Held; held.Fence != 1 {
			t.Errorf("fence %d, want 1", held.Fence)
		}
	}},
	{"a removed tenant cannot be locked, keeps its fence and leaves its scope to another", func(t *testing.T, d *database) {
		s := d.site(t)
		s.release(t, s.acquire(t, nil).Held)
		if err := d.db.Retire(t.Context(), s.acquire(t, nil).Held); err != nil {
			t.Fatal(err)
		}
		s.unchanged(t, func() {
			if _, err := d.db.Acquire(t.Context(), s.request(nil)); !errors.Is(err, sitelock.ErrRemoved) {
				t.Errorf("got %v, want ErrRemoved", err)
			}
		})
		if state := s.state(t); state.Fence != 2 || state.Kind() != sitelock.StateIdle {
			t.Errorf("state %+v", state)
		}
		heir := &site{database: d, id: d.site(t).id, scope: s.scope}
		if err := d.db.Register(t.Context(), heir.id, heir.scope); err != nil {
			t.Fatal(err)
		}
		heir.acquire(t, nil)
	}},
	{"a lease above the maximum is refused", func(t *testing.T, d *database) {
		s := d.site(t)
		s.release(t, s.acquire(t, nil).Held)
		s.unchanged(t, func() {
			req := s.request(nil)
			req.Lease = d.maxLease(t) + time.Second
			_, err := d.db.Acquire(t.Context(), req)
			if err == nil || errors.Is(err, sitelock.ErrRefused) {
				t.Errorf("got %v, want an error of its own", err)
			}
		})
	}},
	{"a lease of no length is refused", func(t *testing.T, d *database) {
		s := d.site(t)
		s.maxLease(t)
		s.unchanged(t, func() {
			for _, operation := range []sitelock.Operation{sitelock.OpApply, sitelock.OpHold} {
				req := s.request(nil)
				req.Operation, req.Lease = operation, time.Millisecond-1
				if _, err := d.db.Acquire(t.Context(), req); err == nil || errors.Is(err, sitelock.ErrRefused) {
					t.Errorf("%s: got %v, want an error of its own", operation, err)
				}
			}
		})
	}},
	{"a hold has a reason and may last longer than any lease", func(t *testing.T, d *database) {
		s := d.site(t)
		req := s.request(nil)
		req.Operation, req.Reason, req.Lease = sitelock.OpHold, "moving the disk; don't touch", 3*d.maxLease(t)
		if _, err := d.db.Acquire(t.Context(), req); err != nil {
			t.Fatal(err)
		}
		state := s.state(t)
		if state.Kind() != sitelock.StateHeld || state.Reason != req.Reason || state.Expires.Sub(state.Since) != req.Lease {
			t.Errorf("state %+v", state)
		}
		if _, err := d.db.Acquire(t.Context(), s.request(nil)); !errors.Is(err, sitelock.ErrRefused) {
			t.Errorf("got %v, want ErrRefused", err)
		}
	}},
	{"a hold is refused while someone works", func(t *testing.T, d *database) {
		s := d.site(t)
		s.acquire(t, nil)
		req := s.request(nil)
		req.Operation, req.Reason = sitelock.OpHold, "audit"
		if _, err := d.db.Acquire(t.Context(), req); !errors.Is(err, sitelock.ErrRefused) {
			t.Errorf("got %v, want ErrRefused", err)
		}
	}},
	{"the reason of a hold goes with it", func(t *testing.T, d *database) {
		s := d.site(t)
		req := s.request(nil)
		req.Operation, req.Reason = sitelock.OpHold, "audit"
		if _, err := d.db.Acquire(t.Context(), req); err != nil {
			t.Fatal(err)
		}
		s.expire(t)
		s.acquire(t, nil)
		if state := s.state(t); state.Reason != "" {
			t.Errorf("state %+v", state)
		}
	}},
	{"state and acquire agree on what is live, for every expiry", func(t *testing.T, d *database) {
		s := d.site(t)
		s.acquire(t, nil)
		most := d.maxLease(t)
		for _, around := range []int64{0, most.Milliseconds()} {
			for _, off := range []int64{-1_800_000, -1000, -3, -2, -1, 0, 1, 2, 3, 60_000} {
				s.setLock(t, fmt.Sprintf("expires_at = %s + %d", s.now(), around+off))
				s.stateAndAcquireAgree(t, most)
			}
		}
	}},
	{"interrupted is a plan in flight without a live holder", func(t *testing.T, d *database) {
		s := d.site(t)
		x := s.begin(t, apply(change("0001-first", 1)))
		s.expire(t)
		state := s.state(t)
		if state.Kind() != sitelock.StateInterrupted || len(state.InFlight) != 1 || state.InFlight[0].ID != x.claimed.Plan.ID || state.Live {
			t.Errorf("state %+v", state)
		}
		if state.Holder != x.held.Holder || state.Host != worker.Host {
			t.Errorf("the state does not name the dead holder: %+v", state)
		}
	}},
}

// stateAndAcquireAgree checks the one predicate from both sides: what State calls live or not, by its own clock, and
// what an acquire that succeeded must have found, by the time it wrote.
func (s *site) stateAndAcquireAgree(t *testing.T, most time.Duration) {
	t.Helper()
	live := func(expires, now time.Time) bool { return !expires.Before(now) && !expires.After(now.Add(most)) }
	state := s.state(t)
	if want := live(state.Expires, state.Now); state.Live != want {
		t.Errorf("state says live=%v for an expiry %v ahead", state.Live, state.Expires.Sub(state.Now))
	}
	grant, err := s.db.Acquire(t.Context(), s.request(nil))
	switch {
	case err == nil:
		if at := grant.Expires.Add(-lease); live(state.Expires, at) {
			t.Errorf("a lock was taken %v before its expiry", state.Expires.Sub(at))
		}
	case !errors.Is(err, sitelock.ErrRefused):
		t.Errorf("acquire: %v", err)
	case !live(state.Expires, s.state(t).Now) && !live(state.Expires, state.Now):
		t.Errorf("a lock was refused that was not live before or after, its expiry %v ahead", state.Expires.Sub(state.Now))
	}
}

// maxLease is the longest lease of this database.
func (d *database) maxLease(t *testing.T) time.Duration {
	t.Helper()
	if _, _, err := d.db.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	sql := "SELECT belay.max_lease_ms()"
	if d.Dialect == "sqlite" {
		sql = "SELECT max_lease_ms FROM belay_setting"
	}
	ms, err := strconv.Atoi(d.Query(t, "", sql))
	if err != nil {
		t.Fatal(err)
	}
	return time.Duration(ms) * time.Millisecond
}

// race calls fn n times at once and returns how many calls succeeded.
func race(n int, fn func(i int) error) int {
	var wg sync.WaitGroup
	start := make(chan struct{})
	won := make(chan struct{}, n)
	for i := range n {
		wg.Go(func() {
			<-start
			if fn(i) == nil {
				won <- struct{}{}
			}
		})
	}
	close(start)
	wg.Wait()
	return len(won)
}

func sameHeld(a, b []sitelock.Held) bool {
	key := func(h sitelock.Held) string { return fmt.Sprint(h) }
	sorted := func(all []sitelock.Held) []string {
		keys := make([]string, len(all))
		for i, h := range all {
			keys[i] = key(h)
		}
		slices.Sort(keys)
		return keys
	}
	return slices.Equal(sorted(a), sorted(b))
}
