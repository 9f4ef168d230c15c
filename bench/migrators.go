package main

import (
	"context"
	"database/sql"
	"errors"
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

// tool is a migrator, which keeps a table of versions in each tenant's schema.
type tool struct {
	versions string // the table
	// begin makes the table, as each tool does before a tenant's first migration. It is not timed: Belay's are there, too.
	begin func(context.Context, *sql.DB, tenant.Tenant) error
	up    func(context.Context, *sql.DB, tenant.Tenant) error
}

// gooseApply is a Provider for each tenant, with a session lock of its own: goose's default lock is one for all.
func (w *world) gooseApply(k task, workers int) contender {
	files := gooseFiles(k.steps)
	open := func(db *sql.DB, t tenant.Tenant) (*goose.Provider, error) {
		locker, err := lock.NewPostgresSessionLocker(lock.WithLockID(lockID(t)))
		if err != nil {
			return nil, err
		}
		return goose.NewProvider(goose.DialectPostgres, db, files, goose.WithSessionLocker(locker))
	}
	return w.migrator(gooseProvider, k, workers, tool{
		versions: "goose_db_version",
		begin: func(ctx context.Context, db *sql.DB, t tenant.Tenant) error {
			provider, err := open(db, t)
			if err == nil {
				_, err = provider.GetDBVersion(ctx)
			}
			return err
		},
		up: func(ctx context.Context, db *sql.DB, t tenant.Tenant) error {
			provider, err := open(db, t)
			if err == nil {
				_, err = provider.Up(ctx)
			}
			return err
		},
	})
}

// migrateApply is golang-migrate, whose lock is one for each schema.
func (w *world) migrateApply(k task, workers int) contender {
	files := migrateFiles(k.steps)
	open := func(db *sql.DB, t tenant.Tenant) (*migrate.Migrate, error) {
		source, err := iofs.New(files, ".")
		if err != nil {
			return nil, err
		}
		driver, err := migratepgx.WithInstance(db, &migratepgx.Config{SchemaName: t.Target.Scope})
		if err != nil {
			return nil, err
		}
		return migrate.NewWithInstance("iofs", source, t.Target.Scope, driver)
	}
	end := func(m *migrate.Migrate) error {
		sourceErr, driverErr := m.Close()
		return errors.Join(sourceErr, driverErr)
	}
	return w.migrator(golangMigrate, k, workers, tool{
		versions: "schema_migrations",
		begin: func(_ context.Context, db *sql.DB, t tenant.Tenant) error {
			m, err := open(db, t) // makes the table
			if err != nil {
				return err
			}
			return end(m)
		},
		up: func(_ context.Context, db *sql.DB, t tenant.Tenant) error {
			m, err := open(db, t)
			if err != nil {
				return err
			}
			if err := m.Up(); err != nil {
				return err
			}
			return end(m)
		},
	})
}

// migrator runs a tool. Its workers each have a connection that stays open and moves from schema to schema, which is faster
// than connecting for each tenant, as people do.
func (w *world) migrator(name string, k task, workers int, with tool) contender {
	return contender{name: name, prepare: func(ctx context.Context) (*trial, error) {
		if err := k.empty(ctx); err != nil {
			return nil, err
		}
		err := w.each(w.all(), func(chunk []tenant.Tenant) error {
			return w.script(ctx, chunk, `DROP TABLE IF EXISTS %[1]s.`+with.versions+`;`)
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
		run := func(ctx context.Context, sites []tenant.Tenant, do func(context.Context, *sql.DB, tenant.Tenant) error) error {
			return every(ctx, sites, workers, func(ctx context.Context, t tenant.Tenant) error {
				pool := <-connections
				defer func() { connections <- pool }()
				if _, err := pool.Exec(ctx, `SELECT set_config('search_path', $1, false)`, t.Target.Scope); err != nil {
					return err
				}
				db := stdlib.OpenDBFromPool(pool)
				defer db.Close()
				return do(ctx, db, t)
			})
		}
		err = run(ctx, w.warm, with.up)
		if err == nil {
			err = run(ctx, k.sites, with.begin)
		}
		if err != nil {
			end()
			return nil, err
		}
		return &trial{
			count: len(k.sites),
			run:   func(ctx context.Context) error { return run(ctx, k.sites, with.up) },
			check: func(ctx context.Context) error { return k.holds(ctx, k.sites, len(k.steps)) },
			close: end,
		}, nil
	}}
}
