package integration

import (
	"syscall"
	"testing"

	"github.com/belayhq/belay/internal/failpoint"
)

// A holder that is stopped for longer than its lease, is taken over, and wakes up: whatever it was about to do, nothing of
// it takes effect, and it says that it lost the lock. G1
func TestAStalledHolderWritesNothingAfterATakeOver(t *testing.T) {
	t.Parallel()
	for _, op := range []string{"apply", "rollback"} {
		for _, edge := range []string{failpoint.AfterAcquire, failpoint.BeforeCheckpoint, failpoint.AfterCheckpoint, failpoint.BeforeEffect} {
			t.Run(op+"/"+edge, func(t *testing.T) {
				t.Parallel()
				onBoth(t, func(t *testing.T, w *world) {
					s := newSite(w, "step")
					if op == "rollback" {
						equal(t, "verdict", startChild(t, "", s.args("apply")...).wait().Verdict, "applied")
					}
					stalled := startChild(t, edge+"#2", s.args(op)...)
					if edge == failpoint.AfterAcquire || edge == failpoint.BeforeEffect {
						stalled = restart(t, stalled, edge, s.args(op))
					}
					if !stalled.reached() {
						t.Fatalf("%s was never passed", edge)
					}
					stalled.signal(syscall.SIGSTOP)
					s.heal(op)
					after := s.dump()
					lock := s.query("SELECT fence, holder FROM " + s.table("site_lock"))
					stalled.signal(syscall.SIGCONT)
					stalled.order("go")
					r := stalled.wait()
					if !r.Lost {
						t.Fatalf("the stalled holder did not notice: %+v", r)
					}
					contains(t, "error", r.Error, "lock lost")
					equal(t, "data after the stalled holder woke up", s.dump(), after)
					equal(t, "lock", s.query("SELECT fence, holder FROM "+s.table("site_lock")), lock)
				})
			})
		}
	}
}

// restart replaces a child by one that stops at the first passage: some points are passed only once.
func restart(t *testing.T, c *child, point string, args []string) *child {
	t.Helper()
	c.kill()
	return startChild(t, point, args...)
}

// The fence, not the holder's belief, decides: a holder whose lock was broken by an operator writes nothing more. G1
func TestABrokenHolderWritesNothing(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, w *world) {
		s := newSite(w, "step")
		c := startChild(t, failpoint.BeforeCheckpoint+"#3", s.args("apply")...)
		if !c.reached() {
			t.Fatal("never passed")
		}
		s.exec("UPDATE " + s.table("plan") + " SET status = 'pending', claimed_from = NULL, fence = NULL, outcome = 'interrupted'")
		s.exec("UPDATE " + s.table("site_lock") + " SET fence = fence + 1, holder = NULL, expires_at = 0")
		before := s.dump()
		c.order("go")
		if r := c.wait(); !r.Lost {
			t.Fatalf("the broken holder did not notice: %+v", r)
		}
		equal(t, "data", s.dump(), before)
	})
}

// A checkpoint whose answer is lost may or may not have happened; the engine looks, and does each step once either way. G7
func TestAnUnknownCommitIsResolvedByLookingInBothTruths(t *testing.T) {
	t.Parallel()
	for name, edge := range map[string]string{"committed": failpoint.AfterCheckpoint, "not committed": failpoint.BeforeCheckpoint} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			onBoth(t, func(t *testing.T, w *world) {
				for _, grouping := range []string{"auto", "step"} {
					for n := 1; ; n++ {
						s := newSite(newWorld(t, w.dialect), grouping)
						c := startChild(t, numbered(edge, n), s.args("apply")...)
						if !c.reached() {
							equal(t, "verdict", c.wait().Verdict, "applied")
							break
						}
						c.order("fail")
						r := c.wait()
						if r.Verdict != "applied" {
							t.Fatalf("passage %d: %+v", n, r)
						}
						s.appliedOnce()
						s.heal("rollback")
						s.rolledBack()
					}
				}
			})
		})
	}
}

// The same for a rollback. G7
func TestAnUnknownCommitOfARollbackIsResolvedByLookingInBothTruths(t *testing.T) {
	t.Parallel()
	for name, edge := range map[string]string{"committed": failpoint.AfterCheckpoint, "not committed": failpoint.BeforeCheckpoint} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			onBoth(t, func(t *testing.T, w *world) {
				for n := 1; ; n++ {
					s := newSite(newWorld(t, w.dialect), "step")
					equal(t, "verdict", startChild(t, "", s.args("apply")...).wait().Verdict, "applied")
					c := startChild(t, numbered(edge, n), s.args("rollback")...)
					if !c.reached() {
						equal(t, "verdict", c.wait().Verdict, "rolled_back")
						return
					}
					c.order("fail")
					if r := c.wait(); r.Verdict != "rolled_back" {
						t.Fatalf("passage %d: %+v", n, r)
					}
					s.rolledBack()
				}
			})
		})
	}
}

// SIGTERM stops at the next checkpoint, with a true status and a free lock; the next apply goes on from there.
func TestATerminatedApplyLeavesATrueStatusAndAFreeLock(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, w *world) {
		s := newSite(w, "step")
		c := startChild(t, failpoint.BeforeCheckpoint+"#3", s.args("apply")...)
		if !c.reached() {
			t.Fatal("never passed")
		}
		c.signal(syscall.SIGTERM)
		if !c.reached() {
			t.Fatal("the process ended without noticing the signal")
		}
		c.order("go")
		r := c.wait()
		equal(t, "verdict", r.Verdict, "cancelled")
		equal(t, "plan", s.query("SELECT status, outcome, fence FROM "+s.table("plan")), "pending|interrupted|NULL")
		equal(t, "lock", s.query("SELECT holder FROM "+s.table("site_lock")), "NULL")
		again := startChild(t, "", s.args("apply")...).wait()
		equal(t, "verdict", again.Verdict, "applied")
		s.appliedOnce()
	})
}
