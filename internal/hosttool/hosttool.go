// Package hosttool finds the programs of the machine that some tests need: a pooler, a tracer, a library that lies about the
// time.
package hosttool

import (
	"os"
	"os/exec"
	"testing"
)

// RequireEnv is the environment variable that makes a missing program a failure. Continuous integration sets it, so that
// no test is left out there without anybody noticing.
const RequireEnv = "BELAY_TEST_REQUIRE_TOOLS"

// Path returns the path of a program of the machine. Without it the test is skipped, or fails where [RequireEnv] is set.
// debianPackage is the name of the Debian package that has it, for the message.
func Path(tb testing.TB, program, debianPackage string) string {
	tb.Helper()
	path, err := exec.LookPath(program)
	if err != nil {
		missing(tb, program, debianPackage)
	}
	return path
}

// File returns the first of several paths at which there is a file, with the rules of [Path].
func File(tb testing.TB, debianPackage string, paths ...string) string {
	tb.Helper()
	for _, path := range paths {
		if _, err := os.Stat(path); err == nil {
			return path
		}
	}
	missing(tb, paths[0], debianPackage)
	return ""
}

func missing(tb testing.TB, what, debianPackage string) {
	tb.Helper()
	if os.Getenv(RequireEnv) != "" {
		tb.Fatalf("%s is not on this machine (Debian package %s)", what, debianPackage)
	}
	tb.Skipf("needs %s (Debian package %s)", what, debianPackage)
}
