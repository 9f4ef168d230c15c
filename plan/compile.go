package plan

import (
	"fmt"
	"path/filepath"
	"strings"

	"github.com/belayhq/belay/tenant"
)

// Compile makes the change ready for one database: every script split into statements, with the guards of [Split]. All
// problems come at once, as an [InvalidError]; for a loaded change they name the files as they were given to [Load].
func (c *Change) Compile(d tenant.Dialect) (*Program, error) {
	if c.origin == nil {
		if err := c.Validate(); err != nil {
			return nil, err
		}
	}
	w := &compiler{change: c, dialect: d}
	p := &Program{Change: c, Dialect: d, Steps: make([]ProgramStep, 0, len(c.Steps))}
	for i := range c.Steps {
		p.Steps = append(p.Steps, w.step(i))
	}
	if err := w.problems.err(); err != nil {
		return nil, err
	}
	p.Digest = c.Digest()
	return p, nil
}

type compiler struct {
	change   *Change
	dialect  tenant.Dialect
	problems problems
}

func (w *compiler) step(ordinal int) ProgramStep {
	s := &w.change.Steps[ordinal]
	at := w.change.at(ordinal)
	out := ProgramStep{Step: s, Ordinal: ordinal}
	if s.Kind == SQL {
		out.Up = w.script(s, s.Up, Up, at.up)
		if s.Undo == nil {
			out.Down = w.script(s, s.Down, Down, at.down)
		}
	}
	if s.Verify != nil {
		w.verify(s, at.verify)
	}
	return out
}

// script splits one script of a step.
func (w *compiler) script(s *Step, script *Script, way Direction, at position) []Statement {
	src := script.For(w.dialect)
	if src == nil {
		w.refuse(at, "step %s has no %s script for %s%s", s.ID, way, w.dialect, expected(script, w.dialect))
		return nil
	}
	located := Source{File: w.change.path(src.File), Text: src.Text}
	statements, err := Split(w.dialect, located)
	if err := w.problems.take(err); err != nil {
		w.refuse(at, "step %s: %v", s.ID, err)
	}
	if err == nil && len(statements) == 0 {
		w.problems.add(located.File, position{}, "the %s script of step %s holds no statement", way, s.ID)
	}
	for i := range statements {
		statements[i].File = src.File
	}
	return statements
}

// verify checks a step's query, which has no file of its own: what is wrong is reported where the query stands.
func (w *compiler) verify(s *Step, at position) {
	pieces, err := split(w.dialect, Source{Text: s.Verify.Query})
	var inside problems
	if err := inside.take(err); err != nil {
		w.refuse(at, "verify of step %s: %v", s.ID, err)
	}
	for _, p := range inside {
		w.refuse(at, "verify of step %s: %s", s.ID, p.Message)
	}
	switch {
	case err != nil:
	case len(pieces) != 1:
		w.refuse(at, "verify of step %s must be one query, not %d", s.ID, len(pieces))
	case !pieces[0].reads:
		w.refuse(at, "verify of step %s must only read: SELECT, VALUES, TABLE or a WITH that leads to one", s.ID)
	}
}

func (w *compiler) refuse(at position, format string, args ...any) {
	w.problems.add(w.change.file(), at, format, args...)
}

// expected names the files that would give a script for the database.
func expected(s *Script, d tenant.Dialect) string {
	for _, other := range []tenant.Dialect{tenant.Postgres, tenant.SQLite} {
		if src := s.For(other); src != nil {
			base := strings.TrimSuffix(strings.TrimSuffix(src.File, ".sql"), "."+string(other))
			return fmt.Sprintf("; add %s.%s.sql or %s.sql", base, d, base)
		}
	}
	return ""
}

// file returns the path of change.yaml; empty for a change that was not loaded from one.
func (c *Change) file() string {
	if c.origin == nil {
		return ""
	}
	return c.origin.file
}

// path returns the path of one of the change's files as it was given to Load; the file's name alone for a change that
// was not loaded from a directory.
func (c *Change) path(file string) string {
	if c.origin == nil {
		return file
	}
	return filepath.Join(c.origin.dir, filepath.FromSlash(file))
}

// at returns where a step stands in change.yaml.
func (c *Change) at(ordinal int) stepOrigin {
	if c.origin == nil || ordinal >= len(c.origin.steps) {
		return stepOrigin{}
	}
	return c.origin.steps[ordinal]
}
