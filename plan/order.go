package plan

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// LoadAll reads every change of a directory: each folder in it that holds a change.yaml, sorted by the folder's name.
// What is wrong with any of them is reported at once, as an [InvalidError]. A directory without a change gives none.
func LoadAll(dir string) ([]*Change, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("load changes: %w", err)
	}
	var found problems
	var changes []*Change
	for _, e := range entries {
		if !e.IsDir() {
			continue
		}
		folder := filepath.Join(dir, e.Name())
		if _, err := os.Lstat(filepath.Join(folder, changeFile)); errors.Is(err, fs.ErrNotExist) {
			continue
		}
		c, err := Load(folder)
		if err := found.take(err); err != nil {
			return nil, err
		}
		changes = append(changes, c)
	}
	if err := found.err(); err != nil {
		return nil, err
	}
	return changes, nil
}

// Order returns the changes in the order in which they apply: each one after those it requires, and otherwise by id. An
// id that occurs twice, a required change that is not among them and a circle are reported at once, as an
// [InvalidError].
func Order(changes []*Change) ([]*Change, error) {
	o := &ordering{byID: make(map[string]*Change, len(changes)), mark: map[string]mark{}}
	for _, c := range changes {
		if first := o.byID[c.ID]; first != nil {
			o.problems.add(c.file(), c.idPosition(), "change %s is here a second time%s", c.ID, alsoIn(first))
			continue
		}
		o.byID[c.ID] = c
	}
	o.check()
	if err := o.problems.err(); err != nil {
		return nil, err
	}
	return o.sort(), nil
}

type ordering struct {
	byID     map[string]*Change
	problems problems
	mark     map[string]mark
	path     []string // from where the search began to where it is
}

type mark uint8

const (
	unseen mark = iota
	onPath
	seen
)

func (o *ordering) check() {
	ids := slices.Sorted(maps.Keys(o.byID))
	for _, id := range ids {
		c := o.byID[id]
		for i, required := range c.Requires {
			if o.byID[required] == nil {
				o.problems.add(c.file(), c.requiresPosition(i), "change %s requires %s, which is not here%s",
					id, required, nearest(required, ids))
			}
		}
	}
	for _, id := range ids {
		o.visit(o.byID[id])
	}
}

// visit follows what a change requires, and reports each circle once, where it closes.
func (o *ordering) visit(c *Change) {
	if o.mark[c.ID] != unseen {
		return
	}
	o.mark[c.ID] = onPath
	o.path = append(o.path, c.ID)
	for i, required := range c.Requires {
		next := o.byID[required]
		switch {
		case next == nil:
		case o.mark[required] == onPath:
			circle := append(slices.Clone(o.path[slices.Index(o.path, required):]), required)
			o.problems.add(c.file(), c.requiresPosition(i), "the changes require each other in a circle: %s",
				strings.Join(circle, " → "))
		default:
			o.visit(next)
		}
	}
	o.path = o.path[:len(o.path)-1]
	o.mark[c.ID] = seen
}

// sort takes, again and again, the change with the lowest id whose required changes have all been taken.
func (o *ordering) sort() []*Change {
	missing := make(map[string]int, len(o.byID))
	dependants := map[string][]string{}
	var ready []string
	for id, c := range o.byID {
		missing[id] = len(c.Requires)
		for _, required := range c.Requires {
			dependants[required] = append(dependants[required], id)
		}
		if len(c.Requires) == 0 {
			ready = append(ready, id)
		}
	}
	slices.Sort(ready)
	out := make([]*Change, 0, len(o.byID))
	for len(ready) > 0 {
		id := ready[0]
		ready = ready[1:]
		out = append(out, o.byID[id])
		for _, next := range dependants[id] {
			if missing[next]--; missing[next] == 0 {
				i, _ := slices.BinarySearch(ready, next)
				ready = slices.Insert(ready, i, next)
			}
		}
	}
	return out
}

func alsoIn(c *Change) string {
	if c.origin == nil {
		return ""
	}
	return "; it is also in " + c.origin.file
}

func (c *Change) idPosition() position {
	if c.origin == nil {
		return position{}
	}
	return c.origin.id
}

func (c *Change) requiresPosition(i int) position {
	if c.origin == nil || i >= len(c.origin.requires) {
		return position{}
	}
	return c.origin.requires[i]
}
