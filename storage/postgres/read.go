package postgres

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/belayhq/belay/engine"
	"github.com/belayhq/belay/plan"
	"github.com/belayhq/belay/sitelock"
	"github.com/belayhq/belay/tenant"
)

// indexesSQL keeps the planner, which knows nothing of tables that have grown and were not analysed yet, on the indexes
// that every statement over arrays has.
const indexesSQL = `SELECT pg_catalog.set_config('enable_seqscan', 'off', true)`

// planColumns are those of a plan p, in the order of readPlans.
const planColumns = `p.plan_id::text, p.tenant_id::text, p.change_id, p.digest, p.status, COALESCE(p.claimed_from, ''),
    COALESCE(p.fence, 0), p.outcome, p.attempts, COALESCE(p.applied_seq, 0), p.cycle, p.steps_total, p.format,
    COALESCE(p.last_error, ''), p.created_at, p.updated_at`

func readPlans(rows pgx.Rows, plans *[]plan.Plan) error {
	for rows.Next() {
		var p plan.Plan
		var failure string
		var created, updated int64
		if err := rows.Scan(&p.ID, &p.Tenant, &p.Change, &p.Digest, &p.Status, &p.ClaimedFrom, &p.Fence, &p.Outcome,
			&p.Attempts, &p.AppliedSeq, &p.Cycle, &p.StepsTotal, &p.Format, &failure, &created, &updated); err != nil {
			return err
		}
		var err error
		if p.LastError, err = decodeFailure(failure); err != nil {
			return err
		}
		p.CreatedAt, p.UpdatedAt = timeOf(created), timeOf(updated)
		*plans = append(*plans, p)
	}
	return nil
}

func decodeFailure(text string) (*plan.Failure, error) {
	if text == "" {
		return nil, nil
	}
	var f plan.Failure
	if err := json.Unmarshal([]byte(text), &f); err != nil {
		return nil, fmt.Errorf("decode failure: %w", err)
	}
	return &f, nil
}

// journalColumns are those of a journal row j, in the order of readEntries. Whether its effect may still be running is
// for the reader to judge, who is not its holder.
const journalColumns = `j.ordinal, j.step_id, j.state, j.fence, j.cycle, j.attempt,
    CASE WHEN j.state IN ('intent', 'undo_intent') THEN GREATEST(j.deadline_at - belay.now_ms(), 0) ELSE 0 END,
    j.updated_at, j.plan_id::text`

func readEntries(rows pgx.Rows, fn func(plan.ID, plan.Entry)) error {
	for rows.Next() {
		var e plan.Entry
		var of plan.ID
		var left, updated int64
		if err := rows.Scan(&e.Ordinal, &e.Step, &e.State, &e.Fence, &e.Cycle, &e.Attempt, &left, &updated, &of); err != nil {
			return err
		}
		e.WaitLeft, e.UpdatedAt = time.Duration(left)*time.Millisecond, timeOf(updated)
		fn(of, e)
	}
	return nil
}

const plansSQL = `
SELECT ` + planColumns + ` FROM belay.plan p WHERE p.tenant_id = $1::uuid
ORDER BY p.applied_seq NULLS LAST, p.created_at, p.plan_id`

const journalsSQL = `
SELECT ` + journalColumns + ` FROM belay.journal j WHERE j.tenant_id = $1::uuid ORDER BY j.plan_id, j.ordinal`

// Records implements [engine.Store].
func (s *Store) Records(ctx context.Context, id tenant.ID) ([]plan.Record, error) {
	var found records
	err := s.read(ctx, func(tx *transaction) error {
		found = records{}
		tx.ask(plansSQL, found.readPlans, id)
		tx.ask(journalsSQL, found.readJournal, id)
		return tx.commit(ctx)
	})
	if err != nil {
		return nil, fmt.Errorf("read plans: %w", err)
	}
	return found.list, nil
}

// records puts plans and their journals together.
type records struct {
	list []plan.Record
	at   map[plan.ID]int
}

func (r *records) readPlans(rows pgx.Rows) error {
	var plans []plan.Plan
	if err := readPlans(rows, &plans); err != nil {
		return err
	}
	r.at = make(map[plan.ID]int, len(plans))
	for i, p := range plans {
		r.at[p.ID] = i
		r.list = append(r.list, plan.Record{Plan: p})
	}
	return nil
}

func (r *records) readJournal(rows pgx.Rows) error {
	return readEntries(rows, func(of plan.ID, e plan.Entry) {
		if i, ok := r.at[of]; ok {
			r.list[i].Journal = append(r.list[i].Journal, e)
		}
	})
}

const changeSQL = `SELECT digest, body FROM belay.change WHERE digest = $1::text`

// Change implements [engine.Store].
func (s *Store) Change(ctx context.Context, digest plan.Digest) (*plan.Change, error) {
	change, err := s.change(ctx, changeSQL, digest)
	if err != nil {
		return nil, fmt.Errorf("read change %s: %w", digest.Short(), err)
	}
	return change, nil
}

// change reads one stored change.
func (s *Store) change(ctx context.Context, sql string, arg any) (*plan.Change, error) {
	var digest plan.Digest
	var body []byte
	err := s.read(ctx, func(tx *transaction) error {
		tx.one(sql, []any{arg}, &digest, &body)
		return tx.commit(ctx)
	})
	switch {
	case err != nil:
		return nil, err
	case digest == "":
		return nil, engine.ErrChangeUnknown
	}
	return plan.DecodeStored(digest, body)
}

// The reads of a survey look each tenant up by itself: as a join the planner may read whole tables.
const (
	surveyLocksSQL = `
SELECT l.* FROM unnest($1::uuid[]) WITH ORDINALITY AS w (tenant_id, place)
CROSS JOIN LATERAL (
    SELECT ` + stateColumns + `
    FROM belay.site_lock l WHERE l.tenant_id = w.tenant_id OFFSET 0) l
ORDER BY w.place`

	surveyPlansSQL = `
SELECT p.* FROM unnest($1::uuid[]) WITH ORDINALITY AS w (tenant_id, place)
CROSS JOIN LATERAL (
    SELECT ` + planColumns + ` FROM belay.plan p
    WHERE p.tenant_id = w.tenant_id AND ` + surveyed + `
    ORDER BY p.applied_seq NULLS LAST, p.created_at, p.plan_id OFFSET 0) p
ORDER BY w.place`

	surveyJournalsSQL = `
SELECT j.* FROM unnest($1::uuid[]) AS w (tenant_id)
CROSS JOIN LATERAL (
    SELECT p.tenant_id, p.plan_id FROM belay.plan p WHERE p.tenant_id = w.tenant_id AND ` + surveyed + ` OFFSET 0) p
CROSS JOIN LATERAL (
    SELECT ` + journalColumns + ` FROM belay.journal j
    WHERE j.tenant_id = p.tenant_id AND j.plan_id = p.plan_id ORDER BY j.ordinal OFFSET 0) j`

	// surveyed is what a survey of one change reads: its plan, and those that may be partial or are in flight.
	surveyed = `($2::text = '' OR p.change_id = $2::text OR ` + inFlight + ` OR ` + unsettled + `)`
)

// Survey implements [engine.Store].
func (s *Store) Survey(ctx context.Context, ids []tenant.ID, change string) ([]engine.Survey, error) {
	texts := make([]string, len(ids))
	for i, id := range ids {
		texts[i] = string(id)
	}
	var locks map[tenant.ID]sitelock.State
	var found records
	err := s.read(ctx, func(tx *transaction) error {
		locks, found = make(map[tenant.ID]sitelock.State, len(ids)), records{}
		tx.own(indexesSQL)
		tx.ask(surveyLocksSQL, func(rows pgx.Rows) error {
			for rows.Next() {
				var state sitelock.State
				var id tenant.ID
				if err := scanState(rows, &state, &id); err != nil {
					return err
				}
				locks[id] = state
			}
			return nil
		}, texts)
		tx.ask(surveyPlansSQL, found.readPlans, texts, change)
		tx.ask(surveyJournalsSQL, found.readJournal, texts, change)
		return tx.commit(ctx)
	})
	if err != nil {
		return nil, fmt.Errorf("survey: %w", err)
	}
	byTenant := make(map[tenant.ID][]plan.Record)
	for _, r := range found.list {
		if r.Plan.InFlight() {
			state := locks[r.Plan.Tenant]
			state.InFlight = append(state.InFlight, r.Plan)
			locks[r.Plan.Tenant] = state
		}
		if change == "" || r.Plan.Change == change || r.Partial() {
			byTenant[r.Plan.Tenant] = append(byTenant[r.Plan.Tenant], r)
		}
	}
	surveys := make([]engine.Survey, len(ids))
	for i, id := range ids {
		surveys[i] = engine.Survey{Tenant: id, Lock: locks[id], Records: byTenant[id]}
	}
	return surveys, nil
}

const imageSQL = `
SELECT body, checksum FROM belay.before_image
WHERE tenant_id = $1::uuid AND plan_id = $2::uuid AND ordinal = $3::integer ORDER BY part`

// Image implements [engine.Store].
func (s *Store) Image(ctx context.Context, id tenant.ID, p plan.ID, ordinal int) ([]byte, error) {
	var image []byte
	err := s.read(ctx, func(tx *transaction) error {
		image = nil
		tx.ask(imageSQL, func(rows pgx.Rows) error {
			for rows.Next() {
				var body, checksum []byte
				if err := rows.Scan(&body, &checksum); err != nil {
					return err
				}
				if sum := sha256.Sum256(body); !bytes.Equal(sum[:], checksum) {
					return engine.ErrImageDamaged
				}
				image = append(append([]byte{}, image...), body...)
			}
			return nil
		}, id, p, ordinal)
		return tx.commit(ctx)
	})
	if err != nil {
		return nil, fmt.Errorf("read before-image of step %d: %w", ordinal, err)
	}
	return image, nil
}

const eventsSQL = `
SELECT e.seq, e.at, e.fence, COALESCE(e.plan_id::text, ''), e.change_id, e.kind, e.status_from, e.status_to, e.outcome,
    e.operation, COALESCE(e.holder::text, ''), e.host, e.pid, e.reason, COALESCE(e.failure, '')
FROM belay.event e WHERE e.tenant_id = $1::uuid ORDER BY e.seq DESC LIMIT $2::integer`

// Events implements [engine.Store].
func (s *Store) Events(ctx context.Context, id tenant.ID, limit int) ([]engine.Event, error) {
	var events []engine.Event
	err := s.read(ctx, func(tx *transaction) error {
		events = nil
		tx.ask(eventsSQL, func(rows pgx.Rows) error {
			for rows.Next() {
				var e engine.Event
				var at int64
				var failure string
				if err := rows.Scan(&e.Seq, &at, &e.Fence, &e.Plan, &e.Change, &e.Kind, &e.From, &e.To, &e.Outcome,
					&e.Operation, &e.Holder, &e.Host, &e.PID, &e.Reason, &failure); err != nil {
					return err
				}
				var err error
				if e.Failure, err = decodeFailure(failure); err != nil {
					return err
				}
				e.At = timeOf(at)
				events = append(events, e)
			}
			return nil
		}, id, max(0, limit))
		return tx.commit(ctx)
	})
	if err != nil {
		return nil, fmt.Errorf("read events: %w", err)
	}
	return events, nil
}
