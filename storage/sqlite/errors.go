package sqlite

import (
	"context"
	"errors"
	"fmt"
	"syscall"

	"github.com/mattn/go-sqlite3"

	"github.com/belayhq/belay/sitelock"
	"github.com/belayhq/belay/storage"
)

// The result codes that something depends on; the low byte of an extended code is its primary code.
const (
	codeError      = 1
	codeBusy       = 5
	codeNoMemory   = 7
	codeReadOnly   = 8
	codeInterrupt  = 9
	codeIO         = 10
	codeCorrupt    = 11
	codeFull       = 13
	codeCannotOpen = 14
	codeProtocol   = 15
	codeConstraint = 19
	codeNoDatabase = 26

	codeRowID   = 2579
	codePrimary = 1555
	codeUnique  = 2067
	codeTrigger = 1811
)

const full = "the database or its disk is full"

// An Error is what SQLite says, as far as it may be shown. Code is the extended result code.
type Error struct {
	Code    int
	message string
}

func (e *Error) Error() string { return e.message }

func (e *Error) primary() int { return e.Code & 0xff }

// translate makes one of our errors of the driver's, by its code; any other error stays as it is.
func translate(err error) error { return translatePhase(err, preparing) }

// phase is when an error came up. While a statement is prepared, only its own text can be quoted.
type phase int

const (
	preparing phase = iota
	running
)

func translatePhase(err error, when phase) error {
	native, ok := errors.AsType[sqlite3.Error](err)
	if !ok {
		return err
	}
	e := &Error{Code: int(native.ExtendedCode), message: native.Error()}
	if e.Code == 0 {
		e.Code = int(native.Code)
	}
	switch e.primary() {
	case codeBusy, codeProtocol:
		return fmt.Errorf("%w: another process has the file locked, try again when it is done (SQLite code %d)", sitelock.ErrContended, e.Code)
	case codeReadOnly:
		e.message = "the database is read-only: both its file and the folder must be writable"
	case codeFull:
		e.message = full
	case codeCorrupt:
		e.message = "the database file is damaged"
	case codeNoDatabase:
		return fmt.Errorf("%w: the file is not a SQLite database", storage.ErrNoDatabase)
	case codeCannotOpen:
		return fmt.Errorf("%w: %s", storage.ErrNoDatabase, e.message)
	case codeIO:
		e.message = fmt.Sprintf("input or output error (SQLite code %d)", e.Code)
		if native.SystemErrno != 0 {
			e.message += ": " + native.SystemErrno.Error()
		}
		if native.SystemErrno == syscall.ENOSPC { // for another file than the database's own
			e.message = full
		}
	case codeError:
		if when == running {
			e.message = "SQL error while the statement ran" // SQLite's own text may quote a row
		}
	case codeConstraint:
		if e.Code == codeTrigger {
			e.message = "a trigger raised an error" // its text can be built from a row
		}
	}
	return e
}

// duplicate reports whether a row was refused because there is one with its key.
func duplicate(err error) bool {
	e, ok := errors.AsType[*Error](err)
	return ok && (e.Code == codeUnique || e.Code == codePrimary || e.Code == codeRowID)
}

// endsTransaction reports whether SQLite may have rolled the transaction back by itself because of err.
func endsTransaction(err error) bool {
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return true
	}
	e, ok := errors.AsType[*Error](err)
	if !ok {
		return errors.Is(err, sitelock.ErrContended)
	}
	switch e.primary() {
	case codeFull, codeIO, codeNoMemory, codeInterrupt, codeCorrupt:
		return true
	}
	return false
}
