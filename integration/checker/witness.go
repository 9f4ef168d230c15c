package checker

import (
	"context"
	"database/sql"
	_ "embed"
	"fmt"
	"strings"

	_ "github.com/jackc/pgx/v5/stdlib" // the driver "pgx"
	_ "github.com/mattn/go-sqlite3"    // the driver "sqlite3"

	"github.com/belayhq/belay/tenant"
)

// Witness is a database in which triggers write down every row that is committed to Belay's tables and to tenants' ledgers.
type Witness struct {
	dialect tenant.Dialect
	db      *sql.DB
}

// Open connects to a database: the URL of a PostgreSQL, or the path of a SQLite file.
func Open(d tenant.Dialect, where string) (*Witness, error) {
	driver := "pgx"
	if d == tenant.SQLite {
		driver, where = "sqlite3", "file:"+where+"?_busy_timeout=10000"
	}
	db, err := sql.Open(driver, where)
	if err != nil {
		return nil, err
	}
	db.SetMaxOpenConns(1)
	return &Witness{dialect: d, db: db}, nil
}

// Close closes the connection. The triggers stay.
func (w *Witness) Close() error { return w.db.Close() }

// tables are Belay's tables under watch, by their names without schema or prefix.
var tables = []string{"site_lock", "plan", "journal", "before_image", "event"}

//go:embed witness_postgres.sql
var postgresSQL string

// Watch begins to write down what is committed to Belay's tables, which must be there. It may be called again.
func (w *Witness) Watch(ctx context.Context) error {
	if w.dialect == tenant.SQLite {
		return w.watchSQLite(ctx, "belay_", tables...)
	}
	statements := []string{postgresSQL}
	for _, table := range tables {
		statements = append(statements, postgresTrigger("belay", table))
	}
	_, err := w.db.ExecContext(ctx, strings.Join(statements, "\n"))
	return err
}

// WatchLedger does the same for the table ledger of a tenant's data.
func (w *Witness) WatchLedger(ctx context.Context, scope string) error {
	if w.dialect == tenant.SQLite {
		return w.watchSQLite(ctx, "", "ledger")
	}
	_, err := w.db.ExecContext(ctx, postgresTrigger(scope, "ledger"))
	return err
}

func postgresTrigger(schema, table string) string {
	return fmt.Sprintf("CREATE OR REPLACE TRIGGER witness AFTER INSERT OR UPDATE OR DELETE ON %q.%q FOR EACH ROW EXECUTE FUNCTION witness.note();",
		schema, table)
}

const sqliteTable = `
CREATE TABLE IF NOT EXISTS witness (
    n INTEGER PRIMARY KEY, at INTEGER NOT NULL DEFAULT (CAST(unixepoch('subsec') * 1000 AS INTEGER)), kind TEXT NOT NULL, was TEXT, now TEXT)`

func (w *Witness) watchSQLite(ctx context.Context, prefix string, names ...string) error {
	script := []string{"BEGIN IMMEDIATE", sqliteTable}
	for _, name := range names {
		was, err := w.asJSON(ctx, prefix+name, "OLD.")
		if err != nil {
			return err
		}
		now := strings.ReplaceAll(was, "OLD.", "NEW.")
		for event, row := range map[string]string{"INSERT": "NULL, " + now, "UPDATE": was + ", " + now, "DELETE": was + ", NULL"} {
			script = append(script, fmt.Sprintf(
				"CREATE TRIGGER IF NOT EXISTS witness_%s_%s AFTER %s ON %s BEGIN INSERT INTO witness (kind, was, now) VALUES ('%s', %s); END",
				name, strings.ToLower(event), event, prefix+name, name, row))
		}
	}
	_, err := w.db.ExecContext(ctx, strings.Join(append(script, "COMMIT"), ";\n"))
	return err
}

// asJSON is an expression that makes a row of a SQLite table a JSON object. Bytes become hexadecimal digits.
func (w *Witness) asJSON(ctx context.Context, table, row string) (string, error) {
	rows, err := w.db.QueryContext(ctx, "SELECT name, type FROM pragma_table_info(?)", table)
	if err != nil {
		return "", err
	}
	defer rows.Close()
	var fields []string
	for rows.Next() {
		var name, kind string
		if err := rows.Scan(&name, &kind); err != nil {
			return "", err
		}
		value := row + name
		if kind == "BLOB" {
			value = "hex(" + value + ")"
		}
		fields = append(fields, "'"+name+"', "+value)
	}
	return "json_object(" + strings.Join(fields, ", ") + ")", rows.Err()
}

// Forget drops what was written down so far.
func (w *Witness) Forget(ctx context.Context) error {
	_, err := w.db.ExecContext(ctx, "DELETE FROM "+map[tenant.Dialect]string{tenant.Postgres: "witness.moment", tenant.SQLite: "witness"}[w.dialect])
	return err
}
