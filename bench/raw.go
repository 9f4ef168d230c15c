package main

import (
	"context"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/belayhq/belay/tenant"
)

// The hand-written loop keeps what a program needs that makes the same promises: a fenced lease, a plan with its status
// and a journal row for each step. It has none of what Belay needs because its steps are other people's: no guards
// between steps, no retries, no history.
const rawTables = `
CREATE SCHEMA IF NOT EXISTS raw;
CREATE TABLE IF NOT EXISTS raw.lock (
    tenant_id uuid PRIMARY KEY, fence bigint NOT NULL, holder uuid, expires_at timestamptz NOT NULL,
    UNIQUE (tenant_id, fence));
CREATE TABLE IF NOT EXISTS raw.plan (
    tenant_id uuid NOT NULL, change_id text NOT NULL, status text NOT NULL, claimed_from text, fence bigint,
    PRIMARY KEY (tenant_id, change_id));
CREATE TABLE IF NOT EXISTS raw.journal (
    tenant_id uuid NOT NULL, change_id text NOT NULL, ordinal integer NOT NULL, state text NOT NULL, fence bigint NOT NULL,
    at timestamptz NOT NULL, PRIMARY KEY (tenant_id, change_id, ordinal));
TRUNCATE raw.lock, raw.plan, raw.journal;
-- The proof: it raises, so that in a pipeline nothing behind it takes effect.
CREATE OR REPLACE FUNCTION raw.prove(t uuid, h uuid) RETURNS void LANGUAGE plpgsql AS $$ BEGIN
    PERFORM 1 FROM raw.lock WHERE tenant_id = t AND holder = h FOR KEY SHARE;
    IF NOT FOUND THEN RAISE EXCEPTION 'lock lost'; END IF;
END $$;`

const (
	rawLimits = `SELECT set_config('lock_timeout', '5s', true), set_config('statement_timeout', '60s', true),
		set_config('idle_in_transaction_session_timeout', '30s', true)`
	rawAcquire = `INSERT INTO raw.lock AS l (tenant_id, fence, holder, expires_at)
		VALUES ($1, 1, $2, clock_timestamp() + interval '60 seconds')
		ON CONFLICT (tenant_id) DO UPDATE SET fence = l.fence + 1, holder = $2, expires_at = EXCLUDED.expires_at
		WHERE l.expires_at < clock_timestamp() RETURNING fence`
	rawRecover = `UPDATE raw.plan p SET status = p.claimed_from, claimed_from = NULL, fence = NULL
		FROM raw.lock l WHERE l.tenant_id = $1 AND l.holder = $2 AND p.tenant_id = l.tenant_id AND p.status = 'applying'`
	rawClaim = `INSERT INTO raw.plan AS p (tenant_id, change_id, status, claimed_from, fence)
		SELECT l.tenant_id, $3, 'applying', 'pending', l.fence FROM raw.lock l WHERE l.tenant_id = $1 AND l.holder = $2
		ON CONFLICT (tenant_id, change_id) DO UPDATE SET status = 'applying', claimed_from = p.status, fence = EXCLUDED.fence
		WHERE p.status = 'pending' RETURNING fence`
	rawProve   = `SELECT raw.prove($1, $2)`
	rawPath    = `SELECT set_config('search_path', $1, true)`
	rawJournal = `INSERT INTO raw.journal (tenant_id, change_id, ordinal, state, fence, at)
		SELECT $1, $2, n, 'done', $3, clock_timestamp() FROM generate_series($4::integer, $5::integer) n`
	rawFinish  = `UPDATE raw.plan SET status = 'applied', claimed_from = NULL, fence = NULL WHERE tenant_id = $1 AND change_id = $2 AND fence = $3`
	rawRelease = `UPDATE raw.lock SET holder = NULL, expires_at = '-infinity' WHERE tenant_id = $1 AND holder = $2`
)

// prepareRaw prepares the loop's own statements under their texts. Those of steps differ from plan to plan in life.
func prepareRaw(ctx context.Context, conn *pgx.Conn) error {
	for _, sql := range []string{
		`BEGIN`, `COMMIT`, rawLimits, rawAcquire, rawRecover, rawClaim, rawProve, rawPath, rawJournal, rawFinish, rawRelease,
	} {
		if _, err := conn.Prepare(ctx, sql, sql); err != nil {
			return err
		}
	}
	return nil
}

const rawChange = "0001-items"

// rawApply carries the steps out in one transaction each of groupSize, behind one that takes the lock.
func (w *world) rawApply(name string, k task, groupSize, workers int) contender {
	return contender{name: name, prepare: func(ctx context.Context) (*trial, error) {
		if err := k.empty(ctx); err != nil {
			return nil, err
		}
		if err := w.exec(ctx, rawTables); err != nil {
			return nil, err
		}
		pool, err := w.pool(ctx, workers, prepareRaw)
		if err != nil {
			return nil, err
		}
		run := func(ctx context.Context, sites []tenant.Tenant) error {
			return every(ctx, sites, workers, func(ctx context.Context, t tenant.Tenant) error {
				return rawPlan(ctx, pool, t, k.steps, groupSize)
			})
		}
		if err := run(ctx, w.warm); err != nil {
			pool.Close()
			return nil, err
		}
		return &trial{
			count: len(k.sites),
			run:   func(ctx context.Context) error { return run(ctx, k.sites) },
			check: func(ctx context.Context) error { return k.holds(ctx, k.sites, len(k.steps)) },
			close: pool.Close,
		}, nil
	}}
}

// rawPlan is one plan: each transaction is one round trip.
func rawPlan(ctx context.Context, pool *pgxpool.Pool, t tenant.Tenant, steps []step, groupSize int) error {
	holder := uuid.NewString()
	var fence int64
	acquire := &pgx.Batch{}
	acquire.Queue(`BEGIN`)
	acquire.Queue(rawLimits)
	acquire.Queue(rawAcquire, t.ID, holder)
	acquire.Queue(rawRecover, t.ID, holder)
	acquire.Queue(rawClaim, t.ID, holder, rawChange).QueryRow(func(row pgx.Row) error { return row.Scan(&fence) })
	acquire.Queue(`COMMIT`)
	if err := send(ctx, pool, acquire); err != nil {
		return err
	}
	for first := 0; first < len(steps); first += groupSize {
		end := min(first+groupSize, len(steps))
		group := &pgx.Batch{}
		group.Queue(`BEGIN`)
		group.Queue(rawLimits)
		group.Queue(rawProve, t.ID, holder)
		group.Queue(rawPath, t.Target.Scope)
		for _, s := range steps[first:end] {
			group.Queue(s.up)
		}
		group.Queue(rawJournal, t.ID, rawChange, fence, first, end-1)
		if end == len(steps) {
			group.Queue(rawFinish, t.ID, rawChange, fence)
			group.Queue(rawRelease, t.ID, holder)
		}
		group.Queue(`COMMIT`)
		if err := send(ctx, pool, group); err != nil {
			return err
		}
	}
	return nil
}

func send(ctx context.Context, pool *pgxpool.Pool, batch *pgx.Batch) error {
	conn, err := pool.Acquire(ctx)
	if err != nil {
		return err
	}
	defer conn.Release()
	results := conn.SendBatch(ctx, batch)
	return results.Close()
}
