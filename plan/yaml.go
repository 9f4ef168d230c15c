package plan

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"go.yaml.in/yaml/v4"
)

// maxArgsDepth bounds how deep the arguments of an action are nested.
const maxArgsDepth = 100

// walk turns the nodes of one change.yaml into a change and collects everything wrong on the way. A part that is wrong
// is left at its zero value.
type walk struct {
	dir, file string
	reader    *reader
	scripts   map[string]*Source // by name; nil for one that does not exist
	problems  problems
	change    Change
	undoable  map[string]bool // the steps so far, and whether their own undo runs
}

func (w *walk) refuse(n *yaml.Node, format string, args ...any) {
	w.problems.add(w.file, place(n), format, args...)
}

func place(n *yaml.Node) position { return position{n.Line, n.Column} }

// document walks a whole file.
func (w *walk) document(text string) *Change {
	dec := yaml.NewDecoder(strings.NewReader(text))
	var doc, second yaml.Node
	if err := dec.Decode(&doc); errors.Is(err, io.EOF) {
		w.problems.add(w.file, position{1, 1}, "the file is empty; a change begins with version: %d", changeVersion)
		return nil
	} else if err != nil {
		w.syntax(err)
		return nil
	}
	switch err := dec.Decode(&second); {
	case errors.Is(err, io.EOF):
	case err != nil:
		w.syntax(err)
	default:
		w.refuse(&second, "a second document; a change is one document")
	}
	if len(doc.Content) == 0 {
		w.problems.add(w.file, position{1, 1}, "the file is empty; a change begins with version: %d", changeVersion)
		return nil
	}
	top := doc.Content[0]
	w.strict(top, 0)
	w.top(top)
	return &w.change
}

func (w *walk) syntax(err error) {
	at := position{1, 1}
	message := err.Error()
	if load, ok := errors.AsType[*yaml.LoadError](err); ok {
		message = load.Message
		if load.Mark.Line > 0 {
			at = position{load.Mark.Line, max(load.Mark.Column, 1)}
		}
	}
	w.problems.add(w.file, at, "not YAML: %s", message)
}

// strict refuses what YAML offers beyond plain maps, lists and scalars, wherever it stands.
func (w *walk) strict(n *yaml.Node, depth int) {
	if n.Anchor != "" {
		w.refuse(n, "anchor &%s; anchors are not supported", n.Anchor)
	}
	switch {
	case n.Kind == yaml.AliasNode:
		w.refuse(n, "alias *%s; aliases are not supported, write the value out", n.Value)
		return
	case n.Style&yaml.TaggedStyle != 0:
		w.refuse(n, "tag %s; tags are not supported", n.Tag)
	case n.Kind == yaml.ScalarNode && strings.ContainsRune(n.Value, 0):
		w.refuse(n, "a NUL character; databases do not store it")
	}
	if n.Kind == yaml.MappingNode {
		w.strictKeys(n)
	}
	if depth == maxArgsDepth {
		w.refuse(n, "nested more than %d deep", maxArgsDepth)
		return
	}
	for _, child := range n.Content {
		w.strict(child, depth+1)
	}
}

func (w *walk) strictKeys(n *yaml.Node) {
	first := map[string]*yaml.Node{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key := n.Content[i]
		switch {
		case key.Kind == yaml.AliasNode:
		case key.Tag == "!!merge":
			w.refuse(key, "merge key <<; merge keys are not supported, write the values out")
		case key.Kind != yaml.ScalarNode || key.Tag != "!!str" && key.Tag != "!!timestamp":
			w.refuse(key, "a key must be a string; quote it")
		case first[key.Value] != nil:
			w.refuse(key, "duplicate key %s, first on line %d", key.Value, first[key.Value].Line)
		default:
			first[key.Value] = key
		}
	}
}

// fields returns the values of a mapping by key and refuses keys that are not known. It returns nil where n is no
// mapping.
func (w *walk) fields(n *yaml.Node, what string, known ...string) map[string]*yaml.Node {
	if n.Kind == yaml.AliasNode {
		return nil
	}
	if n.Kind != yaml.MappingNode {
		w.refuse(n, "%s must be a mapping with %s, not %s", what, join("and", known), describe(n))
		return nil
	}
	out := map[string]*yaml.Node{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		if key.Kind != yaml.ScalarNode || key.Tag != "!!str" || out[key.Value] != nil {
			continue // strict has said so
		}
		if !slices.Contains(known, key.Value) {
			w.refuse(key, "unknown key %s in %s%s", key.Value, what, nearest(key.Value, known))
			continue
		}
		out[key.Value] = value
	}
	return out
}

func (w *walk) top(n *yaml.Node) {
	f := w.fields(n, "a change",
		"version", "id", "title", "requires", "on_failure", "checkpoint", "timeout", "steps")
	if f == nil {
		return
	}
	c := &w.change
	c.origin = &origin{dir: w.dir, file: w.file}
	w.version(n, f["version"])
	if id := f["id"]; id == nil {
		w.refuse(n, "id is missing")
	} else {
		c.ID = w.id(id, "id")
		c.origin.id = place(id)
	}
	c.Title = w.phrase(f["title"], "title")
	w.requires(f["requires"])
	c.OnFailure = choice(w, f["on_failure"], "on_failure", StopOnFailure, RollbackOnFailure)
	c.Checkpoint = choice(w, f["checkpoint"], "checkpoint", CheckpointAuto, CheckpointStep)
	c.Timeout = w.timeout(f["timeout"])
	if steps := f["steps"]; steps == nil {
		w.refuse(n, "steps is missing")
	} else {
		w.steps(steps)
	}
}

func (w *walk) version(top, n *yaml.Node) {
	switch {
	case n == nil:
		w.refuse(top, "version is missing; this is version: %d", changeVersion)
	case n.Kind == yaml.AliasNode:
	case n.Kind != yaml.ScalarNode || n.Tag != "!!int":
		w.refuse(n, "version must be the number %d, not %s", changeVersion, describe(n))
	case n.Value != fmt.Sprint(changeVersion):
		w.refuse(n, "version %s is not supported; this binary reads version %d", n.Value, changeVersion)
	default:
		w.change.Version = changeVersion
	}
}

func (w *walk) requires(n *yaml.Node) {
	c := &w.change
	for _, item := range w.list(n, "requires") {
		id := w.id(item, "a required change")
		switch {
		case id == "":
			continue
		case id == c.ID:
			w.refuse(item, "change %s requires itself", id)
		case slices.Contains(c.Requires, id):
			w.refuse(item, "change %s is required twice", id)
		}
		c.Requires = append(c.Requires, id)
		c.origin.requires = append(c.origin.requires, place(item))
	}
}

func (w *walk) steps(n *yaml.Node) {
	if n.Kind == yaml.SequenceNode && len(n.Content) == 0 {
		w.refuse(n, "a change needs at least one step")
	}
	items := w.list(n, "steps")
	if len(items) > maxSteps {
		w.refuse(items[maxSteps], "more than %d steps", maxSteps)
		return
	}
	w.undoable = make(map[string]bool, len(items))
	for _, item := range items {
		w.step(item)
	}
}

func (w *walk) step(n *yaml.Node) {
	f := w.fields(n, "a step", "id", "sql", "action", "rows", "undo", "verify", "timeout")
	if f == nil {
		return
	}
	var s Step
	var at stepOrigin
	if id := f["id"]; id == nil {
		w.refuse(n, "a step needs an id")
	} else {
		s.ID, at.id = w.id(id, "a step's id"), place(id)
		if _, ok := w.undoable[s.ID]; ok && s.ID != "" {
			w.refuse(id, "two steps are called %s", s.ID)
		}
	}
	w.kind(n, f, &s, &at)
	s.Verify = w.verify(f["verify"], &at)
	s.Timeout = w.timeout(f["timeout"])
	if _, ok := w.undoable[s.ID]; !ok {
		w.undoable[s.ID] = f["undo"] == nil
	}
	w.change.Steps = append(w.change.Steps, s)
	w.change.origin.steps = append(w.change.origin.steps, at)
}

// kind reads what carries the step out, and its undo, which depends on it.
func (w *walk) kind(n *yaml.Node, f map[string]*yaml.Node, s *Step, at *stepOrigin) {
	sql, action, rows := f["sql"], f["action"], f["rows"]
	switch {
	case rows != nil:
		w.refuse(rows, "rows steps are not supported by this version; use sql or action")
	case sql != nil && action != nil:
		w.refuse(action, "a step has sql or action, not both")
	case sql == nil && action == nil:
		w.refuse(n, "a step needs sql: {up, down} or action: {name, args}")
	}
	s.Undo = w.undo(f["undo"])
	if action != nil {
		s.Kind = Action
		s.Action = w.action(action)
	}
	if sql != nil {
		s.Kind = SQL
		w.sql(sql, f["undo"], s, at)
	}
}

func (w *walk) sql(n, undo *yaml.Node, s *Step, at *stepOrigin) {
	f := w.fields(n, "sql", "up", "down", "goose")
	if f == nil {
		return
	}
	up, down := f["up"], f["down"]
	switch goose := f["goose"]; {
	case goose != nil && (up != nil || down != nil):
		w.refuse(goose, "sql has goose, a file with both sections, or up and down, not both")
		return
	case goose != nil:
		w.goose(goose, s, at)
		w.gooseUndo(goose, undo, s)
		return
	case up == nil:
		w.refuse(n, "sql needs up, the file to run")
	default:
		s.Up, at.up = w.script(up), place(up)
	}
	switch {
	case down == nil && undo == nil:
		w.refuse(n, "how is this step undone? give down: a file, or undo: with one of none: (nothing to undo, and why), "+
			"covered_by: (the earlier step whose undo removes this too), irreversible: (there is no way back, and why)")
	case down != nil && undo != nil:
		w.refuse(undo, "a step has down or undo, not both: undo says why no down runs")
	case down != nil:
		s.Down, at.down = w.script(down), place(down)
		if up != nil && down.Value != "" && down.Value == up.Value {
			w.refuse(down, "up and down are the same file")
		}
	}
}

func (w *walk) undo(n *yaml.Node) *NoUndo {
	if n == nil {
		return nil
	}
	f := w.fields(n, "undo", "none", "covered_by", "irreversible")
	if f == nil {
		return nil
	}
	if len(f) != 1 {
		w.refuse(n, "undo has exactly one of none, covered_by and irreversible")
		return nil
	}
	u := &NoUndo{None: w.reason(f["none"], "none"), Irreversible: w.reason(f["irreversible"], "irreversible")}
	if by := f["covered_by"]; by != nil {
		u.CoveredBy = w.id(by, "covered_by")
		undoable, earlier := w.undoable[u.CoveredBy]
		switch {
		case u.CoveredBy == "":
		case !earlier:
			w.refuse(by, "covered_by must name an earlier step; none is called %s%s",
				u.CoveredBy, nearest(u.CoveredBy, slices.Sorted(maps.Keys(w.undoable))))
		case !undoable:
			w.refuse(by, "step %s has nothing to run on the way back, so it covers nothing", u.CoveredBy)
		}
	}
	return u
}

func (w *walk) action(n *yaml.Node) *ActionRef {
	f := w.fields(n, "action", "name", "args")
	if f == nil {
		return nil
	}
	a := &ActionRef{}
	if name := f["name"]; name == nil {
		w.refuse(n, "an action needs a name")
	} else if a.Name = w.phrase(name, "name"); a.Name == "" {
		w.refuse(name, "an action needs a name")
	}
	args := f["args"]
	switch {
	case args == nil || args.Kind == yaml.AliasNode:
		return a
	case args.Kind != yaml.MappingNode:
		w.refuse(args, "args must be a mapping, not %s", describe(args))
		return a
	}
	out, err := json.Marshal(w.value(args, 0))
	if err == nil {
		a.Args = canonicalArgs(out)
	}
	return a
}

func (w *walk) verify(n *yaml.Node, at *stepOrigin) *Verify {
	if n == nil {
		return nil
	}
	f := w.fields(n, "verify", "query", "expect")
	if f == nil {
		return nil
	}
	v := &Verify{}
	if query := f["query"]; query == nil {
		w.refuse(n, "verify needs a query")
	} else {
		at.verify = place(query)
		if v.Query = w.text(query, "query"); v.Query == "" && query.Tag == "!!str" {
			w.refuse(query, "verify needs a query")
		}
	}
	expect := f["expect"]
	switch {
	case expect == nil || expect.Kind == yaml.AliasNode:
	case expect.Kind != yaml.ScalarNode:
		w.refuse(expect, "expect must be one value, not %s", describe(expect))
	case expect.Tag == "!!null":
		w.refuse(expect, "expect cannot be null; write a query that says so, such as SELECT x IS NULL, and expect true")
	default:
		v.Expect = &expect.Value
	}
	return v
}

// script loads the file that n names and its variants.
func (w *walk) script(n *yaml.Node) *Script {
	name := w.text(n, "a script")
	if n.Kind != yaml.ScalarNode || n.Tag != "!!str" {
		return nil
	}
	if why := badName(name); why != "" {
		w.refuse(n, "%s", why)
		return nil
	}
	base := strings.TrimSuffix(name, ".sql")
	s := &Script{
		Default:  w.source(name),
		Postgres: w.source(base + ".postgres.sql"),
		SQLite:   w.source(base + ".sqlite.sql"),
	}
	if *s == (Script{}) {
		w.refuse(n, "there is no file %s, nor %s.postgres.sql or %s.sqlite.sql beside it", name, base, base)
	}
	return s
}

func badName(name string) string {
	switch base := strings.TrimSuffix(name, ".sql"); {
	case strings.Contains(name, `\`):
		return "a file name is written with /, not \\"
	case !fs.ValidPath(name) || !filepath.IsLocal(filepath.FromSlash(name)):
		return fmt.Sprintf("%q is not a file below the change's directory", name)
	case path.Ext(name) != ".sql" || path.Base(name) == ".sql":
		return fmt.Sprintf("%q does not end in .sql; a script is the name of a file", name)
	case strings.HasSuffix(base, ".postgres") || strings.HasSuffix(base, ".sqlite"):
		return fmt.Sprintf("%q is a variant; name %s.sql, its variants are found beside it",
			name, strings.TrimSuffix(base, path.Ext(base)))
	}
	return ""
}

// source loads one file. It returns nil for a file that does not exist, an empty source for one that is refused.
func (w *walk) source(name string) *Source {
	if s, ok := w.scripts[name]; ok {
		return s
	}
	text, err := w.reader.read(name)
	var s *Source
	if !errors.Is(err, fs.ErrNotExist) {
		s = &Source{File: name, Text: text}
		if err != nil {
			w.addFile(name, err)
		}
	}
	w.scripts[name] = s
	return s
}
