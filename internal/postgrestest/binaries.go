package postgrestest

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"syscall"
)

// places are where packages put the programs of a version.
var places = []string{
	"/usr/lib/postgresql/*/bin",          // Debian, Ubuntu
	"/usr/pgsql-*/bin",                   // the PostgreSQL project's RPMs
	"/opt/homebrew/opt/postgresql@*/bin", // Homebrew on Apple silicon
	"/usr/local/opt/postgresql@*/bin",    // Homebrew on Intel
	"/opt/homebrew/opt/postgresql/bin",   // Homebrew, unversioned
	"/Applications/Postgres.app/Contents/Versions/*/bin",
}

// binaries returns the directory of PostgreSQL's programs and installs them where that is possible.
func binaries() (string, error) {
	if dir := installed(); dir != "" {
		return dir, nil
	}
	apt, err := exec.LookPath("apt-get")
	if err != nil || os.Geteuid() != 0 {
		return "", fmt.Errorf("no initdb and pg_ctl in PATH or where packages put them: install PostgreSQL 14 or newer "+
			"(Debian: apt-get install postgresql; macOS: brew install postgresql@17), or set %s", Env)
	}
	// A fresh container has no package lists. If this fails, the installation says why.
	_ = exec.Command(apt, "update").Run()
	cmd := exec.Command(apt, "install", "-y", "--no-install-recommends", "postgresql")
	cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("apt-get install postgresql: %w\n%s", err, out)
	}
	if dir := installed(); dir != "" {
		return dir, nil
	}
	return "", errors.New("apt-get installed postgresql, but its programs are not where they should be")
}

func installed() string {
	if path, err := exec.LookPath("pg_ctl"); err == nil {
		// A link in PATH may stand alone, without the other programs beside it.
		if path, err = filepath.EvalSymlinks(path); err == nil && complete(filepath.Dir(path)) {
			return filepath.Dir(path)
		}
	}
	var found []string
	for _, place := range places {
		matches, _ := filepath.Glob(place) // the patterns are well-formed
		found = append(found, slices.DeleteFunc(matches, func(dir string) bool { return !complete(dir) })...)
	}
	if len(found) == 0 {
		return ""
	}
	return slices.MaxFunc(found, func(a, b string) int { return cmp.Compare(versionOf(a), versionOf(b)) })
}

func complete(dir string) bool {
	for _, name := range []string{"initdb", "pg_ctl", "postgres"} {
		if _, err := os.Stat(filepath.Join(dir, name)); err != nil {
			return false
		}
	}
	return true
}

var number = regexp.MustCompile(`\d+`)

// versionOf reads the major version out of a directory's name; 0 if it has none.
func versionOf(dir string) int {
	n, _ := strconv.Atoi(number.FindString(dir))
	return n
}

// unprivileged returns the account for the server when this process is root, whom PostgreSQL refuses; else nil.
func unprivileged() (*syscall.Credential, error) {
	if os.Geteuid() != 0 {
		return nil, nil
	}
	for _, name := range []string{"postgres", "nobody"} {
		account, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, uidErr := strconv.ParseUint(account.Uid, 10, 32)
		gid, gidErr := strconv.ParseUint(account.Gid, 10, 32)
		if uidErr == nil && gidErr == nil {
			return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}, nil
		}
	}
	return nil, errors.New("PostgreSQL refuses to run as root, and there is neither a user postgres nor nobody")
}
