package postgres

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/belayhq/belay/engine"
	"github.com/belayhq/belay/plan"
)

// Unwrap returns the transaction of a checkpoint as pgx has it, nil if tx is not of this package. Begin makes a
// savepoint; Commit and Rollback are refused, because the end of the transaction is the checkpoint's. Ending it through
// Conn is noticed afterwards, and the step fails. Nothing of it may be used once the action has returned; so that what is
// used all the same reaches no other tenant, the connection is closed after the checkpoint.
func Unwrap(tx engine.Tx) pgx.Tx {
	if open, ok := engine.Native(tx).(*actionTx); ok {
		open.unwrapped.Store(true)
		return open.tx
	}
	return nil
}

// errNotYours is what an action gets that tries to end the checkpoint's transaction.
var errNotYours = errors.New("the transaction belongs to the checkpoint: an action must not end it")

// openTx is the checkpoint's transaction without its end.
type openTx struct{ pgx.Tx }

func (openTx) Commit(context.Context) error   { return errNotYours }
func (openTx) Rollback(context.Context) error { return errNotYours }

// actionTx is the transaction as an action sees it.
type actionTx struct {
	tx        openTx
	unwrapped atomic.Bool
}

var _ engine.Tx = (*actionTx)(nil)

func (a *actionTx) Exec(ctx context.Context, sql string, args ...any) (int64, error) {
	tag, err := a.tx.Exec(ctx, sql, withMode(args)...)
	if err != nil {
		return 0, scrub(err)
	}
	return tag.RowsAffected(), nil
}

func (a *actionTx) Query(ctx context.Context, sql string, args []any, row func(scan func(dest ...any) error) error) error {
	rows, err := a.tx.Query(ctx, sql, withMode(args)...)
	if err != nil {
		return scrub(err)
	}
	defer rows.Close()
	for rows.Next() {
		if err := row(rows.Scan); err != nil {
			return err
		}
	}
	return scrub(rows.Err())
}

// withMode keeps a step's statements from being prepared, whatever the pool's own default is.
func withMode(args []any) []any { return append([]any{pgx.QueryExecModeExec}, args...) }

// joinSQL makes pgx take part in the transaction that is open already: it is sent in the place of BEGIN and does nothing.
const joinSQL = `-- an action joins the transaction`

// act runs a step's action in the transaction.
func (tx *transaction) act(ctx context.Context, index int, step engine.GroupStep) error {
	if err := tx.flush(ctx); err != nil {
		return err
	}
	tx.acted, tx.foreign, tx.more = true, true, true
	ctx, cancel := context.WithCancel(ctx)
	if step.Timeout > 0 {
		ctx, cancel = context.WithTimeoutCause(ctx, step.Timeout, fmt.Errorf("timed out after %s", step.Timeout))
	}
	defer cancel()
	joined, err := tx.conn.Conn().BeginTx(ctx, pgx.TxOptions{BeginQuery: joinSQL})
	if err != nil {
		return connectionError(ctx, err)
	}
	open := &actionTx{tx: openTx{joined}}
	image, err := step.Action(ctx, open)
	tx.broken = tx.broken || open.unwrapped.Load()
	if err != nil {
		tx.abandoned = errors.Is(err, engine.ErrLeftBehind)
		return tx.actionError(ctx, index, err)
	}
	if err := tx.stillOpen(); err != nil {
		tx.broken = true
		return stepFailure(index, plan.Statement{}, err)
	}
	if image != nil {
		tx.taken[index] = image
	}
	return nil
}

// actionError gives an action's error its meaning: the step's, unless the database asked to run the transaction again
// or the connection is gone for a reason that is not the step's.
func (tx *transaction) actionError(ctx context.Context, index int, err error) error {
	if timeout := context.Cause(ctx); ctx.Err() != nil && errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return stepFailure(index, plan.Statement{}, timeout)
	}
	server, ok := errors.AsType[*pgconn.PgError](err)
	switch {
	case ok && react(server.Code) == runAgain:
		return withoutValues(server)
	case reactTo(err) == runAgain:
		return err
	case !tx.abandoned && tx.conn.Conn().IsClosed():
		return connectionError(ctx, err)
	}
	return stepFailure(index, plan.Statement{}, scrub(err))
}

// stillOpen looks at the connection after an action, which had it in its hands.
func (tx *transaction) stillOpen() error {
	conn := tx.conn.Conn().PgConn()
	switch {
	case conn.IsClosed():
		return fmt.Errorf("%w: the connection is closed", engine.ErrStepEscaped)
	case conn.IsBusy():
		return fmt.Errorf("%w: a result was left open", engine.ErrStepEscaped)
	case conn.TxStatus() == 'I':
		return fmt.Errorf("%w: the transaction was ended", engine.ErrStepEscaped)
	case conn.TxStatus() == 'E':
		return errors.New("a statement failed and the action went on: the transaction cannot be committed")
	}
	return nil
}
