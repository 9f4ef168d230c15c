package main

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// tree is a directory with Belay's source.
type tree struct {
	root string
}

// copyFromHere fills the tree with the files of the one around the working directory, as they are now: whoever goes on editing
// does not change what is being tried.
func (t tree) copyFromHere(ctx context.Context) error {
	git := func(args ...string) (string, error) {
		output, err := exec.CommandContext(ctx, "git", args...).Output()
		return string(output), err
	}
	top, err := git("rev-parse", "--show-toplevel")
	if err != nil {
		return err
	}
	top = strings.TrimSpace(top)
	files, err := git("-C", top, "ls-files", "-z", "--cached", "--others", "--exclude-standard")
	if err != nil {
		return err
	}
	for file := range strings.SplitSeq(strings.Trim(files, "\x00"), "\x00") {
		if err := copyFile(filepath.Join(t.root, file), filepath.Join(top, file)); err != nil {
			return err
		}
	}
	return nil
}

func copyFile(to, from string) error {
	info, err := os.Stat(from)
	if errors.Is(err, fs.ErrNotExist) { // deleted, and not committed yet
		return nil
	}
	if err != nil {
		return err
	}
	content, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(to), 0o700); err != nil {
		return err
	}
	return os.WriteFile(to, content, info.Mode().Perm())
}
