package soak

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/belayhq/belay/integration/checker"
	"github.com/belayhq/belay/integration/testchild/fake"
	"github.com/belayhq/belay/internal/postgrestest"
	"github.com/belayhq/belay/storage"
	"github.com/belayhq/belay/storage/postgres"
	"github.com/belayhq/belay/storage/sqlite"
	"github.com/belayhq/belay/tenant"
)

const (
	// lease is short, so that take-overs happen often.
	lease = time.Second
	// idle is how many tenants nobody works on.
	idle = 3
	// secret is a row's value: no text may show it.
	secret = "canary-7f3a"
)

// changes are the ones that workers apply, in this order. The last one can be applied to no tenant.
var changes = []struct{ id, yaml string }{
	{"ground", `version: 1
id: ground
on_failure: rollback
checkpoint: step
steps:
  - id: ground-column
    sql: {up: column.up.sql, down: column.down.sql}
  - id: ground-own
    action: {name: ledger.insert, args: {value: x}}
  - id: ground-outside
    action: {name: resource.set, args: {value: new}}
  - id: ground-rows
    sql: {up: rows.up.sql, down: rows.down.sql}
`},
	{"extra", `version: 1
id: extra
requires: [ground]
steps:
  - id: extra-a
    sql: {up: a.up.sql, down: a.down.sql}
  - id: extra-b
    sql: {up: b.up.sql, down: b.down.sql}
`},
	{"poison", `version: 1
id: poison
on_failure: rollback
checkpoint: step
steps:
  - id: poison-first
    sql: {up: first.up.sql, down: first.down.sql}
  - id: poison-second
    sql: {up: second.up.sql, down: first.down.sql}
`},
}

var poison = map[string]bool{"poison": true}

// scripts are the SQL of the changes: what a step does beside its row in the ledger.
var scripts = map[string]string{
	"column.up.sql":   "ALTER TABLE customer ADD COLUMN locale text; INSERT INTO ledger VALUES ('ground-column');",
	"column.down.sql": "ALTER TABLE customer DROP COLUMN locale; DELETE FROM ledger WHERE step = 'ground-column';",
	"rows.up.sql":     "UPDATE customer SET locale = 'en'; INSERT INTO ledger VALUES ('ground-rows');",
	"rows.down.sql":   "UPDATE customer SET locale = NULL; DELETE FROM ledger WHERE step = 'ground-rows';",
	"a.up.sql":        "INSERT INTO customer (id, name) VALUES (3, 'Edsger'); INSERT INTO ledger VALUES ('extra-a');",
	"a.down.sql":      "DELETE FROM customer WHERE id = 3; DELETE FROM ledger WHERE step = 'extra-a';",
	"b.up.sql":        "INSERT INTO ledger VALUES ('extra-b');",
	// Now and then the statement outlasts the lease, and its COMMIT is already on its way: a client that is stopped meanwhile
	// is taken over, or would be but for the proof.
	"b.up.postgres.sql": "SELECT pg_sleep(CASE WHEN random() < 0.04 THEN 1.8 ELSE 0 END); INSERT INTO ledger VALUES ('extra-b');",
	"b.down.sql":        "DELETE FROM ledger WHERE step = 'extra-b';",
	"first.up.sql":      "INSERT INTO ledger VALUES ('poison-first');",
	"first.down.sql":    "DELETE FROM ledger WHERE step = 'poison-first';",
	"second.up.sql":     "INSERT INTO ledger VALUES ('poison-second'); INSERT INTO customer (id, name) SELECT id, name FROM customer;",
}

// database is one under watch, with its tenants.
type database struct {
	url     string // as this test connects
	witness *checker.Witness
	tenants []tenant.Tenant
}

// makeFleet makes tenants with data, and the changes.
func (s *soak) makeFleet(n int) {
	s.t.Helper()
	s.resources = filepath.Join(s.dir, "resources")
	check(s.t, os.Mkdir(s.resources, 0o700))
	if s.dialect == tenant.Postgres {
		s.databases = []*database{s.postgresDatabase(n)}
	} else {
		for i := range n {
			s.databases = append(s.databases, s.sqliteDatabase(i))
		}
	}
	for _, db := range s.databases {
		for _, t := range db.tenants {
			check(s.t, os.WriteFile(fake.Resource(s.resources, t.ID), []byte("old"), 0o600))
			s.before[t.ID] = s.data(db, t)
			s.tenants = append(s.tenants, t)
		}
	}
	s.writeBrief(s.tenants[:len(s.tenants)-idle])
}

func (s *soak) writeBrief(tenants []tenant.Tenant) {
	s.t.Helper()
	brief := struct {
		Tenants   []tenant.Tenant
		Changes   []string
		Resources string
		Lease     time.Duration
	}{Tenants: tenants, Resources: s.resources, Lease: lease}
	for _, c := range changes {
		dir := filepath.Join(s.dir, c.id)
		check(s.t, os.Mkdir(dir, 0o700))
		check(s.t, os.WriteFile(filepath.Join(dir, "change.yaml"), []byte(c.yaml), 0o600))
		for name, text := range scripts {
			if strings.Contains(c.yaml, strings.Replace(name, ".postgres", "", 1)) {
				check(s.t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
			}
		}
		brief.Changes = append(brief.Changes, dir)
	}
	raw, err := json.Marshal(brief)
	check(s.t, err)
	s.brief = filepath.Join(s.dir, "brief.json")
	check(s.t, os.WriteFile(s.brief, raw, 0o600))
}

var tables = []string{
	"CREATE TABLE %scustomer (id integer PRIMARY KEY, name text NOT NULL)",
	"CREATE TABLE %sledger (step text NOT NULL)",
	"INSERT INTO %scustomer VALUES (1, '" + secret + "'), (2, 'Grace')",
}

func (s *soak) postgresDatabase(n int) *database {
	s.t.Helper()
	db := &database{url: postgrestest.URL(s.t)}
	var script []string
	for i := range n {
		schema := fmt.Sprintf("t%d", i)
		script = append(script, "CREATE SCHEMA "+schema)
		for _, table := range tables {
			script = append(script, fmt.Sprintf(table, schema+"."))
		}
		db.tenants = append(db.tenants, s.tenant(withSchema(db.url, schema)))
	}
	s.exec(db, strings.Join(script, ";"))
	s.watch(db, db.url)
	return db
}

// withSchema adds Belay's own parameter to a URL.
func withSchema(url, schema string) string {
	if strings.Contains(url, "?") {
		return url + "&schema=" + schema
	}
	return url + "?schema=" + schema
}

func (s *soak) sqliteDatabase(i int) *database {
	s.t.Helper()
	path := filepath.Join(s.dir, fmt.Sprintf("t%d.db", i))
	db := &database{url: path, tenants: []tenant.Tenant{s.tenant("sqlite://" + path)}}
	s.exec(db, "PRAGMA journal_mode = WAL")
	for _, table := range tables {
		s.exec(db, fmt.Sprintf(table, ""))
	}
	s.watch(db, path)
	return db
}

func (s *soak) tenant(url string) tenant.Tenant {
	s.t.Helper()
	target, err := tenant.ParseTarget(url, "/")
	check(s.t, err)
	id := tenant.NewID()
	return tenant.Tenant{ID: id, Name: string(id), Target: target}
}

// watch makes Belay's tables and has them watched, with the ledgers of all tenants.
func (s *soak) watch(db *database, where string) {
	s.t.Helper()
	driver := map[tenant.Dialect]storage.Driver{tenant.Postgres: postgres.Driver(), tenant.SQLite: sqlite.Driver()}[s.dialect]
	opened, err := driver.Open(s.t.Context(), db.tenants[0].Target, storage.Options{Connections: 2})
	check(s.t, err)
	defer opened.Close()
	_, _, err = opened.Migrate(s.t.Context())
	check(s.t, err)
	db.witness, err = checker.Open(s.dialect, where)
	check(s.t, err)
	s.t.Cleanup(func() { check(s.t, db.witness.Close()) })
	check(s.t, db.witness.Watch(s.t.Context()))
	for _, t := range db.tenants {
		check(s.t, db.witness.WatchLedger(s.t.Context(), t.Target.Scope))
	}
}

// open connects as the test does.
func (s *soak) open(db *database) *sql.DB {
	s.t.Helper()
	driver, url := "pgx", db.url
	if s.dialect == tenant.SQLite {
		driver, url = "sqlite3", "file:"+url+"?_busy_timeout=10000"
	}
	opened, err := sql.Open(driver, url)
	check(s.t, err)
	return opened
}

func (s *soak) exec(db *database, statement string) {
	s.t.Helper()
	opened := s.open(db)
	defer opened.Close()
	_, err := opened.Exec(statement)
	check(s.t, err)
}

// data is what a tenant holds, as text: its rows, the columns that have them, and its resource.
func (s *soak) data(db *database, t tenant.Tenant) string {
	s.t.Helper()
	opened := s.open(db)
	defer opened.Close()
	var b strings.Builder
	for _, table := range []string{"customer", "ledger"} {
		if s.dialect == tenant.Postgres {
			table = t.Target.Scope + "." + table
		}
		s.dump(&b, opened, table)
	}
	resource, err := os.ReadFile(fake.Resource(s.resources, t.ID))
	check(s.t, err)
	return b.String() + string(resource)
}

// dump writes a table's columns and rows.
func (s *soak) dump(b *strings.Builder, opened *sql.DB, table string) {
	s.t.Helper()
	rows, err := opened.Query("SELECT * FROM " + table + " ORDER BY 1")
	check(s.t, err)
	defer rows.Close()
	columns, err := rows.Columns()
	check(s.t, err)
	fmt.Fprintln(b, table, columns)
	values, pointers := make([]any, len(columns)), make([]any, len(columns))
	for i := range values {
		pointers[i] = &values[i]
	}
	for rows.Next() {
		check(s.t, rows.Scan(pointers...))
		fmt.Fprintln(b, values...)
	}
	check(s.t, rows.Err())
}

// evidence is all that there is to know about a database.
func (s *soak) evidence(ctx context.Context, db *database, said []checker.Said, texts map[string]string) checker.Evidence {
	s.t.Helper()
	e, err := db.witness.Read(ctx)
	check(s.t, err)
	if s.superuser {
		check(s.t, db.witness.Examine(ctx, &e))
	}
	e.Data = map[tenant.ID]checker.Data{}
	mine := map[tenant.ID]bool{}
	for _, t := range db.tenants {
		mine[t.ID] = true
		e.Data[t.ID] = checker.Data{Before: s.before[t.ID], Now: s.data(db, t)}
		calls, err := fake.Calls(fake.Resource(s.resources, t.ID))
		check(s.t, err)
		e.Calls = append(e.Calls, calls...)
	}
	for _, one := range said {
		if mine[one.Tenant] {
			e.Said = append(e.Said, one)
		}
	}
	e.Secrets, e.Texts, e.Lease, e.Poison = []string{secret}, texts, lease, poison
	e.Quiet, e.Bound = s.quiet, bound
	return e
}
