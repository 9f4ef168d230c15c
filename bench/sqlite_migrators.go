package main

import (
	"context"
	"database/sql"

	"github.com/golang-migrate/migrate/v4"
	migratesqlite "github.com/golang-migrate/migrate/v4/database/sqlite3"
	"github.com/golang-migrate/migrate/v4/source/iofs"
	"github.com/pressly/goose/v3"

	"github.com/belayhq/belay/tenant"
)

const gooseFile, migrateFile = "goose, Provider per file", "golang-migrate, per file"

// goose has no lock on SQLite.
func (f *files) goose(steps []step, workers int) contender {
	migrations := gooseFiles(steps)
	return f.migrator(gooseFile, steps, workers, func(ctx context.Context, db *sql.DB) error {
		provider, err := goose.NewProvider(goose.DialectSQLite3, db, migrations)
		if err != nil {
			return err
		}
		_, err = provider.Up(ctx)
		return err
	})
}

// migrate is golang-migrate, whose lock on SQLite is one of this process.
func (f *files) migrate(steps []step, workers int) contender {
	migrations := migrateFiles(steps)
	return f.migrator(migrateFile, steps, workers, func(_ context.Context, db *sql.DB) error {
		source, err := iofs.New(migrations, ".")
		if err != nil {
			return err
		}
		driver, err := migratesqlite.WithInstance(db, &migratesqlite.Config{})
		if err != nil {
			return err
		}
		m, err := migrate.NewWithInstance("iofs", source, "sqlite3", driver)
		if err != nil {
			return err
		}
		return m.Up()
	})
}

// migrator runs a tool on every file, which it opens and closes as everybody does. The tool makes its own table meanwhile:
// it has no call that does nothing else.
func (f *files) migrator(name string, steps []step, workers int, up func(context.Context, *sql.DB) error) contender {
	one := func(ctx context.Context, t tenant.Tenant) error {
		db, err := openFile(t)
		if err != nil {
			return err
		}
		defer db.Close()
		return up(ctx, db)
	}
	return contender{name: name, prepare: func(ctx context.Context) (*trial, error) {
		if err := f.empty(ctx, ""); err != nil {
			return nil, err
		}
		return &trial{
			count: len(f.sites), close: func() {},
			run:   func(ctx context.Context) error { return every(ctx, f.sites, workers, one) },
			check: func(ctx context.Context) error { return f.holds(ctx, len(steps)) },
		}, nil
	}}
}
