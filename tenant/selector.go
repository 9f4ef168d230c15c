package tenant

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Selector is a condition on labels. The zero Selector has no condition and matches every tenant.
type Selector struct{ requirements []requirement }

type operator string

const (
	opExists       operator = "exists"
	opDoesNotExist operator = "!"
	opEquals       operator = "="
	opNotEquals    operator = "!="
	opIn           operator = "in"
	opNotIn        operator = "notin"
)

// requirement is one condition. Values are sorted and distinct: none for the existence operators, one for equality.
type requirement struct {
	key    string
	op     operator
	values []string
}

// ParseSelector reads requirements separated by commas, all of which must hold:
//
//	key           the label is there
//	!key          the label is not there
//	key=value     the label has this value (also written ==)
//	key!=value    the label has another value, or is not there
//	key in (a,b)  the label has one of these values
//	key notin (a) the label has none of these values, or is not there
//
// They mean what they mean in Kubernetes. An empty text is refused: a variable that was not set must not select all
// tenants. Errors name the column, counted in characters from 1.
func ParseSelector(s string) (Selector, error) {
	p := selectorParser{text: s}
	var sel Selector
	for {
		r, err := p.requirement()
		if err != nil {
			return Selector{}, err
		}
		sel.requirements = append(sel.requirements, r)
		p.space()
		if p.done() {
			return sel, nil
		}
		if !p.accept(",") {
			return Selector{}, p.unexpected(`"," or the end`)
		}
	}
}

// Matches reports whether a tenant with these labels is selected.
func (s Selector) Matches(labels map[string]string) bool {
	for _, r := range s.requirements {
		if !r.matches(labels) {
			return false
		}
	}
	return true
}

func (r requirement) matches(labels map[string]string) bool {
	value, exists := labels[r.key]
	switch r.op {
	case opExists:
		return exists
	case opDoesNotExist:
		return !exists
	case opEquals, opIn:
		return exists && slices.Contains(r.values, value)
	case opNotEquals, opNotIn:
		return !exists || !slices.Contains(r.values, value)
	}
	return false
}

// String returns the selector in the form that ParseSelector reads. It is empty for the zero Selector.
func (s Selector) String() string {
	texts := make([]string, len(s.requirements))
	for i, r := range s.requirements {
		texts[i] = r.String()
	}
	return strings.Join(texts, ",")
}

// String returns the requirement in the form that ParseSelector reads.
func (r requirement) String() string {
	values := strings.Join(r.values, ",")
	switch r.op {
	case opExists:
		return r.key
	case opDoesNotExist:
		return "!" + r.key
	case opIn, opNotIn:
		return fmt.Sprintf("%s %s (%s)", r.key, r.op, values)
	}
	return r.key + string(r.op) + values
}

// selectorParser reads text from offset on.
type selectorParser struct {
	text   string
	offset int
}

func (p *selectorParser) requirement() (requirement, error) {
	p.space()
	negated := p.accept("!")
	p.space()
	key, err := p.word("a label key")
	if err != nil {
		return requirement{}, err
	}
	if negated {
		return requirement{key: key, op: opDoesNotExist}, nil
	}
	p.space()
	if p.done() || p.peek() == ',' {
		return requirement{key: key, op: opExists}, nil
	}
	r := requirement{key: key}
	switch {
	case p.accept("!="):
		r.op = opNotEquals
	case p.accept("=="), p.accept("="):
		r.op = opEquals
	default:
		if r.op, err = p.setOperator(); err != nil {
			return requirement{}, err
		}
		r.values, err = p.list()
		return r, err
	}
	p.space()
	if p.done() || p.peek() == ',' {
		r.values = []string{""}
		return r, nil
	}
	value, err := p.word("a value")
	r.values = []string{value}
	return r, err
}

func (p *selectorParser) setOperator() (operator, error) {
	end := p.offset + p.wordLen()
	switch op := operator(p.text[p.offset:end]); op {
	case opIn, opNotIn:
		p.offset = end
		return op, nil
	}
	return "", p.unexpected(`"=", "!=", "in", "notin", "," or the end`)
}

// list reads (a,b). An empty value can be selected with key= only: in a list it is more likely an unset variable.
func (p *selectorParser) list() ([]string, error) {
	p.space()
	if !p.accept("(") {
		return nil, p.unexpected(`"("`)
	}
	var values []string
	for {
		p.space()
		value, err := p.word("a value")
		if err != nil {
			return nil, err
		}
		values = append(values, value)
		p.space()
		if p.accept(")") {
			slices.Sort(values)
			return slices.Compact(values), nil
		}
		if !p.accept(",") {
			return nil, p.unexpected(`"," or ")"`)
		}
	}
}

// word reads a label key or value.
func (p *selectorParser) word(what string) (string, error) {
	n := p.wordLen()
	if n == 0 {
		return "", p.unexpected(what)
	}
	word := p.text[p.offset : p.offset+n]
	if err := validateLabelText(word); err != nil {
		return "", p.errorf("%s %w", quote(word), err)
	}
	p.offset += n
	return word, nil
}

func (p *selectorParser) wordLen() int {
	rest := p.text[p.offset:]
	if n := strings.IndexFunc(rest, func(r rune) bool { return !isLabelRune(r) }); n >= 0 {
		return n
	}
	return len(rest)
}

func (p *selectorParser) space() {
	rest := p.text[p.offset:]
	p.offset += len(rest) - len(strings.TrimLeftFunc(rest, unicode.IsSpace))
}

func (p *selectorParser) done() bool { return p.offset == len(p.text) }

func (p *selectorParser) peek() byte { return p.text[p.offset] }

func (p *selectorParser) accept(token string) bool {
	if !strings.HasPrefix(p.text[p.offset:], token) {
		return false
	}
	p.offset += len(token)
	return true
}

func (p *selectorParser) unexpected(want string) error {
	if p.done() {
		return p.errorf("want %s, got the end", want)
	}
	if n := p.wordLen(); n > 0 {
		return p.errorf("want %s, got %s", want, quote(p.text[p.offset:p.offset+n]))
	}
	return p.errorf("want %s, got %s", want, describeRune(p.text[p.offset:]))
}

func (p *selectorParser) errorf(format string, args ...any) error {
	return fmt.Errorf("selector: column %d: %w", position(p.text, p.offset), fmt.Errorf(format, args...))
}

// MatchName reports whether a tenant's name fits a glob: "*" is any text, "?" one character, "[a-f]" one of a set,
// "[^a-f]" one not of the set, and "\" takes the next character as it is. A pattern that ValidPattern refuses matches
// nothing.
func MatchName(pattern, name string) bool {
	// path.Match stops "*" at a slash, so neither text may contain one.
	ok, err := path.Match(strings.ReplaceAll(pattern, "/", "\x00"), strings.ReplaceAll(name, "/", "\x00"))
	return err == nil && ok
}

// ValidPattern returns an error if MatchName cannot use the pattern.
func ValidPattern(pattern string) error {
	switch {
	case pattern == "":
		return errors.New("name pattern is empty")
	case !utf8.ValidString(pattern) || strings.ContainsFunc(pattern, unicode.IsControl):
		return fmt.Errorf("name pattern %s contains a control character or is not UTF-8", quote(pattern))
	case strings.Contains(pattern, "[!"):
		// It would be read as a set that contains "!", the opposite of what a shell does.
		return fmt.Errorf("name pattern %s: write [^…] instead of [!…]", quote(pattern))
	}
	if _, err := path.Match(pattern, ""); err != nil {
		return fmt.Errorf("name pattern %s: unfinished [ ] or \\", quote(pattern))
	}
	return nil
}
