package postgrestest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"
)

const (
	superuser  = "postgres"
	socketPort = "5432" // of the socket's name only: nothing listens on it
)

// Server is a private cluster.
type Server struct {
	bin, dir string
	account  *syscall.Credential
	settings []string
	env      []string // of the running server, beside this process's
	// alive is the pipe whose end tells the watchdog that this process has ended.
	alive io.WriteCloser
}

// forTests are the settings of a test's cluster. Tests crash processes, the server's too, but never the machine: the kernel
// keeps what was written. The databases are many, small and gone soon: a vacuum would only visit each of them.
var forTests = []string{
	"fsync=off", "full_page_writes=off", "shared_buffers=64MB", "max_connections=200", "max_prepared_transactions=0",
	"log_min_messages=warning", "track_commit_timestamp=on", "autovacuum=off",
}

// Durable starts a private cluster for measurements: it writes to disk as one in production does, with PostgreSQL's own
// defaults but for the settings given, each as name=value. It ends with the process.
func Durable(settings ...string) (*Server, error) { return start(nil, settings, (*Server).create) }

// Own starts a further cluster for tests that must not share theirs, with settings and environment variables of its own, each
// as name=value. It ends with the process, so that the tests of a package can share it.
func Own(env []string, settings ...string) (*Server, error) {
	return start(env, slices.Concat(forTests, settings), (*Server).create)
}

// Standby starts a hot standby of the cluster, which ends with the process.
func (s *Server) Standby() (*Server, error) {
	return start(s.env, s.settings, func(standby *Server) error {
		return standby.command(context.Background(), "pg_basebackup", "-D", standby.data(), "-h", s.dir, "-p", socketPort,
			"-U", superuser, "-R", "--no-sync", "-c", "fast")
	})
}

// start starts a cluster that create makes.
func start(env, settings []string, create func(*Server) error) (*Server, error) {
	bin, err := binaries()
	if err != nil {
		return nil, err
	}
	account, err := unprivileged()
	if err != nil {
		return nil, err
	}
	dir, err := directory(account)
	if err != nil {
		return nil, err
	}
	s := &Server{bin: bin, dir: dir, account: account, settings: settings, env: env}
	if err := s.watch(); err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	if err := create(s); err != nil {
		return nil, errors.Join(err, s.alive.Close())
	}
	if err := s.Start(context.Background()); err != nil {
		return nil, errors.Join(err, s.alive.Close())
	}
	return s, s.check(context.Background())
}

// directory makes one for a server that runs under the account. A socket's path has room for about 100 bytes, which a
// test's own temporary directory may use up.
func directory(account *syscall.Credential) (string, error) {
	dir, err := os.MkdirTemp("/tmp", "belay-pg-")
	if err != nil || account == nil {
		return dir, err
	}
	return dir, os.Chown(dir, int(account.Uid), int(account.Gid))
}

// watchdog waits for the end of its input, then stops the server, if there is one, and removes the directory.
const watchdog = `
trap '' INT TERM HUP
cat > /dev/null
if [ -f "$1/data/postmaster.pid" ]; then
    kill -QUIT "$(head -n 1 "$1/data/postmaster.pid")" 2> /dev/null
    while [ -f "$1/data/postmaster.pid" ] && kill -0 "$(head -n 1 "$1/data/postmaster.pid")" 2> /dev/null; do sleep 0.1; done
fi
rm -rf "$1"`

// watch starts the watchdog in a session of its own, out of reach of a terminal's signals.
func (s *Server) watch() error {
	cmd := exec.Command("/bin/sh", "-c", watchdog, "belay-postgres-watchdog", s.dir)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	var err error
	if s.alive, err = cmd.StdinPipe(); err != nil {
		return err
	}
	return cmd.Start()
}

func (s *Server) data() string { return filepath.Join(s.dir, "data") }

func (s *Server) create() error {
	// Encoding and locale are fixed, so that tests mean the same everywhere.
	return s.command(context.Background(), "initdb", "-D", s.data(), "-U", superuser, "-A", "trust", "-E", "UTF8",
		"--locale=C", "--no-sync", "--no-instructions")
}

// Start starts the cluster and returns when it accepts connections.
func (s *Server) Start(ctx context.Context) error {
	options := []string{"-k", s.dir, "-p", socketPort, "-c", "listen_addresses=''"}
	for _, setting := range s.settings {
		options = append(options, "-c", setting)
	}
	return s.command(ctx, "pg_ctl", "start", "-w", "-t", "60", "-D", s.data(), "-l", s.Log(), "-o", strings.Join(options, " "))
}

// Stop stops the cluster in a mode of pg_ctl: smart, fast, or immediate, which is a crash.
func (s *Server) Stop(ctx context.Context, mode string) error {
	return s.command(ctx, "pg_ctl", "stop", "-w", "-t", "60", "-D", s.data(), "-m", mode)
}

// Restart stops the cluster in a mode and starts it again.
func (s *Server) Restart(tb testing.TB, mode string) {
	tb.Helper()
	if err := s.Stop(tb.Context(), mode); err != nil {
		tb.Fatalf("stop PostgreSQL: %v", err)
	}
	if err := s.Start(tb.Context()); err != nil {
		tb.Fatalf("start PostgreSQL: %v", err)
	}
}

// Log is the path of the server's log.
func (s *Server) Log() string { return filepath.Join(s.dir, "log") }

// SocketURL is the URL of a database by way of the unix socket.
func (s *Server) SocketURL(database string) string {
	return fmt.Sprintf("postgres://%s@/%s?host=%s&port=%s", superuser, database, url.QueryEscape(s.dir), socketPort)
}

// URL returns the URL of a fresh, empty database of this cluster, which is dropped when the test ends.
func (s *Server) URL(tb testing.TB) string {
	tb.Helper()
	base := s.SocketURL("postgres")
	return database(tb, base, base)
}

// Socket is the path of the unix socket.
func (s *Server) Socket() string { return filepath.Join(s.dir, ".s.PGSQL."+socketPort) }

// check makes sure, before anybody writes, that the server that answers is the one that was started.
func (s *Server) check(ctx context.Context) error {
	conn, err := pgx.Connect(ctx, s.SocketURL("postgres"))
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	var data string
	if err := conn.QueryRow(ctx, `SHOW data_directory`).Scan(&data); err != nil {
		return err
	}
	if data != s.data() {
		return fmt.Errorf("another server answers: its data are in %s, not in %s", data, s.data())
	}
	return nil
}

// command runs one of PostgreSQL's programs under the account.
func (s *Server) command(ctx context.Context, name string, args ...string) error {
	cmd := exec.CommandContext(ctx, filepath.Join(s.bin, name), args...)
	cmd.Dir = s.dir
	cmd.Env = environment()
	if name == "pg_ctl" {
		cmd.Env = append(cmd.Env, s.env...)
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Credential: s.account}
	// The server inherits what it writes to, and an open pipe would have Wait wait for the server's end: a file does not.
	out, err := os.CreateTemp("", "belay-pg-output-")
	if err != nil {
		return err
	}
	defer os.Remove(out.Name())
	defer out.Close()
	cmd.Stdout, cmd.Stderr = out, out
	if err := cmd.Run(); err != nil {
		said, _ := os.ReadFile(out.Name())
		log, _ := os.ReadFile(s.Log())
		return fmt.Errorf("%s: %w\n%s\n%s", name, err, said, log)
	}
	return nil
}

// environment is this process's without the variables that would lead PostgreSQL's programs elsewhere.
func environment() []string {
	env := []string{"LC_ALL=C", "TZ=UTC"}
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, "PG") && !strings.HasPrefix(v, "LC_") && !strings.HasPrefix(v, "TZ=") {
			env = append(env, v)
		}
	}
	return env
}
