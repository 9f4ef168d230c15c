package integration

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/belayhq/belay/internal/failpoint"
)

// Without cgo the compiler says what is missing, in the name of what it cannot find.
func TestTheCommandLineWithoutCgoSaysWhatItNeeds(t *testing.T) {
	t.Parallel()
	out, err := buildWithoutCgo(t, "../cmd/belay")
	if err == nil {
		t.Fatal("it was built without cgo, and so without SQLite")
	}
	contains(t, "what the compiler says", out, "belay_with_SQLite_needs_cgo__set_CGO_ENABLED_1_and_install_a_C_compiler")
}

// A program that embeds Belay for PostgreSQL alone needs no C compiler.
func TestAProgramForPostgresAloneIsBuiltWithoutCgo(t *testing.T) {
	t.Parallel()
	if out, err := buildWithoutCgo(t, "../storage/postgres"); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}

// What ships has no place at which it could be told to stop, and knows no name of one.
func TestAReleaseHasNoFailpoints(t *testing.T) {
	t.Parallel()
	release := filepath.Join(t.TempDir(), "belay")
	check(t, run("go", "build", "-o", release, "../cmd/belay"))
	instrumented, err := belay()
	check(t, err)
	for path, has := range map[string]bool{release: false, instrumented: true} {
		symbols, err := exec.CommandContext(t.Context(), "go", "tool", "nm", path).Output()
		check(t, err)
		if strings.Contains(string(symbols), "internal/failpoint.") != has {
			t.Errorf("%s: symbols of failpoints: %v", path, !has)
		}
		program, err := os.ReadFile(path)
		check(t, err)
		for _, name := range append(failpoint.Points(), failpoint.Env) {
			if bytes.Contains(program, []byte(name)) != has {
				t.Errorf("%s: the name %s: %v", path, name, !has)
			}
		}
	}
}

func buildWithoutCgo(t *testing.T, pkg string) (string, error) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", "build", "-o", filepath.Join(t.TempDir(), "built"), pkg)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	out, err := cmd.CombinedOutput()
	return string(out), err
}
