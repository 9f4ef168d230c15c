package postgres

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/belayhq/belay/engine"
	"github.com/belayhq/belay/plan"
)

// enterSQL begins a transaction with steps: behind the proof it sets the limits and the search path of the first. It demands
// that the tenant's schema exists: with a search path of none that does, a step would write temporary tables.
const enterSQL = `SELECT ` + settings + `, ` + proof + `,
    CASE WHEN pg_catalog.to_regnamespace($10::text) IS NULL THEN belay.refuse('BY005', 'no such schema')
       ELSE pg_catalog.set_config('search_path', $11::text, true) END,
    pg_catalog.set_config('statement_timeout', $12::text, true), pg_catalog.set_config('lock_timeout', $13::text, true)`

// keptSQL demands that the step before left the transaction, the role and the search path as they were. The mark is
// transaction-local, so it is gone if a step ended the transaction. It runs under a tenant's search path: operands are of the
// very types that an operator in pg_catalog takes, so that none that a tenant made can stand in for it.
const keptSQL = `
SELECT CASE WHEN pg_catalog.current_setting('belay.mark', true) IS DISTINCT FROM pg_catalog.concat($1::text, ':', current_user)
         OR pg_catalog.current_setting('search_path') IS DISTINCT FROM $2::text
       THEN belay.refuse('BY003', 'step left its scope')
    `

// betweenSQL also demands that the group is within its budget, which ends where it is positive, and sets the limits of what
// comes next: a step may have changed them.
const betweenSQL = keptSQL + `
       WHEN $6::float8 > 0::float8 AND $6::float8 < 1000::float8 * pg_catalog.date_part('epoch',
           pg_catalog.clock_timestamp() - pg_catalog.transaction_timestamp())
       THEN belay.refuse('BY004', 'group used up its budget') END,
    pg_catalog.set_config('statement_timeout', $3::text, true), pg_catalog.set_config('lock_timeout', $4::text, true),
    pg_catalog.set_config('idle_in_transaction_session_timeout', $5::text, true)`

// outSQL goes back to Belay's own search path and keeps the one that the last step left for leaveSQL. The server analyses a
// statement again for each other search path, so that it is short.
const outSQL = `SELECT pg_catalog.set_config('belay.left', pg_catalog.current_setting('search_path'), true),
    pg_catalog.set_config('search_path', '` + ownPath + `', true)`

// leaveSQL goes back to Belay's own statements: it demands what keptSQL does of the last step. leaveCleanSQL also takes back what
// rows-only statements can leave in the session.
const (
	left = `SELECT CASE WHEN current_setting('belay.mark', true) IS DISTINCT FROM concat($5::text, ':', current_user)
         OR current_setting('belay.left', true) IS DISTINCT FROM $7::text
       THEN belay.refuse('BY003', 'step left its scope') END,`
	leaveSQL      = left + settings + `, ` + planOnce
	leaveCleanSQL = left + ` belay.clean_session(),` + settings + `, ` + planOnce
)

// constraintsSQL has the deferred constraints of what the steps wrote checked under the limits of a step: nothing bounds
// the time of COMMIT.
const constraintsSQL = `SET CONSTRAINTS ALL IMMEDIATE`

// tenantPath is the search path of steps: the tenant's scope alone. Without pg_temp at its end a temporary table would
// come first.
func tenantPath(scope string) string { return quoteIdent(scope) + ", pg_temp" }

// entry begins transactions of a holder with steps.
type entry struct {
	custody
	group engine.Group
	first int // the step whose scope and limits it enters
}

// begin queues the settings, the proof and the way into the tenant's scope; if there is none, it is the first step that fails.
func (e entry) begin(tx *transaction) {
	scope, l := e.group.Scope, limitsOf(e.group, e.first)
	args := append(e.args(tx), quoteIdent(scope), tenantPath(scope), limitMillis(l.statement), limitMillis(l.lock))
	tx.add(statement{sql: enterSQL, args: args, own: true, failed: func(err error) error {
		if server, ok := errors.AsType[*Error](err); ok && server.Code == codeNoScope {
			return stepFailure(e.first, plan.Statement{}, fmt.Errorf("%s: %w", scope, engine.ErrNoScope))
		}
		return err
	}})
}

// firstOf is the index of the first step that does anything but write its journal row; -1 if there is none.
func firstOf(steps []engine.GroupStep) int { return slices.IndexFunc(steps, runs) }

// runs reports whether a step does anything but write its journal row.
func runs(step engine.GroupStep) bool {
	return step.State != plan.StepIntent && step.State != plan.StepUndoIntent &&
		(len(step.Statements) > 0 || step.Action != nil || step.Verify != nil)
}

// onlyRows reports whether all that a step does is read and write rows.
func onlyRows(step engine.GroupStep) bool {
	return step.Action == nil && step.Verify == nil &&
		!slices.ContainsFunc(step.Statements, func(st plan.Statement) bool { return !st.RowsOnly })
}

// limitsOf are those of a step. One of several that only write rows may take no longer than all of them together may.
func limitsOf(group engine.Group, index int) limits {
	step := group.Steps[index]
	l := limits{statement: step.Timeout, lock: group.Limits.LockWait, idle: group.Limits.Idle}
	if len(group.Steps) > 1 && group.Budget > 0 && onlyRows(step) && (l.statement <= 0 || l.statement > group.Budget) {
		l.statement = group.Budget
	}
	return l
}

// stretch is how many steps at most follow each other without a look at the group's budget.
const stretch = 16

// steps queues the group's steps, into whose scope an entry has led. An action or a verify query has the queue sent. Steps
// that only write rows follow each other without a boundary: what one of them may do all the same, by a function, is found
// behind the last, and the group is then run step by step.
func (tx *transaction) steps(ctx context.Context, group engine.Group) error {
	last, since := -1, 0 // the step before, and how many there are since the last boundary
	for i, step := range group.Steps {
		if !runs(step) {
			continue
		}
		if last >= 0 && (since == stretch || !alike(group, last, i)) {
			l := limitsOf(group, i)
			tx.boundary(betweenSQL, failureOf(group, last), tx.mark, tenantPath(group.Scope), limitMillis(l.statement), limitMillis(l.lock),
				limitMillis(l.idle), limitMillis(group.Budget))
			since = 0
		}
		last, since = i, since+1
		if err := tx.step(ctx, i, group); err != nil {
			return err
		}
	}
	if last >= 0 {
		tx.leave(group, failureOf(group, last))
	}
	return nil
}

// alike reports whether nothing need be done between two steps.
func alike(group engine.Group, a, b int) bool {
	return onlyRows(group.Steps[a]) && onlyRows(group.Steps[b]) && limitsOf(group, a) == limitsOf(group, b)
}

// leave queues the end of the steps.
func (tx *transaction) leave(group engine.Group, failed func(error) error) {
	tx.add(statement{sql: constraintsSQL, failed: failed})
	tx.boundary(outSQL, failed)
	sql := leaveSQL
	if tx.store.ownsPool && !tx.more {
		sql, tx.cleaned = leaveCleanSQL, true
	}
	own := ownLimits
	own.idle = group.Limits.Idle
	tx.boundary(sql, failed, append(tx.settings(own), tenantPath(group.Scope))...)
}

const demandOwnScopeSQL = `SELECT belay.demand_own_scope($1::text, $2::text[], $3::boolean)`

// demandOwnScope queues the check that a step's statements stayed away from other tenants' schemas. Most name nothing that
// could be one, and are not asked about.
func (tx *transaction) demandOwnScope(index int, step engine.GroupStep, scope string) {
	var names []string
	rowsOnly := true
	for _, st := range step.Statements {
		names = append(names, st.Qualifiers...)
		rowsOnly = rowsOnly && st.RowsOnly
	}
	names = slices.DeleteFunc(names, func(name string) bool { return name == scope })
	if len(names) == 0 {
		return
	}
	tx.add(statement{sql: demandOwnScopeSQL, args: []any{scope, names, rowsOnly}, own: true, failed: func(err error) error {
		if server, ok := errors.AsType[*Error](err); ok && server.Code == codeOtherScope {
			return stepFailure(index, plan.Statement{}, fmt.Errorf("%w: it reached into the schema of another tenant", engine.ErrStepEscaped))
		}
		return err
	}})
}

// boundary queues a check of what the step before left, or a way past it. failed makes an error of that step.
func (tx *transaction) boundary(sql string, failed func(error) error, args ...any) {
	tx.add(statement{
		sql: sql, own: true, args: args,
		failed: func(err error) error {
			server, ok := errors.AsType[*Error](err)
			if !ok {
				return err
			}
			switch server.Code {
			case codeEscaped, codeNoPrivilege:
				// A step that became a role without rights in the schema belay does not even get to the check.
				tx.broken = true
				return failed(engine.ErrStepEscaped)
			case codeQueryCanceled:
				return failed(err) // the check runs under the limits of the step before it
			}
			return err
		},
	})
}

func (tx *transaction) step(ctx context.Context, index int, group engine.Group) error {
	step, lockWait := group.Steps[index], group.Limits.LockWait
	tx.foreign = true
	for _, st := range step.Statements {
		tx.more = tx.more || !st.RowsOnly
		tx.add(statement{sql: st.SQL, failed: func(err error) error { return failure(group, index, st, err) }})
	}
	tx.demandOwnScope(index, step, group.Scope)
	if step.Action != nil {
		if err := tx.act(ctx, index, step); err != nil {
			return err
		}
	}
	if step.Verify != nil {
		tx.verify(*step.Verify, func(err error) error { return stepFailure(index, plan.Statement{}, err) }, step.Timeout, lockWait)
		return tx.flush(ctx)
	}
	return nil
}

// failureOf makes an error of a step as a whole.
func failureOf(group engine.Group, index int) func(error) error {
	return func(err error) error { return failure(group, index, plan.Statement{}, err) }
}

// failure says that a statement of a step failed, unless the database only asked to run the transaction again, or the step
// was stopped because of the others in its group.
func failure(group engine.Group, index int, st plan.Statement, err error) error {
	timeout := group.Steps[index].Timeout
	server, ok := errors.AsType[*Error](err)
	switch {
	case ok && react(server.Code) == runAgain:
		return err
	case ok && server.Code == codeQueryCanceled && limitsOf(group, index).statement != timeout:
		return engine.ErrBudgetSpent
	case ok && server.position > 0:
		st.Line += strings.Count(firstRunes(st.SQL, server.position-1), "\n")
	}
	return stepFailure(index, st, stepError(err, timeout, group.Limits.LockWait))
}

// stepError says which limit ended a statement, if one did.
func stepError(err error, timeout, lockWait time.Duration) error {
	server, ok := errors.AsType[*Error](err)
	switch {
	case ok && server.Code == codeQueryCanceled && timeout > 0 && server.after >= timeout:
		return fmt.Errorf("timed out after %s", timeout)
	case ok && server.Code == codeQueryCanceled:
		return errors.New("cancelled by an administrator or another program")
	case ok && server.Code == codeLockNotAvailable:
		return fmt.Errorf("lock timeout: waited %s for a lock of someone else", lockWait)
	}
	return err
}

func stepFailure(index int, st plan.Statement, err error) error {
	return &engine.StepFailure{Step: index, File: st.File, Line: st.Line, Err: err}
}

func firstRunes(s string, n int) string {
	for i := range s {
		if n == 0 {
			return s[:i]
		}
		n--
	}
	return s
}

// verify queues a verify query. fail makes an error of why it could not run or said no.
func (tx *transaction) verify(v plan.Verify, fail func(error) error, timeout, lockWait time.Duration) {
	tx.add(statement{
		sql: v.Query,
		rows: func(rows pgx.Rows) error {
			if err := answers(rows, v); err != nil {
				return fail(err)
			}
			return nil
		},
		failed: func(err error) error {
			if reactTo(err) == runAgain {
				return err
			}
			return fail(fmt.Errorf("%w: %w", engine.ErrVerifyUnable, stepError(err, timeout, lockWait)))
		},
	})
}

// answers compares a verify query's rows with what is expected. What it shows of an answer is a count, never a text.
func answers(rows pgx.Rows, v plan.Verify) error {
	if v.Expect == nil {
		return nil
	}
	no := func(got string) error {
		return fmt.Errorf("%w: expected %s, got %s", engine.ErrVerifyNo, *v.Expect, got)
	}
	if !rows.Next() {
		if err := rows.Err(); err != nil {
			return nil // reported with the statement
		}
		return no("no row")
	}
	columns, values := rows.FieldDescriptions(), rows.RawValues()
	if len(columns) != 1 {
		return no(fmt.Sprintf("%d columns", len(columns)))
	}
	value, known := scalar(values[0], columns[0].DataTypeOID)
	if rows.Next() {
		return no("more than one row")
	}
	switch {
	case values[0] == nil:
		return no("NULL")
	case value == *v.Expect:
		return nil
	case known:
		return no(value)
	}
	return no("another value")
}

// scalar gives a value the text it is compared by, and says whether it may be shown.
func scalar(raw []byte, oid uint32) (text string, shown bool) {
	switch oid {
	case pgtype.BoolOID:
		return map[string]string{"t": "true", "f": "false"}[string(raw)], false
	case pgtype.Int2OID, pgtype.Int4OID, pgtype.Int8OID:
		return string(raw), true
	}
	return string(raw), false
}

const tenantPathSQL = `SELECT pg_catalog.set_config('search_path', $1::text, true),
    pg_catalog.set_config('statement_timeout', $2::text, true), pg_catalog.set_config('lock_timeout', $3::text, true)`

// Verify implements [engine.Store].
func (s *Store) Verify(ctx context.Context, scope string, v plan.Verify, timeout time.Duration) error {
	err := s.transact(ctx, s.pool, reading, ownLimits.beginPlain, func(tx *transaction) error {
		tx.own(tenantPathSQL, tenantPath(scope), limitMillis(timeout), limitMillis(defaultLockWait))
		tx.verify(v, func(err error) error { return err }, timeout, defaultLockWait)
		// The transaction is never committed: it reads, and what else its query did is no concern of ours.
		return tx.flush(ctx)
	})
	if err != nil {
		return fmt.Errorf("verify: %w", err)
	}
	return nil
}
