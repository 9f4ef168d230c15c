package storagetest

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/belayhq/belay/engine"
	"github.com/belayhq/belay/migrations"
	"github.com/belayhq/belay/plan"
	"github.com/belayhq/belay/sitelock"
	"github.com/belayhq/belay/storage"
	"github.com/belayhq/belay/tenant"
)

// version reads the version of Belay's tables.
func (d *database) version(t *testing.T) int {
	t.Helper()
	version, err := d.db.SchemaVersion(t.Context())
	if err != nil {
		t.Fatalf("schema version: %v", err)
	}
	return version
}

var migrating = []test{
	{"sixteen processes migrate an empty database at once", func(t *testing.T, d *database) {
		latest := len(migrations.For(d.Dialect))
		handles := make([]storage.Database, 16)
		for i := range handles {
			handles[i] = d.Open(t)
		}
		made := make(chan int, len(handles))
		race(len(handles), func(i int) error {
			from, to, err := handles[i].Migrate(t.Context())
			if err != nil || to != latest {
				t.Errorf("migrated to %d: %v", to, err)
			}
			made <- from
			return err
		})
		fromNothing := 0
		for range len(made) {
			if from := <-made; from == 0 {
				fromNothing++
			}
		}
		if fromNothing != 1 || d.version(t) != latest {
			t.Errorf("%d made the tables, their version is %d", fromNothing, d.version(t))
		}
	}},
	{"sixteen processes write to an empty database at once", func(t *testing.T, d *database) {
		handles := make([]*database, 16)
		sites := make([]*site, 16)
		for i := range handles {
			handles[i] = d.again(t)
			sites[i] = handles[i].site(t)
		}
		won := race(len(handles), func(i int) error {
			return retrying(func() error {
				_, err := handles[i].db.Acquire(t.Context(), sites[i].request(apply(change("0001-first", 1))))
				if err != nil && !errors.Is(err, sitelock.ErrContended) {
					t.Errorf("acquire: %v", err)
				}
				return err
			})
		})
		if won != len(handles) {
			t.Errorf("%d of %d came up", won, len(handles))
		}
	}},
	{"a database that is up to date stays as it is", func(t *testing.T, d *database) {
		if _, _, err := d.db.Migrate(t.Context()); err != nil {
			t.Fatal(err)
		}
		latest := len(migrations.For(d.Dialect))
		d.unchanged(t, func() {
			if from, to, err := d.Open(t).Migrate(t.Context()); err != nil || from != latest || to != latest {
				t.Errorf("from %d to %d, %v", from, to, err)
			}
		})
	}},
	{"opening a database makes no tables", func(t *testing.T, d *database) {
		if version := d.version(t); version != 0 {
			t.Errorf("version %d", version)
		}
	}},
	{"a database of a newer version is refused, naming both versions", func(t *testing.T, d *database) {
		if _, _, err := d.db.Migrate(t.Context()); err != nil {
			t.Fatal(err)
		}
		s := d.site(t)
		latest := len(migrations.For(d.Dialect))
		d.SetVersion(t, 4711)
		h := d.Open(t)
		if from, to, err := h.Migrate(t.Context()); err == nil || from != 4711 || to != 4711 {
			t.Errorf("migrated from %d to %d, %v", from, to, err)
		}
		d.unchanged(t, func() {
			for name, call := range newerCalls(t, h, s) {
				err := call()
				if !errors.Is(err, storage.ErrNewerSchema) {
					t.Errorf("%s: got %v, want ErrNewerSchema", name, err)
					continue
				}
				if text := err.Error(); !strings.Contains(text, "4711") || !strings.Contains(text, strconv.Itoa(latest)) {
					t.Errorf("%s: the error does not name both versions: %v", name, err)
				}
			}
		})
	}},
	{"reading a database without tables finds nothing and makes nothing", func(t *testing.T, d *database) {
		id := tenant.NewID()
		if records, err := d.db.Records(t.Context(), id); err != nil || len(records) != 0 {
			t.Errorf("records %v, %v", records, err)
		}
		if events, err := d.db.Events(t.Context(), id, 10); err != nil || len(events) != 0 {
			t.Errorf("events %v, %v", events, err)
		}
		if image, err := d.db.Image(t.Context(), id, plan.NewID(), 0); err != nil || image != nil {
			t.Errorf("image %v, %v", image, err)
		}
		if state, err := d.db.State(t.Context(), id); err != nil || state.Kind() != sitelock.StateIdle || state.Fence != 0 {
			t.Errorf("state %+v, %v", state, err)
		}
		survey, err := d.db.Survey(t.Context(), []tenant.ID{id}, "")
		if err != nil || len(survey) != 1 || survey[0].Tenant != id || survey[0].Lock.Kind() != sitelock.StateIdle || len(survey[0].Records) != 0 {
			t.Errorf("survey %+v, %v", survey, err)
		}
		if _, err := d.db.Change(t.Context(), change("0001-first", 1).Digest()); !errors.Is(err, engine.ErrChangeUnknown) {
			t.Errorf("change: %v", err)
		}
		if _, err := d.db.ChangeByID(t.Context(), "0001-first"); !errors.Is(err, engine.ErrChangeUnknown) {
			t.Errorf("change by id: %v", err)
		}
		if _, err := d.db.Tenant(t.Context(), "acme"); !errors.Is(err, storage.ErrNoTenant) {
			t.Errorf("tenant: %v", err)
		}
		if page, err := d.db.Tenants(t.Context(), "", 10); err != nil || len(page) != 0 {
			t.Errorf("tenants %v, %v", page, err)
		}
		if l, ok, err := d.db.Lease(t.Context(), "sweeper"); err != nil || ok {
			t.Errorf("lease %+v, %v", l, err)
		}
		if all, err := d.db.Leases(t.Context()); err != nil || len(all) != 0 {
			t.Errorf("leases %v, %v", all, err)
		}
		if version := d.version(t); version != 0 {
			t.Errorf("the reads made tables of version %d", version)
		}
	}},
	{"a handle that found no tables sees them once another makes them", func(t *testing.T, d *database) {
		s := d.site(t)
		s.state(t)
		at := *s
		at.database = d.again(t)
		at.begin(t, apply(change("0001-first", 1)))
		if state := s.state(t); state.Kind() != sitelock.StateRunning || len(state.InFlight) != 1 {
			t.Errorf("state %+v", state)
		}
	}},
	{"a scope is made once, however often it is asked for", func(t *testing.T, d *database) {
		for range 2 {
			if err := d.db.Create(t.Context(), "made_here"); err != nil {
				t.Fatal(err)
			}
		}
		s := &site{database: d, id: tenant.NewID(), scope: "made_here"}
		if err := d.db.Register(t.Context(), s.id, s.scope); err != nil {
			t.Fatal(err)
		}
		s.acquire(t, nil)
	}},
	{"a scope says whose it is", func(t *testing.T, d *database) {
		scope, id := d.Scope(t), tenant.NewID()
		db := d.Open(t)
		if owner, err := db.Owner(t.Context(), scope); err != nil || owner != "" {
			t.Errorf("a free scope: %q, %v", owner, err)
		}
		if err := db.Register(t.Context(), id, scope); err != nil {
			t.Fatal(err)
		}
		if owner, err := db.Owner(t.Context(), scope); err != nil || owner != id {
			t.Errorf("a registered scope: %q, %v", owner, err)
		}
	}},
	{"a scope that does not exist cannot be registered", func(t *testing.T, d *database) {
		if d.Dialect == tenant.SQLite {
			return // the file is the scope, and it is open
		}
		err := d.db.Register(t.Context(), tenant.NewID(), "no_such_scope")
		if !errors.Is(err, engine.ErrNoScope) {
			t.Errorf("got %v, want ErrNoScope", err)
		}
	}},
	{"every table of Belay's begins its keys with the tenant", func(t *testing.T, d *database) {
		if _, _, err := d.db.Migrate(t.Context()); err != nil {
			t.Fatal(err)
		}
		for _, table := range []string{"site_lock", "plan", "journal", "before_image", "tenant"} {
			sql := fmt.Sprintf("SELECT name FROM pragma_table_info('%s') WHERE pk = 1", d.Table(table))
			if d.Dialect == tenant.Postgres {
				sql = fmt.Sprintf(`SELECT a.attname FROM pg_index i JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = i.indkey[0]
					WHERE i.indisprimary AND i.indrelid = '%s'::regclass`, d.Table(table))
			}
			if first := d.Query(t, "", sql); first != "tenant_id" {
				t.Errorf("the key of %s begins with %q", table, first)
			}
		}
	}},
}

// newerCalls are one read or write of every kind, on a handle that has not looked at the database yet.
func newerCalls(t *testing.T, h storage.Database, s *site) map[string]func() error {
	ctx := t.Context()
	return map[string]func() error{
		"migrate": func() error { _, _, err := h.Migrate(ctx); return err },
		"acquire": func() error { _, err := h.Acquire(ctx, s.request(nil)); return err },
		"break":   func() error { _, err := h.Break(ctx, s.id, worker, "why"); return err },
		"submit": func() error {
			_, err := h.Submit(ctx, s.id, s.scope, plan.NewID(), change("0001-first", 1))
			return err
		},
		"register": func() error { return h.Register(ctx, s.id, s.scope) },
		"put":      func() error { _, err := h.PutTenant(ctx, named("acme")); return err },
		"change":   func() error { return h.PutChange(ctx, change("0001-first", 1)) },
		"lease": func() error {
			_, _, err := h.AcquireLease(ctx, "sweeper", sitelock.NewHolderID(), worker, lease)
			return err
		},
		"state":   func() error { _, err := h.State(ctx, s.id); return err },
		"records": func() error { _, err := h.Records(ctx, s.id); return err },
		"survey":  func() error { _, err := h.Survey(ctx, []tenant.ID{s.id}, ""); return err },
		"events":  func() error { _, err := h.Events(ctx, s.id, 1); return err },
		"tenants": func() error { _, err := h.Tenants(ctx, "", 1); return err },
		"leases":  func() error { _, err := h.Leases(ctx); return err },
	}
}
