package storagetest

import (
	"errors"
	"testing"
	"time"

	"github.com/belayhq/belay/plan"
	"github.com/belayhq/belay/sitelock"
)

var breaks = []test{
	{"a break takes a live lock away, recovers its plan and frees it", func(t *testing.T, d *database) {
		s := d.site(t)
		x := s.begin(t, apply(change("0001-first", 2)))
		x.checkpoint(t, x.group(x.put(0)))
		operator := sitelock.Process{Host: "laptop", PID: 99}
		recovered, err := d.db.Break(t.Context(), s.id, operator, "the node is gone")
		if err != nil {
			t.Fatal(err)
		}
		if len(recovered) != 1 || recovered[0].Plan != x.claimed.Plan.ID || recovered[0].Was != plan.Applying || recovered[0].Status != plan.Pending {
			t.Errorf("recovered %+v", recovered)
		}
		if state := s.state(t); state.Kind() != sitelock.StateIdle || state.Fence != 2 || state.Holder != "" {
			t.Errorf("state %+v", state)
		}
		event := s.lastEvent(t, plan.EventBreak)
		if event.Reason != "the node is gone" || event.Host != "laptop" || event.PID != 99 || event.Fence != 2 || event.Holder != x.held.Holder ||
			event.Operation != sitelock.OpApply || event.Plan != x.claimed.Plan.ID || event.Change != "0001-first" {
			t.Errorf("event %+v", event)
		}
		s.unchanged(t, func() {
			if err := s.db.Checkpoint(t.Context(), x.held, x.group(x.put(1))); !lost(err) {
				t.Errorf("the former holder got %v", err)
			}
		})
	}},
	{"a break ends a hold", func(t *testing.T, d *database) {
		s := d.site(t)
		req := s.request(nil)
		req.Operation, req.Reason, req.Lease = sitelock.OpHold, "audit", 48*time.Hour
		if _, err := d.db.Acquire(t.Context(), req); err != nil {
			t.Fatal(err)
		}
		if _, err := d.db.Break(t.Context(), s.id, worker, "the audit is over"); err != nil {
			t.Fatal(err)
		}
		s.acquire(t, nil)
	}},
	{"a free lock may be broken, and its fence rises", func(t *testing.T, d *database) {
		s := d.site(t)
		s.release(t, s.acquire(t, nil).Held)
		recovered, err := d.db.Break(t.Context(), s.id, worker, "to be sure")
		if err != nil || len(recovered) != 0 {
			t.Errorf("recovered %v, error %v", recovered, err)
		}
		if held := s.acquire(t, nil).Held; held.Fence != 3 {
			t.Errorf("fence %d, want 3", held.Fence)
		}
	}},
	{"the lock of a removed tenant cannot be broken", func(t *testing.T, d *database) {
		s := d.site(t)
		if err := d.db.Retire(t.Context(), s.acquire(t, nil).Held); err != nil {
			t.Fatal(err)
		}
		s.unchanged(t, func() {
			if _, err := d.db.Break(t.Context(), s.id, worker, "why not"); !errors.Is(err, sitelock.ErrRemoved) {
				t.Errorf("got %v, want ErrRemoved", err)
			}
		})
	}},
	{"a break of a tenant that was never locked makes nothing", func(t *testing.T, d *database) {
		s := d.site(t)
		s.maxLease(t)
		s.unchanged(t, func() {
			if recovered, err := d.db.Break(t.Context(), s.id, worker, "why not"); err != nil || len(recovered) != 0 {
				t.Errorf("recovered %v, error %v", recovered, err)
			}
		})
	}},
	{"a break does not wait for an open checkpoint", func(t *testing.T, d *database) {
		s := d.site(t)
		x := s.begin(t, apply(change("0001-first", 1)))
		x.checkpoint(t, x.group(s.action(0, func(tx *actionTx) {
			if _, err := d.Open(t).Break(t.Context(), s.id, worker, "hurry"); !errors.Is(err, sitelock.ErrContended) {
				t.Errorf("got %v, want ErrContended", err)
			}
		})))
	}},
}
