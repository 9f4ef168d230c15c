package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/belayhq/belay/engine"
)

// Tx is the open transaction of a checkpoint, as an action sees it. It is good until the action returns, and for one
// goroutine. The guard of steps is on: statements are run one per call and not kept, and the transaction cannot be ended.
// Placeholders are SQLite's.
type Tx struct {
	connection *sql.Conn
	// life ends with the action. Rows that the action leaves open are closed then.
	life context.Context
}

var _ engine.Tx = (*Tx)(nil)

// Unwrap returns the transaction behind tx, with the calls that database/sql has; nil if it is of another database.
func Unwrap(tx engine.Tx) *Tx {
	native, _ := engine.Native(tx).(*Tx)
	return native
}

var errActionOver = errors.New("the action has returned, its transaction is no longer there")

// act calls the action and keeps what it captured. A panic passes, after the transaction's end.
func (t *transaction) act(ctx context.Context, step engine.GroupStep) ([]byte, error) {
	life, end := context.WithCancel(ctx)
	defer end()
	before, err := step.Action(ctx, &Tx{connection: t.connection, life: life})
	if err != nil {
		return nil, fmt.Errorf("action: %w", err)
	}
	return before, nil
}

// Exec runs one statement and returns the rows that it changed.
func (x *Tx) Exec(ctx context.Context, query string, args ...any) (int64, error) {
	result, err := x.ExecContext(ctx, query, args...)
	if err != nil {
		return 0, err
	}
	return result.RowsAffected()
}

// Query runs one statement and calls row for each of its rows.
func (x *Tx) Query(ctx context.Context, query string, args []any, row func(scan func(dest ...any) error) error) error {
	rows, err := x.QueryContext(ctx, query, args...)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		if err := row(rows.Scan); err != nil {
			return err
		}
	}
	return rows.Err()
}

// ExecContext runs one statement.
func (x *Tx) ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error) {
	if x.life.Err() != nil {
		return nil, errActionOver
	}
	return x.connection.ExecContext(ctx, query, args...)
}

// QueryContext runs one statement. Its rows are closed when the action returns, if not before.
func (x *Tx) QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error) {
	if x.life.Err() != nil {
		return nil, errActionOver
	}
	return x.connection.QueryContext(x.within(ctx), query, args...)
}

// QueryRowContext runs one statement for its first row.
func (x *Tx) QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row {
	return x.connection.QueryRowContext(x.within(ctx), query, args...)
}

// within ends ctx with the action's life, too. Open rows would keep the connection from being given back.
func (x *Tx) within(ctx context.Context) context.Context {
	ctx, cancel := context.WithCancel(ctx)
	context.AfterFunc(x.life, cancel)
	return ctx
}
