package storagetest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/belayhq/belay/engine"
	"github.com/belayhq/belay/plan"
	"github.com/belayhq/belay/tenant"
)

// actionTx is an open transaction as a test's action uses it. The first error ends the action.
type actionTx struct {
	engine.Tx
	*site
	ctx   context.Context
	image []byte
	err   error
}

// action is a step that runs fn inside the transaction.
func (s *site) action(ordinal int, fn func(tx *actionTx)) engine.GroupStep {
	step := recorded(ordinal, plan.StepDone)
	step.Action = func(ctx context.Context, tx engine.Tx) ([]byte, error) {
		a := actionTx{Tx: tx, site: s, ctx: ctx}
		fn(&a)
		return a.image, a.err
	}
	return step
}

// exec runs a statement whose placeholders are written as ?, and returns the rows it changed.
func (tx *actionTx) exec(sql string, args ...any) int64 {
	if tx.err != nil {
		return 0
	}
	changed, err := tx.Exec(tx.ctx, tx.placeholders(sql), args...)
	tx.err = err
	return changed
}

// count runs a query for one number.
func (tx *actionTx) count(sql string, args ...any) int64 {
	var n int64
	if tx.err != nil {
		return 0
	}
	tx.err = tx.Query(tx.ctx, tx.placeholders(sql), args, func(scan func(dest ...any) error) error { return scan(&n) })
	return n
}

// placeholders gives a statement the database's own placeholders.
func (s *site) placeholders(sql string) string {
	if s.Dialect == tenant.SQLite {
		return sql
	}
	var out bytes.Buffer
	n := 0
	for _, r := range sql {
		if r != '?' {
			out.WriteRune(r)
			continue
		}
		n++
		fmt.Fprintf(&out, "$%d", n)
	}
	return out.String()
}

var errBoom = errors.New("boom")

var actions = []test{
	{"an action works in the transaction, between the steps around it", func(t *testing.T, d *database) {
		s := d.site(t)
		x := s.begin(t, apply(change("0001-first", 3)))
		action := s.action(1, func(tx *actionTx) {
			if n := tx.count("SELECT count(*) FROM " + s.table); n != 1 {
				t.Errorf("the action sees %d rows, want that of the step before", n)
			}
			if n := tx.exec("UPDATE "+s.table+" SET v = ? WHERE k = ?", "it's \"bound\"; --", 0); n != 1 {
				t.Errorf("the update changed %d rows", n)
			}
		})
		last := s.step(2, plan.StepDone, fmt.Sprintf("INSERT INTO %[1]s SELECT 9, v FROM %[1]s WHERE k = 0", s.table))
		x.checkpoint(t, x.group(x.put(0), action, last))
		if v := s.Query(t, s.scope, "SELECT v FROM "+s.table+" WHERE k = 9"); v != "it's \"bound\"; --" {
			t.Errorf("the step after the action found %q", v)
		}
		if n := s.plan(t, change("0001-first", 3)).InPlace(); n != 3 {
			t.Errorf("%d steps in place, want 3", n)
		}
	}},
	{"an action reads rows one by one and stops at its first error", func(t *testing.T, d *database) {
		s := d.site(t)
		x := s.begin(t, apply(change("0001-first", 3)))
		var seen []int64
		action := s.action(2, func(tx *actionTx) {
			err := tx.Query(tx.ctx, "SELECT k, v FROM "+s.table+" ORDER BY k", nil, func(scan func(dest ...any) error) error {
				var k int64
				var v string
				if err := scan(&k, &v); err != nil {
					return err
				}
				if seen = append(seen, k); k == 1 {
					return errBoom
				}
				return nil
			})
			if !errors.Is(err, errBoom) {
				t.Errorf("the query returned %v", err)
			}
			if n := tx.count("SELECT count(*) FROM " + s.table); n != 3 {
				t.Errorf("after it the action sees %d rows", n)
			}
		})
		more := s.step(1, plan.StepDone, fmt.Sprintf("INSERT INTO %s VALUES (1, 'a'), (2, 'b')", s.table))
		x.checkpoint(t, x.group(x.put(0), more, action))
		if len(seen) != 2 {
			t.Errorf("the action saw the rows %v", seen)
		}
	}},
	{"an action's error rolls the whole group back and is its step's failure", func(t *testing.T, d *database) {
		s := d.site(t)
		x := s.begin(t, apply(change("0001-first", 2)))
		calls := 0
		failure := x.failsIn(t, 1, x.group(x.put(0), s.action(1, func(tx *actionTx) {
			calls++
			tx.exec("INSERT INTO " + s.table + " VALUES (7, 'seven')")
			tx.err = errBoom
		})))
		if !errors.Is(failure.Err, errBoom) || failure.File != "" || calls != 1 {
			t.Errorf("failure %+v after %d calls", failure, calls)
		}
		x.succeed(t, x.put(0), x.put(1))
	}},
	{"an action that ignores a failed statement leaves nothing", func(t *testing.T, d *database) {
		// PostgreSQL aborts the transaction; SQLite undoes the statement only, so that going on is right there.
		s := d.site(t)
		x := s.begin(t, apply(change("0001-first", 1)))
		group := x.group(s.action(0, func(tx *actionTx) {
			tx.exec("INSERT INTO " + s.table + " VALUES (7, 'seven')")
			if _, err := tx.Exec(tx.ctx, "INSERT INTO nowhere VALUES (1)"); err == nil {
				t.Error("a statement on a missing table succeeded")
			}
		}))
		if d.Dialect == tenant.SQLite {
			x.checkpoint(t, group)
			return
		}
		x.fails(t, group)
		x.succeed(t, x.put(0))
	}},
	{"an action's transaction is of no use after it", func(t *testing.T, d *database) {
		s := d.site(t)
		x := s.begin(t, apply(change("0001-first", 1)))
		var kept *actionTx
		x.checkpoint(t, x.group(s.action(0, func(tx *actionTx) { kept = tx })))
		s.unchanged(t, func() {
			if _, err := kept.Exec(t.Context(), "INSERT INTO "+s.table+" VALUES (7, 'seven')"); err == nil {
				t.Error("the transaction still took a statement")
			}
		})
	}},
}
