package sqlite

import (
	"bytes"
	"context"
	"crypto/sha256"
	"database/sql"
	"errors"
	"fmt"

	"github.com/belayhq/belay/engine"
	"github.com/belayhq/belay/plan"
	"github.com/belayhq/belay/sitelock"
	"github.com/belayhq/belay/tenant"
)

// read runs fn on one snapshot of the file. It does nothing where Belay's tables are not there: such a file was never
// used.
func (s *Store) read(ctx context.Context, fn func(tx *sql.Tx) error) error {
	made, err := s.made(ctx)
	if err != nil || !made {
		return err
	}
	tx, err := s.snapshot(ctx)
	if err != nil {
		return err
	}
	defer tx.Rollback() // a snapshot has nothing to commit
	return translate(fn(tx))
}

// takeSnapshot is what makes a read transaction look at the file, and so the only part of it that can find the file busy:
// while a process recovers it after a crash.
const takeSnapshot = `SELECT count(*) FROM sqlite_schema WHERE type = ''`

func (s *Store) snapshot(ctx context.Context) (tx *sql.Tx, err error) {
	err = patiently(ctx, nil, func() error {
		if tx, err = s.reader.BeginTx(ctx, nil); err != nil {
			return translate(err)
		}
		var none int
		if err = tx.QueryRowContext(ctx, takeSnapshot).Scan(&none); err != nil {
			_ = tx.Rollback() // nothing was begun
		}
		return translate(err)
	})
	return tx, err
}

const selectState = `
SELECT ids.value, COALESCE(l.holder, ''), COALESCE(l.fence, 0), COALESCE(l.host, ''), COALESCE(l.pid, 0), COALESCE(l.started_at, 0),
    COALESCE(l.operation, ''), COALESCE(l.plan_id, ''), COALESCE(p.change_id, ''), COALESCE(l.reason, ''),
    COALESCE(l.acquired_at, 0), COALESCE(l.expires_at, 0), ` + now + `, COALESCE(` + live + `, 0)
FROM json_each(?) AS ids LEFT JOIN belay_site_lock AS l ON l.tenant_id = ids.value
LEFT JOIN belay_plan AS p ON p.tenant_id = l.tenant_id AND p.plan_id = l.plan_id`

// lockStates reads the locks of the tenants; one without a lock is idle.
func lockStates(ctx context.Context, tx *sql.Tx, ids string) (map[tenant.ID]sitelock.State, error) {
	rows, err := tx.QueryContext(ctx, selectState, ids)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	states := make(map[tenant.ID]sitelock.State)
	for rows.Next() {
		var id tenant.ID
		var st sitelock.State
		var started, since, expires, at int64
		if err := rows.Scan(&id, &st.Holder, &st.Fence, &st.Host, &st.PID, &started, &st.Operation, &st.Plan, &st.Change, &st.Reason,
			&since, &expires, &at, &st.Live); err != nil {
			return nil, err
		}
		st.StartedAt, st.Since, st.Expires, st.Now = timeOf(started), timeOf(since), timeOf(expires), timeOf(at)
		states[id] = st
	}
	return states, rows.Err()
}

const selectAllInFlight = `
SELECT ` + planColumns + ` FROM json_each(?) AS ids CROSS JOIN belay_plan AS p ON p.tenant_id = ids.value
WHERE p.status IN ('applying', 'rolling_back')`

// State reads who has the tenant's lock.
func (s *Store) State(ctx context.Context, id tenant.ID) (sitelock.State, error) {
	var state sitelock.State
	err := s.read(ctx, func(tx *sql.Tx) error {
		ids := encode([]tenant.ID{id})
		states, err := lockStates(ctx, tx, ids)
		if err != nil {
			return err
		}
		state = states[id]
		state.InFlight, err = scanPlans(tx.QueryContext(ctx, selectAllInFlight, ids))
		return err
	})
	if err != nil {
		return sitelock.State{}, fmt.Errorf("read lock: %w", err)
	}
	return state, nil
}

const selectRecords = `
SELECT ` + planColumns + ` FROM belay_plan AS p WHERE tenant_id = ? ORDER BY seq NULLS LAST, created_at, plan_id`

const selectEntries = `SELECT ` + journalColumns + ` FROM belay_journal AS j WHERE tenant_id = ? ORDER BY plan_id, ordinal`

// Records reads all plans of a tenant with their journals.
func (s *Store) Records(ctx context.Context, id tenant.ID) ([]plan.Record, error) {
	var records []plan.Record
	err := s.read(ctx, func(tx *sql.Tx) error {
		plans, err := scanPlans(tx.QueryContext(ctx, selectRecords, id))
		if err != nil {
			return err
		}
		rows, err := tx.QueryContext(ctx, selectEntries, id)
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

const selectChange = `SELECT body FROM belay_change WHERE digest = ?`

// Change reads a change by digest.
func (s *Store) Change(ctx context.Context, digest plan.Digest) (*plan.Change, error) {
	var change *plan.Change
	err := s.read(ctx, func(tx *sql.Tx) error {
		var body []byte
		if err := tx.QueryRowContext(ctx, selectChange, digest).Scan(&body); err != nil {
			return found(err, engine.ErrChangeUnknown)
		}
		c, err := plan.DecodeChange(body)
		if err != nil {
			return errDamaged(digest, err)
		}
		if c.Digest() != digest {
			return errDamaged(digest, errors.New("its content has another digest"))
		}
		change = c
		return nil
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
const surveyed = `(?2 = '' OR p.change_id = ?2 OR p.outcome IN ('interrupted', 'failed', 'quarantined')
    OR p.status IN ('applying', 'rolling_back'))`

const surveyPlans = `
SELECT ` + planColumns + ` FROM json_each(?1) AS ids CROSS JOIN belay_plan AS p ON p.tenant_id = ids.value
WHERE ` + surveyed + ` ORDER BY p.tenant_id, p.seq NULLS LAST, p.created_at, p.plan_id`

const surveyEntries = `
SELECT ` + journalColumns + ` FROM json_each(?1) AS ids CROSS JOIN belay_plan AS p ON p.tenant_id = ids.value
CROSS JOIN belay_journal AS j ON j.tenant_id = p.tenant_id AND j.plan_id = p.plan_id
WHERE ` + surveyed + ` ORDER BY j.tenant_id, j.plan_id, j.ordinal`

// Survey reads locks, plans and journals of many tenants in three queries on one snapshot.
func (s *Store) Survey(ctx context.Context, ids []tenant.ID, change string) ([]engine.Survey, error) {
	surveys := make([]engine.Survey, len(ids))
	for i, id := range ids {
		surveys[i].Tenant = id
	}
	if len(ids) == 0 {
		return surveys, nil
	}
	err := s.read(ctx, func(tx *sql.Tx) error {
		keys := encode(ids)
		states, err := lockStates(ctx, tx, keys)
		if err != nil {
			return err
		}
		plans, err := scanPlans(tx.QueryContext(ctx, surveyPlans, keys, change))
		if err != nil {
			return err
		}
		rows, err := tx.QueryContext(ctx, surveyEntries, keys, change)
		entries, err := scanEntries(rows, err, 0)
		if err != nil {
			return err
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

const selectImage = `
SELECT body, checksum FROM belay_before_image WHERE tenant_id = ? AND plan_id = ? AND ordinal = ? ORDER BY part`

// Image reads the before-image of a step.
func (s *Store) Image(ctx context.Context, id tenant.ID, p plan.ID, ordinal int) ([]byte, error) {
	var image []byte
	err := s.read(ctx, func(tx *sql.Tx) error {
		rows, err := tx.QueryContext(ctx, selectImage, id, p, ordinal)
		if err != nil {
			return err
		}
		defer rows.Close()
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
		return rows.Err()
	})
	if err != nil {
		return nil, fmt.Errorf("read before-image of step %d: %w", ordinal, err)
	}
	return image, nil
}

const selectEvents = `
SELECT seq, at, fence, COALESCE(plan_id, ''), change_id, kind, status_from, status_to, outcome, operation, COALESCE(holder, ''),
    host, pid, reason, failure
FROM belay_event WHERE tenant_id = ? ORDER BY seq DESC LIMIT ?`

// Events reads a tenant's history, newest first.
func (s *Store) Events(ctx context.Context, id tenant.ID, limit int) ([]engine.Event, error) {
	var events []engine.Event
	err := s.read(ctx, func(tx *sql.Tx) error {
		rows, err := tx.QueryContext(ctx, selectEvents, id, max(0, limit))
		if err != nil {
			return err
		}
		defer rows.Close()
		for rows.Next() {
			var e engine.Event
			var at int64
			var failure *string
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
		return rows.Err()
	})
	if err != nil {
		return nil, fmt.Errorf("read events: %w", err)
	}
	return events, nil
}
