package plan

import (
	"path/filepath"
	"slices"
	"strings"

	"go.yaml.in/yaml/v4"
)

// gooseMark begins what goose's annotations say.
const gooseMark = "+goose"

var gooseAnnotations = []string{"Up", "Down", "StatementBegin", "StatementEnd", "NO TRANSACTION"}

// goose gives a step the two sections of a goose migration as its scripts. Each keeps the lines of the file and has the other
// section's empty, so that what is wrong is found at its place in the file.
func (w *walk) goose(n *yaml.Node, s *Step, at *stepOrigin) {
	at.up, at.down = place(n), place(n)
	both := w.script(n)
	if both == nil {
		return
	}
	s.Up, s.Down = &Script{}, &Script{}
	problems := len(w.problems)
	for _, variant := range []struct {
		both     *Source
		up, down **Source
	}{
		{both.Default, &s.Up.Default, &s.Down.Default},
		{both.Postgres, &s.Up.Postgres, &s.Down.Postgres},
		{both.SQLite, &s.Up.SQLite, &s.Down.SQLite},
	} {
		if variant.both == nil {
			continue
		}
		located := Source{filepath.Join(w.dir, filepath.FromSlash(variant.both.File)), variant.both.Text}
		up, down, err := Goose(located)
		_ = w.problems.take(err) // it is of no other kind
		*variant.up = &Source{variant.both.File, up}
		if down != "" {
			*variant.down = &Source{variant.both.File, down}
		}
	}
	switch {
	case len(w.problems) > problems:
		s.Up, s.Down = nil, nil // nobody knows what its sections are
	case *s.Down == (Script{}):
		s.Down = nil
	}
}

// gooseUndo refuses silence about the way back, and two ways.
func (w *walk) gooseUndo(n, undo *yaml.Node, s *Step) {
	switch {
	case s.Up == nil:
	case s.Down == nil && undo == nil:
		w.refuse(n, "the Down section has no statement: say with undo: how this step is undone, one of none:, covered_by: and irreversible:")
	case s.Down != nil && undo != nil:
		w.refuse(undo, "the file has a Down section with statements: a step has that or undo, not both")
	}
}

// Goose cuts a goose migration at its annotations into what it runs on the way up and on the way down. Both keep the lines of the
// file, the other one's empty; one without a statement comes out empty. Where statements end needs no annotation here: [Split]
// reads quotes and bodies itself. All problems come at once, as an [InvalidError].
func Goose(src Source) (up, down string, err error) {
	g := gooseFile{file: src.File}
	for i, line := range strings.Split(src.Text, "\n") {
		g.line(i+1, line)
	}
	switch {
	case g.section == nil:
		g.refuse(1, "this is no goose migration: no line says -- +goose Up")
	case g.begun > 0:
		g.refuse(g.begun, "this StatementBegin has no StatementEnd")
	}
	return g.up.text(), g.down.text(), g.problems.err()
}

type gooseFile struct {
	file     string
	up, down gooseSection
	section  *gooseSection // the one that the next line belongs to; nil before the first
	begun    int           // the line of a StatementBegin without its StatementEnd so far
	problems problems
}

func (g *gooseFile) refuse(line int, format string, args ...any) {
	g.problems.add(g.file, position{line, 1}, format, args...)
}

type gooseSection struct {
	lines []string
	full  bool // some line is neither blank nor a comment
}

func (s *gooseSection) text() string {
	if !s.full {
		return ""
	}
	return strings.TrimRight(strings.Join(s.lines, "\n"), "\n") + "\n"
}

func (g *gooseFile) line(number int, text string) {
	comment, isComment := strings.CutPrefix(strings.TrimSpace(text), "--")
	if annotation, ok := strings.CutPrefix(strings.TrimSpace(comment), gooseMark); isComment && ok {
		if !strings.HasPrefix(text, "--") {
			g.refuse(number, "goose reads an annotation only at the beginning of a line")
		}
		g.annotation(number, strings.TrimSpace(annotation))
		text = ""
	}
	up, down := "", ""
	switch code := !isComment && strings.TrimSpace(text) != ""; {
	case code && g.section == nil:
		g.refuse(number, "a statement before -- +goose Up, which goose does not run")
	case g.section == &g.up:
		up = text
		g.up.full = g.up.full || code
	case g.section == &g.down:
		down = text
		g.down.full = g.down.full || code
	}
	g.up.lines, g.down.lines = append(g.up.lines, up), append(g.down.lines, down)
}

func (g *gooseFile) annotation(number int, what string) {
	switch {
	case what == "Up" && g.section != nil:
		g.refuse(number, "a second -- +goose Up")
	case what == "Up":
		g.section = &g.up
	case what == "Down" && g.section != &g.up:
		g.refuse(number, "-- +goose Down stands once, behind -- +goose Up")
	case what == "Down":
		if g.begun > 0 {
			g.refuse(g.begun, "this StatementBegin has no StatementEnd")
		}
		g.section, g.begun = &g.down, 0
	case what == "StatementBegin" && (g.section == nil || g.begun > 0):
		g.refuse(number, "this StatementBegin stands in no section, or in another StatementBegin")
	case what == "StatementBegin":
		g.begun = number
	case what == "StatementEnd" && g.begun == 0:
		g.refuse(number, "this StatementEnd has no StatementBegin")
	case what == "StatementEnd":
		g.begun = 0
	case strings.HasPrefix(what, "ENVSUB"):
		g.refuse(number, "goose would put environment variables into the text from here on; a change has no variables: write the values out")
	case !slices.Contains(gooseAnnotations, what):
		g.refuse(number, "%s %.40s is none of %s", gooseMark, what, join("and", gooseAnnotations))
	}
}
