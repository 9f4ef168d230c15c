package integration

import (
	"context"
	"database/sql"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	_ "github.com/mattn/go-sqlite3"

	"github.com/belayhq/belay/integration/checker"
	"github.com/belayhq/belay/internal/pgproxy"
	"github.com/belayhq/belay/internal/postgrestest"
	"github.com/belayhq/belay/tenant"
)

// world is one tenant on one database, and a way to look at it from outside.
type world struct {
	t       *testing.T
	dialect tenant.Dialect
	id      tenant.ID
	// target is the tenant's URL, scope its schema on PostgreSQL.
	target, scope string
	// url or path is how the test itself connects.
	url, path string
	// witness, if there is one, writes down all that is committed.
	witness *checker.Witness
	// network, if there is one, is what Belay reaches the database by; the test itself does not.
	network *pgproxy.Proxy
}

// onBoth runs a test in a world of each kind.
func onBoth(t *testing.T, test func(t *testing.T, w *world)) {
	t.Helper()
	for _, d := range dialects() {
		t.Run(string(d), func(t *testing.T) { t.Parallel(); test(t, newWorld(t, d)) })
	}
}

func newWorld(t *testing.T, d tenant.Dialect) *world {
	t.Helper()
	w := &world{t: t, dialect: d, id: tenant.NewID()}
	if d == tenant.Postgres {
		if pooled() {
			return newWorldBehindAPooler(t)
		}
		return newWorldAt(t, postgrestest.URL(t))
	}
	w.path = filepath.Join(t.TempDir(), "site.db")
	w.target = "sqlite://" + w.path
	w.exec("PRAGMA journal_mode = WAL")
	return w
}

// newWorldAt is a tenant in an empty PostgreSQL database.
func newWorldAt(t *testing.T, url string) *world {
	t.Helper()
	w := &world{t: t, dialect: tenant.Postgres, id: tenant.NewID(), url: url, scope: "site"}
	w.target = withSchema(w.url, w.scope)
	w.exec("CREATE SCHEMA site")
	return w
}

// newWorldBehindANetwork is a tenant in an empty PostgreSQL database that Belay reaches by a network of the test's own.
func newWorldBehindANetwork(t *testing.T, url string) *world {
	t.Helper()
	w := newWorldAt(t, url)
	through, network := postgrestest.Through(t, url)
	w.target, w.network = withSchema(through, w.scope), network
	return w
}

// ofTest is the same world for a test within the test that made it.
func (w *world) ofTest(t *testing.T) *world {
	mine := *w
	mine.t = t
	return &mine
}

// renewed is a world with nothing in it, like a new one. On PostgreSQL it is the same database, which keeps Belay's own
// tables: to make a database takes longer than most of what is tried in it.
func (w *world) renewed() *world {
	w.t.Helper()
	if w.dialect == tenant.SQLite {
		return newWorld(w.t, tenant.SQLite)
	}
	w.exec(`DO $$ BEGIN
		EXECUTE (SELECT 'TRUNCATE ' || string_agg('belay.' || quote_ident(table_name), ', ')
			FROM information_schema.columns WHERE table_schema = 'belay' AND column_name = 'tenant_id');
		DROP SCHEMA site CASCADE;
		CREATE SCHEMA site;
	END $$`)
	fresh := *w
	fresh.id = tenant.NewID()
	if w.witness != nil {
		check(w.t, w.witness.Forget(w.t.Context()))
	}
	return &fresh
}

// withSchema adds the parameter to a URL of PostgreSQL.
func withSchema(url, schema string) string {
	separator := "?"
	if strings.Contains(url, "?") {
		separator = "&"
	}
	return url + separator + "schema=" + schema
}

// hasTables says whether Belay's own tables are there yet.
func (w *world) hasTables() bool {
	w.t.Helper()
	query := `SELECT to_regclass('belay.site_lock') IS NOT NULL`
	if w.dialect == tenant.SQLite {
		query = `SELECT count(*) > 0 FROM sqlite_schema WHERE name = 'belay_site_lock'`
	}
	found := w.query(query)
	return found == "true" || found == "1"
}

// table names one of Belay's own tables.
func (w *world) table(name string) string {
	if w.dialect == tenant.Postgres {
		return "belay." + name
	}
	return "belay_" + name
}

func (w *world) exec(statements ...string) {
	w.t.Helper()
	for _, s := range statements {
		if err := w.do(s, nil); err != nil {
			w.t.Fatalf("%s: %v", s, err)
		}
	}
}

// query returns the rows of a query as lines, their columns separated by |.
func (w *world) query(query string) string {
	w.t.Helper()
	var lines []string
	if err := w.do(query, func(row []any) {
		cells := make([]string, len(row))
		for i, v := range row {
			cells[i] = text(v)
		}
		lines = append(lines, strings.Join(cells, "|"))
	}); err != nil {
		w.t.Fatalf("%s: %v", query, err)
	}
	return strings.Join(lines, "\n")
}

func text(v any) string {
	switch v := v.(type) {
	case nil:
		return "NULL"
	case []byte:
		return fmt.Sprintf("x%x", v)
	case [16]byte:
		return fmt.Sprintf("%x-%x-%x-%x-%x", v[:4], v[4:6], v[6:8], v[8:10], v[10:])
	}
	return fmt.Sprint(v)
}

// do runs one statement on a connection of its own, in the tenant's scope.
func (w *world) do(statement string, row func([]any)) error {
	if w.dialect == tenant.Postgres {
		return w.doPostgres(statement, row)
	}
	db, err := sql.Open("sqlite3", "file:"+w.path+"?_busy_timeout=10000")
	if err != nil {
		return err
	}
	defer db.Close()
	rows, err := db.Query(statement)
	if err != nil {
		return err
	}
	defer rows.Close()
	columns, err := rows.Columns()
	if err != nil {
		return err
	}
	for rows.Next() {
		values, pointers := make([]any, len(columns)), make([]any, len(columns))
		for i := range values {
			pointers[i] = &values[i]
		}
		if err := rows.Scan(pointers...); err != nil {
			return err
		}
		if row != nil {
			row(values)
		}
	}
	return rows.Err()
}

func (w *world) doPostgres(statement string, row func([]any)) error {
	ctx := context.Background()
	conn, err := pgx.Connect(ctx, w.url)
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	if _, err := conn.Exec(ctx, "SET search_path = "+pgx.Identifier{w.scope}.Sanitize()); err != nil {
		return err
	}
	rows, err := conn.Query(ctx, statement)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		values, err := rows.Values()
		if err != nil {
			return err
		}
		if row != nil {
			row(values)
		}
	}
	return rows.Err()
}

// dump is the tenant's schema and data as text, without Belay's own tables: equal dumps mean that nothing differs.
func (w *world) dump() string {
	w.t.Helper()
	var b strings.Builder
	var tables string
	if w.dialect == tenant.Postgres {
		b.WriteString(w.query(`SELECT table_name, column_name, data_type, is_nullable, column_default
			FROM information_schema.columns WHERE table_schema = '` + w.scope + `' ORDER BY 1, ordinal_position`))
		b.WriteString(w.query(`SELECT conrelid::regclass::text, conname, pg_get_constraintdef(oid) FROM pg_constraint
			WHERE connamespace = '` + w.scope + `'::regnamespace ORDER BY 1, 2`))
		b.WriteString(w.query(`SELECT indexdef FROM pg_indexes WHERE schemaname = '` + w.scope + `' ORDER BY 1`))
		b.WriteString(w.query(`SELECT tgname, pg_get_triggerdef(t.oid) FROM pg_trigger t JOIN pg_class c ON c.oid = tgrelid
			WHERE relnamespace = '` + w.scope + `'::regnamespace AND NOT tgisinternal ORDER BY 1, 2`))
		tables = w.query(`SELECT table_name FROM information_schema.tables WHERE table_schema = '` + w.scope + `' AND table_type = 'BASE TABLE' ORDER BY 1`)
	} else {
		// What the schema means, not its text: a table built anew has its name in quotes there.
		const from = `FROM sqlite_schema m WHERE m.type = 'table' AND m.name NOT LIKE 'belay%' AND m.name NOT LIKE 'sqlite%' AND m.name <> 'witness'`
		b.WriteString(w.query(`SELECT m.name, x.* FROM (SELECT name ` + from + `) m, pragma_table_xinfo(m.name) x ORDER BY 1, 2`))
		b.WriteString(w.query(`SELECT m.name, f.* FROM (SELECT name ` + from + `) m, pragma_foreign_key_list(m.name) f ORDER BY 1, 2`))
		b.WriteString(w.query(`SELECT m.name, i.* FROM (SELECT name ` + from + `) m, pragma_index_list(m.name) i ORDER BY 1, 2`))
		b.WriteString(w.query(`SELECT type, name, sql FROM sqlite_schema WHERE type IN ('view', 'trigger') ORDER BY 1, 2`))
		tables = w.query(`SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'belay%' AND name NOT LIKE 'sqlite%' AND name <> 'witness' ORDER BY 1`)
	}
	for name := range strings.SplitSeq(tables, "\n") {
		if name == "" {
			continue
		}
		fmt.Fprintf(&b, "\n-- %s\n%s", name, sorted(w.query(`SELECT * FROM "`+name+`"`)))
	}
	return b.String()
}

func sorted(lines string) string {
	all := strings.Split(lines, "\n")
	slices.Sort(all)
	return strings.Join(all, "\n")
}

// expire makes the tenant's lock lapse, as time would.
func (w *world) expire() {
	w.t.Helper()
	w.exec("UPDATE " + w.table("site_lock") + " SET expires_at = 1 WHERE holder IS NOT NULL")
}

// change writes a change's files and returns its directory.
func (w *world) change(files map[string]string) string {
	w.t.Helper()
	dir := w.t.TempDir()
	for name, content := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			w.t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			w.t.Fatal(err)
		}
	}
	return dir
}
