package postgres_test

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"
	"go.uber.org/goleak"

	"github.com/belayhq/belay/internal/postgrestest"
	"github.com/belayhq/belay/storage"
	"github.com/belayhq/belay/storage/postgres"
	"github.com/belayhq/belay/storage/storagetest"
	"github.com/belayhq/belay/tenant"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestPostgresKeepsTheContract(t *testing.T) {
	t.Parallel()
	storagetest.Run(t, func(t *testing.T) storagetest.Harness { return harness(t, postgrestest.URL(t)) })
}

func harness(t *testing.T, url string) storagetest.Harness {
	var scopes atomic.Int64
	return storagetest.Harness{
		Dialect: tenant.Postgres,
		Open:    func(t *testing.T) storage.Database { return open(t, url) },
		Scope: func(t *testing.T) string {
			scope := fmt.Sprintf("Tenant-%d", scopes.Add(1)) // a name that must be quoted
			execute(t, url, "", `CREATE SCHEMA "`+scope+`"`)
			return scope
		},
		Exec:  func(t *testing.T, scope, sql string) { t.Helper(); execute(t, url, scope, sql) },
		Query: func(t *testing.T, scope, sql string) string { t.Helper(); return scalar(t, url, scope, sql) },
		Table: func(name string) string { return "belay." + name },
		SetVersion: func(t *testing.T, version int) {
			t.Helper()
			execute(t, url, "", fmt.Sprintf(`UPDATE belay.schema_version SET version = %d`, version))
		},
	}
}

// open opens a database and closes it when the test ends.
func open(t *testing.T, url string) *postgres.Store {
	t.Helper()
	return openWith(t, url, 4)
}

func openWith(t *testing.T, url string, connections int) *postgres.Store {
	t.Helper()
	target, err := tenant.ParseDatabase(url, "/")
	if err != nil {
		t.Fatal(err)
	}
	db, err := postgres.Driver().Open(t.Context(), target, storage.Options{Connections: connections})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(db.Close)
	return db.(*postgres.Store)
}

// session opens a connection outside Belay.
func session(t *testing.T, url, scope string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	if scope != "" {
		if _, err := conn.Exec(t.Context(), `SELECT set_config('search_path', $1, false)`, `"`+scope+`"`); err != nil {
			t.Fatal(err)
		}
	}
	return conn
}

func execute(t *testing.T, url, scope, sql string) {
	t.Helper()
	conn := session(t, url, scope)
	defer conn.Close(t.Context())
	if _, err := conn.Exec(t.Context(), sql); err != nil {
		t.Fatalf("%s: %v", strings.TrimSpace(sql), err)
	}
}

func scalar(t *testing.T, url, scope, sql string) string {
	t.Helper()
	conn := session(t, url, scope)
	defer conn.Close(t.Context())
	rows, err := conn.PgConn().Exec(t.Context(), sql).ReadAll()
	if err != nil {
		t.Fatalf("%s: %v", strings.TrimSpace(sql), err)
	}
	if len(rows[0].Rows) == 0 {
		return ""
	}
	return string(rows[0].Rows[0][0])
}
