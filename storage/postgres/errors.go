package postgres

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/belayhq/belay/engine"
	"github.com/belayhq/belay/sitelock"
	"github.com/belayhq/belay/storage"
)

// SQLSTATEs that mean something here. BY is a class of Belay's own functions.
const (
	codeLockLost    = "BY001"
	codeRefused     = "BY002"
	codeEscaped     = "BY003"
	codeBudgetSpent = "BY004"
	codeNoScope     = "BY005"
	codeOtherScope  = "BY006"

	codeReadOnly           = "25006"
	codeIdleTransaction    = "25P03"
	codeStatementMissing   = "26000"
	codeStatementExists    = "42P05"
	codeProtocol           = "08P01"
	codeNoPrivilege        = "42501"
	codeSerialization      = "40001"
	codeDeadlock           = "40P01"
	codeLockNotAvailable   = "55P03"
	codeQueryCanceled      = "57014"
	codeAdminShutdown      = "57P01"
	codeCrashShutdown      = "57P02"
	codeCannotConnectNow   = "57P03"
	codeTooManyConnections = "53300"
	codeDatabaseMissing    = "3D000"
	codeSchemaMissing      = "3F000"
	codeTableMissing       = "42P01"
	codeFunctionMissing    = "42883"
	codeUniqueViolation    = "23505"
	codeSchemaExists       = "42P06"
	codeTableExists        = "42P07"
)

// An Error is what the server reported, without any value of a row: no detail, and of a data exception, whose message
// quotes the value, only its kind and place. Code is the SQLSTATE, Constraint the name of the constraint that was
// violated, if one was.
type Error struct {
	Code       string
	Constraint string
	message    string
	// position counts the characters of the statement up to the error from 1; 0 if the server named none.
	position int
	fatal    bool // the server has ended the session
	// after is how long after it was sent the statement failed: the code of a statement that took too long and that of one
	// somebody cancelled are the same.
	after time.Duration
}

func (e *Error) Error() string { return e.message + " (" + e.Code + ")" }

// Is makes a read-only server recognisable.
func (e *Error) Is(target error) bool { return target == errReadOnly && e.Code == codeReadOnly }

var errReadOnly = errors.New("server is read-only: it is a standby, or set so; writes need the primary")

// dataExceptions names the conditions of SQLSTATE class 22.
var dataExceptions = map[string]string{
	"22001": "value too long for its type",
	"22003": "numeric value out of range",
	"22004": "null value not allowed",
	"22007": "invalid date or time format",
	"22008": "date or time out of range",
	"22009": "invalid time zone displacement",
	"22011": "substring error",
	"22012": "division by zero",
	"22019": "invalid escape character",
	"22021": "character not in repertoire",
	"22023": "invalid parameter value",
	"22025": "invalid escape sequence",
	"22032": "invalid JSON text",
	"2201B": "invalid regular expression",
	"2202E": "array subscript error",
	"22P02": "invalid text representation",
	"22P03": "invalid binary representation",
	"22P05": "untranslatable character",
}

func withoutValues(e *pgconn.PgError) *Error {
	clean := &Error{Code: e.Code, Constraint: e.ConstraintName, message: e.Message, position: int(e.Position)}
	clean.fatal = e.SeverityUnlocalized == "FATAL" || e.SeverityUnlocalized == "PANIC"
	switch {
	case e.Code == codeRefused, e.Code == codeUniqueViolation && e.SchemaName == "belay" && e.TableName == "journal":
		return &Error{Code: codeRefused, message: "a step, the plan or its lock is not as the holder knows it"}
	case raised(e):
		clean.message = "raised by the script or a trigger, whose text is not shown because it may quote rows"
		return clean
	case !strings.HasPrefix(e.Code, "22"):
		return clean
	}
	clean.message = dataExceptions[e.Code]
	if clean.message == "" {
		clean.message = "data exception"
	}
	if e.TableName != "" {
		clean.message += ", table " + e.TableName
	}
	if e.ColumnName != "" {
		clean.message += ", column " + e.ColumnName
	}
	return clean
}

// raised reports whether the text of an error was written by a script, whatever code it chose: only the place in the
// server's source tells.
func raised(e *pgconn.PgError) bool {
	return e.Routine == "exec_stmt_raise" || e.Routine == "exec_stmt_assert"
}

// scrub makes an error from an action, which may have wrapped one of the server's, fit to be shown. Where the server's
// message held a value, the words around it cannot be kept.
func scrub(err error) error {
	server, ok := errors.AsType[*pgconn.PgError](err)
	if !ok {
		return err
	}
	clean := withoutValues(server)
	if strings.HasPrefix(server.Code, "22") || raised(server) || !strings.Contains(err.Error(), server.Message) {
		return clean
	}
	return &scrubbedError{action: err, server: clean}
}

// scrubbedError is an action's error that the driver's, with its detail, cannot be taken out of.
type scrubbedError struct {
	action error
	server *Error
}

func (e *scrubbedError) Error() string { return e.action.Error() }
func (e *scrubbedError) Unwrap() error { return e.server }

// Is keeps the action's own sentinels recognisable.
func (e *scrubbedError) Is(target error) bool {
	if _, driver := target.(*pgconn.PgError); driver {
		return false
	}
	return errors.Is(e.action, target)
}

// reaction is what an error asks of the caller.
type reaction int

const (
	giveUp       reaction = iota // the error is permanent, or a person's to judge
	contention                   // a lock could not be had, or the server is too busy: come back
	runAgain                     // the database asks to run the transaction again
	reconnect                    // the connection is gone
	missing                      // Belay's tables are not there
	lockLost                     // the proof failed
	noStatements                 // a prepared statement was lost
)

// react decides by code alone; messages are translated and change.
func react(code string) reaction {
	switch code {
	case codeSerialization, codeDeadlock:
		return runAgain
	case codeLockNotAvailable, codeTooManyConnections, codeCannotConnectNow:
		return contention
	case codeAdminShutdown, codeCrashShutdown, codeIdleTransaction:
		return reconnect
	case codeStatementMissing, codeStatementExists, codeProtocol:
		return noStatements
	case codeTableMissing, codeSchemaMissing, codeFunctionMissing:
		return missing
	case codeLockLost:
		return lockLost
	}
	if strings.HasPrefix(code, "08") {
		return reconnect
	}
	return giveUp
}

func reactTo(err error) reaction {
	if server, ok := errors.AsType[*Error](err); ok {
		return react(server.Code)
	}
	if _, ok := errors.AsType[*lostConnection](err); ok {
		return reconnect
	}
	return giveUp
}

func isServerError(err error) bool {
	if _, ok := errors.AsType[*pgconn.PgError](err); ok {
		return true
	}
	_, ok := errors.AsType[*Error](err)
	return ok
}

func isConnectionLost(err error) bool {
	if server, ok := errors.AsType[*Error](err); ok {
		return server.fatal
	}
	_, ok := errors.AsType[*lostConnection](err)
	return ok
}

// endedByServer reports whether the server itself ended the session, so that nothing behind the statement that it names
// was carried out. A pooler speaks with class 08, of whatever it is at when it loses the server.
func endedByServer(err error) bool {
	server, ok := errors.AsType[*Error](err)
	return ok && !strings.HasPrefix(server.Code, "08")
}

// lostConnection says that the connection ended, or was given up because its context ended.
type lostConnection struct{ cause error }

func (e *lostConnection) Error() string { return "connection lost: " + e.cause.Error() }
func (e *lostConnection) Unwrap() error { return e.cause }

func connectionError(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return &lostConnection{cause: context.Cause(ctx)}
	}
	if server, ok := errors.AsType[*pgconn.PgError](err); ok {
		clean := withoutValues(server)
		clean.fatal = true
		return clean
	}
	return &lostConnection{cause: err}
}

// unpreparedError says that a pooler lost a prepared statement, or has one of that name already.
type unpreparedError struct{ cause *Error }

func (e unpreparedError) Error() string { return "prepared statement lost: " + e.cause.Error() }
func (e unpreparedError) Unwrap() error { return e.cause }

func isUnprepared(err error) bool {
	_, ok := errors.AsType[unpreparedError](err)
	return ok
}

// connectFailure is that there was no connection to ask over: no statement failed, and none can be told to run again.
type connectFailure struct{ error }

func (e *connectFailure) Unwrap() error { return e.error }

// connectError translates the failure to get a connection.
func connectError(err error) error {
	server, ok := errors.AsType[*pgconn.PgError](err)
	if !ok {
		return fmt.Errorf("connect: %w", err)
	}
	clean := withoutValues(server)
	if clean.Code == codeDatabaseMissing {
		return fmt.Errorf("connect: %w: %s", storage.ErrNoDatabase, clean.message)
	}
	return &connectFailure{fmt.Errorf("connect: %w", clean)}
}

func openError(err error) error { return fmt.Errorf("open database: %w", connectError(err)) }

// lockError translates a failure of acquire and break, which never wait and never insist.
func lockError(err error) error {
	if errors.Is(err, engine.ErrUnknownOutcome) {
		return err
	}
	switch reactTo(err) {
	case contention, runAgain:
		return fmt.Errorf("%w: %w", sitelock.ErrContended, err)
	case giveUp, reconnect, missing, lockLost, noStatements:
	}
	return scopeError(err)
}

// scopeError translates the violation of the one constraint that callers run into.
func scopeError(err error) error {
	server, ok := errors.AsType[*Error](err)
	if ok && server.Code == codeUniqueViolation && server.Constraint == "site_lock_scope_key" {
		return sitelock.ErrScopeTaken
	}
	return err
}

// heldError translates a failure of what a holder does.
func heldError(held sitelock.Held, err error) error {
	if errors.Is(err, engine.ErrUnknownOutcome) {
		return err
	}
	if _, ok := errors.AsType[*engine.StepFailure](err); ok {
		return err
	}
	if _, ok := errors.AsType[*connectFailure](err); ok {
		return err
	}
	server, ok := errors.AsType[*Error](err)
	if !ok {
		return err
	}
	switch react(server.Code) {
	case lockLost:
		return &sitelock.LockLostError{Held: held}
	case runAgain, contention:
		return fmt.Errorf("%w: %w", engine.ErrRetryTransaction, err)
	case giveUp, reconnect, missing, noStatements:
	}
	if server.Code == codeBudgetSpent {
		return engine.ErrBudgetSpent
	}
	return err
}
