package integration

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
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

func buildWithoutCgo(t *testing.T, pkg string) (string, error) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", "build", "-o", filepath.Join(t.TempDir(), "built"), pkg)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	out, err := cmd.CombinedOutput()
	return string(out), err
}
