package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/belayhq/belay/engine"
	"github.com/belayhq/belay/internal/render"
	"github.com/belayhq/belay/plan"
)

const (
	changeFile      = "change.yaml"
	registerTimeout = 10 * time.Second
)

// namesPath reports whether a change was given as a path: it holds a "/" or names a directory here. Else it is an id.
func (p *program) namesPath(arg string) bool {
	if strings.ContainsRune(arg, '/') || strings.ContainsRune(arg, filepath.Separator) {
		return true
	}
	info, err := os.Stat(p.path(arg))
	return err == nil && info.IsDir()
}

// findChange returns the change that an argument names: a folder's, or the one last registered under an id.
func (s *session) findChange(ctx context.Context, arg string) (*plan.Change, error) {
	if s.namesPath(arg) {
		return s.loadChange(arg)
	}
	change, err := s.control.ChangeByID(ctx, arg)
	if errors.Is(err, engine.ErrChangeUnknown) {
		return nil, fail(exitRefused, "no change is registered as %s, and no folder here is called that", arg).
			advise("belay apply FOLDER …", "registers the change in a folder and applies it")
	}
	return change, err
}

// registerNew registers a change whose id is not known yet. It reports whether the id is known and means another change:
// what an edit under the same id comes to is only known when some tenant has taken it.
func (s *session) registerNew(ctx context.Context, change *plan.Change) (edited bool, err error) {
	known, err := s.control.ChangeByID(ctx, change.ID)
	switch {
	case err == nil:
		return known.Digest() != change.Digest(), nil
	case !errors.Is(err, engine.ErrChangeUnknown):
		return false, err
	}
	return false, registering(change, s.control.PutChange(ctx, change))
}

// registerEdit makes an id mean the edit from now on. It outlives a signal: a tenant has the edit already.
func (s *session) registerEdit(ctx context.Context, change *plan.Change) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), registerTimeout)
	defer cancel()
	return registering(change, s.control.PutChange(ctx, change))
}

func registering(change *plan.Change, err error) error {
	if err != nil {
		return fmt.Errorf("register change %s: %w", change.ID, err)
	}
	return nil
}

// elsewhere returns a function that tells how to name other changes than the one that was given, on the command line: by
// id where they are registered, else by path, beside the one that was given if there is such a folder.
func (s *session) elsewhere(ctx context.Context, given string) func(id string) string {
	names := map[string]string{}
	return func(id string) string {
		name, known := names[id]
		if !known {
			name = s.nameChange(ctx, given, id)
			names[id] = name
		}
		return name
	}
}

func (s *session) nameChange(ctx context.Context, given, id string) string {
	if _, err := s.control.ChangeByID(ctx, id); !errors.Is(err, engine.ErrChangeUnknown) {
		return id
	}
	if s.namesPath(given) {
		beside := filepath.Join(changeFolder(given), "..", id)
		if change, err := plan.Load(s.path(beside)); err == nil && change.ID == id {
			return asPath(beside)
		}
	}
	return "PATH/TO/" + id
}

// asPath makes a path that cannot be taken for an id.
func asPath(path string) string {
	if strings.ContainsRune(path, filepath.Separator) {
		return path
	}
	return "." + string(filepath.Separator) + path
}

// changeFolder is the folder that an argument names: its change.yaml is accepted for the folder.
func changeFolder(arg string) string {
	if filepath.Base(arg) == changeFile {
		return filepath.Dir(arg)
	}
	return filepath.Clean(arg)
}

// changeID returns the id that an argument means, for commands that need no files. A folder that cannot be read is no
// reason not to roll back.
func (p *program) changeID(arg string) (string, error) {
	if !p.namesPath(arg) {
		return arg, nil
	}
	change, err := p.loadChange(arg)
	switch {
	case err == nil:
		return change.ID, nil
	case strings.ContainsRune(arg, '/'):
		return "", err
	}
	return arg, nil
}

// loadChange reads the change in a folder.
func (p *program) loadChange(arg string) (*plan.Change, error) {
	dir := changeFolder(arg)
	change, err := plan.Load(p.path(dir))
	if errors.Is(err, fs.ErrNotExist) {
		if several := p.changesIn(dir); len(several) > 0 {
			f := fail(exitUsage, "%s holds %s: name one of them", arg, render.Plural(len(several), "change"))
			return nil, f.advise(filepath.Join(dir, several[0]), "for one")
		}
	}
	return change, notLoaded("change in "+arg+" is", err)
}

// notLoaded refuses changes that could not be read; nil if they could.
func notLoaded(what string, err error) error {
	if invalid, ok := errors.AsType[*plan.InvalidError](err); ok {
		return &failure{code: exitRefused, err: fmt.Errorf("%s not valid:\n%w", what, invalid)}
	}
	if err != nil {
		return &failure{code: exitRefused, err: err}
	}
	return nil
}

// findChanges returns the changes that an argument of apply names: one, or all of a directory, in the order in which they
// apply.
func (s *session) findChanges(ctx context.Context, arg string) (changes []*plan.Change, several bool, err error) {
	dir := changeFolder(arg)
	if !s.namesPath(arg) || !s.holdsChanges(dir) {
		change, err := s.findChange(ctx, arg)
		return []*plan.Change{change}, false, err
	}
	changes, err = plan.LoadAll(s.path(dir))
	if err == nil {
		changes, err = plan.Order(changes)
	}
	return changes, true, notLoaded("changes in "+arg+" are", err)
}

// holdsChanges reports whether a directory is one of changes, and not one itself.
func (p *program) holdsChanges(dir string) bool {
	_, err := os.Stat(p.path(filepath.Join(dir, changeFile)))
	return errors.Is(err, fs.ErrNotExist) && len(p.changesIn(dir)) > 0
}

// changesIn lists the folders in a directory that hold a change.
func (p *program) changesIn(dir string) []string {
	entries, err := os.ReadDir(p.path(dir))
	if err != nil {
		return nil // what is wrong with it has been said already
	}
	var found []string
	for _, e := range entries {
		if _, err := os.Stat(p.path(filepath.Join(dir, e.Name(), changeFile))); err == nil {
			found = append(found, e.Name())
		}
	}
	return found
}
