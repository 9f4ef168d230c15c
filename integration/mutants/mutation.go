package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// mutation breaks one rule.
type mutation struct {
	// name says what is broken, as a sentence.
	name  string
	edits []edit
	// noticed lists the tests of which one must go red, the cheapest first.
	noticed []target
}

// edit replaces a text that the file has exactly once. The text is an anchor: as short as it can be and still be the only one.
type edit struct {
	file, old, new string
}

// apply returns the files that the mutation changes, as it leaves them.
func (m mutation) apply(t tree) (map[string]string, error) {
	changed := map[string]string{}
	var stale []error
	for _, e := range m.edits {
		text, again := changed[e.file]
		if !again {
			content, err := os.ReadFile(filepath.Join(t.root, e.file))
			if err != nil {
				stale = append(stale, m.stale(e, "is not there any more"))
				continue
			}
			text = string(content)
		}
		if n := strings.Count(text, e.old); n != 1 {
			stale = append(stale, m.stale(e, fmt.Sprintf("has this text %d times, and must have it exactly once:\n%s", n, indented(e.old))))
			continue
		}
		changed[e.file] = strings.Replace(text, e.old, e.new, 1)
	}
	return changed, errors.Join(stale...)
}

// stale says that an anchor does not hold, and what to do.
func (m mutation) stale(e edit, what string) error {
	return fmt.Errorf("the mutation %q no longer applies: %s %s\n"+
		"  Nothing is wrong with the code yet. Find where it now does what the mutation is to break, and change the mutation's\n"+
		"  edit in integration/mutants to that place. It is to be broken still, not to be deleted", m.name, e.file, what)
}

func indented(text string) string {
	return "\t" + strings.ReplaceAll(text, "\n", "\n\t")
}

// overlay writes the mutated files to dir, with the file that tells the toolchain to take them, and returns that file.
func (m mutation) overlay(t tree, dir string) (string, error) {
	changed, err := m.apply(t)
	if err != nil {
		return "", err
	}
	replace := map[string]string{}
	for file, text := range changed {
		path := filepath.Join(dir, file)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			return "", err
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			return "", err
		}
		replace[filepath.Join(t.root, file)] = path
	}
	overlay, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, "overlay.json")
	return path, os.WriteFile(path, overlay, 0o600)
}

// caught returns the test that goes red under the mutation. It is an error if none does.
func (m mutation) caught(ctx context.Context, root, overlay string) (string, error) {
	for _, t := range m.noticed {
		if red, err := t.test(ctx, root, overlay); red != "" || err != nil {
			return red, err
		}
	}
	return "", errors.New("the tests that should notice stay green: name the one that does, or write it")
}
