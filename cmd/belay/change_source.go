package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/belayhq/belay/engine"
	"github.com/belayhq/belay/plan"
)

const changeFile = "change.yaml"

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

// loadChange reads the change in a folder; its change.yaml is accepted for the folder.
func (p *program) loadChange(arg string) (*plan.Change, error) {
	dir := arg
	if filepath.Base(dir) == changeFile {
		dir = filepath.Dir(dir)
	}
	change, err := plan.Load(p.path(dir))
	if errors.Is(err, fs.ErrNotExist) {
		if several := p.changesIn(dir); len(several) > 0 {
			f := fail(exitUsage, "%s holds %d changes: a directory of changes is not supported yet, name one of them", arg, len(several))
			return nil, f.advise(filepath.Join(dir, several[0]), "for one")
		}
	}
	if invalid, ok := errors.AsType[*plan.InvalidError](err); ok {
		return nil, &failure{code: exitRefused, err: fmt.Errorf("change in %s is not valid:\n%w", arg, invalid)}
	}
	if err != nil {
		return nil, &failure{code: exitRefused, err: err}
	}
	return change, nil
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
