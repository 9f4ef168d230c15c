package migrations_test

import (
	"testing"

	"github.com/belayhq/belay/migrations"
	"github.com/belayhq/belay/tenant"
)

// A version is the same step for both databases, so that one number says how far a database is.
func TestBothDatabasesHaveTheSameMigrations(t *testing.T) {
	t.Parallel()
	postgres, sqlite := migrations.For(tenant.Postgres), migrations.For(tenant.SQLite)
	if len(postgres) == 0 || len(postgres) != len(sqlite) {
		t.Fatalf("PostgreSQL has %d migrations, SQLite %d", len(postgres), len(sqlite))
	}
	for i, p := range postgres {
		s := sqlite[i]
		if p.Version != s.Version || p.Name != s.Name {
			t.Errorf("PostgreSQL has %04d_%s where SQLite has %04d_%s", p.Version, p.Name, s.Version, s.Name)
		}
		if p.Name == "" || p.SQL == "" || s.SQL == "" {
			t.Errorf("migration %d has no name or no text", p.Version)
		}
	}
}
