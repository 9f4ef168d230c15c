package plan

import (
	"strings"

	"github.com/belayhq/belay/tenant"
)

type tokenKind uint8

const (
	endToken     tokenKind = iota // the text is over
	wordToken                     // a keyword or a name without quotes
	nameToken                     // a quoted name
	literalToken                  // a string, however it is quoted
	numberToken
	symbolToken // any other single character
)

// token is a part of a text, by its bytes.
type token struct {
	kind       tokenKind
	start, end int
}

// lexer cuts SQL into tokens. White space and comments lie between them. It knows no grammar: what a statement is, is
// for the splitter.
type lexer struct {
	dialect tenant.Dialect
	text    string
	pos     int
}

// lexError is a quote or a comment that never ends; offset is where it opened.
type lexError struct {
	offset  int
	message string
}

// next returns the next token. After an error the lexer is at the end of the text.
func (l *lexer) next() (token, *lexError) {
	if err := l.space(); err != nil {
		return l.stop(err)
	}
	start := l.pos
	if start == len(l.text) {
		return token{endToken, start, start}, nil
	}
	c := l.text[start]
	switch {
	case wordStart(c):
		return l.word()
	case digit(c) || c == '.' && digit(l.peek(1)):
		l.pos = start + 1
		for l.pos < len(l.text) && (wordStart(l.text[l.pos]) || digit(l.text[l.pos]) || l.text[l.pos] == '.') {
			l.pos++
		}
		return token{numberToken, start, l.pos}, nil
	case c == '\'':
		return l.quoted(literalToken, '\'', "string")
	case c == '"':
		return l.quoted(nameToken, '"', "quoted name")
	case c == '$' && l.dialect == tenant.Postgres:
		return l.dollar()
	case c == '`' && l.dialect == tenant.SQLite:
		return l.quoted(nameToken, '`', "quoted name")
	case c == '[' && l.dialect == tenant.SQLite:
		return l.bracketed()
	}
	l.pos++
	return token{symbolToken, start, l.pos}, nil
}

func (l *lexer) stop(err *lexError) (token, *lexError) {
	l.pos = len(l.text)
	return token{endToken, l.pos, l.pos}, err
}

func (l *lexer) peek(ahead int) byte {
	if l.pos+ahead < len(l.text) {
		return l.text[l.pos+ahead]
	}
	return 0
}

// space skips white space and comments.
func (l *lexer) space() *lexError {
	for l.pos < len(l.text) {
		switch c := l.text[l.pos]; {
		case blank(c):
			l.pos++
		case c == '-' && l.peek(1) == '-':
			l.skipLine()
		case c == '/' && l.peek(1) == '*':
			if err := l.comment(); err != nil {
				return err
			}
		default:
			return nil
		}
	}
	return nil
}

// skipLine moves to the end of the line.
func (l *lexer) skipLine() {
	if i := strings.IndexByte(l.text[l.pos:], '\n'); i >= 0 {
		l.pos += i
		return
	}
	l.pos = len(l.text)
}

// comment skips a block comment. On PostgreSQL they nest.
func (l *lexer) comment() *lexError {
	start, depth := l.pos, 1
	for l.pos += 2; l.pos < len(l.text); {
		switch {
		case l.text[l.pos] == '*' && l.peek(1) == '/':
			l.pos += 2
			if depth--; depth == 0 {
				return nil
			}
		case l.text[l.pos] == '/' && l.peek(1) == '*' && l.dialect == tenant.Postgres:
			l.pos += 2
			depth++
		default:
			l.pos++
		}
	}
	return &lexError{start, "this comment never ends; */ is missing"}
}

// word reads a name or keyword, and the E'…' string of PostgreSQL that begins like one.
func (l *lexer) word() (token, *lexError) {
	start := l.pos
	for l.pos < len(l.text) && (wordStart(l.text[l.pos]) || digit(l.text[l.pos]) || l.text[l.pos] == '$') {
		l.pos++
	}
	if l.dialect == tenant.Postgres && l.pos == start+1 && l.text[start]|0x20 == 'e' && l.peek(0) == '\'' {
		return l.escaped(start)
	}
	return token{wordToken, start, l.pos}, nil
}

// quoted reads up to the closing quote; a doubled quote stands for itself.
func (l *lexer) quoted(kind tokenKind, quote byte, what string) (token, *lexError) {
	start := l.pos
	for l.pos++; l.pos < len(l.text); l.pos++ {
		i := strings.IndexByte(l.text[l.pos:], quote)
		if i < 0 {
			break
		}
		l.pos += i + 1
		if l.peek(0) != quote {
			return token{kind, start, l.pos}, nil
		}
	}
	return l.stop(&lexError{start, "this " + what + " never ends"})
}

func (l *lexer) bracketed() (token, *lexError) {
	start := l.pos
	i := strings.IndexByte(l.text[start:], ']')
	if i < 0 {
		return l.stop(&lexError{start, "this quoted name never ends; ] is missing"})
	}
	l.pos = start + i + 1
	return token{nameToken, start, l.pos}, nil
}

// escaped reads an E'…' string, in which a backslash takes the next character with it. Such a string goes on after
// white space with a line break, and the parts that follow are read by the same rule although no E stands before them.
func (l *lexer) escaped(start int) (token, *lexError) {
	for {
		for l.pos++; ; l.pos++ {
			if l.pos >= len(l.text) {
				return l.stop(&lexError{start, "this string never ends"})
			}
			if l.text[l.pos] == '\\' {
				l.pos++
			} else if l.text[l.pos] == '\'' {
				break
			}
		}
		l.pos++
		if l.peek(0) == '\'' {
			continue // a doubled quote
		}
		end := l.pos
		if !l.continued() {
			l.pos = end
			return token{literalToken, start, end}, nil
		}
	}
}

// continued moves to the quote that goes on with a string, if one follows after a line break.
func (l *lexer) continued() bool {
	broken := false
	for l.pos < len(l.text) {
		switch c := l.text[l.pos]; {
		case blank(c):
			broken = broken || c == '\n'
			l.pos++
		case c == '-' && l.peek(1) == '-':
			l.skipLine()
		default:
			return broken && c == '\''
		}
	}
	return false
}

// dollar reads $tag$…$tag$, or the one character of a parameter.
func (l *lexer) dollar() (token, *lexError) {
	start := l.pos
	end := start + 1
	for end < len(l.text) && (wordStart(l.text[end]) || end > start+1 && digit(l.text[end])) {
		end++
	}
	if end == len(l.text) || l.text[end] != '$' {
		l.pos++
		return token{symbolToken, start, l.pos}, nil
	}
	tag := l.text[start : end+1]
	i := strings.Index(l.text[end+1:], tag)
	if i < 0 {
		return l.stop(&lexError{start, "this string never ends; " + tag + " is missing"})
	}
	l.pos = end + 1 + i + len(tag)
	return token{literalToken, start, l.pos}, nil
}

func blank(c byte) bool {
	return c == ' ' || c == '\n' || c == '\t' || c == '\r' || c == '\f' || c == '\v'
}

func digit(c byte) bool { return c >= '0' && c <= '9' }

// wordStart holds for what a name may begin with; any byte beyond ASCII is a letter to both databases.
func wordStart(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c == '_' || c >= 0x80
}

// item is a token as the splitter and the guards look at it.
type item struct {
	token
	// word is a word without quotes in upper case, or a symbol; empty for anything else.
	word string
	// name is a name as the database folds it, quoted or not; empty for anything else.
	name string
}

func (l *lexer) item(t token) item {
	text := l.text[t.start:t.end]
	it := item{token: t}
	switch t.kind {
	case wordToken:
		it.word, it.name = strings.ToUpper(text), strings.ToLower(text)
	case symbolToken:
		it.word = text
	case nameToken:
		inner := text[1 : len(text)-1]
		if quote := text[:1]; quote != "[" {
			inner = strings.ReplaceAll(inner, quote+quote, quote)
		}
		if l.dialect == tenant.SQLite {
			inner = strings.ToLower(inner)
		}
		it.name = inner
	case literalToken, numberToken, endToken:
	}
	return it
}

// value returns what stands between the quotes of a literal, escapes as written.
func (l *lexer) value(t token) string {
	text := l.text[t.start:t.end]
	if open := strings.IndexByte(text, '\''); text[0] != '$' && open >= 0 {
		return text[open+1 : len(text)-1]
	}
	tag := strings.IndexByte(text[1:], '$') + 2
	return text[tag : len(text)-tag]
}
