package postgres

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/belayhq/belay/engine"
)

// ownPath is the search path of Belay's own statements: nothing that a tenant's schema holds can stand in their way.
const ownPath = "pg_catalog, pg_temp"

// limits are what the server enforces on a transaction. Zero means no limit.
type limits struct {
	statement, lock, idle time.Duration
}

// ownLimits bound a transaction of Belay's own statements. The lock wait is below deadlock_timeout, so that no deadlock check
// ever runs. It is not shorter, because who only waits until a table has grown by a page must not take its tenant for busy on
// a crowded machine; rows are asked for without waiting.
var ownLimits = limits{statement: 30 * time.Second, lock: 500 * time.Millisecond, idle: 30 * time.Second}

// writing and reading are how transactions begin. Read committed is not a choice: a take-over under a higher level has
// an old snapshot, and leaves two plans in flight. READ WRITE is not said: a database that was set read-only stays so. A read
// has one snapshot for all its statements.
const (
	writing = `BEGIN ISOLATION LEVEL READ COMMITTED`
	reading = `BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY`
	commit  = `COMMIT`
)

// settings make a transaction the same whatever the defaults of the role and the database are: scripts are read and text
// and bytes are sent as this package takes them for granted, and its commit is durable. The keepalives end a transaction whose
// client has vanished in the middle of a message, which no other limit does.
const settings = `
       pg_catalog.set_config('search_path', '` + ownPath + `', true),
       pg_catalog.set_config('statement_timeout', $1::text, true),
       pg_catalog.set_config('lock_timeout', $2::text, true),
       pg_catalog.set_config('idle_in_transaction_session_timeout', $3::text, true),
       pg_catalog.set_config('client_connection_check_interval', $4::text, true),
       pg_catalog.set_config('belay.mark', pg_catalog.concat($5::text, ':', current_user), true),
       pg_catalog.set_config('client_encoding', 'UTF8', true),
       pg_catalog.set_config('standard_conforming_strings', 'on', true),
       pg_catalog.set_config('bytea_output', 'hex', true),
       pg_catalog.set_config('tcp_keepalives_idle', $6::text, true),
       pg_catalog.set_config('tcp_keepalives_interval', $6::text, true),
       pg_catalog.set_config('tcp_keepalives_count', '2', true),
       pg_catalog.set_config('synchronous_commit',
           CASE pg_catalog.current_setting('synchronous_commit') WHEN 'remote_apply' THEN 'remote_apply' ELSE 'on' END, true)`

// planOnce has the server plan each of Belay's statements once a connection, for any values. By default it plans the first
// five times for the values at hand, which with many connections costs more than carrying them out. It must not hold for a
// step, whose functions may need plans for their values.
const planOnce = `pg_catalog.set_config('plan_cache_mode', 'force_generic_plan', true)`

// settingsSQL begins a transaction that proves nothing and runs only Belay's own statements, plainSettingsSQL one that also
// runs others.
const (
	settingsSQL      = `SELECT ` + settings + `, ` + planOnce
	plainSettingsSQL = `SELECT ` + settings
)

func (tx *transaction) settings(l limits) []any {
	return []any{millis(l.statement), millis(l.lock), millis(l.idle), millis(tx.store.watch), tx.mark, keepalive(l.idle)}
}

// begin queues the settings.
func (l limits) begin(tx *transaction) { tx.own(settingsSQL, tx.settings(l)...) }

// beginPlain queues the settings of a transaction that also runs statements of others.
func (l limits) beginPlain(tx *transaction) { tx.own(plainSettingsSQL, tx.settings(l)...) }

// cleanSQL takes back what a step's rows-only statements can leave in a session that others use next: settings and locks, made
// by functions. cleanAllSQL takes back the rest. They run behind COMMIT in the same round trip, unless leaveCleanSQL has
// cleaned already.
var (
	cleanSQL    = []string{`RESET ALL`, `SELECT pg_catalog.pg_advisory_unlock_all()`}
	cleanAllSQL = []string{`CLOSE ALL`, `UNLISTEN *`, `DISCARD TEMP`}
)

// transaction is one transaction on one connection. Statements are queued, and sent together by flush or commit.
type transaction struct {
	store *Store
	conn  *pgxpool.Conn
	queue []statement
	mark  string // of this transaction; see keptSQL

	// reading says that nothing is written, so that no outcome can be unknown.
	reading   bool
	committed bool
	// broken says that nothing is known of the connection any more, so that it must not be used again.
	broken bool
	// abandoned says that an action may still be using the connection.
	abandoned bool
	// acted says that an action ran, which may happen only once.
	acted bool
	// foreign says that SQL of a step ran, more that some of it did more than read and write rows, cleaned that the
	// transaction, if it commits, leaves nothing of it in the session.
	foreign, more, cleaned bool
	// taken holds the before-images that actions returned, by the index of their step.
	taken map[int][]byte
	// unread is what the reader of an answer found wrong.
	unread error
	sent   time.Time // when what runs now was
}

// statement is one queued statement.
type statement struct {
	sql  string
	args []any
	own  bool                      // Belay's own, and so worth preparing
	rows func(rows pgx.Rows) error // reads the answer; nil leaves it unread
	// failed says what an error that the server reported for this statement means.
	failed func(err error) error
}

// write runs body in a transaction that writes.
func (s *Store) write(ctx context.Context, body func(tx *transaction) error) error {
	return s.transact(ctx, s.pool, writing, ownLimits.begin, body)
}

// snapshot runs body in a read-only transaction with one snapshot.
func (s *Store) snapshot(ctx context.Context, body func(tx *transaction) error) error {
	return s.repeatable(ctx, s.pool, reading, body)
}

// repeatable runs a body that may be carried out twice, and runs it again where its connection was lost: after a restart of the
// server every idle connection of a pool is dead, and each is found out by one try.
func (s *Store) repeatable(ctx context.Context, pool *pgxpool.Pool, begin string, body func(tx *transaction) error) error {
	for dead := int32(0); ; dead++ {
		err := s.transact(ctx, pool, begin, ownLimits.begin, body)
		_, unconnected := errors.AsType[*connectFailure](err)
		if unconnected || !isConnectionLost(err) || ctx.Err() != nil || dead >= pool.Config().MaxConns {
			return err
		}
	}
}

// transact runs body, which queues statements and ends with commit, behind the first statement of the transaction, which
// first queues. If the pooler lost prepared statements, it runs body again without them: body must give the same from the start.
func (s *Store) transact(ctx context.Context, pool *pgxpool.Pool, begin string, first func(*transaction), body func(*transaction) error) error {
	for {
		preparing := s.preparing.Load()
		acted, err := s.attempt(ctx, pool, begin, first, body)
		if !preparing || !isUnprepared(err) {
			return err
		}
		s.preparing.Store(false)
		s.log.Info().Msg("a pooler lost prepared statements; none are used from now on")
		if acted {
			return fmt.Errorf("prepared statement lost: %w", engine.ErrRetryTransaction)
		}
	}
}

func (s *Store) attempt(ctx context.Context, pool *pgxpool.Pool, begin string, first func(*transaction), body func(*transaction) error) (
	acted bool, err error,
) {
	conn, err := pool.Acquire(ctx)
	if err != nil {
		return false, connectError(err)
	}
	tx := &transaction{store: s, conn: conn, mark: uuid.NewString(), taken: map[int][]byte{}, reading: begin == reading}
	defer tx.close(ctx)
	tx.own(begin)
	first(tx)
	err = body(tx)
	return tx.acted, err
}

// keepalive is the time in seconds between probes of a silent client, so that three of them, the last in vain, fit into idle.
func keepalive(idle time.Duration) string {
	return strconv.Itoa(max(int(idle/(3*time.Second)), 1))
}

// own queues a statement of Belay's.
func (tx *transaction) own(sql string, args ...any) {
	tx.add(statement{sql: sql, args: args, own: true})
}

// ask queues a statement of Belay's and has its answer read.
func (tx *transaction) ask(sql string, rows func(pgx.Rows) error, args ...any) {
	tx.add(statement{sql: sql, args: args, own: true, rows: rows})
}

// found queues a statement of Belay's and notes whether it has an answer.
func (tx *transaction) found(sql string, there *bool, args ...any) {
	tx.ask(sql, func(rows pgx.Rows) error { *there = rows.Next(); return nil }, args...)
}

// one queues a statement of Belay's and has the one row that it answers read, if there is one.
func (tx *transaction) one(sql string, args []any, dest ...any) {
	tx.ask(sql, func(rows pgx.Rows) error {
		if !rows.Next() {
			return nil
		}
		return rows.Scan(dest...)
	}, args...)
}

func (tx *transaction) add(st statement) { tx.queue = append(tx.queue, st) }

// commit sends what is queued with a COMMIT behind it. An error after which the outcome is open wraps
// engine.ErrUnknownOutcome.
func (tx *transaction) commit(ctx context.Context) error {
	tx.add(statement{sql: commit, own: true})
	last := len(tx.queue) - 1
	if !tx.cleaned {
		for _, sql := range tx.leftovers() {
			tx.own(sql)
		}
	}
	at, err := tx.send(ctx)
	switch {
	case tx.committed && tx.unread != nil:
		return fmt.Errorf("commit: %w: %w", engine.ErrUnknownOutcome, tx.unread)
	case tx.committed:
		if err != nil {
			tx.broken = true // what the step left in its session may still be there
		}
		return nil
	case err == nil:
		return errors.New("commit: the transaction had been ended")
	case at < 0, at > last: // nothing was sent, or the transaction had ended before
		return err
	case !tx.reading && isConnectionLost(err) && (at == last || !endedByServer(err)):
		// Answers of statements before it may have been lost with the connection: COMMIT may have been carried out.
		return fmt.Errorf("commit: %w: %w", engine.ErrUnknownOutcome, err)
	}
	return err
}

// leftovers lists what cleans the session of what steps may have left in it. An embedding program's own pool is its own
// to keep clean: its settings are not ours to reset.
func (tx *transaction) leftovers() []string {
	switch {
	case !tx.store.ownsPool || !tx.foreign:
		return nil
	case tx.more:
		return append(slices.Clone(cleanAllSQL), cleanSQL...)
	}
	return cleanSQL
}

// flush sends what is queued and reads all answers. The transaction stays open.
func (tx *transaction) flush(ctx context.Context) error {
	if _, err := tx.send(ctx); err != nil {
		return err
	}
	return tx.unread
}

// send sends the queue, in one round trip if it is not large, and returns the index of the statement that failed; -1 if nothing was sent.
func (tx *transaction) send(ctx context.Context) (at int, err error) {
	if err := ctx.Err(); err != nil {
		return -1, context.Cause(ctx)
	}
	queue := tx.queue
	tx.queue = nil
	sent := 0
	for sent < len(queue) {
		part := queue[sent:]
		if !tx.reading { // what only reads keeps nobody out
			part = part[:deliverable(part)]
		}
		at, err := tx.sendPart(ctx, part)
		if err != nil {
			return sent + at, err
		}
		sent += len(part)
	}
	return sent, nil
}

// partMax is how many bytes of statements are sent without waiting for their answers, about as much as one write
// delivers. A client that is stopped in the middle of more would leave the server waiting for the rest, with the lock row
// locked and no limit running: the idle limit counts only between answers.
const partMax = 16 << 10

// deliverable returns how many statements of a queue make the next part: at least one.
func deliverable(queue []statement) int {
	size := 0
	for i := range queue {
		if size += queue[i].size(); size > partMax && i > 0 {
			return i
		}
	}
	return len(queue)
}

// size is about how many bytes a statement takes. One that is prepared on the connection takes less.
func (st *statement) size() int {
	size := 64 + len(st.sql)
	if st.own {
		size = 96
	}
	for _, arg := range st.args {
		switch arg := arg.(type) {
		case []byte:
			size += len(arg)
		case string:
			size += len(arg)
		case []string:
			for _, s := range arg {
				size += len(s) + 8
			}
		default:
			size += 16
		}
	}
	return size
}

func (tx *transaction) sendPart(ctx context.Context, queue []statement) (at int, err error) {
	line := tx.conn.Conn().PgConn().StartPipeline(ctx)
	known := tx.prepared()
	fresh := make([]bool, len(queue))
	for i := range queue {
		fresh[i] = tx.put(line, known, queue[i])
	}
	tx.sent = time.Now()
	if err := line.Sync(); err != nil {
		tx.broken = true
		return 0, connectionError(ctx, err)
	}
	for i := range queue {
		if err := tx.receive(line, known, queue[i], fresh[i]); err != nil {
			maps.DeleteFunc(known, func(_ string, d *pgconn.StatementDescription) bool { return d == nil })
			if closed := line.Close(); closed != nil && !isServerError(closed) {
				tx.broken = true
			}
			return i, tx.translate(ctx, queue[i], err)
		}
	}
	if err := line.Close(); err != nil {
		tx.broken = true
		return len(queue), connectionError(ctx, err)
	}
	return len(queue), nil
}

// translate gives a failure of a statement its meaning.
func (tx *transaction) translate(ctx context.Context, st statement, err error) error {
	server, ok := errors.AsType[*pgconn.PgError](err)
	if !ok {
		tx.broken = true
		return connectionError(ctx, err)
	}
	clean := withoutValues(server)
	clean.after = time.Since(tx.sent)
	if clean.fatal {
		tx.broken = true
		return clean
	}
	if st.own && clean.Code == codeReadOnly {
		tx.broken = true // another connection may lead to the server that is the primary by now
		return errReadOnly
	}
	if st.own && react(clean.Code) == noStatements {
		return unpreparedError{clean}
	}
	if st.failed != nil {
		return st.failed(clean)
	}
	return clean
}

// put writes one statement to the pipeline. It reports whether the statement is being prepared on the way.
func (tx *transaction) put(line *pgconn.Pipeline, known preparedStatements, st statement) (fresh bool) {
	values, formats := encode(st.args)
	if !st.own || !tx.store.preparing.Load() {
		line.SendQueryParams(st.sql, values, nil, formats, nil)
		return false
	}
	if described, ok := known[st.sql]; ok && described != nil {
		line.SendQueryStatement(described, values, formats, nil)
		return false
	}
	name := statementName(st.sql)
	if _, sent := known[st.sql]; !sent {
		line.SendPrepare(name, st.sql, nil)
		known[st.sql] = nil
		fresh = true
	}
	line.SendQueryPrepared(name, values, formats, nil)
	return fresh
}

func (tx *transaction) receive(line *pgconn.Pipeline, known preparedStatements, st statement, fresh bool) error {
	if fresh {
		delete(known, st.sql) // until the server has said that it has it
		answer, err := line.GetResults()
		if err != nil {
			return err
		}
		described, ok := answer.(*pgconn.StatementDescription)
		if !ok {
			return fmt.Errorf("unexpected answer %T to a prepare", answer)
		}
		described.Name = statementName(st.sql) // a pipeline leaves it empty, and that is another statement's name
		known[st.sql] = described
	}
	answer, err := line.GetResults()
	if err != nil {
		return err
	}
	reader, ok := answer.(*pgconn.ResultReader)
	if !ok {
		return fmt.Errorf("unexpected answer %T to a statement", answer)
	}
	if st.rows != nil {
		rows := pgx.RowsFromResultReader(tx.conn.Conn().TypeMap(), reader)
		err := st.rows(rows)
		rows.Close()
		if rows.Err() == nil && tx.unread == nil {
			tx.unread = err
		}
		return rows.Err()
	}
	tag, err := reader.Close()
	if err == nil && st.sql == commit {
		tx.committed = tag.String() == commit // an aborted transaction answers ROLLBACK
	}
	return err
}

// close gives the connection back, or closes it if it is in doubt.
func (tx *transaction) close(ctx context.Context) {
	if tx.abandoned {
		// Only the socket may be touched: what still uses the connection fails at its next word, and the server ends the
		// transaction.
		_ = tx.conn.Hijack().PgConn().Conn().Close()
		return
	}
	conn := tx.conn.Conn()
	if conn.IsClosed() {
		// The driver has given it up but drains it for many seconds, and so long the pool would keep its place: for renewals
		// that is the only one.
		_ = tx.conn.Hijack().PgConn().Conn().Close()
		return
	}
	defer tx.conn.Release()
	clean := !tx.broken && !conn.PgConn().IsBusy()
	if clean && conn.PgConn().TxStatus() == 'I' {
		return
	}
	// The caller may be gone already, but a connection left in a transaction keeps its rows locked.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	if clean {
		words := strings.Join(append([]string{`ROLLBACK`}, tx.leftovers()...), "; ")
		if _, err := conn.PgConn().Exec(ctx, words).ReadAll(); err == nil {
			return
		}
	}
	_ = conn.Close(ctx) // there is nobody to tell, and the server notices
}

// preparedStatements holds a connection's prepared statements by their text; nil while one is being prepared.
type preparedStatements map[string]*pgconn.StatementDescription

func (tx *transaction) prepared() preparedStatements {
	const key = "belay.prepared"
	data := tx.conn.Conn().PgConn().CustomData()
	known, ok := data[key].(preparedStatements)
	if !ok {
		known = preparedStatements{}
		data[key] = known
	}
	return known
}

// statementName derives a name from the text: behind a pooler another version of Belay may have used the connection, and
// must not have left another text under the same name.
func statementName(sql string) string {
	sum := sha256.Sum256([]byte(sql))
	return "belay_" + hex.EncodeToString(sum[:12])
}
