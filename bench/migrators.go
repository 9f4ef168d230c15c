package main

import (
	"context"
	"database/sql"
	"fmt"
	"io/fs"
	"testing/fstest"

	"github.com/golang-migrate/migrate/v4"
	migratepgx "github.com/golang-migrate/migrate/v4/database/pgx/v5"
	"github.com/golang-migrate/migrate/v4/source/iofs"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"
	"github.com/pressly/goose/v3/lock"

	"github.com/belayhq/belay/tenant"
)

// gooseFiles and migrateFiles are the steps as migrations, one each.
func gooseFiles(steps []step) fs.FS {
	files := fstest.MapFS{}
	for i, s := range steps {
		text := fmt.Sprintf("-- +goose Up\n%s;\n-- +goose Down\n%s;\n", s.up, s.down)
		files[fmt.Sprintf("%05d_step.sql", i+1)] = &fstest.MapFile{Data: []byte(text)}
	}
	return files
}

func migrateFiles(steps []step) fs.FS {
	files := fstest.MapFS{}
	for i, s := range steps {
		files[fmt.Sprintf("%05d_step.up.sql", i+1)] = &fstest.MapFile{Data: []byte(s.up)}
		files[fmt.Sprintf("%05d_step.down.sql", i+1)] = &fstest.MapFile{Data: []byte(s.down)}
	}
	return files
}

// gooseApply is a Provider for each tenant, with a session lock of its own: goose's default lock is one for all.
func (w *world) gooseApply(k task, workers int) contender {
	files := gooseFiles(k.steps)
	return w.migrator(gooseProvider, "goose_db_version", k, workers, func(ctx context.Context, db *sql.DB, t tenant.Tenant) error {
		locker, err := lock.NewPostgresSessionLocker(lock.WithLockID(lockID(t)))
		if err != nil {
			return err
		}
		provider, err := goose.NewProvider(goose.DialectPostgres, db, files, goose.WithSessionLocker(locker))
		if err != nil {
			return err
		}
		_, err = provider.Up(ctx)
		return err
	})
}

// migrateApply is golang-migrate, whose lock is one for each schema.
func (w *world) migrateApply(k task, workers int) contender {
	files := migrateFiles(k.steps)
	return w.migrator(golangMigrate, "schema_migrations", k, workers, func(_ context.Context, db *sql.DB, t tenant.Tenant) error {
		source, err := iofs.New(files, ".")
		if err != nil {
			return err
		}
		driver, err := migratepgx.WithInstance(db, &migratepgx.Config{SchemaName: t.Target.Scope})
		if err != nil {
			return err
		}
		m, err := migrate.NewWithInstance("iofs", source, t.Target.Scope, driver)
		if err != nil {
			return err
		}
		if err := m.Up(); err != nil {
			return err
		}
		sourceErr, driverErr := m.Close()
		if sourceErr != nil {
			return sourceErr
		}
		return driverErr
	})
}

// migrator runs a tool that keeps a table of versions in each tenant's schema. Its workers each have a connection that
// stays open and moves from schema to schema, which is faster than connecting for each tenant, as people do.
func (w *world) migrator(name, versions string, k task, workers int, up func(context.Context, *sql.DB, tenant.Tenant) error) contender {
	return contender{name: name, prepare: func(ctx context.Context) (*trial, error) {
		if err := k.empty(ctx); err != nil {
			return nil, err
		}
		err := w.each(w.all(), func(chunk []tenant.Tenant) error {
			return w.script(ctx, chunk, `DROP TABLE IF EXISTS %[1]s.`+versions+`;`)
		})
		if err != nil {
			return nil, err
		}
		connections := make(chan *pgxpool.Pool, workers)
		end := func() {
			for range workers {
				(<-connections).Close()
			}
		}
		for range workers {
			pool, err := w.pool(ctx, 1, nil)
			if err != nil {
				return nil, err
			}
			connections <- pool
		}
		run := func(ctx context.Context, sites []tenant.Tenant) error {
			return every(ctx, sites, workers, func(ctx context.Context, t tenant.Tenant) error {
				pool := <-connections
				defer func() { connections <- pool }()
				if _, err := pool.Exec(ctx, `SELECT set_config('search_path', $1, false)`, t.Target.Scope); err != nil {
					return err
				}
				db := stdlib.OpenDBFromPool(pool)
				defer db.Close()
				return up(ctx, db, t)
			})
		}
		if err := run(ctx, w.warm); err != nil {
			end()
			return nil, err
		}
		return &trial{
			count: len(k.sites),
			run:   func(ctx context.Context) error { return run(ctx, k.sites) },
			check: func(ctx context.Context) error { return k.holds(ctx, k.sites, len(k.steps)) },
			close: end,
		}, nil
	}}
}
