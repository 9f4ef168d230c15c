package integration

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
)

// binaries is where the programs under test are built, with failpoints.
var binaries string

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	dir, err := os.MkdirTemp("", "belay-integration-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	binaries = dir
	return m.Run()
}

var (
	testchild = sync.OnceValues(func() (string, error) { return build("testchild", "./testchild") })
	belay     = sync.OnceValues(func() (string, error) { return build("belay", "../cmd/belay") })
)

func build(name, pkg string, flags ...string) (string, error) {
	path := filepath.Join(binaries, name)
	args := append([]string{"build", "-tags", "failpoints", "-o", path}, flags...)
	out, err := exec.Command("go", append(args, pkg)...).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("build %s: %w\n%s", pkg, err, out)
	}
	return path, nil
}
