package main

import (
	"bufio"
	"database/sql"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/belayhq/belay/internal/render"
	"github.com/belayhq/belay/sitelock"
)

// endless is a change whose second step does not end by itself.
func (w *world) endless() string {
	return w.change("0003-endless", map[string]string{
		"change.yaml": `version: 1
id: 0003-endless
checkpoint: step
steps:
  - id: first
    sql: { up: first.sql, down: drop.sql }
  - id: endless
    sql: { up: endless.sql }
    undo: { covered_by: first }
`,
		"first.sql": "CREATE TABLE first (n integer);", "drop.sql": "DROP TABLE first;",
		"endless.sql": "INSERT INTO first WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c) SELECT n FROM c WHERE n < 0;",
	})
}

// untilWritten waits until somebody has a tenant's file for writing.
func (w *world) untilWritten(tenant string) {
	db, err := sql.Open("sqlite3", "file:"+filepath.Join(w.dir, "tenants", tenant+".db")+"?mode=rw&_busy_timeout=0&_txlock=immediate")
	if err != nil {
		w.t.Error(err)
		return
	}
	defer db.Close()
	for deadline := time.Now().Add(30 * time.Second); time.Now().Before(deadline); {
		tx, err := db.BeginTx(w.t.Context(), nil)
		if err != nil {
			return
		}
		if err := tx.Rollback(); err != nil {
			w.t.Error(err)
		}
	}
	w.t.Errorf("nobody writes to %s", tenant)
}

// signalled is stderr that sends the next signal once a text has been written.
type signalled struct {
	io.Writer
	once sync.Once
	text string
	send func()
}

func (s *signalled) Write(p []byte) (int, error) {
	if strings.Contains(string(p), s.text) {
		s.once.Do(s.send)
	}
	return s.Writer.Write(p)
}

func TestTheFirstSignalWaitsAndTheSecondCutsShort(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		signal os.Signal
		code   int
	}{
		"SIGINT":  {syscall.SIGINT, exitInterrupt},
		"SIGTERM": {syscall.SIGTERM, exitTerminated},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := fleet(t, "acme")
			path := w.endless()
			w.signals = make(chan os.Signal, 2)
			var said syncBuffer
			stderr := &signalled{Writer: &said, text: "stopping: waiting for the next checkpoint of acme", send: func() { w.signals <- c.signal }}
			reader, stdout := io.Pipe()
			code := make(chan int, 1)
			go func() {
				code <- w.runWith(stdout, stderr, "apply", path, "--all", "-y", "-o", "jsonl")
				stdout.Close()
			}()
			go func() {
				for lines := bufio.NewScanner(reader); lines.Scan(); {
					if strings.Contains(lines.Text(), `"step_done"`) {
						w.untilWritten("acme") // before the endless step has begun, one signal would be enough
						w.signals <- c.signal
					}
				}
			}()
			if got := within(t, code); got != c.code {
				t.Errorf("exit code %d, want %d\n%s", got, c.code, said.String())
			}
			contains(t, said.String(), "cancelling the statements that run", "in place now: first", "belay rollback 0003-endless -t acme")

			w.signals = nil
			status := decode[render.Status](t, w.ok("status", "-o", "json").stdout).Tenants[0]
			if status.Lock.State != sitelock.StateIdle || !status.Plans[0].Partial || status.Plans[0].StepsDone != 1 {
				t.Errorf("afterwards the tenant is %+v", status)
			}
			w.ok("rollback", "0003-endless", "--all", "-y")
		})
	}
}

func TestTheThirdSignalEndsTheProcess(t *testing.T) {
	t.Parallel()
	signals := make(chan os.Signal)
	codes := make(chan int)
	var stderr syncBuffer
	i := &interrupts{stderr: &stderr, exit: func(code int) { codes <- code }}
	ctx, done := i.watch(t.Context(), signals)
	defer done()
	aborted := make(chan struct{})
	i.during(func() { close(aborted) }, func() []string { return []string{"a", "b", "c", "d", "e", "f", "g"} })
	signals <- syscall.SIGTERM
	within(t, ctx.Done())
	signals <- syscall.SIGINT
	within(t, aborted)
	signals <- syscall.SIGINT
	if code := within(t, codes); code != exitTerminated {
		t.Errorf("exit code %d: the first signal says which", code)
	}
	contains(t, stderr.String(), "checkpoint of a, b, c, d, e and 2 more", "ended at once: locks lapse by themselves")
}
