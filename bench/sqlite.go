package main

import (
	"context"
	"database/sql"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/google/uuid"
	_ "github.com/mattn/go-sqlite3" // the hand-written loop's driver

	"github.com/belayhq/belay/engine"
	"github.com/belayhq/belay/plan"
	"github.com/belayhq/belay/storage"
	"github.com/belayhq/belay/storage/sqlite"
	"github.com/belayhq/belay/tenant"
)

// files are tenants with a SQLite file each.
type files struct {
	dir         string
	sites, warm []tenant.Tenant
}

func newFiles(n int) (*files, error) {
	dir, err := os.MkdirTemp("", "belay-bench-")
	if err != nil {
		return nil, err
	}
	f := &files{dir: dir}
	for i := range n + 20 {
		name := fmt.Sprintf("t%05d", i)
		t := tenant.Tenant{ID: tenant.NewID(), Name: name, Target: tenant.Target{
			Dialect: tenant.SQLite, Database: filepath.Join(dir, name+".db"),
		}}
		if i < n {
			f.sites = append(f.sites, t)
		} else {
			f.warm = append(f.warm, t)
		}
	}
	return f, nil
}

func (f *files) close() { _ = os.RemoveAll(f.dir) } // a directory for temporary files is emptied by others, too

// sqliteDSN opens a file as durably as Belay does.
const sqliteDSN = "file:%s?mode=rwc&_journal_mode=WAL&_synchronous=FULL&_busy_timeout=5000&_txlock=immediate"

func openFile(t tenant.Tenant) (*sql.DB, error) {
	db, err := sql.Open("sqlite3", fmt.Sprintf(sqliteDSN, t.Target.Database))
	if err != nil {
		return nil, err
	}
	db.SetMaxOpenConns(1)
	return db, nil
}

// empty makes every file anew, with bookkeeping tables if there are any.
func (f *files) empty(ctx context.Context, bookkeeping string) error {
	all := append(slices.Clip(f.sites), f.warm...)
	return every(ctx, all, 4, func(ctx context.Context, t tenant.Tenant) error {
		for _, suffix := range []string{"", "-wal", "-shm"} {
			if err := os.Remove(t.Target.Database + suffix); err != nil && !os.IsNotExist(err) {
				return err
			}
		}
		db, err := openFile(t)
		if err != nil {
			return err
		}
		defer db.Close()
		_, err = db.ExecContext(ctx, `CREATE TABLE item (id INTEGER PRIMARY KEY, amount INTEGER NOT NULL) STRICT;`+bookkeeping)
		return err
	})
}

func (f *files) holds(ctx context.Context, want int) error {
	for _, t := range f.sites {
		db, err := openFile(t)
		if err != nil {
			return err
		}
		var got int
		err = db.QueryRowContext(ctx, `SELECT count(*) FROM item`).Scan(&got)
		if closeErr := db.Close(); err == nil {
			err = closeErr
		}
		if err == nil && got != want {
			err = fmt.Errorf("%s has %d rows, want %d", t.Name, got, want)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// work is ten steps, each of which writes a row, on every file.
func (f *files) work(workers int) work {
	steps := rowSteps(10)
	return work{
		name: fmt.Sprintf("a, SQLite: 10 row steps, %d files, %s", len(f.sites), workersOf(workers)), unit: "tenants",
		contenders: []contender{
			f.raw(sqliteTwo, steps, len(steps), workers),
			f.belay(belayAuto, steps, plan.CheckpointAuto, workers),
			f.raw(sqliteEach, steps, 1, workers),
			f.belay(belayStep, steps, plan.CheckpointStep, workers),
			f.goose(steps, workers),
			f.migrate(steps, workers),
		},
		goals: []goal{{belayAuto, sqliteTwo, 0.8}, {belayStep, sqliteEach, 0.9}},
	}
}

const sqliteTwo, sqliteEach = "loop, two commits", "loop, a commit per step"

func (f *files) belay(name string, steps []step, checkpoint plan.Checkpointing, workers int) contender {
	change := changeOf(steps, checkpoint)
	return contender{name: name, prepare: func(ctx context.Context) (*trial, error) {
		if err := f.empty(ctx, ""); err != nil {
			return nil, err
		}
		b, err := openBelay(ctx, func(context.Context, int) (engine.Directory, func(), error) {
			d, err := storage.NewDirectory(storage.DirectoryConfig{Connections: max(4, 2*workers)}, sqlite.Driver())
			if err != nil {
				return nil, nil, err
			}
			return d, d.Close, nil
		}, workers)
		if err != nil {
			return nil, err
		}
		// Belay's own tables are made once in a file's life, and are not part of a plan.
		seed := changeOf([]step{{up: "SELECT 1", down: "SELECT 1"}}, plan.CheckpointAuto)
		seed.ID = "0000-seed"
		err = b.apply(ctx, append(slices.Clip(f.sites), f.warm...), seed, workers, engine.VerdictApplied)
		if err == nil {
			err = b.apply(ctx, f.warm, change, workers, engine.VerdictApplied)
		}
		if err != nil {
			b.close()
			return nil, err
		}
		return &trial{
			count: len(f.sites),
			run:   func(ctx context.Context) error { return b.apply(ctx, f.sites, change, workers, engine.VerdictApplied) },
			check: func(ctx context.Context) error { return f.holds(ctx, len(steps)) },
			close: b.close,
		}, nil
	}}
}

const sqliteTables = `
CREATE TABLE raw_lock (tenant_id TEXT PRIMARY KEY, fence INTEGER NOT NULL, holder TEXT, expires_at INTEGER NOT NULL) STRICT;
CREATE TABLE raw_plan (change_id TEXT PRIMARY KEY, status TEXT NOT NULL, claimed_from TEXT, fence INTEGER) STRICT;
CREATE TABLE raw_journal (change_id TEXT, ordinal INTEGER, state TEXT NOT NULL, fence INTEGER NOT NULL, at INTEGER NOT NULL,
    PRIMARY KEY (change_id, ordinal)) STRICT, WITHOUT ROWID;`

// recovers is the one statement of the loop that may find no row.
const recovers = `UPDATE raw_plan SET status = claimed_from, claimed_from = NULL, fence = NULL`

// raw opens a file, carries the steps out in groups behind a transaction that takes the lock, and closes it again.
func (f *files) raw(name string, steps []step, groupSize, workers int) contender {
	return contender{name: name, prepare: func(ctx context.Context) (*trial, error) {
		if err := f.empty(ctx, sqliteTables); err != nil {
			return nil, err
		}
		run := func(ctx context.Context) error {
			return every(ctx, f.sites, workers, func(ctx context.Context, t tenant.Tenant) error {
				return sqlitePlan(ctx, t, steps, groupSize)
			})
		}
		return &trial{
			count: len(f.sites), run: run, close: func() {},
			check: func(ctx context.Context) error { return f.holds(ctx, len(steps)) },
		}, nil
	}}
}

func sqlitePlan(ctx context.Context, t tenant.Tenant, steps []step, groupSize int) (err error) {
	db, err := openFile(t)
	if err != nil {
		return err
	}
	defer func() {
		if closeErr := db.Close(); err == nil {
			err = closeErr
		}
	}()
	holder := uuid.NewString()
	err = inTransaction(ctx, db, func(exec func(sql string, args ...any) error) error {
		if err := exec(`INSERT INTO raw_lock VALUES (?, 1, ?, unixepoch() + 60) ON CONFLICT (tenant_id) DO UPDATE
			SET fence = fence + 1, holder = excluded.holder, expires_at = excluded.expires_at WHERE expires_at < unixepoch()`, t.ID, holder); err != nil {
			return err
		}
		if err := exec(recovers + ` WHERE status = 'applying'`); err != nil {
			return err
		}
		return exec(`INSERT INTO raw_plan SELECT ?, 'applying', 'pending', fence FROM raw_lock WHERE holder = ?
			ON CONFLICT DO UPDATE SET status = 'applying', claimed_from = status, fence = excluded.fence WHERE status = 'pending'`, rawChange, holder)
	})
	for first := 0; err == nil && first < len(steps); first += groupSize {
		end := min(first+groupSize, len(steps))
		err = inTransaction(ctx, db, func(exec func(sql string, args ...any) error) error {
			if err := exec(`UPDATE raw_lock SET fence = fence WHERE holder = ?`, holder); err != nil {
				return err
			}
			for i, s := range steps[first:end] {
				if err := exec(s.up); err != nil {
					return err
				}
				if err := exec(`INSERT INTO raw_journal SELECT ?, ?, 'done', fence, unixepoch() FROM raw_lock`, rawChange, first+i); err != nil {
					return err
				}
			}
			if end < len(steps) {
				return nil
			}
			if err := exec(`UPDATE raw_plan SET status = 'applied', claimed_from = NULL, fence = NULL WHERE change_id = ?`, rawChange); err != nil {
				return err
			}
			return exec(`UPDATE raw_lock SET holder = NULL, expires_at = 0 WHERE holder = ?`, holder)
		})
	}
	return err
}

// inTransaction runs the statements of body in one transaction.
func inTransaction(ctx context.Context, db *sql.DB, body func(exec func(sql string, args ...any) error) error) error {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	err = body(func(sql string, args ...any) error {
		result, err := tx.ExecContext(ctx, sql, args...)
		if err != nil {
			return err
		}
		if n, err := result.RowsAffected(); err != nil || n > 1 || n == 0 && !strings.HasPrefix(sql, recovers) {
			return fmt.Errorf("%d rows instead of one: %s, %w", n, sql, err)
		}
		return nil
	})
	if err != nil {
		_ = tx.Rollback() // the first error is the one that counts
		return err
	}
	return tx.Commit()
}
