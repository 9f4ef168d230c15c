package storagetest

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/belayhq/belay/engine"
	"github.com/belayhq/belay/plan"
	"github.com/belayhq/belay/sitelock"
	"github.com/belayhq/belay/storage"
	"github.com/belayhq/belay/tenant"
)

// named is a tenant with a target of its own.
func named(name string) tenant.Tenant {
	return tenant.Tenant{
		ID: tenant.NewID(), Name: name,
		Target: tenant.Target{Dialect: tenant.Postgres, Database: "postgres://db.example/fleet", Scope: fmt.Sprintf("t_%x", name), PasswordEnv: "FLEET_PASSWORD"},
	}
}

// register stores a tenant and returns what is stored.
func (d *database) register(t *testing.T, x tenant.Tenant) tenant.Tenant {
	t.Helper()
	stored, err := d.db.PutTenant(t.Context(), x)
	if err != nil {
		t.Fatalf("put tenant %s: %v", x.Name, err)
	}
	return stored
}

// sameTenant compares tenants; no labels are nil.
func sameTenant(a, b tenant.Tenant) bool {
	return a.ID == b.ID && a.Name == b.Name && a.Target == b.Target && a.Disabled == b.Disabled && maps.Equal(a.Labels, b.Labels) &&
		(len(a.Labels) > 0 || a.Labels == nil)
}

// names pages through all tenants.
func (d *database) names(t *testing.T, limit int) []string {
	t.Helper()
	var all []string
	for after := ""; ; {
		page, err := d.db.Tenants(t.Context(), after, limit)
		if err != nil {
			t.Fatalf("tenants: %v", err)
		}
		if len(page) > limit {
			t.Fatalf("a page of %d, at most %d asked for", len(page), limit)
		}
		if len(page) == 0 {
			return all
		}
		for _, x := range page {
			all = append(all, x.Name)
		}
		after = page[len(page)-1].Name
	}
}

var registry = []test{
	{"a tenant comes back as it was put", func(t *testing.T, d *database) {
		acme := named("acme")
		acme.Labels = map[string]string{"ring": "canary", "tier": "free"}
		acme.Disabled = true
		file := named("file")
		file.Target = tenant.Target{Dialect: tenant.SQLite, Database: "/srv/te nants/file'.db"}
		for _, want := range []tenant.Tenant{acme, file} {
			if stored := d.register(t, want); !sameTenant(stored, want) {
				t.Errorf("stored %+v, want %+v", stored, want)
			}
			if got, err := d.db.Tenant(t.Context(), want.Name); err != nil || !sameTenant(got, want) {
				t.Errorf("got %+v, %v, want %+v", got, err, want)
			}
		}
	}},
	{"hostile labels and names come back as they were put", func(t *testing.T, d *database) {
		for _, text := range []string{"'; DROP TABLE belay_tenant; --", `"\"\\`, "$1 ? ?1 :x @y", "{\"a\": null}", "\n\t\r\x01", "日本 \u202e \u00e4 a\u0308", "%_*", " ", "null"} {
			x := named(text)
			x.Labels = map[string]string{text: text, "empty": ""}
			d.register(t, x)
			if got, err := d.db.Tenant(t.Context(), text); err != nil || !sameTenant(got, x) {
				t.Errorf("got %+v, %v, want %+v", got, err, x)
			}
		}
	}},
	{"a tenant put again under its name is updated and keeps its id", func(t *testing.T, d *database) {
		first := d.register(t, named("acme"))
		d.unchanged(t, func() { d.register(t, first) })
		second := named("acme")
		second.Target.Scope, second.Labels, second.Disabled = "moved", map[string]string{"ring": "stable"}, true
		want := second
		want.ID = first.ID
		if stored := d.register(t, second); !sameTenant(stored, want) {
			t.Errorf("stored %+v, want %+v", stored, want)
		}
		if got, err := d.db.Tenant(t.Context(), "acme"); err != nil || !sameTenant(got, want) {
			t.Errorf("got %+v, %v, want %+v", got, err, want)
		}
		if names := d.names(t, 10); len(names) != 1 {
			t.Errorf("tenants %v", names)
		}
	}},
	{"a target belongs to one tenant", func(t *testing.T, d *database) {
		acme, other := d.register(t, named("acme")), d.register(t, named("other"))
		thief := named("thief")
		thief.Target = acme.Target
		d.unchanged(t, func() {
			if _, err := d.db.PutTenant(t.Context(), thief); !errors.Is(err, storage.ErrTargetTaken) {
				t.Errorf("new: got %v, want ErrTargetTaken", err)
			}
			other.Target = acme.Target
			if _, err := d.db.PutTenant(t.Context(), other); !errors.Is(err, storage.ErrTargetTaken) {
				t.Errorf("moved: got %v, want ErrTargetTaken", err)
			}
		})
	}},
	{"tenants are paged by name in byte order", func(t *testing.T, d *database) {
		want := []string{"B", "Z-1", "_", "a", "a b", "a-b", "a1", "aB", "ab", "b", "ä", "日本"}
		for _, i := range []int{5, 0, 11, 3, 7, 1, 9, 2, 10, 4, 8, 6} {
			d.register(t, named(want[i]))
		}
		for _, limit := range []int{1, 5, 12, 100} {
			if got := d.names(t, limit); !slices.Equal(got, want) {
				t.Errorf("in pages of %d: %q, want %q", limit, got, want)
			}
		}
		page, err := d.db.Tenants(t.Context(), "a0", 2)
		if err != nil || len(page) != 2 || page[0].Name != "a1" || page[1].Name != "aB" {
			t.Errorf("after a name that is not there: %+v, %v", page, err)
		}
	}},
	{"a dropped tenant is gone, and its name and target are free", func(t *testing.T, d *database) {
		acme := d.register(t, named("acme"))
		for range 2 {
			if err := d.db.DropTenant(t.Context(), acme.ID); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := d.db.Tenant(t.Context(), "acme"); !errors.Is(err, storage.ErrNoTenant) {
			t.Errorf("got %v, want ErrNoTenant", err)
		}
		if names := d.names(t, 10); len(names) != 0 {
			t.Errorf("tenants %v", names)
		}
		heir := named("acme")
		if stored := d.register(t, heir); stored.ID != heir.ID {
			t.Errorf("the heir has the id %s, want its own %s", stored.ID, heir.ID)
		}
		if err := d.db.DropTenant(t.Context(), acme.ID); err != nil || len(d.names(t, 10)) != 1 {
			t.Errorf("dropping the dead again: %v, tenants %v", err, d.names(t, 10))
		}
	}},
	{"a tenant that nobody put is unknown", func(t *testing.T, d *database) {
		d.register(t, named("acme"))
		for _, name := range []string{"ACME", "acm", "acme ", "%", ""} {
			if got, err := d.db.Tenant(t.Context(), name); !errors.Is(err, storage.ErrNoTenant) {
				t.Errorf("%q: got %+v, %v, want ErrNoTenant", name, got, err)
			}
		}
	}},
	{"many processes put the same tenant at once and agree on its id", func(t *testing.T, d *database) {
		handles := []*database{d, d.again(t), d.again(t)}
		ids := make(chan tenant.ID, 12)
		race(12, func(i int) error {
			return retrying(func() error {
				stored, err := handles[i%len(handles)].db.PutTenant(t.Context(), named("acme"))
				if err == nil {
					ids <- stored.ID
				} else if !errors.Is(err, sitelock.ErrContended) {
					t.Errorf("put: %v", err)
				}
				return err
			})
		})
		stored, err := d.db.Tenant(t.Context(), "acme")
		if err != nil {
			t.Fatal(err)
		}
		for range len(ids) {
			if id := <-ids; id != stored.ID {
				t.Errorf("one was told %s, the stored id is %s", id, stored.ID)
			}
		}
	}},
	{"a change is found by its digest and by its id", func(t *testing.T, d *database) {
		first := change("0001-first", 3)
		first.Title = "Quotes ' \" \\ and $1, ? and \u2028"
		second := edited(first)
		for _, c := range []*plan.Change{first, change("0002-other", 1)} {
			if err := d.db.PutChange(t.Context(), c); err != nil {
				t.Fatal(err)
			}
		}
		d.Exec(t, "", fmt.Sprintf("UPDATE %s SET created_at = created_at - 1000", d.Table("change")))
		if err := d.db.PutChange(t.Context(), second); err != nil {
			t.Fatal(err)
		}
		for _, c := range []*plan.Change{first, second} {
			if got, err := d.db.Change(t.Context(), c.Digest()); err != nil || string(got.Encode()) != string(c.Encode()) {
				t.Errorf("got %+v, %v, want %+v", got, err, c)
			}
		}
		if got, err := d.db.ChangeByID(t.Context(), "0001-first"); err != nil || got.Digest() != second.Digest() {
			t.Errorf("by id: got %+v, %v, want the newer", got, err)
		}
		d.Exec(t, "", fmt.Sprintf("UPDATE %s SET created_at = created_at - 1000", d.Table("change")))
		if err := d.db.PutChange(t.Context(), first); err != nil {
			t.Fatal(err)
		}
		if got, err := d.db.ChangeByID(t.Context(), "0001-first"); err != nil || got.Digest() != first.Digest() {
			t.Errorf("by id: got %+v, %v, want the one put again", got, err)
		}
	}},
	{"of changes put at once under one id the last one counts", func(t *testing.T, d *database) {
		first := change("0001-first", 1)
		second, third := edited(first), edited(edited(first))
		for i, c := range []*plan.Change{first, second, third, first, third, second, first, second} {
			if err := d.db.PutChange(t.Context(), c); err != nil {
				t.Fatal(err)
			}
			if got, err := d.db.ChangeByID(t.Context(), c.ID); err != nil || got.Digest() != c.Digest() {
				t.Errorf("after put %d: got %+v, %v", i, got, err)
			}
			// The clock stands still, or goes back.
			d.Exec(t, "", "UPDATE "+d.Table("change")+" SET created_at = created_at + 60000")
		}
	}},
	{"a stored change that is not what its digest names is damaged", func(t *testing.T, d *database) {
		c, other := change("0001-first", 1), edited(change("0001-first", 1))
		if err := d.db.PutChange(t.Context(), c); err != nil {
			t.Fatal(err)
		}
		bytes := fmt.Sprintf("X'%X'", other.Encode())
		if d.Dialect == tenant.Postgres {
			bytes = fmt.Sprintf(`'\x%X'`, other.Encode())
		}
		d.Exec(t, "", "UPDATE "+d.Table("change")+" SET body = "+bytes)
		if got, err := d.db.Change(t.Context(), c.Digest()); err == nil || !strings.Contains(err.Error(), "damaged") {
			t.Errorf("by digest: got %+v, %v", got, err)
		}
		if got, err := d.db.ChangeByID(t.Context(), c.ID); err == nil || !strings.Contains(err.Error(), "damaged") {
			t.Errorf("by id: got %+v, %v", got, err)
		}
	}},
	{"a list of less than nothing is empty", func(t *testing.T, d *database) {
		d.register(t, named("acme"))
		if page, err := d.db.Tenants(t.Context(), "", -1); err != nil || len(page) != 0 {
			t.Errorf("tenants %v, %v", page, err)
		}
		s := d.site(t)
		s.applied(t, change("0001-first", 1))
		if events, err := d.db.Events(t.Context(), s.id, -1); err != nil || len(events) != 0 {
			t.Errorf("events %v, %v", events, err)
		}
	}},
	{"a change put twice is stored once", func(t *testing.T, d *database) {
		c := change("0001-first", 1)
		for _, h := range []*database{d, d, d.again(t)} {
			if err := h.db.PutChange(t.Context(), c); err != nil {
				t.Fatal(err)
			}
		}
		if n := d.Query(t, "", "SELECT count(*) FROM "+d.Table("change")); n != "1" {
			t.Errorf("%s rows", n)
		}
	}},
	{"a change that nobody put is unknown", func(t *testing.T, d *database) {
		if err := d.db.PutChange(t.Context(), change("0001-first", 1)); err != nil {
			t.Fatal(err)
		}
		other := change("0002-other", 1)
		if got, err := d.db.Change(t.Context(), other.Digest()); !errors.Is(err, engine.ErrChangeUnknown) {
			t.Errorf("by digest: got %+v, %v, want ErrChangeUnknown", got, err)
		}
		if got, err := d.db.ChangeByID(t.Context(), other.ID); !errors.Is(err, engine.ErrChangeUnknown) {
			t.Errorf("by id: got %+v, %v, want ErrChangeUnknown", got, err)
		}
	}},
}
