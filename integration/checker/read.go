package checker

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/belayhq/belay/tenant"
)

// Read gathers the evidence that the database holds.
func (w *Witness) Read(ctx context.Context) (Evidence, error) {
	var e Evidence
	err := errors.Join(
		rowsOf(ctx, w, "site_lock", &e.Locks), rowsOf(ctx, w, "plan", &e.Plans), rowsOf(ctx, w, "journal", &e.Journal),
		rowsOf(ctx, w, "before_image", &e.Images), w.ledgers(ctx, &e), w.history(ctx, &e),
	)
	if err == nil && w.dialect == tenant.Postgres {
		err = w.texts(ctx, &e.Left, leftSQL)
	}
	return e, err
}

// rowsOf reads one of Belay's tables.
func rowsOf[T any](ctx context.Context, w *Witness, table string, into *[]T) error {
	query := "SELECT to_jsonb(t) FROM belay." + table + " t"
	if w.dialect == tenant.SQLite {
		object, err := w.asJSON(ctx, "belay_"+table, "")
		if err != nil {
			return err
		}
		query = "SELECT " + object + " FROM belay_" + table
	}
	return w.each(ctx, query, func(rows *sql.Rows) error {
		var raw []byte
		if err := rows.Scan(&raw); err != nil {
			return err
		}
		*into = append(*into, *new(T))
		return json.Unmarshal(raw, &(*into)[len(*into)-1])
	})
}

// ledgers reads what is in place now.
func (w *Witness) ledgers(ctx context.Context, e *Evidence) error {
	for _, l := range e.Locks {
		if l.RemovedAt != 0 {
			continue
		}
		table := fmt.Sprintf("%q.ledger", l.Scope)
		if w.dialect == tenant.SQLite {
			table = "ledger"
		}
		err := w.each(ctx, "SELECT step FROM "+table, func(rows *sql.Rows) error {
			effect := Effect{Scope: l.Scope}
			err := rows.Scan(&effect.Step)
			e.InPlace = append(e.InPlace, effect)
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// Two transactions that wrote for one tenant never overlapped in time where a row lock lay between them, so the time of
// the commit orders them. A server that does not keep it leaves the order of writing.
const (
	historySQL = `
SELECT n, tx::text, at, COALESCE((extract(epoch FROM %[1]s) * 1000)::bigint, 0), scope, kind, was, now
FROM witness.moment ORDER BY %[1]s, tx, n`
	sqliteHistorySQL = `SELECT n, '', at, 0, '', kind, was, now FROM witness ORDER BY n`
	keepsCommitsSQL  = `SELECT current_setting('track_commit_timestamp') = 'on'`
)

func (w *Witness) history(ctx context.Context, e *Evidence) error {
	query := sqliteHistorySQL
	if w.dialect == tenant.Postgres {
		var kept bool
		if err := w.db.QueryRowContext(ctx, keepsCommitsSQL).Scan(&kept); err != nil {
			return err
		}
		committed := "NULL::timestamptz"
		if kept {
			committed = "pg_xact_commit_timestamp(tx::xid)"
		}
		query = fmt.Sprintf(historySQL, committed)
	}
	owners := tenantsOf(e.Locks)
	return w.each(ctx, query, func(rows *sql.Rows) error {
		var m Moment
		var n int64
		var scope, kind string
		var was, now []byte
		if err := rows.Scan(&n, &m.Tx, &m.At, &m.Committed, &scope, &kind, &was, &now); err != nil {
			return err
		}
		if err := m.decode(kind, was, now); err != nil {
			return fmt.Errorf("row %d of the history: %w", n, err)
		}
		if m.Effect != nil {
			m.Tenant = owners[scope]
			if w.dialect == tenant.SQLite && len(e.Locks) > 0 {
				m.Tenant = e.Locks[0].Tenant // the file is the tenant's
			}
		}
		e.History = append(e.History, m)
		return nil
	})
}

// decode reads a row by its table.
func (m *Moment) decode(kind string, was, now []byte) (err error) {
	switch kind {
	case "site_lock":
		m.Lock, m.Tenant, err = diffOf(was, now, func(l *Lock) tenant.ID { return l.Tenant })
	case "plan":
		m.Plan, m.Tenant, err = diffOf(was, now, func(p *Plan) tenant.ID { return p.Tenant })
	case "journal":
		m.Step, m.Tenant, err = diffOf(was, now, func(s *Step) tenant.ID { return s.Tenant })
	case "before_image":
		m.Image, m.Tenant, err = diffOf(was, now, func(i *Image) tenant.ID { return i.Tenant })
	case "ledger":
		m.Effect, m.Tenant, err = diffOf(was, now, func(*Effect) tenant.ID { return "" })
	case "event":
		if now == nil {
			return errors.New("an event was deleted")
		}
		m.Event = &Event{}
		err = json.Unmarshal(now, m.Event)
		m.Tenant = m.Event.Tenant
	default:
		err = fmt.Errorf("table %s is not under watch", kind)
	}
	return err
}

func diffOf[T any](was, now []byte, owner func(*T) tenant.ID) (*Diff[T], tenant.ID, error) {
	d := &Diff[T]{}
	for raw, into := range map[*[]byte]**T{&was: &d.Was, &now: &d.Now} {
		if *raw == nil {
			continue
		}
		*into = new(T)
		if err := json.Unmarshal(*raw, *into); err != nil {
			return nil, "", err
		}
	}
	return d, owner(d.row()), nil
}

// leftSQL lists what nobody uses any more and nobody cleared away.
const leftSQL = `
SELECT 'a session idle in a transaction: ' || application_name FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid() AND state LIKE 'idle in transaction%'
UNION ALL SELECT 'an advisory lock of process ' || pid FROM pg_locks
WHERE locktype = 'advisory' AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
UNION ALL SELECT 'a prepared transaction: ' || gid FROM pg_prepared_xacts WHERE database = current_database()
UNION ALL SELECT 'a temporary table: ' || relname FROM pg_class WHERE relpersistence = 't'`

// Examine has the database check itself, which takes longer than everything else.
func (w *Witness) Examine(ctx context.Context, e *Evidence) error {
	if w.dialect == tenant.SQLite {
		return w.texts(ctx, &e.Unsound, `SELECT integrity_check FROM pragma_integrity_check WHERE integrity_check <> 'ok'
			UNION ALL SELECT 'a row of ' || "table" || ' refers to none of ' || parent FROM pragma_foreign_key_check`)
	}
	if _, err := w.db.ExecContext(ctx, `CREATE EXTENSION IF NOT EXISTS amcheck`); err != nil {
		return fmt.Errorf("amcheck: %w", err)
	}
	// It raises what it finds.
	err := w.each(ctx, `SELECT bt_index_parent_check(i.indexrelid, true) FROM pg_index i JOIN pg_class c ON c.oid = i.indrelid
		JOIN pg_namespace n ON n.oid = c.relnamespace JOIN pg_class x ON x.oid = i.indexrelid JOIN pg_am a ON a.oid = x.relam
		WHERE n.nspname = 'belay' AND a.amname = 'btree'`, func(*sql.Rows) error { return nil })
	if err != nil {
		e.Unsound = append(e.Unsound, err.Error())
	}
	return nil
}

func (w *Witness) texts(ctx context.Context, into *[]string, query string) error {
	return w.each(ctx, query, func(rows *sql.Rows) error {
		var text string
		err := rows.Scan(&text)
		*into = append(*into, text)
		return err
	})
}

func (w *Witness) each(ctx context.Context, query string, row func(*sql.Rows) error) error {
	rows, err := w.db.QueryContext(ctx, query)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		if err := row(rows); err != nil {
			return err
		}
	}
	return rows.Err()
}
