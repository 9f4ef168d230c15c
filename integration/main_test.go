package integration

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"go.uber.org/goleak"
)

// binaries is where the programs under test are built, with failpoints.
var binaries string

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "belay-integration-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	binaries = dir
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		if err := os.RemoveAll(dir); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = max(code, 1)
		}
		os.Exit(code)
	}))
}

var (
	testchild = sync.OnceValues(func() (string, error) { return build("testchild", "./testchild") })
	belay     = sync.OnceValues(func() (string, error) { return build("belay", "../cmd/belay") })
)

func build(name, pkg string, flags ...string) (string, error) {
	path := filepath.Join(binaries, name)
	args := append([]string{"build", "-tags", "failpoints", "-o", path}, flags...)
	return path, run("go", append(args, pkg)...)
}

// run runs a program of the toolchain.
func run(name string, args ...string) error {
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w\n%s", strings.Join(append([]string{name}, args...), " "), err, out)
	}
	return nil
}
