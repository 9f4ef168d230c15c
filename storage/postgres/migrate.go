package postgres

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/belayhq/belay/internal/failpoint"
	"github.com/belayhq/belay/migrations"
	"github.com/belayhq/belay/storage"
	"github.com/belayhq/belay/tenant"
)

const schemaVersionSQL = `SELECT version FROM belay.schema_version`

// SchemaVersion implements [storage.Database].
func (s *Store) SchemaVersion(ctx context.Context) (int, error) {
	version := 0
	err := s.snapshot(ctx, func(tx *transaction) error {
		version = 0
		tx.one(schemaVersionSQL, nil, &version)
		return tx.commit(ctx)
	})
	if err != nil && reactTo(err) != missing {
		return 0, fmt.Errorf("read version of belay's tables: %w", err)
	}
	return version, nil
}

// migrationLock is the advisory lock under which tables are made, held by the transaction alone.
const migrationLock int64 = 0x62656c6179 // "belay"

const lockMigrationSQL = `SELECT pg_catalog.pg_advisory_xact_lock($1::bigint)`

const makeVersionSQL = `
CREATE SCHEMA IF NOT EXISTS belay;
CREATE TABLE IF NOT EXISTS belay.schema_version (one boolean PRIMARY KEY DEFAULT true CHECK (one), version integer NOT NULL);
INSERT INTO belay.schema_version (version) VALUES (0) ON CONFLICT (one) DO NOTHING`

const setVersionSQL = `UPDATE belay.schema_version SET version = $1::integer`

// migrateTries bounds how often a process tries again that lost a race against another one's first migration, or did not
// get a table to itself.
const migrateTries = 100

// giveWaySQL has a migration give way. While it waits for a table to itself, everybody else waits behind it, renewals too:
// it must be over long before a lease is.
const giveWaySQL = `SELECT pg_catalog.set_config('lock_timeout', '100ms', true)`

// migrateIdle ends the transaction of a migration whose process is stopped in the middle, with everybody else waiting for it.
const migrateIdle = 10 * time.Second

// Migrate implements [storage.Database].
func (s *Store) Migrate(ctx context.Context) (from, to int, err error) {
	return s.migrate(ctx, migrations.For(tenant.Postgres))
}

func (s *Store) migrate(ctx context.Context, all []migrations.Migration) (from, to int, err error) {
	newest := all[len(all)-1].Version
	if from, err = s.SchemaVersion(ctx); err != nil {
		return 0, 0, fmt.Errorf("migrate: %w", err)
	}
	if from == newest {
		s.migrated.Store(true)
		return from, from, nil
	}
	if err := failpoint.Hit(failpoint.BeforeMigrate); err != nil {
		return from, from, err
	}
	for range migrateTries {
		if from >= newest {
			break
		}
		// Waiting for another process that migrates is right, however long that takes; the caller's context bounds it.
		err = s.transact(ctx, s.pool, writing, limits{idle: migrateIdle}.begin, func(tx *transaction) error {
			from, err = tx.migrate(ctx, all)
			return err
		})
		if !isMigrationRace(err) || !breathe(ctx, err) {
			break
		}
	}
	switch {
	case err != nil:
		return from, from, fmt.Errorf("migrate: %w", err)
	case from > newest:
		return from, from, fmt.Errorf("migrate: %w", newerSchema(from, newest))
	}
	s.migrated.Store(true)
	return from, newest, failpoint.Hit(failpoint.AfterMigrate)
}

func (tx *transaction) migrate(ctx context.Context, all []migrations.Migration) (from int, err error) {
	tx.own(lockMigrationSQL, migrationLock)
	tx.own(giveWaySQL)
	if err := tx.flush(ctx); err != nil {
		return 0, err
	}
	if err := tx.script(ctx, makeVersionSQL); err != nil {
		return 0, err
	}
	tx.one(schemaVersionSQL, nil, &from)
	if err := tx.flush(ctx); err != nil {
		return 0, err
	}
	for _, m := range all[min(from, len(all)):] {
		if err := tx.script(ctx, m.SQL); err != nil {
			return from, fmt.Errorf("migration %d (%s): %w", m.Version, m.Name, err)
		}
	}
	if from < len(all) {
		tx.add(statement{sql: setVersionSQL, args: []any{len(all)}})
	}
	if err := failpoint.Hit(failpoint.BeforeMigrateCommit); err != nil {
		return from, err
	}
	return from, tx.commit(ctx)
}

// script runs several statements at once.
func (tx *transaction) script(ctx context.Context, sql string) error {
	if _, err := tx.conn.Conn().PgConn().Exec(ctx, sql).ReadAll(); err != nil {
		return tx.translate(ctx, statement{own: true}, err)
	}
	return nil
}

// breathe lets those pass who waited behind a migration that did not get its table. It returns false if ctx ends.
func breathe(ctx context.Context, err error) bool {
	if reactTo(err) != contention {
		return ctx.Err() == nil
	}
	timer := time.NewTimer(100*time.Millisecond + rand.N(200*time.Millisecond))
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// isMigrationRace reports whether another process was in the way: CREATE … IF NOT EXISTS does not see what is not
// committed yet, and a table in use cannot be changed.
func isMigrationRace(err error) bool {
	server, ok := errors.AsType[*Error](err)
	if !ok {
		return false
	}
	switch server.Code {
	case codeUniqueViolation, codeSchemaExists, codeTableExists, codeSerialization, codeDeadlock, codeLockNotAvailable:
		return true
	}
	return false
}

func newerSchema(found, newest int) error {
	return fmt.Errorf("%w: they have version %d, this binary knows %d", storage.ErrNewerSchema, found, newest)
}

// ensureTables makes the tables before the first write.
func (s *Store) ensureTables(ctx context.Context) error {
	if s.migrated.Load() {
		return nil
	}
	s.migrating.Lock()
	defer s.migrating.Unlock()
	if s.migrated.Load() {
		return nil
	}
	_, _, err := s.Migrate(ctx)
	return err
}

// read runs body in a snapshot. A database without Belay's tables has nothing to show; one of a newer Belay is refused.
func (s *Store) read(ctx context.Context, body func(tx *transaction) error) error {
	if !s.migrated.Load() {
		version, err := s.SchemaVersion(ctx)
		if err != nil {
			return err
		}
		newest := len(migrations.For(tenant.Postgres))
		switch {
		case version > newest:
			return newerSchema(version, newest)
		case version == 0:
			return nil
		case version == newest:
			s.migrated.Store(true)
		}
	}
	return s.snapshot(ctx, body)
}

// Create implements [storage.Database].
func (s *Store) Create(ctx context.Context, scope string) error {
	var err error
	for range migrateTries {
		err = s.write(ctx, func(tx *transaction) error {
			tx.add(statement{sql: `CREATE SCHEMA IF NOT EXISTS ` + quoteIdent(scope)})
			return tx.commit(ctx)
		})
		if !isMigrationRace(err) {
			break
		}
	}
	if err != nil {
		return fmt.Errorf("create schema %s: %w", scope, err)
	}
	return nil
}
