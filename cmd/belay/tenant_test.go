package main

import (
	"database/sql"
	"fmt"
	"strings"
	"testing"

	"github.com/belayhq/belay/internal/render"
	"github.com/belayhq/belay/storage"
	"github.com/belayhq/belay/storage/sqlite"
	"github.com/belayhq/belay/tenant"
)

func TestATenantIsAddedOnceHoweverOften(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.ok("init")
	r := w.want(exitRefused, "tenant", "add", "acme", "sqlite://tenants/acme.db")
	contains(t, r.stderr, "no such database", "--create")
	first := decode[render.TenantList](t, w.ok("tenant", "add", "acme", "sqlite://tenants/acme.db", "--create", "-o", "json").stdout).Tenants[0]
	if first.Result != "added" {
		t.Errorf("result %q", first.Result)
	}
	again := decode[render.TenantList](t, w.ok("tenant", "add", "acme", "sqlite://tenants/acme.db", "-o", "json").stdout).Tenants[0]
	if again.Result != "unchanged" || again.TenantID != first.TenantID {
		t.Errorf("again: %+v", again)
	}
	labelled := decode[render.TenantList](t, w.ok("tenant", "add", "acme", "sqlite://tenants/acme.db", "-L", "ring=canary", "-o", "json").stdout).Tenants[0]
	if labelled.Result != "updated" || labelled.Labels["ring"] != "canary" {
		t.Errorf("labelled: %+v", labelled)
	}
	w.want(exitRefused, "tenant", "add", "acme", "sqlite://tenants/other.db", "--create")
	r = w.want(exitRefused, "tenant", "add", "double", "sqlite://tenants/acme.db")
	contains(t, r.stderr, "another tenant")
}

func TestAddingIsRepeatedAfterACrashInBetween(t *testing.T) {
	t.Parallel()
	w := fleet(t, "acme")
	id := tenant.NewID()
	w.inTarget("bolt", func(db storage.Database) error { return db.Register(t.Context(), id, "") })
	got := decode[render.TenantList](t, w.ok("tenant", "add", "bolt", "sqlite://tenants/bolt.db", "-o", "json").stdout).Tenants[0]
	if got.TenantID != id {
		t.Errorf("the tenant's id is %s, its target knows it as %s", got.TenantID, id)
	}
	w.ok("apply", w.customers("stop"), "-t", "bolt", "-y")
}

func TestATargetThatBelongsToAnotherIDIsRefusedAndCanBeAdopted(t *testing.T) {
	t.Parallel()
	w := fleet(t, "acme")
	path := w.customers("stop")
	other := tenant.NewID()
	w.exec("acme", "UPDATE belay_site_lock SET tenant_id = '"+string(other)+"'")
	r := w.want(exitRefused, "apply", path, "--all", "-y")
	contains(t, r.stderr, "belongs to another tenant id", "belay tenant remove acme --force")
	w.want(exitRefused, "tenant", "add", "acme", "sqlite://tenants/acme.db")
	w.want(exitRefused, "tenant", "remove", "acme", "-y")
	w.ok("tenant", "remove", "acme", "-y", "--force")
	got := decode[render.TenantList](t, w.ok("tenant", "add", "acme", "sqlite://tenants/acme.db", "-o", "json").stdout).Tenants[0]
	if got.TenantID != other {
		t.Errorf("the tenant's id is %s, its target knows it as %s", got.TenantID, other)
	}
	w.ok("apply", path, "--all", "-y")
}

func TestACopyOfATenantsDatabaseIsNoSecondTenant(t *testing.T) {
	t.Parallel()
	w := fleet(t, "acme")
	w.exec("acme", "VACUUM INTO '"+w.dir+"/tenants/bolt.db'")
	r := w.want(exitRefused, "tenant", "add", "bolt", "sqlite://tenants/bolt.db")
	contains(t, r.stderr, "tenant acme here", "copy")
	contains(t, w.ok("status").stdout, "tenants: 1")
}

func TestRemovingIsRepeatedAfterACrashInBetween(t *testing.T) {
	t.Parallel()
	w := fleet(t, "acme", "bolt")
	w.ok("apply", w.customers("stop"), "--all", "-y")
	w.exec("acme", "UPDATE belay_site_lock SET removed_at = 1") // the tombstone, without the rest
	r := w.want(exitRefused, "rollback", "0001-customer", "-t", "acme", "-y")
	contains(t, r.stderr, "has been removed", "belay tenant remove acme")
	w.ok("tenant", "remove", "acme", "-y")
	lacks(t, w.ok("tenant", "list").stdout, "acme")

	w.ok("tenant", "remove", "bolt", "-y")
	if n := w.scalar("bolt", "SELECT count(*) FROM customer"); n != "2" {
		t.Error("remove touched the data")
	}
	w.ok("tenant", "add", "bolt", "sqlite://tenants/bolt.db")
	contains(t, w.ok("status").stdout, "1 tenant without one")
}

func TestATenantWithAPartialPlanIsNotRemovedInPassing(t *testing.T) {
	t.Parallel()
	w := fleet(t, "acme")
	w.want(exitPerson, "apply", w.broken("stop"), "--all", "-y")
	r := w.want(exitRefused, "tenant", "remove", "acme", "-y")
	contains(t, r.stderr, "partial: 0001-customer", "--force")
	lacks(t, r.stdout+r.stderr, "no tenants")
	contains(t, w.ok("lock", "show", "acme").stdout, "idle")
	w.ok("tenant", "remove", "acme", "-y", "--force")
}

func TestImportingTwiceIsImportingOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.ok("init")
	w.write("tenants.csv", "name,target,labels\nacme,sqlite://t/acme.db,ring=canary;tier=gold\nBad Name,sqlite://t/x.db,\nbolt,sqlite://t/bolt.db,\n")
	r := w.want(exitError, "tenant", "import", "tenants.csv", "--create")
	contains(t, r.stderr, "tenants.csv:3:", "2 added", "1 wrong")
	w.write("tenants.csv", "name,target\nacme,sqlite://t/acme.db\nbolt,sqlite://t/bolt.db\n")
	contains(t, w.ok("tenant", "import", "tenants.csv").stderr, "2 unchanged")
	w.stdin = `{"name":"crate","target":"sqlite://t/crate.db","labels":{"ring":"late"}}`
	contains(t, w.ok("tenant", "import", "-", "--create").stderr, "1 added")
	contains(t, w.ok("tenant", "list", "-l", "ring=canary").stdout, "acme")
}

func TestSelectionsTakeWhatTheySay(t *testing.T) {
	t.Parallel()
	w := fleet(t, "acme", "bolt", "shop-1", "shop-2", "shop-3")
	w.ok("tenant", "label", "-t", "shop-*", "kind=shop", "ring=late")
	w.ok("tenant", "label", "shop-1", "ring=canary")
	w.ok("tenant", "label", "-t", "shop-2,shop-3", "ring-")
	w.ok("tenant", "disable", "shop-3")
	w.write("names.txt", "# those of today\nacme\n\nshop-3\n")
	for _, c := range []struct {
		name, args, want string
	}{
		{"a name", "-t acme", "acme"},
		{"several", "-t acme,bolt -t shop-1", "acme bolt shop-1"},
		{"a glob leaves disabled tenants out", "-t shop-*", "shop-1 shop-2"},
		{"a name takes them", "-t shop-3", "shop-3"},
		{"all but some", "--all --exclude shop-*", "acme bolt"},
		{"labels", "-l ring=canary", "shop-1"},
		{"labels of both flags", "-l kind=shop -l !ring", "shop-2"},
		{"a name and a label", "-t *-? -l ring", "shop-1"},
		{"a file", "--tenants-from names.txt", "acme shop-3"},
		{"the number expected", "--all --expect 4", "acme bolt shop-1 shop-2"},
		{"a label that nobody has", "-l ring=moon", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := w.ok(append([]string{"tenant", "list", "-o", "json"}, strings.Fields(c.args)...)...)
			var names []string
			for _, one := range decode[render.TenantList](t, r.stdout).Tenants {
				names = append(names, one.Tenant)
			}
			if got := strings.Join(names, " "); got != c.want {
				t.Errorf("%s selects %q, want %q", c.args, got, c.want)
			}
			contains(t, r.stderr, "of 5 tenants selected")
		})
	}
	w.stdin = "bolt\n"
	contains(t, w.ok("tenant", "list", "--tenants-from", "-").stdout, "bolt")
}

func TestSelectionsThatCannotBeMeantAreRefused(t *testing.T) {
	t.Parallel()
	w := fleet(t, "acme", "bolt")
	path := w.customers("stop")
	for _, c := range []struct {
		name, args string
		code       int
		says       string
	}{
		{"nothing selected", "", exitUsage, "no command that writes defaults to all"},
		{"only an exclusion", "--exclude acme", exitUsage, "no command that writes defaults to all"},
		{"a name of nobody", "-t acme,amce", exitRefused, "no tenant is called amce"},
		{"a glob of nobody", "-t shop-*", exitRefused, "no tenant is called shop-*"},
		{"an exclusion of nobody", "--all --exclude amce", exitRefused, "no tenant is called amce"},
		{"all and a name", "--all -t acme", exitUsage, "--all is all tenants"},
		{"another number", "--all --expect 3", exitRefused, "2 tenants are selected, --expect says 3"},
		{"expecting none", "--all --expect 0", exitRefused, "--expect says 0"},
		{"one where two are expected", "-t acme --expect 2", exitRefused, "1 tenant is selected, --expect says 2"},
		{"an empty exclusion", "--all --exclude=", exitUsage, "--exclude is empty"},
		{"an empty file name", "--tenants-from=", exitUsage, "--tenants-from is empty"},
		{"an empty selector", "-l=", exitUsage, "selector"},
		{"a broken glob", "-t ac[", exitUsage, "name pattern"},
		{"a missing file", "--tenants-from nothing.txt", exitUsage, "nothing.txt"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := w.want(c.code, append([]string{"apply", path, "-y"}, strings.Fields(c.args)...)...)
			contains(t, r.stderr, c.says)
		})
	}
	contains(t, w.ok("status").stdout, "2 tenants without one")
}

// G10
func TestTenantsComeInPages(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.ok("init")
	const n = 2*tenantPage + 1
	w.onFile(".belay/control.db", func(db *sql.DB) error {
		_, err := db.ExecContext(t.Context(), `WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?)
INSERT INTO belay_tenant (tenant_id, name, target, created_at)
SELECT printf('00000000-0000-4000-8000-%012d', i), printf('t%05d', i), json_object('dialect', 'sqlite', 'database', '/t/' || i, 'scope', ''), 0 FROM n`, n)
		return err
	})
	r := w.ok("tenant", "list", "-o", "jsonl", "--all")
	if lines := strings.Count(r.stdout, "\n"); lines != n {
		t.Errorf("%d lines, want %d", lines, n)
	}
	contains(t, r.stderr, fmt.Sprintf("%d of %d tenants selected", n, n))
}

// inTarget opens a tenant's file, made if need be, as belay does.
func (w *world) inTarget(name string, fn func(storage.Database) error) {
	w.t.Helper()
	w.inFile("tenants/"+name+".db", fn)
}

func (w *world) inFile(name string, fn func(storage.Database) error) {
	w.t.Helper()
	path := w.dir + "/" + name
	if err := createFile(w.t.Context(), path); err != nil {
		w.t.Fatal(err)
	}
	db, err := sqlite.Driver().Open(w.t.Context(), tenant.Target{Dialect: tenant.SQLite, Database: path}, storage.Options{})
	if err != nil {
		w.t.Fatal(err)
	}
	defer db.Close()
	if err := fn(db); err != nil {
		w.t.Fatal(err)
	}
}

// register puts a tenant into the control database alone, as if its target could be reached.
func (w *world) register(name, target string) {
	w.t.Helper()
	parsed, err := tenant.ParseTarget(target, w.dir)
	if err != nil {
		w.t.Fatal(err)
	}
	w.inFile(".belay/control.db", func(db storage.Database) error {
		_, err := db.PutTenant(w.t.Context(), tenant.Tenant{ID: tenant.NewID(), Name: name, Target: parsed})
		return err
	})
}
