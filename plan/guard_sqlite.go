package plan

import (
	"slices"
	"strings"
)

// shellHints say what to do instead of the commands of the sqlite3 shell that migrations hold most often.
var shellHints = map[string]string{
	".read":   "make the other file a step of its own, or copy its text here",
	".open":   "a step runs in the file of its tenant",
	".import": "write the rows as INSERT statements, or load them in an action",
}

// ReadingPragma reports whether a PRAGMA of SQLite, named in lower case, only reports: a step may ask no other.
func ReadingPragma(name string) bool { return slices.Contains(readingPragmas, name) }

var readingPragmas = []string{
	"table_info", "table_xinfo", "table_list", "foreign_key_list", "index_list", "index_info", "index_xinfo",
}

// schemaTables are SQLite's own tables of what there is.
var schemaTables = []string{"sqlite_schema", "sqlite_master", "sqlite_temp_schema", "sqlite_temp_master"}

// sqliteGuard refuses what would end the engine's transaction, leave the tenant's file or change how it is open. The
// authorizer of the connection refuses the same at run time, and what words do not show; this finds it before anything
// runs, and says where.
type sqliteGuard struct{}

func (sqliteGuard) see(s *splitter, st *statement, now item) {
	last, before := st.before[0].word, st.before[1].word
	switch {
	case strings.HasPrefix(now.name, "belay_"):
		s.refuse(now.start, "names that begin with belay_ are Belay's own; no step may touch them")
	case now.word == "ROLLBACK" && last == "OR" && (before == "INSERT" || before == "UPDATE"):
		s.refuse(now.start, "OR ROLLBACK would end the engine's transaction; use OR ABORT")
	}
}

func (sqliteGuard) end(s *splitter, st *statement) {
	start := st.first.start
	switch word := st.head[0].word; word {
	case "BEGIN", "COMMIT", "END", "ROLLBACK", "SAVEPOINT", "RELEASE":
		s.refuse(start, "%s: %s", word, ownTransaction)
	case "ATTACH", "DETACH":
		s.refuse(start, "%s: a step works in the one file of its tenant", word)
	case "VACUUM":
		s.refuse(start, "VACUUM cannot run in a transaction, and so cannot share its checkpoint's")
	case "PRAGMA":
		if name := target(st.head[1:]); !ReadingPragma(name) {
			s.refuse(start, "PRAGMA %s: the engine decides how the file is open; only %s may be asked",
				name, join("and", readingPragmas))
		}
	case "INSERT", "REPLACE", "UPDATE", "DELETE":
		if name := target(written(st.head)); slices.Contains(schemaTables, name) {
			s.refuse(start, "%s of %s: use CREATE, ALTER and DROP", word, name)
		}
	}
}

// target returns the name of an object, without its schema.
func target(items []item) string {
	if startsAt(items, 1, ".") && len(items) > 2 {
		return items[2].name
	}
	if len(items) > 0 {
		return items[0].name
	}
	return ""
}

// written drops the words before the name of the table that a statement writes.
func written(head []item) []item {
	rest := head[1:]
	if startsAt(rest, 0, "OR") && len(rest) > 2 {
		rest = rest[2:]
	}
	if startsAt(rest, 0, "INTO") || startsAt(rest, 0, "FROM") {
		rest = rest[1:]
	}
	return rest
}
