package main

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/sync/errgroup"

	"github.com/belayhq/belay/internal/postgrestest"
	"github.com/belayhq/belay/tenant"
)

// mostWorkers is the largest number of workers that a work may ask for.
const mostWorkers = 64

// settings are those of the private PostgreSQL in which it differs from its defaults. Durability is as it comes: fsync,
// full_page_writes and synchronous_commit are on. No checkpoint and no autovacuum falls into a lap by chance.
var settings = []string{
	"shared_buffers=512MB", "max_connections=300", "max_locks_per_transaction=256", "max_wal_size=8GB",
	"checkpoint_timeout=1h", "autovacuum=off", "log_min_messages=fatal",
}

// counting has the server count its statements, which costs it some time.
var counting = []string{
	"shared_preload_libraries=pg_stat_statements", "pg_stat_statements.track_planning=on",
}

// world is a private PostgreSQL with one schema for each tenant.
type world struct {
	server *postgrestest.Server // it ends when nobody holds this any more
	url    string
	admin  *pgxpool.Pool
	// sites are the tenants that are timed; warm are those that every contender works on before, so that connections,
	// prepared statements and caches are there.
	sites, warm []tenant.Tenant
	version     string
	postmaster  int
}

// newWorld starts PostgreSQL with settings and makes n tenants, each with the table item.
func newWorld(ctx context.Context, n int, settings ...string) (*world, error) {
	server, err := postgrestest.Durable(settings...)
	if err != nil {
		return nil, err
	}
	w := &world{server: server, url: server.SocketURL("postgres")}
	if w.admin, err = pgxpool.New(ctx, w.url); err != nil {
		return nil, err
	}
	if err := w.admin.QueryRow(ctx, `SHOW server_version`).Scan(&w.version); err != nil {
		return nil, err
	}
	if err := w.findPostmaster(ctx); err != nil {
		return nil, err
	}
	if err := w.exec(ctx, `CREATE EXTENSION pg_stat_statements`); err != nil {
		return nil, err
	}
	w.sites, w.warm = w.name("t", n), w.name("w", mostWorkers)
	return w, w.each(w.all(), func(chunk []tenant.Tenant) error {
		return w.script(ctx, chunk, `CREATE SCHEMA %[1]s; CREATE TABLE %[1]s.item (id integer PRIMARY KEY, amount integer NOT NULL);`)
	})
}

// close ends the server; its directory goes with this process.
func (w *world) close() {
	w.admin.Close()
	_ = w.server.Stop(context.Background(), "immediate") // nobody needs what is in it
}

// name makes n tenants whose schemas begin with a letter.
func (w *world) name(letter string, n int) []tenant.Tenant {
	made := make([]tenant.Tenant, n)
	for i := range made {
		schema := fmt.Sprintf("%s%05d", letter, i)
		made[i] = tenant.Tenant{ID: tenant.NewID(), Name: schema, Target: tenant.Target{
			Dialect: tenant.Postgres, Database: w.url, Scope: schema,
		}}
	}
	return made
}

func (w *world) all() []tenant.Tenant { return append(slices.Clip(w.sites), w.warm...) }

// each works on chunks of tenants, several at a time.
func (w *world) each(sites []tenant.Tenant, fn func(chunk []tenant.Tenant) error) error {
	const size = 100
	var group errgroup.Group
	group.SetLimit(4)
	for len(sites) > 0 {
		chunk := sites[:min(size, len(sites))]
		sites = sites[len(chunk):]
		group.Go(func() error { return fn(chunk) })
	}
	return group.Wait()
}

// script runs statements, which name the schema as %[1]s, for every tenant of a chunk.
func (w *world) script(ctx context.Context, chunk []tenant.Tenant, statements string) error {
	var text strings.Builder
	for _, t := range chunk {
		fmt.Fprintf(&text, statements, t.Target.Scope)
	}
	_, err := w.admin.Exec(ctx, text.String(), pgx.QueryExecModeSimpleProtocol)
	return err
}

// empty removes what a lap wrote into the tenants' tables.
func (w *world) empty(ctx context.Context) error {
	return w.each(w.all(), func(chunk []tenant.Tenant) error {
		if err := w.script(ctx, chunk, `DELETE FROM %[1]s.item;`); err != nil {
			return err
		}
		names := make([]string, len(chunk))
		for i, t := range chunk {
			names[i] = t.Target.Scope + ".item"
		}
		_, err := w.admin.Exec(ctx, `VACUUM `+strings.Join(names, ", "), pgx.QueryExecModeSimpleProtocol)
		return err
	})
}

// exec runs statements without parameters.
func (w *world) exec(ctx context.Context, statements string) error {
	_, err := w.admin.Exec(ctx, statements, pgx.QueryExecModeSimpleProtocol)
	return err
}

// holds checks that each of some tenants, spread over all of them, has so many rows.
func (w *world) holds(ctx context.Context, sites []tenant.Tenant, want int) error {
	for i := range 20 {
		t := sites[i*(len(sites)-1)/19]
		var got int
		if err := w.admin.QueryRow(ctx, `SELECT count(*) FROM `+t.Target.Scope+`.item`).Scan(&got); err != nil {
			return err
		}
		if got != want {
			return fmt.Errorf("%s has %d rows, want %d", t.Name, got, want)
		}
	}
	return nil
}

// dropTables removes what a lap made.
func (w *world) dropTables(ctx context.Context, sites []tenant.Tenant, steps []step) error {
	var drops strings.Builder
	for i := range steps {
		fmt.Fprintf(&drops, "DROP TABLE IF EXISTS %%[1]s.made_%d;", i+1)
	}
	err := w.each(append(slices.Clip(sites), w.warm...), func(chunk []tenant.Tenant) error {
		return w.script(ctx, chunk, drops.String())
	})
	if err != nil {
		return err
	}
	// What has been dropped so far would slow the next one down.
	return w.exec(ctx, `VACUUM ANALYZE pg_class, pg_attribute, pg_type, pg_index, pg_constraint, pg_depend, pg_shdepend`)
}

// holdsTables checks that each of some tenants has so many made tables.
func (w *world) holdsTables(ctx context.Context, sites []tenant.Tenant, want int) error {
	for i := range 20 {
		t := sites[i*(len(sites)-1)/19]
		var got int
		const count = `SELECT count(*) FROM pg_tables WHERE schemaname = $1 AND tablename LIKE 'made%'`
		if err := w.admin.QueryRow(ctx, count, t.Target.Scope).Scan(&got); err != nil {
			return err
		}
		if got != want {
			return fmt.Errorf("%s has %d tables, want %d", t.Name, got, want)
		}
	}
	return nil
}

// pool opens so many connections at once. Statements are not prepared unless prepare, if given, does.
func (w *world) pool(ctx context.Context, connections int, prepare func(context.Context, *pgx.Conn) error) (*pgxpool.Pool, error) {
	cfg, err := pgxpool.ParseConfig(w.url)
	if err != nil {
		return nil, err
	}
	cfg.MaxConns = int32(connections)
	cfg.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeExec
	cfg.AfterConnect = prepare
	pool, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		return nil, err
	}
	open := make([]*pgxpool.Conn, 0, connections)
	for range connections {
		conn, acquireErr := pool.Acquire(ctx)
		if err = acquireErr; err != nil {
			break
		}
		open = append(open, conn)
	}
	for _, conn := range open {
		conn.Release()
	}
	return pool, err
}

const topSQL = `
SELECT concat_ws(E'\t', calls, round(total_exec_time::numeric, 1), round((mean_exec_time * 1000)::numeric, 1),
    round((min_exec_time * 1000)::numeric, 1), plans, round(total_plan_time::numeric, 1), wal_records, wal_bytes,
    left(regexp_replace(query, '\s+', ' ', 'g'), 160))
FROM pg_stat_statements
ORDER BY total_exec_time + total_plan_time DESC LIMIT 60`

// statements counts what the server runs, from begin until it is asked to write what it counted.
func (w *world) statements(ctx context.Context, begin bool, path string) error {
	if begin {
		return w.exec(ctx, `SELECT pg_stat_statements_reset()`)
	}
	rows, err := w.admin.Query(ctx, topSQL)
	if err != nil {
		return err
	}
	lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return err
	}
	head := "calls\tms\tµs each\tµs at best\tplans\tms to plan\twal records\twal bytes\tstatement\n"
	return os.WriteFile(path, []byte(head+strings.Join(lines, "\n")+"\n"), 0o644)
}
