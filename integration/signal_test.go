package integration

import (
	"os/exec"
	"syscall"
	"testing"

	"github.com/belayhq/belay/internal/failpoint"
)

// SIGTERM, wherever it finds an operation, stops it at the next checkpoint, with a true status and a free lock: the next one
// goes on from there at once, without waiting for a lease to lapse. G3
func TestATerminatedApplyLeavesATrueStatusAndAFreeLock(t *testing.T) {
	t.Parallel()
	sweep(t, everyEdge, func(s *site, point string) bool {
		if !terminated(s, "apply", point) {
			return false
		}
		s.goesOn("apply", "applied")
		s.appliedOnce()
		return true
	})
}

// The same for a rollback. G3, G6
func TestATerminatedRollbackLeavesATrueStatusAndAFreeLock(t *testing.T) {
	t.Parallel()
	sweep(t, everyEdge, func(s *site, point string) bool {
		equal(s.t, "verdict", startChild(s.t, "", s.args("apply")...).wait().Verdict, "applied")
		if !terminated(s, "rollback", point) {
			return false
		}
		s.goesOn("rollback", "rolled_back")
		s.rolledBack()
		return true
	})
}

// terminated has an operation end by SIGTERM at a point; false if it never came there.
func terminated(s *site, op, point string) bool {
	s.t.Helper()
	c := startChild(s.t, point, s.args(op)...)
	if !c.reached() {
		c.wait()
		return false
	}
	c.signal(syscall.SIGTERM)
	if !c.reached() {
		s.t.Fatal("the process ended without noticing the signal")
	}
	c.order("go")
	// What the signal finds in its last checkpoint is finished.
	finished := map[string]string{"apply": "applied", "rollback": "rolled_back"}[op]
	if r := c.wait(); r.Verdict != "cancelled" && r.Verdict != finished {
		s.t.Fatalf("%s at %s: %+v", op, point, r)
	}
	equal(s.t, "lock", s.query("SELECT holder FROM "+s.table("site_lock")), "NULL")
	equal(s.t, "plans in flight", s.query("SELECT count(*) FROM "+s.table("plan")+" WHERE fence IS NOT NULL"), "0")
	return true
}

// goesOn runs the operation again, which waits for nothing.
func (s *site) goesOn(op, verdict string) {
	s.t.Helper()
	if r := startChild(s.t, "", s.args(op)...).wait(); r.Verdict != verdict && r.Verdict != "already_"+verdict {
		s.t.Fatalf("%s again: %+v", op, r)
	}
}

// The process that started belay is killed, as a build server kills its wrapper, and its pipes are gone. The apply goes on under
// its own lease, and ends as it would have. G2
func TestAnApplyOutlivesTheProcessThatStartedIt(t *testing.T) {
	t.Parallel()
	onBothFleets(t, func(t *testing.T, f *cliFleet) {
		path, err := belay()
		check(t, err)
		cmd := exec.Command("sh", append([]string{"-c", `"$0" "$@" | cat & wait`, path}, f.apply("-v")...)...)
		cmd.Dir = f.dir
		cmd.Env = append(cmd.Environ(), "BELAY_LEASE=20s")
		wrapper := start(t, failpoint.AfterCheckpoint+"#4", cmd)
		if !wrapper.reached() {
			t.Fatal("never passed")
		}
		check(t, wrapper.cmd.Process.Kill())
		contains(t, "status", f.must("status", "--all", "-o", "json"), `"state": "running"`)
		wrapper.order("go")
		wrapper.ended() // the last of what it started has closed its output
		f.appliedOnce()
		for i, w := range f.tenants {
			equal(t, f.names[i], w.query("SELECT count(*) FROM "+w.table("site_lock")+" WHERE holder IS NOT NULL"), "0")
		}
	})
}
