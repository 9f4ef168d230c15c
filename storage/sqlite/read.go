package sqlite

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"time"

	"github.com/belayhq/belay/engine"
	"github.com/belayhq/belay/plan"
	"github.com/belayhq/belay/sitelock"
	"github.com/belayhq/belay/tenant"
)

// read runs fn on one snapshot of the file. It does nothing where Belay's tables are not there: such a file was never
// used.
func (s *Store) read(ctx context.Context, fn func(ctx context.Context, tx session) error) error {
	made, err := s.made(ctx)
	if err != nil || !made {
		return err
	}
	return s.snapshot(ctx, fn)
}

// snapshotSQL is what makes a read transaction look at the file, and so the only part of it that can find the file busy:
// while a process recovers it after a crash.
const snapshotSQL = `SELECT count(*) FROM sqlite_schema WHERE type = ''`

// snapshot runs fn in a read transaction: on the connection that writes, if it is free, rather than on another. As in a
// transaction that writes, the context that fn gets is never cancelled: reads are short, and an interruption that comes late
// would hit the next statement on the connection.
func (s *Store) snapshot(ctx context.Context, fn func(ctx context.Context, tx session) error) error {
	pool := s.reader
	if s.turn.TryAcquire(1) {
		defer s.turn.Release(1)
		pool = s.writer
	}
	own := context.WithoutCancel(ctx)
	var tx session
	err := patiently(ctx, nil, func() (err error) {
		if err := ctx.Err(); err != nil {
			return context.Cause(ctx)
		}
		if tx.connection, err = pool.Conn(own); err != nil {
			return translate(err)
		}
		if _, err = tx.exec(own, "BEGIN"); err == nil {
			_, err = tx.query(own, snapshotSQL)
		}
		if err != nil {
			tx.end(own)
		}
		return err
	})
	if err != nil {
		return err
	}
	defer tx.end(own)
	return translate(fn(own, tx))
}

// end ends a read transaction, which has nothing to commit, and gives the connection back.
func (s session) end(ctx context.Context) {
	if _, err := s.exec(ctx, "ROLLBACK"); err != nil {
		_ = s.native(func(c *conn) error { c.broken = true; return nil })
	}
	_ = s.connection.Close() // a broken connection is closed for good
}

// planColumns are those of a plan p, in the order of scanPlans.
const planColumns = `p.tenant_id, p.plan_id, p.change_id, p.digest, p.status, COALESCE(p.claimed_from, ''), COALESCE(p.fence, 0),
    p.outcome, p.attempts, COALESCE(p.applied_seq, 0), p.cycle, p.steps_total, p.format, p.last_error, p.created_at, p.updated_at`

// scanPlans reads rows of planColumns, and closes them.
func scanPlans(rows *rows, err error) ([]plan.Plan, error) {
	if err != nil {
		return nil, err
	}
	var plans []plan.Plan
	for rows.Next() {
		var p plan.Plan
		var failure string
		var created, updated int64
		if err := rows.Scan(&p.Tenant, &p.ID, &p.Change, &p.Digest, &p.Status, &p.ClaimedFrom, &p.Fence, &p.Outcome, &p.Attempts,
			&p.AppliedSeq, &p.Cycle, &p.StepsTotal, &p.Format, &failure, &created, &updated); err != nil {
			return nil, err
		}
		if p.LastError, err = decodeFailure(failure); err != nil {
			return nil, err
		}
		p.CreatedAt, p.UpdatedAt = timeOf(created), timeOf(updated)
		plans = append(plans, p)
	}
	return plans, nil
}

// journalColumns are those of a journal row j, in the order of scanEntries.
const journalColumns = `j.tenant_id, j.plan_id, j.ordinal, j.step_id, j.state, j.fence, j.cycle, j.attempt,
    CASE WHEN j.state IN ('intent', 'undo_intent') THEN max(0, j.deadline_at - ` + now + `) ELSE 0 END, j.updated_at`

// entry is a journal row with the plan it belongs to.
type entry struct {
	tenant tenant.ID
	plan   plan.ID
	plan.Entry
}

// scanEntries reads rows of journalColumns, and closes them. Nobody waits for what was begun under the fence mine.
func scanEntries(rows *rows, err error, mine sitelock.Fence) ([]entry, error) {
	if err != nil {
		return nil, err
	}
	var entries []entry
	for rows.Next() {
		var e entry
		var wait, updated int64
		if err := rows.Scan(&e.tenant, &e.plan, &e.Ordinal, &e.Step, &e.State, &e.Fence, &e.Cycle, &e.Attempt, &wait, &updated); err != nil {
			return nil, err
		}
		if e.Fence != mine {
			e.WaitLeft = time.Duration(wait) * time.Millisecond
		}
		e.UpdatedAt = timeOf(updated)
		entries = append(entries, e)
	}
	return entries, nil
}

const plansSQL = `
SELECT ` + planColumns + ` FROM belay_plan AS p WHERE tenant_id = ? ORDER BY applied_seq NULLS LAST, created_at, plan_id`

const journalsSQL = `SELECT ` + journalColumns + ` FROM belay_journal AS j WHERE tenant_id = ? ORDER BY plan_id, ordinal`

// Records reads all plans of a tenant with their journals.
func (s *Store) Records(ctx context.Context, id tenant.ID) ([]plan.Record, error) {
	var records []plan.Record
	err := s.read(ctx, func(ctx context.Context, tx session) error {
		plans, err := scanPlans(tx.query(ctx, plansSQL, id))
		if err != nil {
			return err
		}
		rows, err := tx.query(ctx, journalsSQL, id)
		entries, err := scanEntries(rows, err, 0)
		if err != nil {
			return err
		}
		records = join(plans, entries)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read plans: %w", err)
	}
	return records, nil
}

// join puts journal rows, which are in order, with their plans.
func join(plans []plan.Plan, entries []entry) []plan.Record {
	journals := make(map[plan.ID][]plan.Entry)
	for _, e := range entries {
		journals[e.plan] = append(journals[e.plan], e.Entry)
	}
	records := make([]plan.Record, len(plans))
	for i, p := range plans {
		records[i] = plan.Record{Plan: p, Journal: journals[p.ID]}
	}
	return records
}

const changeSQL = `SELECT body FROM belay_change WHERE digest = ?`

// Change reads a change by digest.
func (s *Store) Change(ctx context.Context, digest plan.Digest) (*plan.Change, error) {
	var change *plan.Change
	err := s.read(ctx, func(ctx context.Context, tx session) error {
		var body []byte
		if err := tx.row(ctx, changeSQL, digest).Scan(&body); err != nil {
			return found(err, engine.ErrChangeUnknown)
		}
		var err error
		change, err = plan.DecodeStored(digest, body)
		return err
	})
	if err == nil && change == nil {
		err = engine.ErrChangeUnknown
	}
	if err != nil {
		return nil, fmt.Errorf("read change %s: %w", digest.Short(), err)
	}
	return change, nil
}

// surveyed says which plans a survey reads: all, or those for one change, those that may be partial, and, for the lock,
// those in flight.
const surveyed = `(?2 = '' OR p.change_id = ?2 OR ` + inFlight + ` OR ` + unsettled + `)`

const surveyPlansSQL = `
SELECT ` + planColumns + ` FROM json_each(?1) AS ids CROSS JOIN belay_plan AS p ON p.tenant_id = ids.value
WHERE ` + surveyed + ` ORDER BY p.tenant_id, p.applied_seq NULLS LAST, p.created_at, p.plan_id`

const surveyJournalsSQL = `
SELECT ` + journalColumns + ` FROM json_each(?1) AS ids CROSS JOIN belay_plan AS p ON p.tenant_id = ids.value
CROSS JOIN belay_journal AS j ON j.tenant_id = p.tenant_id AND j.plan_id = p.plan_id
WHERE ` + surveyed + ` ORDER BY j.tenant_id, j.plan_id, j.ordinal`

// Survey reads locks, plans and journals of many tenants in at most three queries on one snapshot.
func (s *Store) Survey(ctx context.Context, ids []tenant.ID, change string) ([]engine.Survey, error) {
	surveys := make([]engine.Survey, len(ids))
	for i, id := range ids {
		surveys[i].Tenant = id
	}
	if len(ids) == 0 {
		return surveys, nil
	}
	err := s.read(ctx, func(ctx context.Context, tx session) error {
		keys := encode(ids)
		states, err := lockStates(ctx, tx, keys)
		if err != nil {
			return err
		}
		plans, err := scanPlans(tx.query(ctx, surveyPlansSQL, keys, change))
		if err != nil {
			return err
		}
		var entries []entry
		if len(plans) > 0 {
			rows, err := tx.query(ctx, surveyJournalsSQL, keys, change)
			if entries, err = scanEntries(rows, err, 0); err != nil {
				return err
			}
		}
		records := make(map[tenant.ID][]plan.Record)
		for _, r := range join(plans, entries) {
			records[r.Plan.Tenant] = append(records[r.Plan.Tenant], r)
		}
		for i, id := range ids {
			surveys[i].Lock = states[id]
			for _, r := range records[id] {
				if r.Plan.InFlight() {
					surveys[i].Lock.InFlight = append(surveys[i].Lock.InFlight, r.Plan)
				}
				if change == "" || r.Plan.Change == change || r.Partial() {
					surveys[i].Records = append(surveys[i].Records, r)
				}
			}
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("survey: %w", err)
	}
	return surveys, nil
}

const imageSQL = `
SELECT body, checksum FROM belay_before_image WHERE tenant_id = ? AND plan_id = ? AND ordinal = ? ORDER BY part`

// Image reads the before-image of a step.
func (s *Store) Image(ctx context.Context, id tenant.ID, p plan.ID, ordinal int) ([]byte, error) {
	var image []byte
	err := s.read(ctx, func(ctx context.Context, tx session) error {
		rows, err := tx.query(ctx, imageSQL, id, p, ordinal)
		if err != nil {
			return err
		}
		for rows.Next() {
			var body, checksum []byte
			if err := rows.Scan(&body, &checksum); err != nil {
				return err
			}
			if sum := sha256.Sum256(body); !bytes.Equal(sum[:], checksum) {
				return engine.ErrImageDamaged
			}
			if image = append(image, body...); image == nil {
				image = []byte{} // an empty image is one
			}
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read before-image of step %d: %w", ordinal, err)
	}
	return image, nil
}

const eventsSQL = `
SELECT seq, at, fence, COALESCE(plan_id, ''), change_id, kind, status_from, status_to, outcome, operation, COALESCE(holder, ''),
    host, pid, reason, failure
FROM belay_event WHERE tenant_id = ? ORDER BY seq DESC LIMIT ?`

// Events reads a tenant's history, newest first.
func (s *Store) Events(ctx context.Context, id tenant.ID, limit int) ([]engine.Event, error) {
	var events []engine.Event
	err := s.read(ctx, func(ctx context.Context, tx session) error {
		rows, err := tx.query(ctx, eventsSQL, id, max(0, limit))
		if err != nil {
			return err
		}
		for rows.Next() {
			var e engine.Event
			var at int64
			var failure string
			if err := rows.Scan(&e.Seq, &at, &e.Fence, &e.Plan, &e.Change, &e.Kind, &e.From, &e.To, &e.Outcome, &e.Operation, &e.Holder,
				&e.Host, &e.PID, &e.Reason, &failure); err != nil {
				return err
			}
			e.At = timeOf(at)
			if e.Failure, err = decodeFailure(failure); err != nil {
				return err
			}
			events = append(events, e)
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read events: %w", err)
	}
	return events, nil
}
