package sqlite

import (
	"errors"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/belayhq/belay/engine"
	"github.com/belayhq/belay/plan"
	"github.com/belayhq/belay/sitelock"
	"github.com/belayhq/belay/tenant"
)

// The limit on the size of files binds a whole process, so the test runs itself in one of its own.
func TestAnIOErrorAtTheCommitLeavesItsOutcomeOpen(t *testing.T) {
	const child = "BELAY_TEST_CHILD"
	if os.Getenv(child) == "" {
		t.Parallel()
		cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+t.Name()+"$")
		cmd.Env = append(os.Environ(), child+"=1")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%v\n%s", err, out)
		}
		return
	}
	signal.Ignore(syscall.SIGXFSZ) // so that the write fails instead
	s := newSite(t)
	id := tenant.NewID()
	grant := acquire(t, s.Store, id, apply(change("0001-first", 1)))
	wal, err := os.Stat(s.database.path + "-wal")
	if err != nil {
		t.Fatal(err)
	}
	limit(t, uint64(wal.Size()))
	err = s.Checkpoint(t.Context(), grant.Held, group(grant, sqlStep(0, "DELETE FROM item")))
	limit(t, unix.RLIM_INFINITY)
	if _, ok := errors.AsType[*engine.StepFailure](err); ok || !errors.Is(err, engine.ErrUnknownOutcome) {
		t.Fatalf("got %v, want ErrUnknownOutcome", err)
	}

	// What decides it: the next term, which replaces this one, and the journal that it finds.
	req := request(id)
	req.Replace = grant.Held
	req.Claim = apply(change("0001-first", 1))
	next, err := s.Acquire(t.Context(), req)
	if err != nil || next.Claimed == nil || next.Held.Fence != grant.Held.Fence+1 {
		t.Fatalf("acquire: %+v, %v", next, err)
	}
	done := next.Claimed.State(0) == plan.StepDone
	if rows := s.query(t, "SELECT count(*) FROM item"); (rows == "0") != done {
		t.Errorf("%s rows, and the journal says %q", rows, next.Claimed.State(0))
	}
	var steps []engine.GroupStep
	if !done {
		steps = append(steps, sqlStep(0, "DELETE FROM item"))
	}
	if err := s.Checkpoint(t.Context(), next.Held, finish(next, steps...)); err != nil {
		t.Errorf("the next term: %v", err)
	}
	if _, ok := errors.AsType[*sitelock.LockLostError](s.Checkpoint(t.Context(), grant.Held, group(grant))); !ok {
		t.Error("the term before goes on")
	}
}

func limit(t *testing.T, bytes uint64) {
	t.Helper()
	if err := unix.Setrlimit(unix.RLIMIT_FSIZE, &unix.Rlimit{Cur: bytes, Max: unix.RLIM_INFINITY}); err != nil {
		t.Fatal(err)
	}
}
