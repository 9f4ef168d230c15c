package integration

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/belayhq/belay/tenant"
)

// Wherever the disk fails under a process, at any sync or write of a whole operation, the process says no more than is
// true, the file stays whole, and the next process brings the operation to its end. G2, G3, G4, G7
func TestAFaultOfTheDiskAtAnyCallOfAnApplyIsHealedByTheNext(t *testing.T) {
	t.Parallel()
	sweepFaults(t, "apply", "rolled_back")
}

// G2, G3, G6, G7
func TestAFaultOfTheDiskAtAnyCallOfARollbackIsHealedByTheNext(t *testing.T) {
	t.Parallel()
	sweepFaults(t, "rollback", "applied")
}

// A process dies while it makes Belay's own tables.
func TestAProcessThatDiesWhileTheTablesAreMadeIsHealedByTheNext(t *testing.T) {
	t.Parallel()
	template := newTemplate(t, "auto", "")
	for _, c := range []diskCall{anySync, anyWrite} {
		template.sweep(t, "auto", "apply", diesThere, c)
	}
}

// sweepFaults lets each fault happen at the first, second, … call of an operation on a tenant whose change is as from says,
// until an operation ends without having come to it. How steps are grouped makes no difference to what an error of one
// write does, so that only deaths go over the writes of both.
func sweepFaults(t *testing.T, op, from string) {
	t.Helper()
	for _, grouping := range []string{"auto", "step"} {
		template := newTemplate(t, grouping, from)
		for _, f := range []fault{diesThere, failsOnce, isFull} {
			template.sweep(t, grouping, op, f, anySync)
			if grouping == "auto" || f == diesThere {
				template.sweep(t, grouping, op, f, anyWrite)
			}
		}
	}
	// A disk that is full for longer: where exactly that begins matters less.
	template := newTemplate(t, "step", from)
	template.sweepEvery(t, 4, "step", op, isFullAWhile, anyWrite)
	template.sweepEvery(t, 8, "step", op, staysFull, anyWrite)
}

func (s *site) sweep(t *testing.T, name, op string, f fault, c diskCall) {
	t.Helper()
	s.sweepEvery(t, 1, name, op, f, c)
}

func (s *site) sweepEvery(t *testing.T, stride int, name, op string, f fault, c diskCall) {
	t.Helper()
	t.Run(fmt.Sprintf("%s/%s/%s", name, c, f), func(t *testing.T) {
		t.Parallel()
		n := 1
		for s.faultAt(t, op, f, c, n) {
			n += stride
		}
		if n == 1 {
			t.Fatal("the operation made no such call")
		}
	})
}

// newTemplate makes a site that each cell works on a copy of.
func newTemplate(t *testing.T, grouping, from string) *site {
	t.Helper()
	s := newSite(newWorld(t, tenant.SQLite), grouping)
	if from != "" {
		equal(t, "verdict", startChild(t, "", s.args("apply")...).wait().Verdict, "applied")
	}
	if from == "rolled_back" {
		equal(t, "verdict", startChild(t, "", s.args("rollback")...).wait().Verdict, "rolled_back")
	}
	return s
}

// copied is the same site in files of its own.
func (s *site) copied(t *testing.T) *site {
	t.Helper()
	dir := t.TempDir()
	w := *s.world
	w.t, w.path = t, filepath.Join(dir, "site.db")
	w.target = "sqlite://" + w.path
	fresh := *s
	fresh.world, fresh.outside = &w, filepath.Join(dir, "outside")
	for from, to := range map[string]string{s.path: fresh.path, s.outside: fresh.outside} {
		content, err := os.ReadFile(from)
		check(t, err)
		check(t, os.WriteFile(to, content, 0o600))
	}
	return &fresh
}

// faultAt runs one cell; false if the operation ended without coming to the fault.
func (s *site) faultAt(t *testing.T, op string, f fault, c diskCall, n int) bool {
	t.Helper()
	s = s.copied(t)
	args := s.args(op)
	if f == staysFull {
		args = append(args, "-lease", "1s") // a process looks for a way out for two leases
	}
	child := startOnFaultyDisk(s.world, f, c, n, args...)
	happened := child.reached()
	child.ended()
	done := map[string]string{"apply": "applied", "rollback": "rolled_back"}[op]
	if !happened {
		equal(t, "verdict without a fault", child.wait().Verdict, done)
		return false
	}
	said := ""
	if f != diesThere {
		r := child.wait()
		said = r.Verdict
		if f == staysFull && said != done {
			contains(t, fmt.Sprintf("what is said of a disk that is full from the %d. %s on", n, c), r.Error, "disk is full")
		}
	}
	// For a process whose clock is ahead, the lease has lapsed; nobody else opens the file before it.
	next := startOutOfTime(t, "3600", "", s.args(op)...).wait()
	if next.Verdict != "already_"+done && (next.Verdict != done || said == done) {
		t.Fatalf("%s at the %d. %s: the process said %q, and the next %+v", f, n, c, said, next)
	}
	equal(t, "integrity", s.query("PRAGMA integrity_check"), "ok")
	equal(t, "foreign keys", s.query("PRAGMA foreign_key_check"), "")
	if op == "apply" {
		s.appliedOnce()
	} else {
		s.rolledBack()
	}
	return true
}
