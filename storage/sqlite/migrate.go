package sqlite

import (
	"context"
	"fmt"
	"sync"

	"github.com/belayhq/belay/internal/failpoint"
	"github.com/belayhq/belay/migrations"
	"github.com/belayhq/belay/storage"
	"github.com/belayhq/belay/tenant"
)

const schemaVersionSQL = `SELECT version FROM belay_schema_version`

// The file may be the tenant's own, so its user_version is not ours to write.
const makeVersionSQL = `
CREATE TABLE IF NOT EXISTS belay_schema_version (one INTEGER PRIMARY KEY CHECK (one = 1), version INTEGER NOT NULL) STRICT;
INSERT INTO belay_schema_version (one, version) VALUES (1, 0) ON CONFLICT (one) DO NOTHING`

const setVersionSQL = `UPDATE belay_schema_version SET version = ?`

// known are the migrations of this binary.
var known = sync.OnceValue(func() []migrations.Migration { return migrations.For(tenant.SQLite) })

// Migrate brings Belay's tables up to this binary's version, in one transaction.
func (s *Store) Migrate(ctx context.Context) (from, to int, err error) {
	all := known()
	to = len(all)
	if err := failpoint.Hit(failpoint.BeforeMigrate); err != nil {
		return 0, 0, err
	}
	err = s.write(ctx, func(ctx context.Context, t *transaction) error {
		if err := t.conn.script(ctx, makeVersionSQL); err != nil {
			return translate(err)
		}
		if err := t.row(ctx, schemaVersionSQL).Scan(&from); err != nil {
			return err
		}
		if from >= to {
			return checkSchema(from)
		}
		for _, m := range all[from:] {
			if err := t.conn.script(ctx, m.SQL); err != nil {
				return fmt.Errorf("migration %d (%s): %w", m.Version, m.Name, translate(err))
			}
		}
		if _, err := t.exec(ctx, setVersionSQL, to); err != nil {
			return err
		}
		return failpoint.Hit(failpoint.BeforeMigrateCommit)
	})
	if err != nil {
		return from, from, fmt.Errorf("migrate: %w", err)
	}
	s.migrated.Store(true)
	return from, to, failpoint.Hit(failpoint.AfterMigrate)
}

// checkSchema refuses tables that a newer Belay made.
func checkSchema(version int) error {
	if newest := len(known()); version > newest {
		return fmt.Errorf("%w: they have version %d, this binary knows %d", storage.ErrNewerSchema, version, newest)
	}
	return nil
}

const hasVersionSQL = `SELECT count(*) FROM sqlite_schema WHERE type = 'table' AND name = 'belay_schema_version'`

// SchemaVersion returns the version of Belay's tables; 0 if there are none.
func (s *Store) SchemaVersion(ctx context.Context) (int, error) {
	version, err := s.schemaVersion(ctx)
	if err != nil {
		return 0, fmt.Errorf("read schema version: %w", err)
	}
	return version, nil
}

func (s *Store) schemaVersion(ctx context.Context) (version int, err error) {
	err = s.snapshot(ctx, func(ctx context.Context, tx session) error {
		var tables int
		if err := tx.row(ctx, hasVersionSQL).Scan(&tables); err != nil || tables == 0 {
			return err
		}
		return tx.row(ctx, schemaVersionSQL).Scan(&version)
	})
	if err == nil && version == len(known()) {
		s.migrated.Store(true)
	}
	return version, err
}

// made reports whether Belay's tables are there to be read.
func (s *Store) made(ctx context.Context) (bool, error) {
	if s.migrated.Load() {
		return true, nil
	}
	version, err := s.schemaVersion(ctx)
	if err != nil {
		return false, err
	}
	return version > 0, checkSchema(version)
}

// ensureTables makes Belay's tables, unless they are there; one caller in the process at a time.
func (s *Store) ensureTables(ctx context.Context) error {
	if s.migrated.Load() {
		return nil
	}
	s.migrating.Lock()
	defer s.migrating.Unlock()
	if _, err := s.made(ctx); err != nil || s.migrated.Load() {
		return err
	}
	_, _, err := s.Migrate(ctx)
	return err
}
