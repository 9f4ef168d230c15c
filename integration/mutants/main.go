// Command mutants breaks on purpose, one at a time, each rule that Belay's guarantees rest on, and demands that a test goes
// red. A rule that can be broken with every test green is one that the next change may lose unseen.
//
//	go run ./integration/mutants              all mutations
//	go run ./integration/mutants -list        what they are
//	go run ./integration/mutants -run proof   those whose name matches
//
// It works on a copy of the tree, in which the toolchain is given the mutated files in place of the real ones (go help
// build, -overlay): packages that a mutation does not reach come from the build cache.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
)

func main() {
	pattern := flag.String("run", "", "try only mutations whose name matches this `regexp`")
	list := flag.Bool("list", false, "list the mutations and try none")
	jobs := flag.Int("j", runtime.NumCPU(), "how many mutations to try at a time")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Stdout, *pattern, *list, *jobs); err != nil {
		fmt.Fprintln(os.Stderr, "mutants:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, out io.Writer, pattern string, list bool, jobs int) error {
	match, err := regexp.Compile(pattern)
	if err != nil {
		return err
	}
	chosen := slices.DeleteFunc(mutations(), func(m mutation) bool { return !match.MatchString(m.name) })
	if len(chosen) == 0 {
		return fmt.Errorf("no mutation matches %q", pattern)
	}
	if list {
		for _, m := range chosen {
			fmt.Fprintln(out, m.name)
		}
		return nil
	}
	dir, err := os.MkdirTemp("", "belay-mutants-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	b := &bench{out: out, tree: tree{root: filepath.Join(dir, "tree")}, dir: dir}
	if err := b.tree.copyFromHere(ctx); err != nil {
		return fmt.Errorf("copy the tree: %w", err)
	}
	return b.tryAll(ctx, chosen, jobs)
}

// bench tries mutations and writes a line about each.
type bench struct {
	out  io.Writer
	tree tree
	dir  string
}

// tryAll demands first that all mutations apply, and that the tests which should notice them are green without any: a
// test that is red anyway shows nothing.
func (b *bench) tryAll(ctx context.Context, all []mutation, jobs int) error {
	overlays, err := b.overlays(all)
	if err != nil {
		return err
	}
	if err := b.control(ctx, all); err != nil {
		return err
	}
	began := time.Now()
	failures := make([]error, len(all))
	var group errgroup.Group
	group.SetLimit(jobs)
	for i, m := range all {
		group.Go(func() error {
			began := time.Now()
			caught, err := m.caught(ctx, b.tree.root, overlays[i])
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			if err != nil {
				failures[i] = fmt.Errorf("%s: %w", m.name, err)
				caught = "NOT CAUGHT"
			}
			b.tell(m.name, began, caught)
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	survived := slices.DeleteFunc(failures, func(err error) bool { return err == nil })
	b.tell("(all)", began, fmt.Sprintf("%d of %d caught", len(all)-len(survived), len(all)))
	return errors.Join(survived...)
}

// tell writes a row of the table.
func (b *bench) tell(name string, began time.Time, caught string) {
	fmt.Fprintf(b.out, "%-84s %4.0f s  %s\n", name, time.Since(began).Seconds(), caught)
}

func (b *bench) overlays(all []mutation) ([]string, error) {
	paths, stale := make([]string, len(all)), make([]error, len(all))
	for i, m := range all {
		paths[i], stale[i] = m.overlay(b.tree, filepath.Join(b.dir, fmt.Sprint(i)))
	}
	return paths, errors.Join(stale...)
}

// control runs the tests of all mutations that are in the same packages at once.
func (b *bench) control(ctx context.Context, all []mutation) error {
	began := time.Now()
	tests := map[string][]string{}
	for _, m := range all {
		for _, t := range m.noticed {
			if !slices.Contains(tests[t.packages], t.tests) {
				tests[t.packages] = append(tests[t.packages], t.tests)
			}
		}
	}
	for _, packages := range slices.Sorted(maps.Keys(tests)) {
		t := target{packages, strings.Join(tests[packages], "|")}
		red, err := t.test(ctx, b.tree.root, "")
		if err == nil && red != "" {
			err = fmt.Errorf("red without any mutation: %s", red)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", t, err)
		}
	}
	b.tell("(no mutation)", began, "all green")
	return nil
}
