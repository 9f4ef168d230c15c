package main

import (
	"bytes"
	"fmt"
	"io"
	"regexp"
)

// routine matches the lines of which a few tell as much as all of them: one for each shop, or several, where all is well.
var routine = []*regexp.Regexp{
	regexp.MustCompile(`^added +shop-`),
	regexp.MustCompile(`^shop-\d+: (started|\S+ done|applied) \(`),
	regexp.MustCompile(`^shop-\d+ +applied +\d`),
}

// briefly is how many lines of a kind are shown.
const briefly = 4

// brief passes lines on, but of a run of routine lines only the first ones and how many followed.
type brief struct {
	to   io.Writer
	rest []byte // of a line that is not whole yet
	kind *regexp.Regexp
	seen int
}

func (b *brief) Write(p []byte) (int, error) {
	b.rest = append(b.rest, p...)
	for {
		line, rest, whole := bytes.Cut(b.rest, []byte("\n"))
		if !whole {
			return len(p), nil
		}
		if err := b.line(line); err != nil {
			return 0, err
		}
		b.rest = rest
	}
}

func (b *brief) line(line []byte) error {
	var kind *regexp.Regexp
	for _, r := range routine {
		if r.Match(line) {
			kind = r
		}
	}
	if kind != b.kind {
		if err := b.flush(); err != nil {
			return err
		}
		b.kind = kind
	}
	b.seen++
	if kind != nil && b.seen > briefly {
		return nil
	}
	_, err := fmt.Fprintf(b.to, "%s\n", line)
	return err
}

// end writes what is left.
func (b *brief) end() error {
	if len(b.rest) > 0 {
		if err := b.line(b.rest); err != nil {
			return err
		}
		b.rest = nil
	}
	return b.flush()
}

// flush tells how many lines of the last run were left out.
func (b *brief) flush() error {
	left := b.seen - briefly
	kind := b.kind
	b.kind, b.seen = nil, 0
	if kind == nil || left <= 0 {
		return nil
	}
	_, err := fmt.Fprintf(b.to, "… and %d more lines like these\n", left)
	return err
}
