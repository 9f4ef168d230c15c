package plan

import (
	"encoding/json"
	"time"

	"github.com/belayhq/belay/tenant"
)

// Digest names the content of a change: "sha256:" and 64 hexadecimal digits.
type Digest string

// Short returns the first twelve digits, for people.
func (d Digest) Short() string {
	const prefix = len("sha256:")
	if len(d) < prefix+12 {
		return string(d)
	}
	return string(d[prefix : prefix+12])
}

// OnFailure says what an apply does with the steps in place when a later one fails.
type OnFailure string

// The ways to fail.
const (
	StopOnFailure     OnFailure = "stop"     // leave the plan partial, for a person
	RollbackOnFailure OnFailure = "rollback" // undo the steps in place, newest first
)

// Checkpointing says how steps are grouped into transactions.
type Checkpointing string

// The ways to group.
const (
	CheckpointAuto Checkpointing = "auto" // small steps share one
	CheckpointStep Checkpointing = "step" // one each
)

// Change is an immutable, ordered list of steps. It holds the text of every file it refers to, so that it can be
// applied and rolled back when the files are gone.
type Change struct {
	Version    int           `json:"version"`
	ID         string        `json:"id"`
	Title      string        `json:"title,omitempty"`
	Requires   []string      `json:"requires,omitempty"`
	OnFailure  OnFailure     `json:"on_failure"`
	Checkpoint Checkpointing `json:"checkpoint"`
	// Timeout bounds one apply or rollback of the change on one tenant; zero is the engine's default.
	Timeout time.Duration `json:"timeout,omitempty"`
	Steps   []Step        `json:"steps"`

	// origin says where the parts stand in change.yaml; nil for a change that was not loaded from a directory.
	origin *origin
}

// Kind is what carries a step out.
type Kind string

// The kinds.
const (
	SQL    Kind = "sql"
	Action Kind = "action"
)

// Kinds lists all of them, for tests that must try each.
func Kinds() []Kind { return []Kind{SQL, Action} }

// Step is one item of a change.
type Step struct {
	ID   string `json:"id"`
	Kind Kind   `json:"kind"`
	// Up and Down are the scripts of a sql step. Down is nil where Undo is set.
	Up   *Script `json:"up,omitempty"`
	Down *Script `json:"down,omitempty"`
	// Action names what an action step calls.
	Action *ActionRef `json:"action,omitempty"`
	// Undo says why there is nothing to run on the way back; nil where Down or the action's own undo runs.
	Undo   *NoUndo `json:"undo,omitempty"`
	Verify *Verify `json:"verify,omitempty"`
	// Timeout bounds the step; zero is the engine's default.
	Timeout time.Duration `json:"timeout,omitempty"`
}

// Script is the text of a SQL file and of its variants for one database.
type Script struct {
	Default  *Source `json:"default,omitempty"`
	Postgres *Source `json:"postgres,omitempty"`
	SQLite   *Source `json:"sqlite,omitempty"`
}

// For returns the text for a database: its variant if there is one, else the default; nil if there is neither.
func (s *Script) For(d tenant.Dialect) *Source {
	if s == nil {
		return nil
	}
	switch {
	case d == tenant.Postgres && s.Postgres != nil:
		return s.Postgres
	case d == tenant.SQLite && s.SQLite != nil:
		return s.SQLite
	}
	return s.Default
}

// Source is a file's text: UTF-8, line endings as LF, no byte order mark.
type Source struct {
	File string `json:"file"`
	Text string `json:"text"`
}

// ActionRef is a call of an action that the embedding program registered. Args is a JSON object.
type ActionRef struct {
	Name string          `json:"name"`
	Args json.RawMessage `json:"args,omitempty"`
}

// NoUndo says why a step runs nothing on the way back. Exactly one field is set.
type NoUndo struct {
	None         string `json:"none,omitempty"`         // nothing to undo, and why
	CoveredBy    string `json:"covered_by,omitempty"`   // the earlier step whose undo removes this effect too
	Irreversible string `json:"irreversible,omitempty"` // there is no way back, and why
}

// Verify is a query that must run and, where Expect is set, return that one scalar.
type Verify struct {
	Query string `json:"query"`
	// Expect is the scalar as text; nil if the query need only run.
	Expect *string `json:"expect,omitempty"`
}

// Irreversible returns the first step without a way back; nil if there is none.
func (c *Change) Irreversible() *Step {
	for i := range c.Steps {
		if u := c.Steps[i].Undo; u != nil && u.Irreversible != "" {
			return &c.Steps[i]
		}
	}
	return nil
}

// Statement is one statement of a script, with the place where it begins.
type Statement struct {
	SQL  string
	File string
	Line int
	// RowsOnly says that the statement only reads or writes rows. Any other closes its checkpoint group.
	RowsOnly bool
	// Qualifiers are the names that stand before a dot or after SCHEMA: aliases, tables and schemas. On PostgreSQL a step
	// reaches other schemas through them, and only through them.
	Qualifiers []string
}

// Program is a change made ready for one database.
type Program struct {
	Change  *Change
	Digest  Digest
	Dialect tenant.Dialect
	Steps   []ProgramStep
}

// ProgramStep is a step with its scripts split into statements.
type ProgramStep struct {
	Step     *Step
	Ordinal  int
	Up, Down []Statement
}
