package storagetest

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/belayhq/belay/sitelock"
)

// lead takes a named lease, which must be free for this holder.
func (d *database) lead(t *testing.T, name string, holder sitelock.HolderID) sitelock.Lease {
	t.Helper()
	l, ok, err := d.db.AcquireLease(t.Context(), name, holder, worker, lease)
	if err != nil || !ok {
		t.Fatalf("acquire lease: %v, %v", ok, err)
	}
	return l
}

// lapse makes a named lease lapse.
func (d *database) lapse(t *testing.T, name string) {
	t.Helper()
	d.Exec(t, "", fmt.Sprintf("UPDATE %s SET expires_at = %s - 1000 WHERE name = '%s'", d.Table("lease"), d.now(), name))
}

var leases = []test{
	{"the first lease has fence 1 and says who has it", func(t *testing.T, d *database) {
		holder := sitelock.NewHolderID()
		l := d.lead(t, "sweeper", holder)
		if l.Name != "sweeper" || l.Holder != holder || l.Fence != 1 || l.Host != worker.Host || l.PID != worker.PID ||
			!l.StartedAt.Equal(worker.StartedAt) || !l.Live || l.Expires.Sub(l.Since) != lease {
			t.Errorf("lease %+v", l)
		}
		read, ok, err := d.db.Lease(t.Context(), "sweeper")
		if err != nil || !ok || read != l {
			t.Errorf("read %+v, %v, %v, want %+v", read, ok, err, l)
		}
	}},
	{"a lease that is someone else's is busy, which is no error", func(t *testing.T, d *database) {
		holder := sitelock.NewHolderID()
		d.lead(t, "sweeper", holder)
		d.unchanged(t, func() {
			l, ok, err := d.db.AcquireLease(t.Context(), "sweeper", sitelock.NewHolderID(), worker, lease)
			if err != nil || ok || l.Holder != holder || l.Fence != 1 || !l.Live {
				t.Errorf("lease %+v, %v, %v, want the one there is", l, ok, err)
			}
		})
	}},
	{"a lease of no length, or longer than the database allows, is refused", func(t *testing.T, d *database) {
		holder := sitelock.NewHolderID()
		held := d.lead(t, "sweeper", holder).Held()
		d.unchanged(t, func() {
			for _, ttl := range []time.Duration{0, time.Millisecond - 1, d.maxLease(t) + time.Millisecond} {
				if l, ok, err := d.db.AcquireLease(t.Context(), "sweeper", holder, worker, ttl); err == nil {
					t.Errorf("acquire for %s: %+v, %v", ttl, l, ok)
				}
				if err := d.db.RenewLease(t.Context(), held, ttl); err == nil || errors.Is(err, sitelock.ErrNotHeld) {
					t.Errorf("renew for %s: %v", ttl, err)
				}
			}
		})
		if err := d.db.RenewLease(t.Context(), held, d.maxLease(t)); err != nil {
			t.Errorf("renew for the longest: %v", err)
		}
	}},
	{"a holder that acquires again succeeds with a higher fence", func(t *testing.T, d *database) {
		holder := sitelock.NewHolderID()
		d.lead(t, "sweeper", holder)
		if l := d.lead(t, "sweeper", holder); l.Fence != 2 {
			t.Errorf("fence %d, want 2", l.Fence)
		}
		if err := d.db.RenewLease(t.Context(), sitelock.HeldLease{Name: "sweeper", Holder: holder, Fence: 1}, lease); !errors.Is(err, sitelock.ErrNotHeld) {
			t.Errorf("its former fence: got %v, want ErrNotHeld", err)
		}
	}},
	{"a lapsed lease is taken over", func(t *testing.T, d *database) {
		former := d.lead(t, "sweeper", sitelock.NewHolderID())
		d.lapse(t, "sweeper")
		if l, _, err := d.db.Lease(t.Context(), "sweeper"); err != nil || l.Live {
			t.Errorf("lease %+v, %v", l, err)
		}
		if l := d.lead(t, "sweeper", sitelock.NewHolderID()); l.Fence != 2 {
			t.Errorf("fence %d, want 2", l.Fence)
		}
		d.unchanged(t, func() {
			if err := d.db.RenewLease(t.Context(), former.Held(), lease); !errors.Is(err, sitelock.ErrNotHeld) {
				t.Errorf("renew: got %v, want ErrNotHeld", err)
			}
			if err := d.db.ReleaseLease(t.Context(), former.Held()); !errors.Is(err, sitelock.ErrNotHeld) {
				t.Errorf("release: got %v, want ErrNotHeld", err)
			}
			if err := d.db.RenewLease(t.Context(), sitelock.HeldLease{Name: "sweeper", Holder: former.Holder, Fence: 2}, lease); !errors.Is(err, sitelock.ErrNotHeld) {
				t.Errorf("renew with the fence guessed: got %v, want ErrNotHeld", err)
			}
		})
	}},
	{"a renewal extends a lease, also one that lapsed and was not taken", func(t *testing.T, d *database) {
		l := d.lead(t, "sweeper", sitelock.NewHolderID())
		d.lapse(t, "sweeper")
		if err := d.db.RenewLease(t.Context(), l.Held(), time.Hour); err != nil {
			t.Fatal(err)
		}
		read, _, err := d.db.Lease(t.Context(), "sweeper")
		if err != nil || !read.Live || read.Expires.Sub(l.Expires) < 50*time.Minute || read.Fence != 1 || !read.Since.Equal(l.Since) {
			t.Errorf("lease %+v, %v", read, err)
		}
	}},
	{"a release frees a lease and keeps its fence", func(t *testing.T, d *database) {
		l := d.lead(t, "sweeper", sitelock.NewHolderID())
		if err := d.db.ReleaseLease(t.Context(), l.Held()); err != nil {
			t.Fatal(err)
		}
		read, ok, err := d.db.Lease(t.Context(), "sweeper")
		if err != nil || !ok || read.Live || read.Holder != "" || read.Fence != 1 {
			t.Errorf("lease %+v, %v, %v", read, ok, err)
		}
		if err := d.db.ReleaseLease(t.Context(), l.Held()); !errors.Is(err, sitelock.ErrNotHeld) {
			t.Errorf("release again: got %v, want ErrNotHeld", err)
		}
		if l := d.lead(t, "sweeper", sitelock.NewHolderID()); l.Fence != 2 {
			t.Errorf("fence %d, want 2", l.Fence)
		}
	}},
	{"a lease that was never taken is none, and cannot be renewed or released", func(t *testing.T, d *database) {
		d.lead(t, "other", sitelock.NewHolderID())
		if l, ok, err := d.db.Lease(t.Context(), "sweeper"); ok || err != nil {
			t.Errorf("lease %+v, %v, %v", l, ok, err)
		}
		if err := d.db.RenewLease(t.Context(), sitelock.HeldLease{Name: "sweeper", Holder: sitelock.NewHolderID(), Fence: 1}, lease); !errors.Is(err, sitelock.ErrNotHeld) {
			t.Errorf("renew: got %v, want ErrNotHeld", err)
		}
		if err := d.db.ReleaseLease(t.Context(), sitelock.HeldLease{Name: "sweeper", Holder: sitelock.NewHolderID(), Fence: 1}); !errors.Is(err, sitelock.ErrNotHeld) {
			t.Errorf("release: got %v, want ErrNotHeld", err)
		}
	}},
	{"leases are listed by name, free ones too", func(t *testing.T, d *database) {
		for _, name := range []string{"sweeper", "rollout:b", "rollout:a"} {
			d.lead(t, name, sitelock.NewHolderID())
		}
		l, _, err := d.db.Lease(t.Context(), "rollout:b")
		if err != nil {
			t.Fatal(err)
		}
		if err := d.db.ReleaseLease(t.Context(), l.Held()); err != nil {
			t.Fatal(err)
		}
		all, err := d.db.Leases(t.Context())
		if err != nil || len(all) != 3 || all[0].Name != "rollout:a" || all[1].Name != "rollout:b" || all[2].Name != "sweeper" || all[1].Live || !all[2].Live {
			t.Errorf("leases %+v, %v", all, err)
		}
	}},
	{"of many who race for a lease one gets it", func(t *testing.T, d *database) {
		handles := []*database{d, d.again(t), d.again(t)}
		d.lead(t, "sweeper", sitelock.NewHolderID())
		d.lapse(t, "sweeper")
		won := race(30, func(i int) error {
			_, ok, err := handles[i%len(handles)].db.AcquireLease(t.Context(), "sweeper", sitelock.NewHolderID(), worker, lease)
			switch {
			case errors.Is(err, sitelock.ErrContended):
				return err
			case err != nil:
				t.Errorf("acquire lease: %v", err)
				return err
			case !ok:
				return sitelock.ErrRefused
			}
			return nil
		})
		if l, _, err := d.db.Lease(t.Context(), "sweeper"); won != 1 || err != nil || l.Fence != 2 {
			t.Errorf("%d got the lease: %+v, %v", won, l, err)
		}
	}},
}
