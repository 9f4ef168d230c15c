package sqlite

import (
	"context"
	sqldriver "database/sql/driver"
	"errors"
	"fmt"
	"io"
	"os"
	"reflect"
	"slices"
	"sync"
	"time"

	"github.com/mattn/go-sqlite3"

	"github.com/belayhq/belay/sitelock"
	"github.com/belayhq/belay/storage"
)

// file is the identity of a database file.
type file struct {
	path string
	// info is of the file when the store was opened; nil where the file is only being made.
	info os.FileInfo
}

// check demands that the path still leads to the file: a replaced or deleted one takes writes and loses them. The
// descriptors of the store's connections keep the inode's number from being given to another file.
func (f *file) check() error {
	if f.info == nil {
		return nil
	}
	now, err := os.Stat(f.path)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return fmt.Errorf("%w: the file was deleted while it was open", storage.ErrNoDatabase)
	case err != nil:
		return err
	case !os.SameFile(f.info, now):
		return errReplaced
	}
	return nil
}

var errReplaced = errors.New("the file was replaced by another while it was open: stop every process that uses it, then start again")

// connector opens connections to a file. It has a driver of its own: none is registered.
type connector struct {
	file *file
	dsn  string
}

func (c *connector) Driver() sqldriver.Driver { return &sqlite3.SQLiteDriver{} }

// Connect opens a connection.
func (c *connector) Connect(ctx context.Context) (opened sqldriver.Conn, err error) {
	err = untilAlone(ctx, func() error {
		opened, err = c.connect()
		return err
	})
	return opened, err
}

const (
	alonePatience = 5 * time.Second
	alonePause    = 20 * time.Millisecond
)

// untilAlone tries what needs the file for a moment alone: turning it to WAL mode, and recovering it after a crash. SQLite
// does not wait for that by itself.
func untilAlone(ctx context.Context, try func() error) error {
	for begun := time.Now(); ; {
		err := try()
		if !errors.Is(err, sitelock.ErrContended) || time.Since(begun) > alonePatience {
			return err
		}
		if cause := pause(ctx, alonePause); cause != nil {
			return fmt.Errorf("%w: %w", cause, err)
		}
	}
}

func (c *connector) connect() (sqldriver.Conn, error) {
	if err := c.file.check(); err != nil {
		return nil, err
	}
	native, err := c.Driver().Open(c.dsn)
	if err != nil {
		return nil, translate(err)
	}
	opened := &conn{SQLiteConn: native.(*sqlite3.SQLiteConn), file: c.file, own: make(map[string]*sqlite3.SQLiteStmt)}
	if err := c.file.check(); err != nil {
		_ = opened.Close()
		return nil, err
	}
	opened.RegisterAuthorizer(opened.guard.authorize)
	return opened, nil
}

// conn is a connection with its guard. While the guard is off, SQL is one of Belay's constants, and is prepared once
// per connection. While it is on, SQL is somebody else's: a statement prepared before would pass by the authorizer, so
// each is prepared, run and forgotten.
//
// It is used by one goroutine at a time, as database/sql demands of a driver.
type conn struct {
	*sqlite3.SQLiteConn
	file  *file
	guard guard
	own   map[string]*sqlite3.SQLiteStmt
	// wal says that the file was seen in WAL mode, which nobody can end while this connection is open.
	wal bool
	// broken says that the connection must not be used again.
	broken bool
}

// ResetSession is called each time that the connection is taken from its pool.
func (c *conn) ResetSession(context.Context) error {
	if c.file.check() != nil {
		return sqldriver.ErrBadConn // connecting anew says what is wrong
	}
	return nil
}

// IsValid is called each time that the connection is returned to its pool.
func (c *conn) IsValid() bool { return !c.broken }

// Close finalizes the prepared statements first: SQLite would keep the file open for their sake.
func (c *conn) Close() error {
	for _, stmt := range c.own {
		_ = stmt.Close()
	}
	clear(c.own)
	return c.SQLiteConn.Close()
}

func (c *conn) ExecContext(ctx context.Context, query string, args []sqldriver.NamedValue) (sqldriver.Result, error) {
	stmt, err := c.statement(ctx, query, args)
	if err != nil {
		return nil, err
	}
	if stmt == nil {
		return sqldriver.RowsAffected(0), nil
	}
	if c.guard.on() {
		defer stmt.Close() //nolint:errcheck // step SQL is prepared once; what went wrong is in err
	}
	result, err := stmt.ExecContext(ctx, args)
	return result, c.guard.explain(err, running)
}

func (c *conn) QueryContext(ctx context.Context, query string, args []sqldriver.NamedValue) (sqldriver.Rows, error) {
	stmt, err := c.statement(ctx, query, args)
	if err != nil {
		return nil, err
	}
	if stmt == nil {
		return noRows{}, nil
	}
	if !c.guard.on() {
		return stmt.QueryContext(ctx, args)
	}
	rows, err := stmt.QueryContext(ctx, args)
	if err != nil {
		_ = stmt.Close()
		return nil, c.guard.explain(err, running)
	}
	return &foreignRows{Rows: rows, conn: c, stmt: stmt}, nil
}

func (c *conn) PrepareContext(ctx context.Context, query string) (sqldriver.Stmt, error) {
	if c.guard.on() {
		// A statement kept by an action would outlive the guard.
		return nil, errors.New("a step cannot keep prepared statements: use Exec and Query")
	}
	return c.SQLiteConn.PrepareContext(ctx, query)
}

// statement prepares SQL, or returns what was prepared before; nil for a text without a statement.
func (c *conn) statement(ctx context.Context, query string, args []sqldriver.NamedValue) (*sqlite3.SQLiteStmt, error) {
	if stmt, ok := c.own[query]; ok && !c.guard.on() {
		return stmt, nil
	}
	if c.guard.transactional && c.AutoCommit() {
		return nil, errTransactionGone
	}
	c.guard.next()
	stmt, rest, err := c.prepare(ctx, query)
	if err != nil {
		return nil, c.guard.explain(err, preparing)
	}
	if rest != "" {
		err = c.demandEmpty(ctx, rest)
	}
	if err == nil && stmt != nil {
		err = complete(stmt, args)
	}
	if err != nil || stmt == nil {
		return nil, errors.Join(err, finalize(stmt))
	}
	if !c.guard.on() {
		c.own[query] = stmt
	}
	return stmt, nil
}

// prepare compiles the first statement of a text, and returns it with the text behind it. The driver keeps both to itself,
// and would leave out the rest without a word; if it ever calls its fields otherwise, this panics at the first statement.
func (c *conn) prepare(ctx context.Context, query string) (stmt *sqlite3.SQLiteStmt, rest string, err error) {
	prepared, err := c.SQLiteConn.PrepareContext(ctx, query)
	if err != nil {
		return nil, "", err
	}
	stmt = prepared.(*sqlite3.SQLiteStmt)
	fields := reflect.ValueOf(stmt).Elem()
	if fields.FieldByName("s").IsNil() {
		_ = stmt.Close() // frees nothing
		stmt = nil
	}
	return stmt, fields.FieldByName("t").String(), nil
}

// demandEmpty refuses a second statement; a comment is none.
func (c *conn) demandEmpty(ctx context.Context, rest string) error {
	stmt, more, err := c.prepare(ctx, rest)
	if stmt == nil && more == "" && err == nil {
		return nil
	}
	return errors.Join(errors.New("more than one statement in one call"), finalize(stmt))
}

func finalize(stmt *sqlite3.SQLiteStmt) error {
	if stmt == nil {
		return nil
	}
	return stmt.Close()
}

// complete demands a value for each placeholder: the driver would leave the others NULL.
func complete(stmt *sqlite3.SQLiteStmt, args []sqldriver.NamedValue) error {
	named := slices.ContainsFunc(args, func(a sqldriver.NamedValue) bool { return a.Name != "" })
	if !named && len(args) != stmt.NumInput() {
		return fmt.Errorf("the statement has %d placeholders, %d values are given", stmt.NumInput(), len(args))
	}
	return nil
}

// demandWAL turns the file to WAL mode, if it is not in it.
func (c *conn) demandWAL(ctx context.Context) error {
	if c.wal {
		return nil
	}
	err := untilAlone(ctx, func() error { return translate(c.script(context.WithoutCancel(ctx), "PRAGMA journal_mode = WAL")) })
	c.wal = err == nil
	return err
}

// script runs a text of several statements.
func (c *conn) script(ctx context.Context, text string) error {
	_, err := c.SQLiteConn.ExecContext(ctx, text, nil)
	return err
}

// foreignRows are the rows of a statement that is forgotten with them.
type foreignRows struct {
	sqldriver.Rows
	conn  *conn
	stmt  *sqlite3.SQLiteStmt
	close sync.Once
}

func (r *foreignRows) Next(dest []sqldriver.Value) error {
	err := r.Rows.Next(dest)
	if _, ok := errors.AsType[sqlite3.Error](err); ok {
		return r.conn.guard.explain(err, running)
	}
	return err
}

func (r *foreignRows) Close() error {
	err := r.Rows.Close()
	r.close.Do(func() { _ = r.stmt.Close() })
	return err
}

// noRows are the rows of a text without a statement.
type noRows struct{}

func (noRows) Columns() []string            { return nil }
func (noRows) Close() error                 { return nil }
func (noRows) Next([]sqldriver.Value) error { return io.EOF }

// pause waits, unless ctx ends first.
func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
