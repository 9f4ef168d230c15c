package main

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/belayhq/belay/internal/render"
	"github.com/belayhq/belay/plan"
	"github.com/belayhq/belay/tenant"
)

func (p *program) changeCommand() *cobra.Command {
	return group("change", "Make changes, and look at them", `  belay change new changes/0042-customer-locale
  belay change validate changes/0042-customer-locale
  belay change show 0042-customer-locale`, p.changeNewCommand(), p.changeValidateCommand(), p.changeShowCommand(), p.changeSchemaCommand())
}

// validateDocument says whether changes are valid.
type validateDocument struct {
	Schema   string            `json:"schema"`
	Valid    bool              `json:"valid"`
	Changes  []validatedChange `json:"changes"`
	Problems []problemDocument `json:"problems"`
}

type validatedChange struct {
	Path      string           `json:"path"`
	Change    string           `json:"change"`
	Digest    plan.Digest      `json:"digest"`
	Databases []tenant.Dialect `json:"databases"`
}

type problemDocument struct {
	File    string `json:"file"`
	Line    int    `json:"line"`
	Column  int    `json:"column"`
	Message string `json:"message"`
}

func (p *program) changeValidateCommand() *cobra.Command {
	var on []string
	cmd := &cobra.Command{
		Use:   "validate FOLDER…",
		Short: "Check changes: the file, the SQL and its guards",
		Long: `Validate reads change.yaml and every file it refers to, and splits the SQL for each database. It needs no database. All that is
wrong is reported at once. A change is valid if it is for at least one database; --on says for which it must be.`,
		Example: `  belay change validate changes/0042-customer-locale
  belay change validate changes/* --on postgres,sqlite -o json`,
		Args: cobra.MinimumNArgs(1),
	}
	cmd.Flags().StringSliceVar(&on, "on", nil, "demand that it is for these `DATABASES`: postgres, sqlite")
	cmd.RunE = func(_ *cobra.Command, args []string) error {
		if err := knownDatabases(on); err != nil {
			return err
		}
		return p.validate(args, on)
	}
	return cmd
}

// knownDatabases refuses values of --on that are no database.
func knownDatabases(on []string) error {
	for _, d := range on {
		if !slices.Contains(dialects, tenant.Dialect(d)) {
			return misuse("--on %s: the databases are postgres and sqlite", d)
		}
	}
	return nil
}

var dialects = []tenant.Dialect{tenant.Postgres, tenant.SQLite}

func (p *program) validate(paths, on []string) error {
	d := validateDocument{Schema: render.Schema("change-validate"), Changes: []validatedChange{}, Problems: []problemDocument{}}
	for _, path := range paths {
		change, err := p.loadChange(path)
		if err == nil {
			err = d.compile(path, change, on)
		}
		invalid, ok := errors.AsType[*plan.InvalidError](err)
		switch {
		case err == nil:
		case ok:
			for _, one := range invalid.Problems {
				d.Problems = append(d.Problems, problemDocument{one.File, one.Line, one.Column, one.Message})
			}
		default:
			return err
		}
	}
	d.Valid = len(d.Problems) == 0
	err := p.show(d, func() error {
		_, err := io.WriteString(p.stdout, d.text())
		return err
	})
	if err == nil && !d.Valid {
		return fail(exitRefused, "%s", render.Plural(len(d.Problems), "problem"))
	}
	return err
}

func (d *validateDocument) text() string {
	var b strings.Builder
	for _, c := range d.Changes {
		on := make([]string, len(c.Databases))
		for i, dialect := range c.Databases {
			on[i] = string(dialect)
		}
		fmt.Fprintf(&b, "%s: valid, %s, for %s\n", render.Clean(c.Change), c.Digest, strings.Join(on, " and "))
	}
	for _, one := range d.Problems {
		at := plan.Problem{File: one.File, Line: one.Line, Column: one.Column, Message: one.Message}
		fmt.Fprintln(&b, render.CleanLines(at.String()))
	}
	return b.String()
}

// compile finds out for which databases a change is. It must be for one at least, and for all that are demanded.
func (d *validateDocument) compile(path string, change *plan.Change, on []string) error {
	one := validatedChange{Path: path, Change: change.ID, Digest: change.Digest()}
	var first error
	for _, dialect := range dialects {
		_, err := change.Compile(dialect)
		switch {
		case err == nil:
			one.Databases = append(one.Databases, dialect)
		case slices.Contains(on, string(dialect)):
			return err
		case first == nil:
			first = err
		}
	}
	if len(one.Databases) == 0 {
		return first
	}
	d.Changes = append(d.Changes, one)
	return nil
}

// changeDocument is a change for people and scripts to look at.
type changeDocument struct {
	Schema     string         `json:"schema"`
	Change     string         `json:"change"`
	Title      string         `json:"title"`
	Digest     plan.Digest    `json:"digest"`
	Requires   []string       `json:"requires"`
	OnFailure  plan.OnFailure `json:"on_failure"`
	Checkpoint string         `json:"checkpoint"`
	Reversible bool           `json:"reversible"`
	Steps      []stepDocument `json:"steps"`
}

type stepDocument struct {
	Step   string    `json:"step"`
	Kind   plan.Kind `json:"kind"`
	Action *string   `json:"action"`
	Undo   string    `json:"undo"`
	Verify *string   `json:"verify"`
	Files  []string  `json:"files"`
}

func (p *program) changeShowCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "show CHANGE",
		Short: "Show a change's steps, their undo and its digest",
		Example: `  belay change show changes/0042-customer-locale
  belay change show 0042-customer-locale -o json`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			change, err := p.anyChange(cmd, args[0])
			if err != nil {
				return err
			}
			d := newChangeDocument(change)
			return p.show(d, func() error { return d.write(p.stdout) })
		},
	}
}

// anyChange returns a change without opening a database for one that is here as files.
func (p *program) anyChange(cmd *cobra.Command, arg string) (*plan.Change, error) {
	if p.namesPath(arg) {
		return p.loadChange(arg)
	}
	s, err := p.open(cmd.Context(), mustExist)
	if err != nil {
		return nil, err
	}
	defer s.close()
	return s.findChange(cmd.Context(), arg)
}

func newChangeDocument(c *plan.Change) changeDocument {
	d := changeDocument{
		Schema: render.Schema("change"), Change: c.ID, Title: c.Title, Digest: c.Digest(), Requires: c.Requires,
		OnFailure: c.OnFailure, Checkpoint: string(c.Checkpoint), Reversible: c.Irreversible() == nil, Steps: []stepDocument{},
	}
	if d.Requires == nil {
		d.Requires = []string{}
	}
	for i := range c.Steps {
		s := &c.Steps[i]
		one := stepDocument{Step: s.ID, Kind: s.Kind, Undo: undoText(s), Files: []string{}}
		if s.Action != nil {
			one.Action = &s.Action.Name
		}
		if s.Verify != nil {
			one.Verify = &s.Verify.Query
		}
		for _, script := range []*plan.Script{s.Up, s.Down} {
			one.Files = append(one.Files, scriptFiles(script)...)
		}
		d.Steps = append(d.Steps, one)
	}
	return d
}

func scriptFiles(s *plan.Script) []string {
	var files []string
	if s == nil {
		return nil
	}
	for _, source := range []*plan.Source{s.Default, s.Postgres, s.SQLite} {
		if source != nil {
			files = append(files, source.File)
		}
	}
	return files
}

func undoText(s *plan.Step) string {
	switch u := s.Undo; {
	case u == nil && s.Kind == plan.Action:
		return "the action's own"
	case u == nil:
		return "down script"
	case u.Irreversible != "":
		return "irreversible: " + u.Irreversible
	case u.CoveredBy != "":
		return "covered by " + u.CoveredBy
	default:
		return "none: " + u.None
	}
}

func (d changeDocument) write(w io.Writer) error {
	var b strings.Builder
	b.WriteString(render.Clean(d.Change))
	if d.Title != "" {
		b.WriteString(": " + render.Clean(d.Title))
	}
	fmt.Fprintf(&b, "\ndigest %s, on failure %s, checkpoint %s\n", d.Digest, d.OnFailure, d.Checkpoint)
	if len(d.Requires) > 0 {
		fmt.Fprintf(&b, "requires %s\n", render.Clean(strings.Join(d.Requires, ", ")))
	}
	if _, err := io.WriteString(w, b.String()); err != nil {
		return err
	}
	table := render.NewTable("STEP", "KIND", "UNDO", "VERIFY", "FILES")
	for _, s := range d.Steps {
		verify := ""
		if s.Verify != nil {
			verify = *s.Verify
		}
		table.Add(s.Step, string(s.Kind), s.Undo, verify, strings.Join(s.Files, ", "))
	}
	return table.Write(w)
}
