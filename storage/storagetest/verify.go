package storagetest

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/belayhq/belay/engine"
	"github.com/belayhq/belay/plan"
	"github.com/belayhq/belay/tenant"
)

// verification is a verify query on a table that holds the rows (1, 'hush') and (2, NULL), and what becomes of it.
type verification struct {
	name   string
	query  string
	expect string // "-" for none
	err    error
	only   tenant.Dialect
}

var verifications = []verification{
	{"the expected number", "SELECT count(*) FROM {t}", "2", nil, ""},
	{"the expected text", "SELECT v FROM {t} WHERE k = 1", "hush", nil, ""},
	{"the expected boolean", "SELECT count(*) = 2 FROM {t}", "true", nil, tenant.Postgres},
	{"nothing but an answer", "SELECT k FROM {t}", "-", nil, ""},
	{"no row where none is expected", "SELECT k FROM {t} WHERE k = 99", "-", nil, ""},
	{"another number", "SELECT count(*) FROM {t}", "3", engine.ErrVerifyNo, ""},
	{"another text", "SELECT v FROM {t} WHERE k = 1", "loud", engine.ErrVerifyNo, ""},
	{"null", "SELECT v FROM {t} WHERE k = 2", "", engine.ErrVerifyNo, ""},
	{"no row", "SELECT k FROM {t} WHERE k = 99", "99", engine.ErrVerifyNo, ""},
	{"two rows", "SELECT 1 FROM {t}", "1", engine.ErrVerifyNo, ""},
	{"two columns", "SELECT 1, 1", "1", engine.ErrVerifyNo, ""},
	{"a missing table", "SELECT count(*) FROM nowhere", "0", engine.ErrVerifyUnable, ""},
	{"a missing table, expecting nothing", "SELECT count(*) FROM nowhere", "-", engine.ErrVerifyUnable, ""},
	{"a syntax error", "SELECT count(*) FRM {t}", "0", engine.ErrVerifyUnable, ""},
	{"no end", endless, "1", engine.ErrVerifyUnable, ""},
}

func (v verification) verify(s *site) plan.Verify {
	verify := plan.Verify{Query: s.sql(v.query)}
	if v.expect != "-" {
		verify.Expect = &v.expect
	}
	return verify
}

func (v verification) answered(t *testing.T, err error) {
	t.Helper()
	if (v.err == nil) != (err == nil) || !errors.Is(err, v.err) {
		t.Errorf("got %v, want %v", err, v.err)
	}
	if err == nil {
		return
	}
	if strings.Contains(err.Error(), "hush") {
		t.Errorf("the error quotes the row: %v", err)
	}
	if errors.Is(err, engine.ErrVerifyNo) && errors.Is(err, engine.ErrVerifyUnable) {
		t.Errorf("the error is both a no and an inability: %v", err)
	}
}

// fill puts the rows of the verifications in the site's table.
func (s *site) fill(t *testing.T) {
	t.Helper()
	s.Exec(t, s.scope, "INSERT INTO "+s.table+" VALUES (1, 'hush'), (2, NULL)")
}

var verifies = append(verifiesOf(verifications), []test{
	{"a verify sees the effect of its own step", func(t *testing.T, d *database) {
		s := d.site(t)
		x := s.begin(t, apply(change("0001-first", 2)))
		one, two := "1", "2"
		first, second := x.put(0), x.put(1)
		first.Verify = &plan.Verify{Query: "SELECT count(*) FROM " + s.table, Expect: &one}
		second.Verify = &plan.Verify{Query: "SELECT count(*) FROM " + s.table, Expect: &two}
		x.succeed(t, first, second)
	}},
	{"a verify sees the effect of its own step's action", func(t *testing.T, d *database) {
		s := d.site(t)
		x := s.begin(t, apply(change("0001-first", 1)))
		one := "1"
		step := s.action(0, func(tx *actionTx) { tx.exec("INSERT INTO "+s.table+" VALUES (?, ?)", 5, "five") })
		step.Verify = &plan.Verify{Query: "SELECT count(*) FROM " + s.table + " WHERE k = 5", Expect: &one}
		x.succeed(t, step)
	}},
	{"a wrong number is named beside the expected one", func(t *testing.T, d *database) {
		s := d.site(t)
		s.fill(t)
		want := "77"
		err := d.db.Verify(t.Context(), s.scope, plan.Verify{Query: "SELECT 42 FROM " + s.table + " WHERE k = 1", Expect: &want}, time.Minute)
		if err == nil || !strings.Contains(err.Error(), "77") || !strings.Contains(err.Error(), "42") {
			t.Errorf("got %v", err)
		}
	}},
	{"a verify outside a checkpoint writes nothing", func(t *testing.T, d *database) {
		s := d.site(t)
		s.fill(t)
		s.unchanged(t, func() {
			for _, sql := range []string{"DELETE FROM " + s.table, "INSERT INTO " + s.table + " VALUES (3, 'three') RETURNING 3", "CREATE TABLE made_here (k integer)"} {
				err := d.db.Verify(t.Context(), s.scope, plan.Verify{Query: sql}, time.Minute)
				if !errors.Is(err, engine.ErrVerifyUnable) {
					t.Errorf("%s: got %v, want ErrVerifyUnable", sql, err)
				}
			}
		})
	}},
	{"a verify needs no lock and does not wait for an open checkpoint", func(t *testing.T, d *database) {
		s := d.site(t)
		s.fill(t)
		x := s.begin(t, apply(change("0001-first", 1)))
		two := "2"
		x.checkpoint(t, x.group(s.action(0, func(tx *actionTx) {
			tx.exec("INSERT INTO " + s.table + " VALUES (3, 'three')")
			if err := d.db.Verify(t.Context(), s.scope, plan.Verify{Query: "SELECT count(*) FROM " + s.table, Expect: &two}, time.Minute); err != nil {
				t.Error(err)
			}
		})))
	}},
	{"a caller who gives up on a verify gets an error", func(t *testing.T, d *database) {
		s := d.site(t)
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		if err := d.db.Verify(ctx, s.scope, plan.Verify{Query: endless}, time.Minute); err == nil {
			t.Error("an endless query came to an end")
		}
	}},
}...)

// verifiesOf checks each verification inside a checkpoint and outside one.
func verifiesOf(all []verification) []test {
	var tests []test
	for _, v := range all {
		tests = append(tests, test{"an answer of " + v.name, func(t *testing.T, d *database) {
			if v.only != "" && v.only != d.Dialect {
				return // the other database has no such type
			}
			s := d.site(t)
			s.fill(t)
			timeout := 10 * time.Second
			if v.query == endless {
				timeout = 100 * time.Millisecond
			}
			verify := v.verify(s)
			v.answered(t, d.db.Verify(t.Context(), s.scope, verify, timeout))

			x := s.begin(t, apply(change("0001-first", 2)))
			second := recorded(1, plan.StepDone)
			second.Verify, second.Timeout = &verify, timeout
			group := x.group(recorded(0, plan.StepDone), second)
			if v.err == nil {
				x.checkpoint(t, group)
				return
			}
			failure := x.failsIn(t, 1, group)
			v.answered(t, &failure)
			if failure.File != "" || failure.Line != 0 {
				t.Errorf("a verify's failure names a statement: %+v", failure)
			}
			x.checkpoint(t, x.group(recorded(0, plan.StepDone)))
		}})
	}
	return tests
}
