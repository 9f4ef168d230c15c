package sqlite

import (
	"context"
	"database/sql"
	sqldriver "database/sql/driver"
	"errors"
	"fmt"
	"io"
	"reflect"
)

// session runs Belay's own statements on a connection of a pool. It calls the driver itself, under the lock of database/sql
// that an action's calls take, too: database/sql would begin a goroutine for each transaction and each query in it, and
// small statements cost less than that. Rows are read at once.
//
// Where SQLite's planner has compared a parameter with another term, for ORDER BY, max() or the condition of an index, it prepares the
// statement again at each run, for the sake of the new value. The statements of every plan keep it from that by a plus before
// the parameter.
type session struct{ connection *sql.Conn }

// native calls fn with the connection as the driver has it.
func (s session) native(fn func(c *conn) error) error {
	return s.connection.Raw(func(native any) error { return fn(native.(*conn)) })
}

// exec runs a statement and returns how many rows it changed.
func (s session) exec(ctx context.Context, query string, args ...any) (changed int64, err error) {
	values, err := valuesOf(args)
	if err != nil {
		return 0, err
	}
	err = s.native(func(c *conn) error {
		result, err := c.ExecContext(ctx, query, values)
		if err != nil {
			return err
		}
		changed, err = result.RowsAffected()
		return err
	})
	return changed, translate(err)
}

// query runs a statement and returns its rows.
func (s session) query(ctx context.Context, query string, args ...any) (*rows, error) {
	values, err := valuesOf(args)
	if err != nil {
		return nil, err
	}
	found := &rows{}
	err = s.native(func(c *conn) error {
		native, err := c.QueryContext(ctx, query, values)
		if err != nil {
			return err
		}
		return errors.Join(found.read(native), native.Close())
	})
	if err != nil {
		return nil, translate(err)
	}
	return found, nil
}

// row runs a statement for its first row.
func (s session) row(ctx context.Context, query string, args ...any) row {
	rows, err := s.query(ctx, query, args...)
	return row{rows, err}
}

type row struct {
	rows *rows
	err  error
}

// Scan reads the row; sql.ErrNoRows says that there is none.
func (r row) Scan(dest ...any) error {
	switch {
	case r.err != nil:
		return r.err
	case !r.rows.Next():
		return sql.ErrNoRows
	}
	return r.rows.Scan(dest...)
}

// rows are the values of all rows of a query, one after the other.
type rows struct {
	width  int
	values []sqldriver.Value
	next   int
}

func (r *rows) read(native sqldriver.Rows) error {
	r.width = len(native.Columns())
	for {
		r.values = append(r.values, make([]sqldriver.Value, r.width)...)
		err := native.Next(r.values[len(r.values)-r.width:])
		if err == nil {
			continue
		}
		r.values = r.values[:len(r.values)-r.width]
		if errors.Is(err, io.EOF) {
			return nil
		}
		return err
	}
}

// Next goes to the next row.
func (r *rows) Next() bool {
	r.next += r.width
	return r.width > 0 && r.next <= len(r.values)
}

// Scan reads the row. NULL reads as zero.
func (r *rows) Scan(dest ...any) error {
	if len(dest) != r.width {
		return fmt.Errorf("%d columns are read into %d variables", r.width, len(dest))
	}
	for i, value := range r.values[r.next-r.width : r.next] {
		if err := assign(reflect.ValueOf(dest[i]).Elem(), value); err != nil {
			return fmt.Errorf("column %d: %w", i+1, err)
		}
	}
	return nil
}

func assign(to reflect.Value, value sqldriver.Value) error {
	switch v := value.(type) {
	case nil:
		to.SetZero()
		return nil
	case string:
		if to.Kind() == reflect.String {
			to.SetString(v)
			return nil
		}
	case int64:
		switch {
		case to.CanInt() && !to.OverflowInt(v):
			to.SetInt(v)
			return nil
		case to.Kind() == reflect.Bool:
			to.SetBool(v != 0)
			return nil
		}
	case []byte:
		if to.Type() == reflect.TypeFor[[]byte]() {
			to.SetBytes(v)
			return nil
		}
	}
	return fmt.Errorf("a %T is no %s", value, to.Type())
}

// valuesOf makes the driver's values of a statement's arguments.
func valuesOf(args []any) ([]sqldriver.NamedValue, error) {
	values := make([]sqldriver.NamedValue, len(args))
	for i, arg := range args {
		value, err := sqldriver.DefaultParameterConverter.ConvertValue(arg)
		if err != nil {
			return nil, fmt.Errorf("value %d: %w", i+1, err)
		}
		values[i] = sqldriver.NamedValue{Ordinal: i + 1, Value: value}
	}
	return values, nil
}
