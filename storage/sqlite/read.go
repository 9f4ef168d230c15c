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
const snapshotSQL = `SELECT 1 FROM sqlite_schema LIMIT 1`

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
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if tx.connection, err = pool.Conn(ctx); err != nil {
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
const planColumns = `p.tenant_id, p.plan_id, p.change_id, p.digest, p.status, p.claimed_from, p.fence, p.outcome, p.attempts,
    p.applied_seq, p.cycle, p.steps_total, p.format, p.last_error, p.created_at, p.updated_at`

// scanPlans reads rows of planColumns.
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

const journalSQL = `
SELECT ordinal, step_id, state, fence, cycle, attempt, max(0, deadline_at - ` + now + `), updated_at
FROM belay_journal WHERE tenant_id = +? AND plan_id = +? ORDER BY ordinal`

// records reads plans with their journals; query selects planColumns. Nobody waits for what was begun under the fence mine.
func (s session) records(ctx context.Context, mine sitelock.Fence, query string, args ...any) ([]plan.Record, error) {
	plans, err := scanPlans(s.query(ctx, query, args...))
	if err != nil {
		return nil, err
	}
	records := make([]plan.Record, len(plans))
	for i, p := range plans {
		records[i].Plan = p
		if records[i].Journal, err = s.journal(ctx, p, mine); err != nil {
			return nil, err
		}
	}
	return records, nil
}

func (s session) journal(ctx context.Context, p plan.Plan, mine sitelock.Fence) ([]plan.Entry, error) {
	rows, err := s.query(ctx, journalSQL, p.Tenant, p.ID)
	if err != nil {
		return nil, err
	}
	var entries []plan.Entry
	for rows.Next() {
		var e plan.Entry
		var wait, updated int64
		if err := rows.Scan(&e.Ordinal, &e.Step, &e.State, &e.Fence, &e.Cycle, &e.Attempt, &wait, &updated); err != nil {
			return nil, err
		}
		if intent(e.State) && e.Fence != mine {
			e.WaitLeft = time.Duration(wait) * time.Millisecond
		}
		e.UpdatedAt = timeOf(updated)
		entries = append(entries, e)
	}
	return entries, nil
}

const plansSQL = `
SELECT ` + planColumns + ` FROM belay_plan AS p WHERE p.tenant_id = +? ORDER BY p.applied_seq NULLS LAST, p.created_at, p.plan_id`

// Records reads all plans of a tenant with their journals.
func (s *Store) Records(ctx context.Context, id tenant.ID) ([]plan.Record, error) {
	var records []plan.Record
	err := s.read(ctx, func(ctx context.Context, tx session) (err error) {
		records, err = tx.records(ctx, 0, plansSQL, id)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("read plans: %w", err)
	}
	return records, nil
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

// Survey reads locks, plans and journals of many tenants on one snapshot, one after the other: nothing is between this process
// and the file that would make fewer statements cheaper.
func (s *Store) Survey(ctx context.Context, ids []tenant.ID, change string) ([]engine.Survey, error) {
	surveys := make([]engine.Survey, len(ids))
	for i, id := range ids {
		surveys[i].Tenant = id
	}
	if len(ids) == 0 {
		return surveys, nil
	}
	err := s.read(ctx, func(ctx context.Context, tx session) error {
		for i := range surveys {
			if err := tx.survey(ctx, &surveys[i], change); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("survey: %w", err)
	}
	return surveys, nil
}

// survey reads the lock of a tenant and all its plans, or with a change that for it and those that are partial.
func (s session) survey(ctx context.Context, of *engine.Survey, change string) error {
	l, err := s.lock(ctx, of.Tenant)
	if err != nil {
		return err
	}
	if change == "" {
		of.Records, err = s.records(ctx, 0, plansSQL, of.Tenant)
		of.Lock = l.with(of.Records)
		return err
	}
	records, err := s.about(ctx, of.Tenant, change, 0)
	of.Lock = l.with(records)
	for _, r := range records {
		if r.Plan.Change == change || r.Partial() {
			of.Records = append(of.Records, r)
		}
	}
	return err
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
