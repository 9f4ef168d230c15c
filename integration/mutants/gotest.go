package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"
)

// target is what one go test runs: packages, and in them the tests that match a pattern, or all.
type target struct {
	packages, tests string
}

func (t target) String() string { return strings.TrimSpace(t.packages + " " + t.tests) }

// timeout bounds one go test. A mutation may well leave a test waiting for ever, and that is red too.
func (t target) timeout(overlay string) time.Duration {
	if overlay == "" {
		return 15 * time.Minute
	}
	return 3 * time.Minute
}

// test runs the target, mutated if overlay names a file, and returns the first test that goes red; empty if none does.
func (t target) test(ctx context.Context, root, overlay string) (red string, err error) {
	args := []string{"test", "-json", "-vet=off", "-failfast", "-timeout", t.timeout(overlay).String(), "-run", t.tests}
	cmd := command(ctx, root, overlay, append(args, strings.Fields(t.packages)...)...)
	output, err := cmd.Output()
	if ctx.Err() != nil {
		return "", context.Cause(ctx)
	}
	if _, failed := errors.AsType[*exec.ExitError](err); err != nil && !failed {
		return "", err
	}
	depth := 0
	if overlay != "" {
		depth = strings.Count(t.tests, "/")
	}
	red, ran, readErr := read(output, depth)
	switch {
	case readErr != nil:
		return "", readErr
	case err != nil && red == "":
		return "", fmt.Errorf("%s ended without a result: %w\n%s", t, err, stderr(err))
	case err == nil && !ran:
		return "", fmt.Errorf("%s matches no test", t)
	}
	return red, nil
}

// event is a line of go test -json; see go doc cmd/test2json.
type event struct {
	Action, Package, Test string
}

// read returns the first test that failed, the innermost one, and whether any ran that is as deep as what was asked for: the
// tests around it run also if it does not exist.
func read(output []byte, depth int) (red string, ran bool, err error) {
	var failed []event
	lines := json.NewDecoder(bytes.NewReader(output))
	for lines.More() {
		var e event
		if err := lines.Decode(&e); err != nil {
			return "", false, fmt.Errorf("read the output of go test: %w", err)
		}
		switch e.Action {
		case "build-fail":
			return "", false, fmt.Errorf("does not compile, and so breaks no rule:\n%s", output)
		case "run":
			ran = ran || strings.Count(e.Test, "/") >= depth
		case "fail":
			failed = append(failed, e)
		}
	}
	for _, e := range failed {
		outer := slices.ContainsFunc(failed, func(other event) bool {
			return other.Package == e.Package && strings.HasPrefix(other.Test, e.Test+"/")
		})
		if e.Test != "" && !outer {
			return e.Test, ran, nil
		}
	}
	if len(failed) > 0 { // of a package whose process ended
		return failed[0].Package, ran, nil
	}
	return "", ran, nil
}

// command is a call of go, in which also the programs that the tests build are mutated.
func command(ctx context.Context, root, overlay string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = root
	cmd.Env = os.Environ()
	if overlay != "" {
		cmd.Env = append(cmd.Env, "GOFLAGS="+strings.TrimSpace(os.Getenv("GOFLAGS")+" -overlay="+overlay))
	}
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = 10 * time.Second
	return cmd
}

func stderr(err error) []byte {
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return exit.Stderr
	}
	return nil
}
