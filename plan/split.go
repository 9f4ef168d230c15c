package plan

import (
	"slices"
	"strings"

	"github.com/belayhq/belay/tenant"
)

// headLength is how many of a statement's first tokens say what kind it is.
const headLength = 16

// Split cuts a script into the statements that one database runs one by one, without the comments and semicolons
// between them. Text within quotes, comments and bodies (BEGIN ATOMIC … END and the parentheses of CREATE RULE on
// PostgreSQL, BEGIN … END of CREATE TRIGGER on SQLite) is not cut.
//
// Statements that would leave the engine's transaction, the tenant's scope or the connection's state are refused. All
// problems of the script come at once, as an [InvalidError] whose File is that of src.
//
// Split reads strings as a PostgreSQL with standard_conforming_strings on, the default of every supported release.
func Split(d tenant.Dialect, src Source) ([]Statement, error) {
	pieces, err := split(d, src)
	if err != nil {
		return nil, err
	}
	out := make([]Statement, len(pieces))
	for i, p := range pieces {
		out[i] = p.Statement
	}
	return out, nil
}

// piece is a statement of a script.
type piece struct {
	Statement
	// reads says that the statement is a query that changes nothing, as far as its words show.
	reads bool
}

func split(d tenant.Dialect, src Source) ([]piece, error) {
	s := &splitter{lexer: lexer{dialect: d, text: src.Text}, file: src.File, lines: newLines(src.Text)}
	for s.statement() {
	}
	if err := s.problems.err(); err != nil {
		return nil, err
	}
	return s.pieces, nil
}

type splitter struct {
	lexer
	file     string
	lines    lines
	pieces   []piece
	problems problems
}

func (s *splitter) refuse(offset int, format string, args ...any) {
	s.problems.add(s.file, s.lines.at(offset), format, args...)
}

// scan returns the next token; the end of the text where there is none, or where a quote never ends.
func (s *splitter) scan() item {
	t, err := s.next()
	if err != nil {
		s.refuse(err.offset, "%s", err.message)
	}
	return s.item(t)
}

// statement reads one statement. It returns false at the end of the text.
func (s *splitter) statement() bool {
	now := s.scan()
	for now.word == ";" {
		now = s.scan()
	}
	if now.kind == endToken {
		return false
	}
	if s.dialect == tenant.SQLite && now.word == "." {
		s.clientCommand(now.start, shellHints, "a command of the sqlite3 shell")
		return true
	}
	st := &statement{guard: newGuard(s.dialect), body: body{dialect: s.dialect}}
	for now.kind != endToken && (now.word != ";" || !st.body.complete()) {
		if now.word == `\` { // no SQL of either database
			s.clientCommand(now.start, psqlHints, "a command of psql")
			break
		}
		st.see(s, now)
		now = s.scan()
	}
	st.end(s)
	return true
}

// clientCommand refuses a line that is for a command-line client and skips it.
func (s *splitter) clientCommand(start int, hints map[string]string, what string) {
	s.pos = start
	s.skipLine()
	name := s.text[start:s.pos]
	if i := strings.IndexFunc(name, func(r rune) bool { return r == ' ' || r == '\t' || r == ';' }); i >= 0 {
		name = name[:i]
	}
	hint, ok := hints[name]
	if !ok {
		hint = "only the client knows it; remove it"
	}
	s.refuse(start, "%.40s is %s: %s", name, what, hint)
}

// statement is what is known of a statement while its tokens pass by.
type statement struct {
	head        []item  // the first tokens, leading parentheses left out
	before      [2]item // the last token and the one before it
	first, last token
	guard       guard
	body        body
	qualifiers  []string
	into        bool // INTO that belongs to no INSERT or MERGE
	writes      bool
}

func (st *statement) see(s *splitter, now item) {
	if st.last.end == 0 {
		st.first = now.token
	}
	if len(st.head) < headLength && (len(st.head) > 0 || now.word != "(") {
		st.head = append(st.head, now)
	}
	previous := st.before[0].word
	switch now.word {
	case "INTO":
		st.into = st.into || previous != "INSERT" && previous != "MERGE"
		st.writes = st.writes || previous == "INSERT" || previous == "MERGE" || previous == "REPLACE"
	case "OR":
		st.writes = st.writes || previous == "INSERT"
	case "FROM":
		st.writes = st.writes || previous == "DELETE"
	case "UPDATE":
		st.writes = st.writes || previous == "(" || previous == ")"
	}
	st.body.see(st.head, now, previous)
	st.guard.see(s, st, now)
	st.before = [2]item{now, st.before[0]}
	st.last = now.token
}

// end keeps the statement, unless something is wrong with it.
func (st *statement) end(s *splitter) {
	if len(st.head) == 0 {
		if st.last.end > 0 {
			s.refuse(st.first.start, "this is not a statement")
		}
		return
	}
	if why := st.body.open(); why != "" {
		s.refuse(st.first.start, "%s", why)
		return
	}
	st.guard.end(s, st)
	rows := st.rowsOnly(s.dialect)
	word := st.head[0].word
	s.pieces = append(s.pieces, piece{
		Statement: Statement{
			SQL:      s.text[st.first.start:st.last.end],
			File:     s.file,
			Line:     s.lines.at(st.first.start).line,
			RowsOnly: rows, Qualifiers: slices.Compact(slices.Sorted(slices.Values(st.qualifiers))),
		},
		reads: rows && !st.writes && (word == "SELECT" || word == "WITH" || word == "VALUES" || word == "TABLE"),
	})
}

func (st *statement) rowsOnly(d tenant.Dialect) bool {
	switch st.head[0].word {
	case "SELECT", "WITH":
		return d != tenant.Postgres || !st.into
	case "VALUES", "INSERT", "UPDATE", "DELETE":
		return true
	case "TABLE", "MERGE":
		return d == tenant.Postgres
	case "REPLACE":
		return d == tenant.SQLite
	}
	return false
}

// starts reports whether the statement begins with these words.
func (st *statement) starts(words ...string) bool { return startsAt(st.head, 0, words...) }

func startsAt(head []item, i int, words ...string) bool {
	if len(head) < i+len(words) {
		return false
	}
	for j, w := range words {
		if head[i+j].word != w {
			return false
		}
	}
	return true
}

// body keeps track of the parts of a statement in which a semicolon does not end it.
type body struct {
	dialect tenant.Dialect
	kind    bodyKind
	// depth counts open BEGIN and CASE in a function, parentheses in a rule.
	depth int
	// tail is how much of "; END" a trigger's last tokens make up.
	tail int
}

type bodyKind uint8

const (
	noBody       bodyKind = iota
	functionBody          // BEGIN ATOMIC … END
	ruleBody              // DO ( …; … )
	triggerBody           // BEGIN …; END
)

// see takes one more token. It is called before it is asked whether the next semicolon ends the statement.
func (b *body) see(head []item, now item, previous string) {
	if b.kind == noBody {
		if len(head) <= 4 {
			b.kind = bodyOf(b.dialect, head)
		}
		return
	}
	label := previous == "." || previous == "AS" // where a keyword is an ordinary name
	switch {
	case b.kind == ruleBody && now.word == "(":
		b.depth++
	case b.kind == ruleBody && now.word == ")":
		b.depth--
	case b.kind == triggerBody:
		b.trigger(now)
	case b.kind != functionBody || label:
	case now.word == "ATOMIC" && previous == "BEGIN", now.word == "CASE" && b.depth > 0:
		b.depth++
	case now.word == "END" && b.depth > 0:
		b.depth--
	}
}

func (b *body) trigger(now item) {
	switch {
	case now.word == ";":
		b.tail = 1
	case now.word == "END" && b.tail == 1:
		b.tail = 2
	default:
		b.tail = 0
	}
}

// complete reports whether a semicolon would end the statement.
func (b *body) complete() bool {
	return b.kind == noBody || b.kind == triggerBody && b.tail == 2 || b.kind != triggerBody && b.depth <= 0
}

// open says what is missing at the end of the statement; empty if nothing is.
func (b *body) open() string {
	switch {
	case b.complete():
		return ""
	case b.kind == functionBody:
		return "the BEGIN ATOMIC of this statement has no END"
	case b.kind == ruleBody:
		return "a parenthesis of this rule is never closed"
	}
	return "this trigger has no END after the last semicolon of its body"
}

func bodyOf(d tenant.Dialect, head []item) bodyKind {
	if !startsAt(head, 0, "CREATE") {
		return noBody
	}
	i := 1
	switch {
	case d == tenant.Postgres && startsAt(head, 1, "OR", "REPLACE"):
		i = 3
	case d == tenant.SQLite && (startsAt(head, 1, "TEMP") || startsAt(head, 1, "TEMPORARY")):
		i = 2
	}
	switch {
	case d == tenant.Postgres && (startsAt(head, i, "FUNCTION") || startsAt(head, i, "PROCEDURE")):
		return functionBody
	case d == tenant.Postgres && startsAt(head, i, "RULE"):
		return ruleBody
	case d == tenant.SQLite && startsAt(head, i, "TRIGGER"):
		return triggerBody
	}
	return noBody
}

// guard looks at the tokens of one statement for what a step may not do.
type guard interface {
	// see looks at one more token, which st does not count as seen yet.
	see(s *splitter, st *statement, now item)
	// end looks at the statement as a whole.
	end(s *splitter, st *statement)
}

func newGuard(d tenant.Dialect) guard {
	if d == tenant.SQLite {
		return sqliteGuard{}
	}
	return &postgresGuard{}
}
