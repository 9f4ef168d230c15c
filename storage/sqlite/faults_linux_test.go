package sqlite

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/mattn/go-sqlite3"

	"github.com/belayhq/belay/engine"
	"github.com/belayhq/belay/plan"
	"github.com/belayhq/belay/sitelock"
	"github.com/belayhq/belay/storage"
	"github.com/belayhq/belay/tenant"
)

// occupied has another process take a file for itself, with these statements, until the function is called.
func occupied(t *testing.T, d *database, statements string) (leave func()) {
	t.Helper()
	cmd := childOf(t, "OCCUPY_FILE="+d.path, "OCCUPY_WITH="+statements)
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewReader(stdout)
	if line, err := lines.ReadString('\n'); line != "occupied\n" {
		t.Fatalf("the other process says %q, %v", line, err)
	}
	return sync.OnceFunc(func() {
		_ = stdin.Close()
		rest, _ := io.ReadAll(lines)
		if err := cmd.Wait(); err != nil {
			t.Errorf("the other process: %v\n%s", err, rest)
		}
	})
}

// occupy is the other process.
func occupy(t *testing.T) {
	path := os.Getenv("OCCUPY_FILE")
	d, err := (&connector{file: &file{path: path}, dsn: dsn(path, "rw", nil)}).connect()
	if err != nil {
		t.Fatal(err)
	}
	if err := d.(*conn).script(t.Context(), os.Getenv("OCCUPY_WITH")); err != nil {
		t.Fatal(err)
	}
	fmt.Println("occupied")
	_, _ = io.Copy(io.Discard, os.Stdin)
	if err := d.Close(); err != nil {
		t.Error(err)
	}
}

// call is one that a holder makes. Those that only read do not wait for a writer.
type call struct {
	name  string
	reads bool
	run   func(ctx context.Context) error
}

// callsOf are made in this order.
func callsOf(s *Store, id tenant.ID) []call {
	c := change("0001-first", 1)
	var grant sitelock.Grant
	return []call{
		{"acquire", false, func(ctx context.Context) (err error) { grant, err = s.Acquire(ctx, request(id)); return err }},
		{"submit", false, func(ctx context.Context) error { _, err := s.Submit(ctx, id, string(id), plan.NewID(), c); return err }},
		{"claim", false, func(ctx context.Context) (err error) {
			grant.Claimed, err = s.Claim(ctx, grant.Held, *apply(c))
			return err
		}},
		{"renew", false, func(ctx context.Context) error {
			_, err := s.Renew(ctx, []sitelock.Held{grant.Held}, time.Minute)
			return err
		}},
		{"checkpoint", false, func(ctx context.Context) error {
			return s.Checkpoint(ctx, grant.Held, group(grant, sqlStep(0, "DELETE FROM item")))
		}},
		{"state", true, func(ctx context.Context) error { _, err := s.State(ctx, id); return err }},
		{"records", true, func(ctx context.Context) error { _, err := s.Records(ctx, id); return err }},
		{"release", false, func(ctx context.Context) error { return s.Release(ctx, grant.Held) }},
		{"break", false, func(ctx context.Context) error { _, err := s.Break(ctx, id, sitelock.Process{}, "stuck"); return err }},
		{"lease", false, func(ctx context.Context) error {
			_, _, err := s.AcquireLease(ctx, "sweeper", sitelock.NewHolderID(), sitelock.Process{}, time.Minute)
			return err
		}},
	}
}

// waits demands that the call does not return before the other process leaves, and succeeds then.
func waits(t *testing.T, name string, leave func(), call func() error) {
	t.Helper()
	done := make(chan error, 1)
	go func() { done <- call() }()
	timer := time.NewTimer(300 * time.Millisecond)
	defer timer.Stop()
	select {
	case err := <-done:
		t.Errorf("%s did not wait: %v", name, err)
		leave()
		return
	case <-timer.C:
	}
	leave()
	if err := <-done; err != nil {
		t.Errorf("%s: %v", name, err)
	}
}

// Each call waits for another process's transaction and then goes on; a caller whose time is up is told that the file is busy,
// and what to do.
func TestEachCallWaitsForAnotherProcess(t *testing.T) {
	if isChild() {
		occupy(t)
		return
	}
	t.Parallel()
	s := newSite(t)
	acquire(t, s.Store, tenant.NewID(), nil) // makes the tables
	for _, call := range callsOf(s.Store, tenant.NewID()) {
		leave := occupied(t, s.database, "BEGIN IMMEDIATE; CREATE TABLE other (k)")
		if call.reads {
			if err := call.run(t.Context()); err != nil {
				t.Errorf("%s: %v", call.name, err)
			}
			leave()
			continue
		}
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		err := call.run(ctx)
		cancel()
		if !errors.Is(err, sitelock.ErrContended) || !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "try again when it is done") {
			t.Errorf("%s when the time is up: %v", call.name, err)
		}
		waits(t, call.name, leave, func() error { return call.run(t.Context()) })
	}
	s.want("SELECT count(*) FROM item", "0")
	s.want("PRAGMA integrity_check", "ok")
}

// A file that another process has for itself alone, so that it cannot even be read, is waited for from its opening on.
func TestAFileThatAnotherProcessHasAloneIsWaitedFor(t *testing.T) {
	if isChild() {
		occupy(t)
		return
	}
	t.Parallel()
	d := newDatabase(t)
	d.exec(t, "CREATE TABLE item (k)")
	_ = d.plain.Close() // an exclusive lock is had by who is alone
	leave := occupied(t, d, "PRAGMA locking_mode = EXCLUSIVE; BEGIN EXCLUSIVE; CREATE TABLE other (k)")
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if _, err := Open(ctx, d.path, storage.Options{}); !errors.Is(err, sitelock.ErrContended) {
		t.Errorf("when the time is up: %v", err)
	}
	waits(t, "all", leave, func() error {
		s, err := Open(t.Context(), d.path, storage.Options{})
		if err != nil {
			return err
		}
		defer s.Close()
		for _, call := range callsOf(s, tenant.NewID()) {
			if err := call.run(t.Context()); err != nil {
				return fmt.Errorf("%s: %w", call.name, err)
			}
		}
		return nil
	})
}

// A process that dies as it writes leaves a log that the next one to come recovers, alone. Of many who come at once each gets
// its turn. G7
func TestManyWhoComeAfterAProcessThatDiedAllGetTheirTurn(t *testing.T) {
	if isChild() {
		occupy(t)
		return
	}
	t.Parallel()
	d := newDatabase(t)
	d.exec(t, "CREATE TABLE item (k)")
	made := d.open(t)
	acquire(t, made, tenant.NewID(), nil)
	made.Close()
	d.plain.SetMaxIdleConns(0) // nobody keeps the file open, so that the log is to be recovered
	for round := range 4 {
		cmd := childOf(t, "OCCUPY_FILE="+d.path, "OCCUPY_WITH=INSERT INTO item VALUES (1); BEGIN IMMEDIATE; INSERT INTO item VALUES (2)")
		stdout, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		stdin, err := cmd.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		if line, err := bufio.NewReader(stdout).ReadString('\n'); line != "occupied\n" {
			t.Fatalf("the other process says %q, %v", line, err)
		}
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		_ = stdin.Close()
		var all sync.WaitGroup
		for range 12 {
			all.Go(func() {
				s, err := Open(t.Context(), d.path, storage.Options{})
				if err != nil {
					t.Errorf("open: %v", err)
					return
				}
				defer s.Close()
				if _, err := s.Acquire(t.Context(), request(tenant.NewID())); err != nil {
					t.Errorf("acquire: %v", err)
				}
			})
		}
		all.Wait()
		if rows := d.query(t, "SELECT count(*) FROM item"); rows != fmt.Sprint(round+1) {
			t.Errorf("%s rows after %d deaths", rows, round+1)
		}
		if says := d.query(t, "PRAGMA integrity_check"); says != "ok" {
			t.Errorf("integrity: %s", says)
		}
	}
}

// Whatever SQLite calls it, a file that is busy is busy.
func TestEveryKindOfBusyIsBusy(t *testing.T) {
	t.Parallel()
	for code, busy := range map[int]bool{
		5: true, 261: true, 517: true, 773: true, 15: true, // BUSY, _RECOVERY, _SNAPSHOT, _TIMEOUT, PROTOCOL
		6: false, 8: false, 10: false, 11: false, 13: false, 14: false, 26: false,
	} {
		err := translate(sqlite3.Error{Code: sqlite3.ErrNo(code & 0xff), ExtendedCode: sqlite3.ErrNoExtended(code)})
		if errors.Is(err, sitelock.ErrContended) != busy {
			t.Errorf("%d: %v", code, err)
		}
	}
}

// damages are what can be wrong with a file, and what the error says.
var damages = []struct {
	name   string
	damage func(t *testing.T, path string)
	says   string
}{
	{"a file that may only be read", func(t *testing.T, path string) { chmod(t, path, 0o444) }, "the database is read-only"},
	{"a folder that may only be read", func(t *testing.T, path string) { chmod(t, filepath.Dir(path), 0o555) }, "the database is read-only"},
	{"a file and a folder that may only be read", func(t *testing.T, path string) {
		chmod(t, path, 0o444)
		chmod(t, filepath.Dir(path), 0o555)
	}, "the database is read-only"},
	{"a file that may not be read", func(t *testing.T, path string) { chmod(t, path, 0) }, "permission denied"},
	{"a page that is something else", func(t *testing.T, path string) {
		overwrite(t, path, 4096, bytes.Repeat([]byte("not a page"), 5000))
	}, "the database file is damaged"},
	{"a header that is something else", func(t *testing.T, path string) { overwrite(t, path, 0, []byte("something else altogether")) }, "not a SQLite database"},
	{"a file cut short", func(t *testing.T, path string) {
		if err := os.Truncate(path, 8192); err != nil {
			t.Fatal(err)
		}
	}, "the database file is damaged"},
}

func chmod(t *testing.T, path string, mode os.FileMode) {
	t.Helper()
	if err := os.Chmod(path, mode); err != nil {
		t.Fatal(err)
	}
}

func overwrite(t *testing.T, path string, at int64, with []byte) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err == nil {
		_, err = f.WriteAt(with, at)
	}
	if err = errors.Join(err, f.Close()); err != nil {
		t.Fatal(err)
	}
}

// What is wrong with a file is said as it is, and nothing is written to it. The superuser may write everything, so the test runs
// as somebody else.
func TestWhatIsWrongWithAFileIsToldAndNothingIsWritten(t *testing.T) {
	if !isChild() {
		t.Parallel()
		cmd := childOf(t, "TMPDIR="+publicDir(t))
		if os.Geteuid() == 0 {
			cmd.Path = "/proc/self/exe" // the folder of the program may be closed to others
			cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
			cmd.Dir = "/"
		}
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%v\n%s", err, out)
		}
		return
	}
	for _, damage := range damages {
		t.Run(damage.name, func(t *testing.T) {
			d := newDatabase(t)
			d.exec(t, "CREATE TABLE item (k)")
			made := d.open(t)
			acquire(t, made, tenant.NewID(), nil)
			made.Close()
			_ = d.plain.Close()
			damage.damage(t, d.path)
			t.Cleanup(func() { chmod(t, filepath.Dir(d.path), 0o755) }) // to be cleaned up
			before := content(t, d.path)
			s, err := Open(t.Context(), d.path, storage.Options{})
			if err == nil {
				_, err = s.Acquire(t.Context(), request(tenant.NewID()))
				s.Close()
			}
			if err == nil || !strings.Contains(err.Error(), damage.says) || errors.Is(err, sitelock.ErrContended) || errors.Is(err, engine.ErrUnknownOutcome) {
				t.Errorf("got %v, want %q", err, damage.says)
			}
			if !bytes.Equal(content(t, d.path), before) {
				t.Error("the file has changed")
			}
		})
	}
}

func content(t *testing.T, path string) []byte {
	t.Helper()
	if info, err := os.Stat(path); err == nil && info.Mode().Perm() == 0 {
		chmod(t, path, 0o400)
		defer chmod(t, path, 0)
	}
	read, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return read
}

// publicDir is a folder that everybody may use.
func publicDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "belay-public-") //nolint:usetesting // the test's own folder is closed to others
	if err == nil {
		err = os.Chmod(dir, 0o777|os.ModeSticky)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}
