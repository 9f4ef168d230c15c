package main

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3/lock"
	"golang.org/x/sync/errgroup"

	"github.com/belayhq/belay/sitelock"
	"github.com/belayhq/belay/storage"
	"github.com/belayhq/belay/storage/postgres"
	"github.com/belayhq/belay/tenant"
)

// pairs is how many acquire and release pairs a lap of locks makes.
const pairs = 2000

const lease = time.Minute

// lockWork takes and frees the locks of so many tenants in turn. A contender's workers never meet at one tenant: what is
// measured is the price of a lock, not of waiting.
func (w *world) lockWork(tenants, workers int) work {
	sites := w.name("l", tenants)
	workers = min(workers, tenants)
	return work{
		name: fmt.Sprintf("c: acquire and release, %d tenants, %s", tenants, workersOf(workers)), unit: "pairs",
		contenders: []contender{
			w.rawLocks(sites, workers),
			w.belayLocks(sites, workers),
			w.advisoryLocks(sites, workers),
			w.gooseLocks(sites, workers),
		},
		goals: []goal{{belayLock, rawLease, 0.9}},
	}
}

const (
	rawLease  = "bare upsert lease"
	belayLock = "Belay, Locker"
)

// turns has each worker call fn for tenants that no other worker calls it for, n times in all.
func turns(ctx context.Context, sites []tenant.Tenant, workers, n int, fn func(ctx context.Context, t tenant.Tenant) error) error {
	group, ctx := errgroup.WithContext(ctx)
	for worker := range workers {
		group.Go(func() error {
			for at := worker; at < n; at += workers {
				if err := fn(ctx, sites[at%(len(sites)/workers*workers)]); err != nil {
					return err
				}
			}
			return nil
		})
	}
	return group.Wait()
}

// lockTrial warms a contender up and makes its trial.
func lockTrial(ctx context.Context, sites []tenant.Tenant, workers, count int, end func(), fn func(context.Context, tenant.Tenant) error) (*trial, error) {
	if err := turns(ctx, sites, workers, max(len(sites), 10*workers), fn); err != nil {
		end()
		return nil, err
	}
	return &trial{
		count: count,
		run:   func(ctx context.Context) error { return turns(ctx, sites, workers, count, fn) },
		close: end,
	}, nil
}

func (w *world) belayLocks(sites []tenant.Tenant, workers int) contender {
	return contender{name: belayLock, prepare: func(ctx context.Context) (*trial, error) {
		if err := w.forgetBelay(ctx); err != nil {
			return nil, err
		}
		pool, err := w.pool(ctx, workers, nil)
		if err != nil {
			return nil, err
		}
		store, err := postgres.New(ctx, pool, storage.Options{})
		if err != nil {
			pool.Close()
			return nil, err
		}
		locker, err := sitelock.NewLocker(sitelock.Config{Lease: lease})
		if err == nil {
			err = locker.Start(ctx)
		}
		end := func() { locker.Stop(); store.Close(); pool.Close() }
		if err != nil {
			end()
			return nil, err
		}
		return lockTrial(ctx, sites, workers, pairs, end, func(ctx context.Context, t tenant.Tenant) error {
			held, _, err := locker.Acquire(ctx, store, sitelock.Request{Tenant: t.ID, Scope: t.Target.Scope, Operation: sitelock.OpApply}, 0)
			if err != nil {
				return err
			}
			return held.Release(ctx)
		})
	}}
}

// rawLocks is two statements, each a transaction by itself.
func (w *world) rawLocks(sites []tenant.Tenant, workers int) contender {
	return contender{name: rawLease, prepare: func(ctx context.Context) (*trial, error) {
		if err := w.exec(ctx, rawTables); err != nil {
			return nil, err
		}
		pool, err := w.pool(ctx, workers, prepareRaw)
		if err != nil {
			return nil, err
		}
		return lockTrial(ctx, sites, workers, pairs, pool.Close, func(ctx context.Context, t tenant.Tenant) error {
			holder := uuid.NewString()
			var fence int64
			if err := pool.QueryRow(ctx, rawAcquire, t.ID, holder).Scan(&fence); err != nil {
				return err
			}
			_, err := pool.Exec(ctx, rawRelease, t.ID, holder)
			return err
		})
	}}
}

// advisoryLocks are PostgreSQL's session locks, which write nothing and last as long as their connection.
func (w *world) advisoryLocks(sites []tenant.Tenant, workers int) contender {
	return contender{name: "PostgreSQL's advisory lock", prepare: func(ctx context.Context) (*trial, error) {
		pool, err := w.pool(ctx, workers, nil)
		if err != nil {
			return nil, err
		}
		return lockTrial(ctx, sites, workers, pairs, pool.Close, func(ctx context.Context, t tenant.Tenant) error {
			return pool.AcquireFunc(ctx, func(conn *pgxpool.Conn) error {
				for _, sql := range []string{`SELECT pg_try_advisory_lock($1)`, `SELECT pg_advisory_unlock($1)`} {
					var ok bool
					if err := conn.QueryRow(ctx, sql, pgx.QueryExecModeCacheStatement, lockID(t)).Scan(&ok); err != nil {
						return err
					}
					if !ok {
						return errors.New("advisory lock is not free")
					}
				}
				return nil
			})
		})
	}}
}

// lockID makes a number of a tenant.
func lockID(t tenant.Tenant) int64 {
	hash := fnv.New64a()
	hash.Write([]byte(t.ID))
	return int64(hash.Sum64() >> 1)
}

// gooseLocks are rows of goose's lock table.
func (w *world) gooseLocks(sites []tenant.Tenant, workers int) contender {
	return contender{name: "goose's table lock", prepare: func(ctx context.Context) (*trial, error) {
		pool, err := w.pool(ctx, workers, nil)
		if err != nil {
			return nil, err
		}
		db := stdlib.OpenDBFromPool(pool)
		end := func() { _ = db.Close(); pool.Close() }
		lockers := make(map[tenant.ID]lock.Locker, len(sites))
		for _, t := range sites {
			if lockers[t.ID], err = lock.NewPostgresTableLocker(lock.WithTableLockID(lockID(t)), lock.WithTableHeartbeatInterval(lease)); err != nil {
				end()
				return nil, err
			}
		}
		return lockTrial(ctx, sites, workers, pairs, end, func(ctx context.Context, t tenant.Tenant) error {
			if err := lockers[t.ID].Lock(ctx, db); err != nil {
				return err
			}
			return lockers[t.ID].Unlock(ctx, db)
		})
	}}
}

// renewWork renews so many held locks.
func (w *world) renewWork(locks int) work {
	return work{
		name: fmt.Sprintf("d: renew %d held locks", locks), unit: "locks",
		contenders: []contender{w.rawRenewal(locks), w.belayRenewal(locks)},
	}
}

// fillLocks makes rows of held locks, as they are after so many acquires.
const fillLocks = `INSERT INTO belay.site_lock (tenant_id, scope, fence, holder, operation, expires_at)
	SELECT gen_random_uuid(), n::text, n, gen_random_uuid(), 'apply', belay.now_ms() + 60000 FROM generate_series(1, $1::integer) n`

func (w *world) held(ctx context.Context, locks int) ([]sitelock.Held, error) {
	if err := w.forgetBelay(ctx); err != nil {
		return nil, err
	}
	if _, err := w.admin.Exec(ctx, fillLocks, locks); err != nil {
		return nil, err
	}
	rows, err := w.admin.Query(ctx, `SELECT tenant_id::text, holder::text, fence FROM belay.site_lock`)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowToStructByPos[sitelock.Held])
}

func (w *world) belayRenewal(locks int) contender {
	return contender{name: "Belay, Renew", prepare: func(ctx context.Context) (*trial, error) {
		pool, err := w.pool(ctx, 1, nil)
		if err != nil {
			return nil, err
		}
		store, err := postgres.New(ctx, pool, storage.Options{})
		if err != nil {
			pool.Close()
			return nil, err
		}
		end := func() { store.Close(); pool.Close() }
		renew := func(context.Context) error { return err }
		if _, _, err = store.Migrate(ctx); err == nil {
			var held []sitelock.Held
			held, err = w.held(ctx, locks)
			renew = func(ctx context.Context) error {
				lost, err := store.Renew(ctx, held, lease)
				if len(lost) > 0 {
					return fmt.Errorf("%d locks are lost", len(lost))
				}
				return err
			}
		}
		if err := renew(ctx); err != nil {
			end()
			return nil, err
		}
		return &trial{count: locks, run: renew, close: end}, nil
	}}
}

const rawRenew = `UPDATE raw.lock l SET expires_at = clock_timestamp() + interval '60 seconds'
	FROM unnest($1::uuid[], $2::uuid[], $3::bigint[]) AS w (tenant_id, holder, fence)
	WHERE l.tenant_id = w.tenant_id AND l.holder = w.holder AND l.fence = w.fence`

// rawRenewal is one statement, which waits for rows that are locked.
func (w *world) rawRenewal(locks int) contender {
	return contender{name: "one update", prepare: func(ctx context.Context) (*trial, error) {
		if err := w.exec(ctx, rawTables+fmt.Sprintf(`INSERT INTO raw.lock SELECT gen_random_uuid(), n, gen_random_uuid(), clock_timestamp()
			FROM generate_series(1, %d) n;`, locks)); err != nil {
			return nil, err
		}
		tenants, holders, fences := make([]string, locks), make([]string, locks), make([]int64, locks)
		rows, err := w.admin.Query(ctx, `SELECT tenant_id::text, holder::text, fence FROM raw.lock`)
		if err != nil {
			return nil, err
		}
		n := 0
		var h sitelock.Held
		if _, err := pgx.ForEachRow(rows, []any{&h.Tenant, &h.Holder, &h.Fence}, func() error {
			tenants[n], holders[n], fences[n] = string(h.Tenant), string(h.Holder), int64(h.Fence)
			n++
			return nil
		}); err != nil {
			return nil, err
		}
		pool, err := w.pool(ctx, 1, nil)
		if err != nil {
			return nil, err
		}
		renew := func(ctx context.Context) error {
			tag, err := pool.Exec(ctx, rawRenew, pgx.QueryExecModeCacheStatement, tenants, holders, fences)
			if err == nil && tag.RowsAffected() != int64(locks) {
				err = fmt.Errorf("%d locks are renewed, want %d", tag.RowsAffected(), locks)
			}
			return err
		}
		if err := renew(ctx); err != nil {
			pool.Close()
			return nil, err
		}
		return &trial{count: locks, run: renew, close: pool.Close}, nil
	}}
}
