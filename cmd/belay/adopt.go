package main

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/belayhq/belay/internal/render"
	"github.com/belayhq/belay/plan"
	"github.com/belayhq/belay/tenant"
)

// migration is one migration of another tool: the names of its files, in their folder.
type migration struct {
	version  string // empty where the tool has none
	up, down string
	goose    bool
}

// versioned are the names of goose and of golang-migrate.
var (
	gooseName = regexp.MustCompile(`^(\d+)_.*\.sql$`)
	gooseGo   = regexp.MustCompile(`^\d+_.*\.go$`)
	pairName  = regexp.MustCompile(`^(\d+)_.*\.(up|down)\.sql$`)
	variant   = regexp.MustCompile(`\.(postgres|sqlite)\.sql$`)
)

// adoptChange makes a change of files that another tool has.
func (p *program) adoptChange(args []string, f changeNewFlags) error {
	dir, names, err := p.filesToAdopt(args)
	if err != nil {
		return err
	}
	migrations, err := migrationsOf(f.from, names)
	if err != nil {
		return err
	}
	c, d := f.change(dir), changeNewDocument{Path: dir}
	var problems []error
	for _, m := range migrations {
		step, err := p.adopted(dir, m)
		switch {
		case err != nil:
			problems = append(problems, err)
			continue
		case step.SQL == sqlYAML{}:
			d.LeftOut = append(d.LeftOut, m.up)
			continue
		}
		step.ID = unusedID(asID(strings.TrimSuffix(strings.TrimSuffix(m.up, ".sql"), ".up")), c.Steps)
		if step.Undo != nil {
			d.Irreversible = append(d.Irreversible, step.ID)
		}
		c.Steps = append(c.Steps, step)
	}
	if len(problems) > 0 {
		return &failure{code: exitRefused, err: errors.Join(problems...)}
	}
	text, err := c.text("Of the migrations for " + f.from + " in this folder: belay change new --from " + f.from)
	if err != nil {
		return err
	}
	d.Change, d.Steps = c.ID, len(c.Steps)
	if err := p.checkAdopted(dir, text, f.on, &d); err != nil {
		return err
	}
	if err := p.writeNew(dir, map[string]string{changeFile: text}, &d); err != nil {
		return err
	}
	p.adviseAdopted(d)
	return p.showNew(d)
}

// filesToAdopt returns the one folder that the arguments lie in, and the names of files there in order.
func (p *program) filesToAdopt(args []string) (dir string, names []string, err error) {
	if info, err := os.Stat(p.path(args[0])); err == nil && info.IsDir() && len(args) == 1 {
		entries, err := os.ReadDir(p.path(args[0]))
		for _, e := range entries {
			if !e.IsDir() {
				names = append(names, e.Name())
			}
		}
		return filepath.Clean(args[0]), names, err
	}
	dir = filepath.Dir(args[0])
	for _, arg := range args {
		info, err := os.Stat(p.path(arg))
		switch {
		case err != nil:
			return "", nil, &failure{code: exitUsage, err: err}
		case info.IsDir():
			return "", nil, misuse("%s is a folder: name one folder, or files", arg)
		case filepath.Dir(arg) != dir:
			return "", nil, misuse("%s and %s lie in different folders: a change has its files in one", args[0], arg)
		}
		names = append(names, filepath.Base(arg))
	}
	return dir, names, nil
}

// migrationsOf finds a tool's migrations among names of files, in the order in which the tool runs them.
func migrationsOf(tool string, names []string) ([]migration, error) {
	var files []string // without variants for one database, which belong to the file without
	for _, name := range names {
		base := variant.ReplaceAllString(name, ".sql")
		if path.Ext(base) == ".sql" && !slices.Contains(files, base) {
			files = append(files, base)
		}
	}
	var found []migration
	var err error
	switch tool {
	case "goose":
		if i := slices.IndexFunc(names, gooseGo.MatchString); i >= 0 {
			return nil, fail(exitRefused, "%s is a migration in Go: make it an action of the program that embeds belay", names[i])
		}
		found, err = gooseMigrations(files)
	case "golang-migrate":
		found, err = pairedMigrations(files)
	case "sql":
		found, err = plainMigrations(files)
	default:
		return nil, misuse("--from is %q, it must be goose, golang-migrate or sql", tool)
	}
	if err == nil && len(found) == 0 {
		err = fail(exitRefused, "there is no migration of %s among %s", tool, render.Plural(len(names), "file"))
	}
	return found, err
}

func gooseMigrations(files []string) ([]migration, error) {
	var found []migration
	for _, file := range files {
		version := gooseName.FindStringSubmatch(file)
		if version == nil {
			return nil, fail(exitRefused, "%s is not named as goose's migrations are: VERSION_name.sql", file)
		}
		found = append(found, migration{version: version[1], up: file, goose: true})
	}
	return inOrder(found)
}

func pairedMigrations(files []string) ([]migration, error) {
	pairs := map[string]*migration{}
	for _, file := range files {
		name := pairName.FindStringSubmatch(file)
		if name == nil {
			return nil, fail(exitRefused, "%s is not named as golang-migrate's migrations are: VERSION_name.up.sql or .down.sql", file)
		}
		version, way := name[1], name[2]
		if pairs[version] == nil {
			pairs[version] = &migration{version: version}
		}
		at := &pairs[version].up
		if way == "down" {
			at = &pairs[version].down
		}
		if *at != "" {
			return nil, fail(exitRefused, "%s and %s have one version", *at, file)
		}
		*at = file
	}
	var found []migration
	for _, version := range slices.Sorted(maps.Keys(pairs)) {
		if m := pairs[version]; m.up == "" {
			return nil, fail(exitRefused, "%s takes back what no file does: its .up.sql is missing", m.down)
		}
		found = append(found, *pairs[version])
	}
	return inOrder(found)
}

// plainMigrations keeps the order of the files.
func plainMigrations(files []string) ([]migration, error) {
	var found []migration
	for _, file := range files {
		if strings.HasSuffix(file, ".down.sql") {
			continue
		}
		m := migration{up: file}
		if down := strings.TrimSuffix(strings.TrimSuffix(file, ".sql"), ".up") + ".down.sql"; slices.Contains(files, down) {
			m.down = down
		}
		found = append(found, m)
	}
	for _, file := range files {
		taken := func(m migration) bool { return m.down == file }
		if strings.HasSuffix(file, ".down.sql") && !slices.ContainsFunc(found, taken) {
			return nil, fail(exitRefused, "%s takes back what no file does: there is no %s", file, strings.TrimSuffix(file, ".down.sql")+".sql")
		}
	}
	return found, nil
}

// inOrder sorts migrations by the number that their version is.
func inOrder(found []migration) ([]migration, error) {
	number := func(m migration) string { return strings.TrimLeft(m.version, "0") }
	slices.SortFunc(found, func(a, b migration) int {
		return cmp.Or(cmp.Compare(len(number(a)), len(number(b))), cmp.Compare(number(a), number(b)))
	})
	for i := 1; i < len(found); i++ {
		if number(found[i-1]) == number(found[i]) {
			return nil, fail(exitRefused, "%s and %s have one version", found[i-1].up, found[i].up)
		}
	}
	return found, nil
}

// adopted makes a step of a migration; one without a statement on the way up makes none.
func (p *program) adopted(dir string, m migration) (stepYAML, error) {
	up, err := p.sourceOf(dir, m.up)
	if err != nil {
		return stepYAML{}, err
	}
	down, why := plan.Source{}, "no file takes it back"
	switch {
	case m.goose:
		why = "its Down section has no statement"
		if up.Text, down.Text, err = plan.Goose(up); err != nil {
			return stepYAML{}, err
		}
	case m.down != "":
		why = m.down + " has no statement"
		if down, err = p.sourceOf(dir, m.down); err != nil {
			return stepYAML{}, err
		}
	}
	if !hasStatement(up) {
		return stepYAML{}, nil
	}
	var step stepYAML
	back := hasStatement(down)
	switch {
	case m.goose:
		step.SQL.Goose = m.up
	case back:
		step.SQL = sqlYAML{Up: m.up, Down: m.down}
	default:
		step.SQL.Up = m.up
	}
	if !back {
		step.Undo = &undoYAML{why}
	}
	return step, nil
}

// sourceOf reads a file, or the variant for one database where there is no other.
func (p *program) sourceOf(dir, name string) (plan.Source, error) {
	base := strings.TrimSuffix(name, ".sql")
	var text []byte
	var err error
	for _, one := range []string{name, base + ".postgres.sql", base + ".sqlite.sql"} {
		file := filepath.Join(dir, one)
		if text, err = os.ReadFile(p.path(file)); err == nil {
			return plan.Source{File: file, Text: string(text)}, nil
		}
	}
	return plan.Source{}, err
}

// hasStatement reports whether a text holds a statement on some database, also one that may not stand there.
func hasStatement(src plan.Source) bool {
	return slices.ContainsFunc(dialects, func(d tenant.Dialect) bool {
		statements, err := plan.Split(d, src)
		return err != nil || len(statements) > 0
	})
}

// unusedID makes an id that no step has.
func unusedID(id string, steps []stepYAML) string {
	for n, want := 1, id; ; n++ {
		if n > 1 {
			want = fmt.Sprintf("%s-%d", id, n)
		}
		if !slices.ContainsFunc(steps, func(s stepYAML) bool { return s.ID == want }) {
			return want
		}
	}
}

// checkAdopted demands that the change would be valid for the databases asked for, for one at least. What is in the way on another
// one is said and does no harm.
func (p *program) checkAdopted(dir, text string, on []string, d *changeNewDocument) error {
	change, err := plan.Parse(p.path(dir), []byte(text))
	if err != nil {
		return notLoaded("change would be", err)
	}
	var demanded, others []error
	for _, dialect := range dialects {
		_, err := change.Compile(dialect)
		switch {
		case err == nil:
			d.Databases = append(d.Databases, dialect)
			continue
		case slices.Contains(on, string(dialect)):
			demanded = append(demanded, fmt.Errorf("not for %s:\n%w", dialect, err))
		}
		others = append(others, fmt.Errorf("not for %s:\n%w", dialect, err))
	}
	if len(d.Databases) == 0 {
		demanded = others
	}
	if len(demanded) > 0 {
		return (&failure{code: exitRefused, err: errors.Join(demanded...)}).
			advise("NAME.postgres.sql or NAME.sqlite.sql beside NAME.sql", "takes its place on that database: the file itself can stay as it is")
	}
	for _, err := range others {
		p.say("%v", err)
	}
	return nil
}

// adviseAdopted says what was made, and what is next.
func (p *program) adviseAdopted(d changeNewDocument) {
	on := make([]string, len(d.Databases))
	for i, dialect := range d.Databases {
		on[i] = string(dialect)
	}
	p.say("%s: %s, valid for %s", d.Change, render.Plural(d.Steps, "step"), strings.Join(on, " and "))
	if len(d.Irreversible) > 0 {
		p.say("without a way back: %s", strings.Join(d.Irreversible, ", "))
	}
	if len(d.LeftOut) > 0 {
		p.say("left out, no statement in it: %s", strings.Join(d.LeftOut, ", "))
	}
	var b strings.Builder
	folder := render.Quote(asPath(d.Path))
	render.WriteNext(&b, []render.Next{
		{Command: "belay resolve " + folder + " <selection> --as applied --reason TEXT", Why: "for tenants that have all of it"},
		{Command: "belay apply " + folder + " <selection>", Why: "for tenants that have nothing of it"},
	})
	p.write(b.String())
}
