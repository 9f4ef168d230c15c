package plan

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// ErrDigestMismatch says that the content of a change is not the one that a plan pinned. [DigestMismatchError] carries
// both digests.
var ErrDigestMismatch = errors.New("change differs from the one in place")

// ErrUnsupported says that a stored change holds something this binary does not know. Its tenant needs a newer one.
var ErrUnsupported = errors.New("change needs a newer belay")

// DigestMismatchError tells which change differs, and how. It is [ErrDigestMismatch].
type DigestMismatchError struct {
	Change        string
	Pinned, Given Digest
}

func (e *DigestMismatchError) Error() string {
	return fmt.Sprintf("change %s differs from the one in place: pinned %s, given %s",
		e.Change, e.Pinned.Short(), e.Given.Short())
}

// Is makes the error match [ErrDigestMismatch].
func (e *DigestMismatchError) Is(target error) bool { return target == ErrDigestMismatch }

// Problem is one thing wrong with a change.
type Problem struct {
	// File is the path of the file; empty for a change that has none any more.
	File string
	// Line and Column count from 1, Column in characters; both are 0 where the problem is the file as a whole.
	Line, Column int
	Message      string
}

// String is file:line:col: message, without the parts that are not known.
func (p Problem) String() string {
	switch {
	case p.File == "":
		return p.Message
	case p.Line == 0:
		return p.File + ": " + p.Message
	}
	return fmt.Sprintf("%s:%d:%d: %s", p.File, p.Line, p.Column, p.Message)
}

// InvalidError carries everything wrong with a change, sorted by place. It always holds at least one problem.
type InvalidError struct {
	Problems []Problem
}

func (e *InvalidError) Error() string {
	lines := make([]string, len(e.Problems))
	for i, p := range e.Problems {
		lines[i] = p.String()
	}
	return strings.Join(lines, "\n")
}

// problems collects what is wrong until everything has been looked at.
type problems []Problem

func (ps *problems) add(file string, at position, format string, args ...any) {
	*ps = append(*ps, Problem{File: file, Line: at.line, Column: at.column, Message: fmt.Sprintf(format, args...)})
}

// take moves the problems of an [InvalidError] into the collection and returns any other error as it is.
func (ps *problems) take(err error) error {
	if invalid, ok := errors.AsType[*InvalidError](err); ok {
		*ps = append(*ps, invalid.Problems...)
		return nil
	}
	return err
}

func (ps problems) err() error {
	if len(ps) == 0 {
		return nil
	}
	slices.SortFunc(ps, func(a, b Problem) int {
		return cmp.Or(cmp.Compare(a.File, b.File), cmp.Compare(a.Line, b.Line),
			cmp.Compare(a.Column, b.Column), cmp.Compare(a.Message, b.Message))
	})
	return &InvalidError{Problems: slices.Compact(ps)}
}

// position is a place in a text; both numbers count from 1, and the zero value is the text as a whole.
type position struct{ line, column int }

// nearest returns a hint that names the candidate most like word; empty if none is like it.
func nearest(word string, candidates []string) string {
	best, bound := "", max(1, len(word)/3)+1
	for _, c := range candidates {
		if d := distance(strings.ToLower(word), c); c != "" && d < bound {
			best, bound = c, d
		}
	}
	if best == "" {
		return ""
	}
	return fmt.Sprintf("; did you mean %s?", best)
}

// distance counts the insertions, deletions, substitutions and swaps of neighbours that turn a into b.
func distance(a, b string) int {
	// Row i holds the distances of a[:i] from every b[:j]; a swap looks two rows back.
	rows := [3][]int{make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)}
	for j := range rows[0] {
		rows[0][j] = j
	}
	for i := 1; i <= len(a); i++ {
		row, last, before := rows[i%3], rows[(i+2)%3], rows[(i+1)%3]
		row[0] = i
		for j := 1; j <= len(b); j++ {
			substitution := last[j-1]
			if a[i-1] != b[j-1] {
				substitution++
			}
			row[j] = min(last[j]+1, row[j-1]+1, substitution)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				row[j] = min(row[j], before[j-2]+1)
			}
		}
	}
	return rows[len(a)%3][len(b)]
}
