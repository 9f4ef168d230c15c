package plan

import (
	"slices"
	"strings"
)

// psqlHints say what to do instead of the psql commands that migrations hold most often.
var psqlHints = map[string]string{
	`\i`:       "make the other file a step of its own, or copy its text here",
	`\ir`:      "make the other file a step of its own, or copy its text here",
	`\include`: "make the other file a step of its own, or copy its text here",
	`\c`:       "a step runs in the database of its tenant",
	`\connect`: "a step runs in the database of its tenant",
	`\copy`:    "write the rows as INSERT statements, or load them in an action",
	`\set`:     "scripts have no variables; write the value out",
	`\gset`:    "scripts have no variables; write the value out",
	`\gexec`:   "build and run the statements in a DO block",
	`\.`:       "it ends the rows of COPY FROM STDIN; write them as INSERT statements",
}

// engineSettings are the settings that the engine makes, or that splitting and reading depend on.
var engineSettings = []string{
	"search_path", "role", "session_authorization", "client_encoding", "standard_conforming_strings",
	"transaction_isolation", "transaction_read_only", "transaction_deferrable",
}

const ownTransaction = "the engine owns the transaction; remove it"

// postgresGuard refuses what would end the engine's transaction, leave the tenant's scope, stay behind on a shared
// connection, or cannot run in a transaction at all.
type postgresGuard struct {
	list         schemaList
	concurrently bool
	stdin        bool
}

func (g *postgresGuard) see(s *splitter, st *statement, now item) {
	last, before := st.before[0], st.before[1]
	schema := g.list.names(now)
	if schema {
		st.qualifiers = append(st.qualifiers, now.name)
	} else if now.word == "." && last.name != "" {
		st.qualifiers = append(st.qualifiers, last.name)
	}
	switch {
	case now.word == "." && last.name == "belay":
		s.refuse(last.start, "the schema belay holds Belay's own tables; no step may touch it")
	case schema && now.name == "belay":
		s.refuse(now.start, "the schema belay holds Belay's own tables; no step may touch it")
	case now.kind == literalToken && last.word == "(" && before.name == "set_config":
		if name := strings.ToLower(s.value(now.token)); slices.Contains(engineSettings, name) {
			s.refuse(now.start, "set_config of %s: %s", name, whyNot(name))
		}
	case now.word == "CONCURRENTLY":
		g.concurrently = true
	case now.word == "STDIN" || now.word == "STDOUT":
		g.stdin = g.stdin || last.word == "FROM" || last.word == "TO"
	}
}

func (g *postgresGuard) end(s *splitter, st *statement) {
	start := st.first.start
	if command := transactionControl(st); command != "" {
		s.refuse(start, "%s: %s", command, ownTransaction)
		return
	}
	if command := g.noTransaction(st); command != "" {
		s.refuse(start, "%s cannot run in a transaction, and so cannot share its checkpoint's; run it in an external action",
			command)
		return
	}
	switch word := st.head[0].word; word {
	case "SET":
		guardSet(s, st)
	case "RESET":
		s.refuse(start, "RESET would undo settings that the engine made; use SET LOCAL")
	case "DISCARD", "LISTEN", "UNLISTEN", "PREPARE", "DEALLOCATE", "LOAD":
		s.refuse(start, "%s changes the session, which other tenants share", word)
	case "COPY":
		if g.stdin {
			s.refuse(start, "COPY from or to the client: write the rows as INSERT statements "+
				"(pg_dump --inserts does), or load them in an action")
			s.skipRows()
		}
	}
}

// skipRows moves behind the rows that follow a COPY FROM STDIN in a dump; they are no SQL.
func (s *splitter) skipRows() {
	const end = "\n\\."
	rest := s.text[s.pos:]
	for from := 0; ; {
		i := strings.Index(rest[from:], end)
		if i < 0 {
			return
		}
		from += i + len(end)
		if from == len(rest) || rest[from] == '\n' {
			s.pos += from
			return
		}
	}
}

func transactionControl(st *statement) string {
	switch word := st.head[0].word; word {
	case "BEGIN", "COMMIT", "END", "ROLLBACK", "ABORT", "SAVEPOINT", "RELEASE":
		return word
	case "START", "PREPARE":
		if st.starts(word, "TRANSACTION") {
			return word + " TRANSACTION"
		}
	case "SET":
		for _, words := range [][]string{
			{"SET", "TRANSACTION"},
			{"SET", "LOCAL", "TRANSACTION"},
			{"SET", "SESSION", "TRANSACTION"},
			{"SET", "SESSION", "CHARACTERISTICS"},
		} {
			if st.starts(words...) {
				return strings.Join(words, " ")
			}
		}
	}
	return ""
}

// noTransaction names a command that PostgreSQL refuses within a transaction.
func (g *postgresGuard) noTransaction(st *statement) string {
	word := st.head[0].word
	switch word {
	case "VACUUM":
		return word
	case "CREATE", "DROP", "ALTER":
		for _, what := range []string{"DATABASE", "TABLESPACE", "SYSTEM"} {
			if st.starts(word, what) && runsAlone(st, what) {
				return word + " " + what
			}
		}
	case "REINDEX":
		for i, it := range st.head {
			for _, what := range []string{"DATABASE", "SYSTEM", "SCHEMA"} {
				if i > 0 && it.word == what && (i == 1 || st.head[i-1].word == ")") {
					return word + " " + what
				}
			}
		}
	case "CLUSTER":
		if rest := afterOptions(st.head[1:]); len(rest) == 0 {
			return "CLUSTER of all tables"
		}
	default:
		return ""
	}
	if g.concurrently && word != "CLUSTER" {
		return word + " … CONCURRENTLY"
	}
	return ""
}

// runsAlone tells the forms of ALTER DATABASE and ALTER TABLESPACE that are transactional from the others.
func runsAlone(st *statement, what string) bool {
	if st.head[0].word != "ALTER" || what == "SYSTEM" {
		return true
	}
	return what == "DATABASE" && startsAt(st.head, 3, "SET", "TABLESPACE")
}

// afterOptions drops VERBOSE and a list of options in parentheses.
func afterOptions(items []item) []item {
	if len(items) > 0 && items[0].word == "(" {
		i := slices.IndexFunc(items, func(it item) bool { return it.word == ")" })
		items = items[i+1:]
	}
	if len(items) > 0 && items[0].word == "VERBOSE" {
		items = items[1:]
	}
	return items
}

// guardSet refuses every SET but SET LOCAL and SET CONSTRAINTS, and that of the engine's settings in any form.
func guardSet(s *splitter, st *statement) {
	rest, local := st.head[1:], false
	switch {
	case startsAt(rest, 0, "LOCAL"):
		rest, local = rest[1:], true
	case startsAt(rest, 0, "SESSION") && !startsAt(rest, 0, "SESSION", "AUTHORIZATION"):
		rest = rest[1:]
	}
	if len(rest) == 0 || rest[0].word == "CONSTRAINTS" {
		return
	}
	name := rest[0].name
	switch {
	case startsAt(rest, 0, "SESSION", "AUTHORIZATION"):
		name = "session_authorization"
	case startsAt(rest, 0, "SCHEMA"):
		name = "search_path"
	case startsAt(rest, 0, "NAMES"):
		name = "client_encoding"
	}
	name = strings.ToLower(name)
	switch {
	case slices.Contains(engineSettings, name):
		s.refuse(st.first.start, "SET of %s: %s", name, whyNot(name))
	case !local:
		s.refuse(st.first.start, "SET stays behind on a connection that other tenants share; use SET LOCAL")
	}
}

func whyNot(setting string) string {
	switch setting {
	case "search_path":
		return "a step runs in the scope of its tenant, which the engine sets; write names without a schema"
	case "role", "session_authorization":
		return "a step runs as the role of its connection"
	case "client_encoding", "standard_conforming_strings":
		return "the script was read with the setting as it is"
	}
	return ownTransaction
}

// schemaList follows SCHEMA [IF [NOT] EXISTS] name [, name …].
type schemaList struct {
	next schemaPlace
}

type schemaPlace uint8

const (
	outside schemaPlace = iota
	beforeName
	afterName
)

// names reports whether a token is a name in the list.
func (l *schemaList) names(now item) bool {
	switch {
	case now.word == "SCHEMA":
		l.next = beforeName
	case l.next == beforeName && (now.word == "IF" || now.word == "NOT" || now.word == "EXISTS"):
	case l.next == beforeName && now.name != "":
		l.next = afterName
		return true
	case l.next == afterName && now.word == ",":
		l.next = beforeName
	default:
		l.next = outside
	}
	return false
}
