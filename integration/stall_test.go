package integration

import (
	"syscall"
	"testing"

	"github.com/belayhq/belay/internal/failpoint"
	"github.com/belayhq/belay/tenant"
)

// A holder that is stopped for longer than its lease, is taken over, and wakes up: whatever it was about to do, nothing of
// it takes effect, and it says that it lost the lock. With a transaction open nobody takes over before the database has ended
// it: that is TestAnOpenCheckpointKeepsEveryTakeOverOut. G1, G9
func TestAStalledHolderWritesNothingAfterATakeOver(t *testing.T) {
	t.Parallel()
	for _, op := range []string{"apply", "rollback"} {
		for _, edge := range edges {
			if edge.open {
				continue
			}
			t.Run(op+"/"+edge.point, func(t *testing.T) {
				t.Parallel()
				onBoth(t, func(t *testing.T, w *world) { stall(newSite(w, "step"), op, edge) })
			})
		}
	}
}

func stall(s *site, op string, edge edge) {
	t := s.t
	t.Helper()
	if op == "rollback" {
		equal(t, "verdict", startChild(t, "", s.args("apply")...).wait().Verdict, "applied")
	}
	point := edge.point
	if edge.checkpoint {
		point = numbered(point, 2) // behind a step that is in place
	}
	stalled := startChild(t, point, s.args(op)...)
	if !stalled.reached() {
		t.Fatalf("%s was never passed", point)
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
	sweepLostAnswers(t, func(s *site, point string) bool {
		c := startChild(s.t, point, s.args("apply")...)
		if !c.reached() {
			equal(s.t, "verdict", c.wait().Verdict, "applied")
			return false
		}
		c.order("fail")
		if r := c.wait(); r.Verdict != "applied" {
			s.t.Fatalf("%s: %+v", point, r)
		}
		s.appliedOnce()
		s.heal("rollback")
		s.rolledBack()
		return true
	})
}

// The same for a rollback. G7
func TestAnUnknownCommitOfARollbackIsResolvedByLookingInBothTruths(t *testing.T) {
	t.Parallel()
	sweepLostAnswers(t, func(s *site, point string) bool {
		equal(s.t, "verdict", startChild(s.t, "", s.args("apply")...).wait().Verdict, "applied")
		c := startChild(s.t, point, s.args("rollback")...)
		if !c.reached() {
			equal(s.t, "verdict", c.wait().Verdict, "rolled_back")
			return false
		}
		c.order("fail")
		if r := c.wait(); r.Verdict != "rolled_back" {
			s.t.Fatalf("%s: %+v", point, r)
		}
		s.rolledBack()
		return true
	})
}

// sweepLostAnswers is sweep over the edges at which an answer can be lost: behind the commit it has happened, before it not.
// It pretends that answers are lost where no network can lose them: TestACommitAtWhichTheConnectionDiesIsSettledInBothTruths
// is the other half.
func sweepLostAnswers(t *testing.T, cell func(s *site, point string) bool) {
	t.Helper()
	on := []tenant.Dialect{tenant.SQLite}
	if pooled() {
		on = dialects()
	}
	sweepOn(t, on, func(e edge) bool { return e.checkpoint }, cell)
}
