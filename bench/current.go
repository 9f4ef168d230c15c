package main

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/belayhq/belay/engine"
	"github.com/belayhq/belay/plan"
	"github.com/belayhq/belay/tenant"
)

// currentWork applies a change to tenants that all have it.
func (w *world) currentWork(tenants int) work {
	return work{
		name: fmt.Sprintf("f: no-op over %d current tenants, 16 workers", tenants), unit: "tenants",
		contenders: []contender{w.rawCurrent(tenants), w.belayCurrent(tenants)},
	}
}

// copyCurrent gives every tenant of an array what one has that was really applied.
const copyCurrent = `
WITH wanted AS (SELECT t AS tenant_id, gen_random_uuid() AS plan_id, n FROM unnest($2::uuid[]) WITH ORDINALITY AS u (t, n)),
locks AS (INSERT INTO belay.site_lock (tenant_id, scope, fence) SELECT tenant_id, 'current ' || n, 1 FROM wanted),
plans AS (INSERT INTO belay.plan (tenant_id, plan_id, change_id, digest, status, outcome, applied_seq, cycle, steps_total, format, created_at, updated_at)
    SELECT w.tenant_id, w.plan_id, p.change_id, p.digest, p.status, p.outcome, p.applied_seq, p.cycle, p.steps_total, p.format, p.created_at, p.updated_at
    FROM wanted w, belay.plan p WHERE p.tenant_id = $1)
INSERT INTO belay.journal SELECT w.tenant_id, w.plan_id, j.ordinal, j.step_id, j.state, j.fence, j.cycle, j.attempt, j.deadline_at, j.updated_at
FROM wanted w, belay.journal j WHERE j.tenant_id = $1`

func (w *world) belayCurrent(tenants int) contender {
	const workers = 16
	k := w.rowTask()
	change := changeOf(k.steps, plan.CheckpointAuto)
	return contender{name: "Belay, ApplyAll", prepare: func(ctx context.Context) (*trial, error) {
		b, err := w.warmBelay(ctx, byDirectory, k, change, workers)
		if err != nil {
			return nil, err
		}
		sites := w.name("c", tenants)
		ids := make([]string, len(sites))
		for i, t := range sites {
			ids[i] = string(t.ID)
		}
		if _, err := w.admin.Exec(ctx, copyCurrent, w.warm[0].ID, ids); err != nil {
			b.close()
			return nil, err
		}
		if err := w.exec(ctx, `ANALYZE belay.site_lock, belay.plan, belay.journal`); err != nil {
			b.close()
			return nil, err
		}
		run := func(ctx context.Context) error {
			return b.apply(ctx, sites, change, workers, engine.VerdictAlreadyApplied)
		}
		return &trial{count: tenants, run: run, close: b.close}, nil
	}}
}

const rawCurrentSQL = `
SELECT p.tenant_id::text, p.status, count(j.ordinal) FROM raw.plan p LEFT JOIN raw.journal j USING (tenant_id, change_id)
WHERE p.tenant_id = ANY ($1::uuid[]) AND p.change_id = $2 GROUP BY 1, 2`

// rawCurrent reads status and steps of a thousand tenants in one statement.
func (w *world) rawCurrent(tenants int) contender {
	return contender{name: "one query a thousand", prepare: func(ctx context.Context) (*trial, error) {
		if err := w.exec(ctx, rawTables+fmt.Sprintf(`
			INSERT INTO raw.plan SELECT gen_random_uuid(), '%[2]s', 'applied' FROM generate_series(1, %[1]d);
			INSERT INTO raw.journal SELECT tenant_id, change_id, n, 'done', 1, now() FROM raw.plan, generate_series(0, 9) n;
			ANALYZE raw.plan, raw.journal;`, tenants, rawChange)); err != nil {
			return nil, err
		}
		rows, err := w.admin.Query(ctx, `SELECT tenant_id::text FROM raw.plan`)
		if err != nil {
			return nil, err
		}
		ids, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			return nil, err
		}
		pool, err := w.pool(ctx, 1, nil)
		if err != nil {
			return nil, err
		}
		run := func(ctx context.Context) error {
			current := 0
			for rest := ids; len(rest) > 0; {
				batch := rest[:min(1000, len(rest))]
				rest = rest[len(batch):]
				rows, err := pool.Query(ctx, rawCurrentSQL, pgx.QueryExecModeCacheStatement, batch, rawChange)
				if err != nil {
					return err
				}
				var id tenant.ID
				var status string
				var steps int
				if _, err := pgx.ForEachRow(rows, []any{&id, &status, &steps}, func() error { current++; return nil }); err != nil {
					return err
				}
			}
			if current != tenants {
				return fmt.Errorf("%d tenants are current, want %d", current, tenants)
			}
			return nil
		}
		return &trial{count: tenants, run: run, close: pool.Close}, nil
	}}
}
