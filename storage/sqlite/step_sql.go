package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/mattn/go-sqlite3"

	"github.com/belayhq/belay/engine"
	"github.com/belayhq/belay/plan"
)

// runStep carries out one step: statements, action, verify, and the checks after them, which also follow a failure.
func (s *Store) runStep(ctx context.Context, t *transaction, index int, step engine.GroupStep) (image []byte, err error) {
	image, err = t.run(ctx, step)
	if err := s.checkStep(context.WithoutCancel(ctx), t, err); err != nil {
		if ctx.Err() != nil && !errors.Is(err, engine.ErrStepEscaped) {
			return nil, context.Cause(ctx) // the caller's doing, not the step's
		}
		failure := &engine.StepFailure{Step: index, Err: err}
		if at, ok := errors.AsType[*statementError](err); ok {
			failure.File, failure.Line = at.statement.File, at.statement.Line
		}
		return nil, failure
	}
	return image, nil
}

// run carries out a step's own parts, each under the guard and within the step's timeout.
func (t *transaction) run(ctx context.Context, step engine.GroupStep) (image []byte, err error) {
	guard := &t.conn.guard
	guard.transactional = true
	defer func() { guard.mode, guard.transactional = ownSQL, false }() // also if an action panics
	guard.mode = stepSQL
	for _, statement := range step.Statements {
		err := within(ctx, step.Timeout, "the statement", func(ctx context.Context) error { return t.statement(ctx, statement.SQL) })
		if err != nil {
			return nil, &statementError{statement: statement, err: err}
		}
	}
	if step.Action != nil {
		err := within(ctx, step.Timeout, "the action", func(ctx context.Context) error {
			image, err = t.act(ctx, step)
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	if step.Verify != nil {
		guard.mode = querySQL
		err := within(ctx, step.Timeout, "the verify query", func(ctx context.Context) error { return verify(ctx, t.connection, *step.Verify) })
		if err != nil {
			return nil, err
		}
	}
	return image, nil
}

// statementError is the failure of one of a step's statements.
type statementError struct {
	statement plan.Statement
	err       error
}

func (e *statementError) Error() string { return e.err.Error() }
func (e *statementError) Unwrap() error { return e.err }

// within bounds fn, and tells its own end of time from the caller's.
func within(ctx context.Context, timeout time.Duration, what string, fn func(ctx context.Context) error) error {
	if timeout <= 0 {
		return fn(ctx)
	}
	bounded, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	err := fn(bounded)
	if err != nil && bounded.Err() != nil && ctx.Err() == nil {
		return fmt.Errorf("%s timed out after %s: %w", what, timeout, err)
	}
	return err
}

// statement runs one statement to its end; a query is one too, and its rows are left alone.
func (t *transaction) statement(ctx context.Context, query string) error {
	return t.native(func(c *conn) error {
		rows, err := c.QueryContext(ctx, query, nil)
		if err != nil {
			return err
		}
		for err == nil {
			err = rows.Next(nil)
		}
		if errors.Is(err, io.EOF) {
			err = nil
		}
		return errors.Join(err, rows.Close())
	})
}

// checkStep looks at what the step left behind, and returns its error or a worse one.
func (s *Store) checkStep(ctx context.Context, t *transaction, err error) error {
	switch {
	case !t.stands() && err != nil && endsTransaction(err):
		return err // by SQLite itself; the connection is dropped
	case !t.stands():
		return at(err, errTransactionGone)
	case err != nil:
		return err
	case t.conn.guard.schema:
		return s.checkSchemaOf(ctx, t)
	}
	return nil
}

// at keeps the place of an error in one that takes its place.
func at(err, instead error) error {
	if e, ok := errors.AsType[*statementError](err); ok {
		return &statementError{statement: e.statement, err: instead}
	}
	return instead
}

const (
	belaysObjects = `
SELECT type || ' ' || name, COALESCE(sql, '') FROM sqlite_schema
WHERE name LIKE 'belay\_%' ESCAPE '\' OR tbl_name LIKE 'belay\_%' ESCAPE '\' OR sql LIKE '%belay\_%' ESCAPE '\'`
	belaysTemporaryObjects = `
SELECT type || ' ' || name, COALESCE(sql, '') FROM sqlite_temp_schema
WHERE name LIKE 'belay\_%' ESCAPE '\' OR tbl_name LIKE 'belay\_%' ESCAPE '\' OR sql LIKE '%belay\_%' ESCAPE '\'`
)

// checkSchemaOf demands that Belay's tables, and all that names them, are what they were before the transaction: a view
// or trigger is not looked into before it is used, and a renamed table not at all. Readers still see the file as it was.
func (s *Store) checkSchemaOf(ctx context.Context, t *transaction) error {
	var before map[string]string
	err := s.committed(ctx, func(ctx context.Context, tx session) (err error) {
		before, err = objects(tx.query(ctx, belaysObjects))
		return err
	})
	if err != nil {
		return err
	}
	after, err := objects(t.query(ctx, belaysObjects))
	if err != nil {
		return err
	}
	temporary, err := objects(t.query(ctx, belaysTemporaryObjects))
	if err != nil {
		return err
	}
	for name := range temporary {
		return fmt.Errorf("%w: temporary %s names Belay's tables", engine.ErrStepEscaped, name)
	}
	for name, text := range after {
		if was, ok := before[name]; !ok || was != text {
			return fmt.Errorf("%w: %s names Belay's tables", engine.ErrStepEscaped, name)
		}
	}
	for name := range before {
		if _, ok := after[name]; !ok {
			return fmt.Errorf("%w: %s is gone", engine.ErrStepEscaped, name)
		}
	}
	return nil
}

// committed runs fn on a connection that sees the file as the last commit left it.
func (s *Store) committed(ctx context.Context, fn func(ctx context.Context, tx session) error) error {
	connection, err := s.reader.Conn(ctx)
	if err != nil {
		return translate(err)
	}
	defer connection.Close()
	return fn(ctx, session{connection})
}

func objects(rows *rows, err error) (map[string]string, error) {
	if err != nil {
		return nil, err
	}
	found := make(map[string]string)
	for rows.Next() {
		var name, text string
		if err := rows.Scan(&name, &text); err != nil {
			return nil, err
		}
		found[name] = text
	}
	return found, nil
}

// referencesSQL says whether a table has a foreign key: its text then holds the word. Most files have none, and pragmas as
// tables are slow to prepare.
const referencesSQL = `SELECT EXISTS (SELECT 1 FROM sqlite_schema WHERE type = 'table' AND sql LIKE '%references%')`

// A table's references can be violated if it was written, or one that it refers to was.
const violationsSQL = `
SELECT c."table", COALESCE(c.parent, ''), count(*)
FROM (SELECT DISTINCT m.name FROM sqlite_schema AS m, pragma_foreign_key_list(m.name) AS f
      WHERE m.type = 'table' AND (?1 OR lower(m.name) IN (SELECT value FROM json_each(?2))
                                  OR lower(f."table") IN (SELECT value FROM json_each(?2)))) AS child,
     pragma_foreign_key_check(child.name) AS c
GROUP BY 1, 2 ORDER BY 1, 2`

// reference is a table with one that it refers to.
type reference struct{ child, parent string }

// checkReferences demands that the steps violated no foreign key. Violations from before, which readers still see, are
// not theirs.
func (s *Store) checkReferences(ctx context.Context, t *transaction) error {
	guard := &t.conn.guard
	if !guard.schema && len(guard.wrote) == 0 {
		return nil
	}
	var some bool
	if err := t.row(ctx, referencesSQL).Scan(&some); err != nil || !some {
		return err
	}
	tables := make([]string, 0, len(guard.wrote))
	for name := range guard.wrote {
		tables = append(tables, name)
	}
	slices.Sort(tables)
	after, err := violations(t.query(ctx, violationsSQL, guard.schema, encode(tables)))
	if err == nil && len(after) == 0 {
		return nil
	}
	var before map[reference]int
	errBefore := s.committed(ctx, func(ctx context.Context, tx session) (err error) {
		before, err = violations(tx.query(ctx, violationsSQL, guard.schema, encode(tables)))
		return err
	})
	if err != nil {
		if errBefore != nil && errBefore.Error() == err.Error() {
			return nil // a reference that cannot be checked, and could not before
		}
		return fmt.Errorf("check foreign keys: %w", err)
	}
	for r, n := range after {
		if n > before[r] {
			return fmt.Errorf("%d rows of table %s violate its foreign key to %s", n-before[r], r.child, r.parent)
		}
	}
	return nil
}

func violations(rows *rows, err error) (map[reference]int, error) {
	if err != nil {
		return nil, err
	}
	found := make(map[reference]int)
	for rows.Next() {
		var r reference
		var n int
		if err := rows.Scan(&r.child, &r.parent, &n); err != nil {
			return nil, err
		}
		found[r] = n
	}
	return found, nil
}

// querier is the connection that a verify query runs on, with its guard on.
type querier interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}

// verify runs a verify query and compares its one scalar.
func verify(ctx context.Context, q querier, v plan.Verify) error {
	value, rows, err := scalar(ctx, q, v.Query)
	switch {
	case err != nil:
		return fmt.Errorf("%w: %w", engine.ErrVerifyUnable, err)
	case v.Expect == nil:
		return nil
	case rows != 1:
		return fmt.Errorf("%w: expected %s, got %s", engine.ErrVerifyNo, *v.Expect, rowCount(rows))
	case !equals(value, *v.Expect):
		return fmt.Errorf("%w: expected %s, got %s", engine.ErrVerifyNo, *v.Expect, shown(value))
	}
	return nil
}

var errManyColumns = errors.New("the query returns more than one column")

// scalar runs the query to its end and returns the first value, and how many rows there were.
func scalar(ctx context.Context, q querier, query string) (value any, n int, err error) {
	rows, err := q.QueryContext(ctx, query)
	if err != nil {
		return nil, 0, err
	}
	defer rows.Close()
	for rows.Next() {
		if n++; n > 1 {
			continue
		}
		columns, err := rows.Columns()
		if err != nil {
			return nil, 0, err
		}
		if len(columns) != 1 {
			value = errManyColumns
			continue
		}
		if err := rows.Scan(&value); err != nil {
			return nil, 0, err
		}
	}
	return value, n, rows.Err()
}

func rowCount(n int) string {
	if n == 0 {
		return "no row"
	}
	return "more than one row"
}

// equals compares a scalar with text: numbers by value, since SQLite keeps 2 and 2.0 apart only by type. NULL equals
// nothing.
func equals(value any, want string) bool {
	switch v := value.(type) {
	case int64:
		return strconv.FormatInt(v, 10) == want
	case bool:
		return strconv.FormatBool(v) == want
	case float64:
		f, err := strconv.ParseFloat(want, 64)
		return err == nil && f == v
	case string:
		return v == want
	case []byte:
		return string(v) == want
	case time.Time: // what the driver makes of a column declared as a date
		for _, layout := range sqlite3.SQLiteTimestampFormats {
			if at, err := time.ParseInLocation(layout, strings.TrimSuffix(want, "Z"), time.UTC); err == nil && at.Equal(v) {
				return true
			}
		}
	}
	return false
}

// shown is what may be shown of a scalar: a count, but no other row value.
func shown(value any) string {
	switch v := value.(type) {
	case int64:
		return strconv.FormatInt(v, 10)
	case nil:
		return "NULL"
	case error:
		return "more than one column"
	}
	return "another value"
}

// Verify runs a verify query on a reading connection.
func (s *Store) Verify(ctx context.Context, _ string, v plan.Verify, timeout time.Duration) error {
	connection, err := s.reader.Conn(ctx)
	if err != nil {
		return fmt.Errorf("%w: %w", engine.ErrVerifyUnable, translate(err))
	}
	defer connection.Close()
	var guard *guard
	if err := connection.Raw(func(native any) error { guard = &native.(*conn).guard; return nil }); err != nil {
		return fmt.Errorf("%w: %w", engine.ErrVerifyUnable, err)
	}
	guard.begin()
	guard.mode = querySQL
	defer guard.begin()
	return within(ctx, timeout, "the verify query", func(ctx context.Context) error { return verify(ctx, connection, v) })
}
