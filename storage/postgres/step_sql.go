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

// enterSQL sets the limits and the search path of the first step. It demands that the tenant's schema exists: with a search
// path of none that does, a step would write temporary tables.
const enterSQL = `
SELECT CASE WHEN EXISTS (SELECT FROM pg_catalog.pg_namespace WHERE nspname = $1::text)
       THEN pg_catalog.set_config('search_path', $2::text, true) ELSE belay.refuse('BY005', 'no such schema') END,
    ` + limitsSQL

// limitsSQL sets the limits of what comes next: a step may have changed them.
const limitsSQL = `pg_catalog.set_config('statement_timeout', $3::text, true), pg_catalog.set_config('lock_timeout', $4::text, true),
    pg_catalog.set_config('idle_in_transaction_session_timeout', $5::text, true)`

// keptSQL demands that the step before left the transaction, the role and the search path as they were. The mark is
// transaction-local, so it is gone if a step ended the transaction. It runs under a tenant's search path: operands are of the
// very types that an operator in pg_catalog takes, so that none that a tenant made can stand in for it.
const keptSQL = `
SELECT CASE WHEN pg_catalog.current_setting('belay.mark', true) IS DISTINCT FROM pg_catalog.concat($1::text, ':', current_user)
         OR pg_catalog.current_setting('search_path') IS DISTINCT FROM $2::text
       THEN belay.refuse('BY003', 'step left its scope')
    `

// betweenSQL also demands that the group is within its budget, which ends where it is positive.
const betweenSQL = keptSQL + `
       WHEN $6::float8 > 0::float8 AND $6::float8 < 1000::float8 * pg_catalog.date_part('epoch',
           pg_catalog.clock_timestamp() - pg_catalog.transaction_timestamp())
       THEN belay.refuse('BY004', 'group used up its budget') END,
    ` + limitsSQL

// leaveSQL goes back to Belay's own statements, whose commit is to be durable.
const leaveSQL = keptSQL + `
       ELSE pg_catalog.set_config('search_path', '` + ownPath + `', true) END,
    ` + limitsSQL + `,
    ` + durableSQL

// constraintsSQL has the deferred constraints of what the steps wrote checked under the limits of a step: nothing bounds
// the time of COMMIT.
const constraintsSQL = `SET CONSTRAINTS ALL IMMEDIATE`

// tenantPath is the search path of steps: the tenant's scope alone. Without pg_temp at its end a temporary table would
// come first.
func tenantPath(scope string) string { return quoteIdent(scope) + ", pg_temp" }

// steps queues the group's steps. An action or a verify query has the queue sent.
func (tx *transaction) steps(ctx context.Context, group engine.Group) error {
	wait, idle := group.Limits.LockWait, group.Limits.Idle
	last := -1 // the step before, whose doings a boundary checks
	for i, step := range group.Steps {
		if !runs(step) {
			continue
		}
		next := limits{statement: step.Timeout, lock: wait, idle: idle}
		if last < 0 {
			tx.enter(i, group.Scope, next)
		} else {
			tx.boundary(betweenSQL, group.Scope, next, failureOf(last, group.Steps[last], wait), limitMillis(group.Budget))
		}
		last = i
		if err := tx.step(ctx, i, step, group.Scope, wait); err != nil {
			return err
		}
	}
	if last < 0 {
		return nil
	}
	failed := failureOf(last, group.Steps[last], wait)
	tx.add(statement{sql: constraintsSQL, failed: failed})
	tx.boundary(leaveSQL, group.Scope, limits{ownLimits.statement, ownLimits.lock, idle}, failed)
	return nil
}

// enter queues the way into the tenant's scope; if there is none, it is step first that fails.
func (tx *transaction) enter(first int, scope string, l limits) {
	args := []any{scope, tenantPath(scope), limitMillis(l.statement), limitMillis(l.lock), limitMillis(l.idle)}
	tx.add(statement{sql: enterSQL, args: args, own: true, failed: func(err error) error {
		if server, ok := errors.AsType[*Error](err); ok && server.Code == codeNoScope {
			return stepFailure(first, plan.Statement{}, fmt.Errorf("%s: %w", scope, engine.ErrNoScope))
		}
		return err
	}})
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

// runs reports whether a step does anything but write its journal row.
func runs(step engine.GroupStep) bool {
	return step.State != plan.StepIntent && step.State != plan.StepUndoIntent &&
		(len(step.Statements) > 0 || step.Action != nil || step.Verify != nil)
}

// boundary queues the check of what the step before left and the limits of what comes next. failed makes an error of that
// step.
func (tx *transaction) boundary(sql, scope string, l limits, failed func(error) error, more ...any) {
	args := []any{tx.mark, tenantPath(scope), limitMillis(l.statement), limitMillis(l.lock), limitMillis(l.idle)}
	tx.add(statement{
		sql: sql, own: true, args: append(args, more...),
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

func (tx *transaction) step(ctx context.Context, index int, step engine.GroupStep, scope string, lockWait time.Duration) error {
	tx.foreign = true
	for _, st := range step.Statements {
		tx.more = tx.more || !st.RowsOnly
		tx.add(statement{sql: st.SQL, failed: func(err error) error { return failure(index, st, err, step.Timeout, lockWait) }})
	}
	tx.demandOwnScope(index, step, scope)
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
func failureOf(index int, step engine.GroupStep, lockWait time.Duration) func(error) error {
	return func(err error) error { return failure(index, plan.Statement{}, err, step.Timeout, lockWait) }
}

// failure says that a statement of a step failed, unless the database only asked to run the transaction again.
func failure(index int, st plan.Statement, err error, timeout, lockWait time.Duration) error {
	server, ok := errors.AsType[*Error](err)
	if ok && react(server.Code) == runAgain {
		return err
	}
	if ok && server.position > 0 {
		st.Line += strings.Count(firstRunes(st.SQL, server.position-1), "\n")
	}
	return stepFailure(index, st, stepError(err, timeout, lockWait))
}

// stepError says which limit ended a statement, if one did.
func stepError(err error, timeout, lockWait time.Duration) error {
	server, ok := errors.AsType[*Error](err)
	switch {
	case ok && server.Code == codeQueryCanceled && timeout > 0:
		return fmt.Errorf("timed out after %s", timeout)
	case ok && server.Code == codeQueryCanceled:
		return errors.New("cancelled by an administrator")
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
	err := s.transact(ctx, s.pool, reading, ownLimits, func(tx *transaction) error {
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
