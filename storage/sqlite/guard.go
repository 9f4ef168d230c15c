package sqlite

import (
	"fmt"
	"strings"

	"github.com/mattn/go-sqlite3"

	"github.com/belayhq/belay/engine"
	"github.com/belayhq/belay/plan"
)

// guardMode is whose SQL a connection runs.
type guardMode int

const (
	ownSQL   guardMode = iota // Belay's own: everything is allowed
	stepSQL                   // a step's or an action's
	querySQL                  // a verify query: reads only
)

// sqliteRecursive is the code of a recursive query, which the driver does not name.
const sqliteRecursive = 33

var errTransactionGone = fmt.Errorf("%w: the transaction was ended", engine.ErrStepEscaped)

// guard is the authorizer of one connection. SQLite asks it while a statement is prepared, also about what triggers
// and views inside it do.
type guard struct {
	mode guardMode
	// transactional says that the SQL must find a transaction open.
	transactional bool

	// denied says why the last statement was denied; empty if it was not.
	denied string
	// wrote holds the tables written since the transaction began, in lower case.
	wrote map[string]bool
	// schema says that a statement changed the schema since the transaction began, temporary that it made something
	// that outlives the transaction on this connection.
	schema, temporary bool
	// renames says that the statement at hand is an ALTER TABLE that rewrites the schema's texts.
	renames bool
}

func (g *guard) on() bool { return g.mode != ownSQL }

// begin forgets what an earlier transaction did.
func (g *guard) begin() { *g = guard{wrote: make(map[string]bool)} }

// next forgets what was noted of the statement before.
func (g *guard) next() { g.denied, g.renames = "", false }

// explain translates the error of a statement of the mode's SQL, and says what was denied.
func (g *guard) explain(err error, when phase) error {
	if err == nil || !g.on() {
		return err
	}
	if g.denied != "" {
		return fmt.Errorf("%w: %s", engine.ErrStepEscaped, g.denied)
	}
	if g.renames {
		when = preparing // it fails over the text of a view or trigger, never over a row
	}
	return translatePhase(err, when)
}

// authorize answers SQLite; a and b are what it is about, and depend on op.
func (g *guard) authorize(op int, a, b, database string) int {
	if !g.on() {
		return sqlite3.SQLITE_OK
	}
	why := g.denies(op, a, b)
	if why == "" {
		g.note(op, a, b, database)
		return sqlite3.SQLITE_OK
	}
	if g.denied == "" {
		g.denied = why
	}
	return sqlite3.SQLITE_DENY
}

// denies says why an operation is not allowed; empty if it is.
func (g *guard) denies(op int, a, b string) string {
	switch op {
	case sqlite3.SQLITE_SELECT, sqliteRecursive:
		return ""
	case sqlite3.SQLITE_READ:
		return reserved(a)
	case sqlite3.SQLITE_FUNCTION:
		if strings.EqualFold(b, "load_extension") {
			return "load_extension is not allowed in a step"
		}
		return ""
	case sqlite3.SQLITE_PRAGMA:
		name := strings.ToLower(a)
		asksPageSize := name == "page_size" && b == "" // R-trees ask for it themselves
		if !asksPageSize && !plan.ReadingPragma(name) {
			return fmt.Sprintf("PRAGMA %s is not allowed in a step", name)
		}
		return ""
	}
	if g.mode == querySQL {
		return "a verify query only reads"
	}
	switch op {
	case sqlite3.SQLITE_ANALYZE, sqlite3.SQLITE_REINDEX:
		return "" // of the whole file they pass Belay's tables too, and do them no harm
	case sqlite3.SQLITE_INSERT, sqlite3.SQLITE_UPDATE, sqlite3.SQLITE_DELETE, sqlite3.SQLITE_CREATE_VTABLE,
		sqlite3.SQLITE_DROP_VTABLE:
		return reserved(a)
	case sqlite3.SQLITE_ALTER_TABLE:
		return reserved(b)
	case sqlite3.SQLITE_CREATE_TABLE, sqlite3.SQLITE_CREATE_TEMP_TABLE, sqlite3.SQLITE_DROP_TABLE, sqlite3.SQLITE_DROP_TEMP_TABLE,
		sqlite3.SQLITE_CREATE_VIEW, sqlite3.SQLITE_CREATE_TEMP_VIEW, sqlite3.SQLITE_DROP_VIEW, sqlite3.SQLITE_DROP_TEMP_VIEW,
		sqlite3.SQLITE_CREATE_INDEX, sqlite3.SQLITE_CREATE_TEMP_INDEX, sqlite3.SQLITE_DROP_INDEX, sqlite3.SQLITE_DROP_TEMP_INDEX,
		sqlite3.SQLITE_CREATE_TRIGGER, sqlite3.SQLITE_CREATE_TEMP_TRIGGER, sqlite3.SQLITE_DROP_TRIGGER, sqlite3.SQLITE_DROP_TEMP_TRIGGER:
		return reserved(a, b)
	case sqlite3.SQLITE_TRANSACTION:
		return a + " is not allowed in a step"
	case sqlite3.SQLITE_SAVEPOINT:
		return "SAVEPOINT is not allowed in a step"
	case sqlite3.SQLITE_ATTACH:
		return "ATTACH is not allowed in a step"
	case sqlite3.SQLITE_DETACH:
		return "DETACH is not allowed in a step"
	}
	return fmt.Sprintf("operation %d of SQLite is not allowed in a step", op)
}

// note keeps what the checks after the step need to know of an operation that is allowed.
func (g *guard) note(op int, a, b, database string) {
	switch op {
	case sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_PRAGMA, sqliteRecursive:
		return
	case sqlite3.SQLITE_FUNCTION:
		g.renames = g.renames || strings.HasPrefix(b, "sqlite_rename_") || b == "sqlite_drop_column"
		return
	case sqlite3.SQLITE_INSERT, sqlite3.SQLITE_UPDATE, sqlite3.SQLITE_DELETE:
		if database != "temp" {
			g.wrote[strings.ToLower(a)] = true
		}
		return
	case sqlite3.SQLITE_CREATE_TEMP_TABLE, sqlite3.SQLITE_CREATE_TEMP_VIEW, sqlite3.SQLITE_CREATE_TEMP_INDEX,
		sqlite3.SQLITE_CREATE_TEMP_TRIGGER:
		g.temporary = true
	}
	g.schema = true
}

// reserved says that one of the names is Belay's own.
func reserved(names ...string) string {
	for _, name := range names {
		if strings.HasPrefix(strings.ToLower(name), "belay_") {
			return fmt.Sprintf("%s belongs to Belay, no step may touch it", name)
		}
	}
	return ""
}
