package plan

import (
	"fmt"
	"strings"
)

// Validate says, as an [InvalidError], everything wrong with a change that a program built. A change from [Load] is valid;
// [Change.Compile] asks for every other. An empty Version, OnFailure or Checkpoint means its default.
func (c *Change) Validate() error {
	v := &validation{undoable: make(map[string]bool, len(c.Steps))}
	v.change(c)
	for i := range c.Steps {
		v.step(&c.Steps[i])
	}
	return v.problems.err()
}

type validation struct {
	problems problems
	undoable map[string]bool // the steps so far, and whether their own undo runs
}

func (v *validation) refuse(format string, args ...any) {
	v.problems.add("", position{}, format, args...)
}

func (v *validation) change(c *Change) {
	if why := badID(c.ID); why != "" {
		v.refuse("id %q %s", c.ID, why)
	}
	if c.Version != 0 && c.Version != changeVersion {
		v.refuse("version is %d, it must be %d", c.Version, changeVersion)
	}
	if c.OnFailure != "" && c.OnFailure != StopOnFailure && c.OnFailure != RollbackOnFailure {
		v.refuse("on_failure is %q, it must be %s or %s", c.OnFailure, StopOnFailure, RollbackOnFailure)
	}
	if c.Checkpoint != "" && c.Checkpoint != CheckpointAuto && c.Checkpoint != CheckpointStep {
		v.refuse("checkpoint is %q, it must be %s or %s", c.Checkpoint, CheckpointAuto, CheckpointStep)
	}
	if c.Timeout < 0 {
		v.refuse("timeout is %s, it must not be negative", c.Timeout)
	}
	seen := map[string]bool{c.ID: true}
	for _, id := range c.Requires {
		if why := badID(id); why != "" {
			v.refuse("requires %q %s", id, why)
		}
		if seen[id] {
			v.refuse("requires %s twice, or itself", id)
		}
		seen[id] = true
	}
	if len(c.Steps) == 0 {
		v.refuse("a change needs at least one step")
	}
}

func (v *validation) step(s *Step) {
	if why := badID(s.ID); why != "" {
		v.refuse("step id %q %s", s.ID, why)
	}
	if _, taken := v.undoable[s.ID]; taken {
		v.refuse("two steps are called %s", s.ID)
	}
	if s.Timeout < 0 {
		v.refuse("step %s: timeout is %s, it must not be negative", s.ID, s.Timeout)
	}
	if err := s.supported(); err != nil {
		v.refuse("step %s: %s", s.ID, err)
	}
	if s.Kind == SQL && (s.Down == nil) == (s.Undo == nil) {
		v.refuse("step %s: a sql step has exactly one of Down and Undo", s.ID)
	}
	if s.Undo != nil {
		v.undo(s)
	}
	v.undoable[s.ID] = s.Down != nil || s.Kind == Action && s.Undo == nil
}

func (v *validation) undo(s *Step) {
	given := 0
	for _, why := range []string{s.Undo.None, s.Undo.CoveredBy, s.Undo.Irreversible} {
		if strings.TrimSpace(why) != "" {
			given++
		}
	}
	if given != 1 {
		v.refuse("step %s: undo has exactly one of None, CoveredBy and Irreversible", s.ID)
	}
	if by := s.Undo.CoveredBy; by != "" && !v.undoable[by] {
		v.refuse("step %s: covered_by names %s, which is no earlier step with an undo of its own", s.ID, by)
	}
}

// badID says what is wrong with the id of a change or a step; empty if nothing is.
func badID(s string) string {
	switch {
	case s == "":
		return "must not be empty"
	case len(s) > maxIDLength:
		return fmt.Sprintf("is longer than %d characters", maxIDLength)
	case strings.ContainsFunc(s, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < '0' || r > '9') && r != '-' && r != '_' && r != '.'
	}):
		return "may hold only lower-case letters, digits, -, _ and ."
	case strings.ContainsAny(s[:1], "-_."):
		return "must begin with a letter or a digit"
	}
	return ""
}
