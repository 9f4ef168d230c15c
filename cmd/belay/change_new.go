package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v4"

	"github.com/belayhq/belay/internal/render"
	"github.com/belayhq/belay/plan"
	"github.com/belayhq/belay/tenant"
)

// changeYAML is a change.yaml to be written.
type changeYAML struct {
	Version  int        `yaml:"version"`
	ID       string     `yaml:"id"`
	Title    string     `yaml:"title,omitempty"`
	Requires []string   `yaml:"requires,omitempty,flow"`
	Steps    []stepYAML `yaml:"steps"`
}

type stepYAML struct {
	ID   string    `yaml:"id"`
	SQL  sqlYAML   `yaml:"sql,flow"`
	Undo *undoYAML `yaml:"undo,omitempty,flow"`
}

type sqlYAML struct {
	Up    string `yaml:"up,omitempty"`
	Down  string `yaml:"down,omitempty"`
	Goose string `yaml:"goose,omitempty"`
}

type undoYAML struct {
	Irreversible string `yaml:"irreversible"`
}

// changeNewDocument is a change that was written.
type changeNewDocument struct {
	Schema    string           `json:"schema"`
	Change    string           `json:"change"`
	Path      string           `json:"path"`
	Files     []string         `json:"files"` // those written
	Steps     int              `json:"steps"`
	Databases []tenant.Dialect `json:"databases"` // for which it is valid as it stands
	// Irreversible are the steps that were given no way back, LeftOut the files without a statement.
	Irreversible []string `json:"irreversible"`
	LeftOut      []string `json:"left_out"`
}

type changeNewFlags struct {
	id, title, from string
	requires, steps []string
	on              []string
}

func (p *program) changeNewCommand() *cobra.Command {
	var f changeNewFlags
	cmd := &cobra.Command{
		Use:   "new FOLDER | --from TOOL FILE…|FOLDER",
		Short: "Write a change.yaml: for a new change, or of files that another tool has",
		Long: `New writes a change.yaml, and for each step a file of what it does and one of what takes it back, to be filled in.

With --from it makes one change of the migrations that another tool has in a folder, a step of each, and writes change.yaml beside
them. Their files stay as they are and where they are. TOOL is goose, golang-migrate or sql: files of plain SQL in the order
given, or sorted by name; x.down.sql takes back x.sql or x.up.sql. What cannot run as part of a change is named with its place, and
nothing is written then.

It never overwrites a file.`,
		Example: `  belay change new changes/0042-customer-locale --step add-column --step fill
  belay change new --from goose migrations
  belay change new --from golang-migrate db/migrations --id 0000-history
  belay change new --from sql schema/tables.sql schema/seed.sql`,
		Args: cobra.MinimumNArgs(1),
	}
	flags := cmd.Flags()
	flags.StringVar(&f.id, "id", "", "the change's `ID` (default: made of the folder's name)")
	flags.StringVar(&f.title, "title", "", "a `TEXT` of one line")
	flags.StringSliceVar(&f.requires, "requires", nil, "the `CHANGE` that must be applied before; several are allowed")
	flags.StringSliceVar(&f.steps, "step", []string{"first"}, "the `NAME` of a step; several are allowed")
	flags.StringVar(&f.from, "from", "", "take the migrations of `TOOL`: goose, golang-migrate or sql")
	flags.StringSliceVar(&f.on, "on", nil, "with --from: demand that it is for these `DATABASES`: postgres, sqlite")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := knownDatabases(f.on); err != nil {
			return err
		}
		switch {
		case !cmd.Flags().Changed("from") && len(args) > 1:
			return misuse("one FOLDER is made at a time: files of another tool need --from")
		case !cmd.Flags().Changed("from"):
			return p.newChange(args[0], f)
		case cmd.Flags().Changed("step"):
			return misuse("--step is for a new change: with --from the steps are the migrations")
		}
		return p.adoptChange(args, f)
	}
	return cmd
}

// newChange writes a change to be filled in.
func (p *program) newChange(arg string, f changeNewFlags) error {
	dir := changeFolder(arg)
	c := f.change(dir)
	files := map[string]string{}
	for _, name := range f.steps {
		step := stepYAML{ID: name, SQL: sqlYAML{Up: "sql/" + name + ".up.sql", Down: "sql/" + name + ".down.sql"}}
		c.Steps = append(c.Steps, step)
		files[step.SQL.Up] = "-- What step " + name + " does.\n"
		files[step.SQL.Down] = "-- What takes step " + name + " back. Without a way back: undo in change.yaml says why.\n"
	}
	text, err := c.text("belay change schema prints what may stand here; belay change validate " + render.Quote(arg) + " checks it.")
	if err != nil {
		return err
	}
	// What is wrong with names is found before anything is made: read it where its files would be.
	if err := p.tryOut(text, files); err != nil {
		return err
	}
	d := changeNewDocument{Change: c.ID, Path: dir, Steps: len(c.Steps), Databases: []tenant.Dialect{}}
	files[changeFile] = text
	if err := p.writeNew(dir, files, &d); err != nil {
		return err
	}
	return p.showNew(d)
}

// tryOut loads a change in a folder that goes away again.
func (p *program) tryOut(text string, files map[string]string) error {
	scratch, err := os.MkdirTemp("", "belay-change-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(scratch)
	for name, content := range files {
		path := filepath.Join(scratch, filepath.FromSlash(name))
		if !filepath.IsLocal(filepath.FromSlash(name)) {
			continue // the loader says so
		}
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(content), 0o600)); err != nil {
			return err
		}
	}
	_, err = plan.Parse(scratch, []byte(text))
	if invalid, ok := errors.AsType[*plan.InvalidError](err); ok {
		messages := make([]error, len(invalid.Problems))
		for i, problem := range invalid.Problems {
			messages[i] = errors.New(problem.Message)
		}
		return &failure{code: exitUsage, err: errors.Join(messages...)}
	}
	return err
}

// change is the head of a change in a folder.
func (f changeNewFlags) change(dir string) changeYAML {
	id := f.id
	if id == "" {
		id = asID(filepath.Base(dir))
	}
	return changeYAML{Version: 1, ID: id, Title: f.title, Requires: f.requires}
}

// asID makes a name an id of a change or a step, as far as it can be one.
func asID(name string) string {
	id := strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' || strings.ContainsRune("-_.", r) {
			return r
		}
		return '-'
	}, strings.ToLower(name))
	const longest = 100
	return strings.TrimLeft(id[:min(len(id), longest)], "-_.")
}

func (c changeYAML) text(comment string) (string, error) {
	var b bytes.Buffer
	fmt.Fprintf(&b, "# %s\n", comment)
	enc := yaml.NewEncoder(&b)
	enc.SetIndent(2)
	err := errors.Join(enc.Encode(c), enc.Close())
	return b.String(), err
}

// writeNew writes files that must not be there yet: change.yaml last, so that a folder that holds one is whole.
func (p *program) writeNew(dir string, files map[string]string, d *changeNewDocument) error {
	if _, err := os.Lstat(p.path(filepath.Join(dir, changeFile))); err == nil {
		return fail(exitRefused, "%s is there already: nothing was written", filepath.Join(dir, changeFile))
	}
	names := slices.Sorted(maps.Keys(files))
	names = append(slices.DeleteFunc(names, func(name string) bool { return name == changeFile }), changeFile)
	for _, name := range names {
		path := filepath.Join(dir, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(p.path(path)), 0o755); err != nil {
			return err
		}
		f, err := os.OpenFile(p.path(path), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
		if errors.Is(err, fs.ErrExist) && name != changeFile {
			continue // what is there stays
		}
		if err == nil {
			_, err = io.WriteString(f, files[name])
			err = errors.Join(err, f.Close())
		}
		if err != nil {
			return err
		}
		d.Files = append(d.Files, path)
	}
	return nil
}

func (p *program) showNew(d changeNewDocument) error {
	d.Schema = render.Schema("change-new")
	for _, list := range []*[]string{&d.Files, &d.Irreversible, &d.LeftOut} {
		if *list == nil {
			*list = []string{}
		}
	}
	return p.show(d, func() error {
		var b strings.Builder
		for _, file := range d.Files {
			fmt.Fprintln(&b, render.Clean(file))
		}
		_, err := io.WriteString(p.stdout, b.String())
		return err
	})
}
