package integration

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/belayhq/belay/integration/checker"
	"github.com/belayhq/belay/internal/failpoint"
	"github.com/belayhq/belay/plan"
	"github.com/belayhq/belay/tenant"
)

// tampered is sound evidence, and one thing in it that must never be.
var tampered = []struct {
	invariant string
	// says is a part of what the violation must name.
	says   string
	tamper func(e *evidence)
}{
	{"I1", "was deleted", func(e *evidence) { m := e.lock(2); m.Lock.Was, m.Lock.Now = m.Lock.Now, nil }},
	{"I1", "fence 0 after 1", func(e *evidence) { e.takeOver().Lock.Now.Fence = 0 }},
	{"I2", "after an acquire with", func(e *evidence) { e.step(1, plan.StepDone).Step.Now.Fence-- }},
	{"I2", "which nobody had acquired", func(e *evidence) { e.last().Step.Now.Fence++ }},
	{"I3", "fence 1 after 2 in the journal row of step column", func(e *evidence) { e.step(1, plan.StepDone).Step.Now.Fence-- }},
	{"I4", "leads from pending to applied", func(e *evidence) { e.event(plan.EventClaimApply).Event.To = plan.Applied }},
	{"I4", "starts from applied", func(e *evidence) { e.event(plan.EventRecover).Event.From = plan.Applied }},
	{"I4", `step fill moved from "done" to done`, func(e *evidence) { e.double(e.step(2, plan.StepDone)) }},
	{"I5", "its effect is in place 1 times", func(e *evidence) {
		e.InPlace = append(e.InPlace, checker.Effect{Scope: e.Locks[0].Scope, Step: "fill"})
	}},
	{"I5", "the journal does not know it", func(e *evidence) {
		e.InPlace = append(e.InPlace, checker.Effect{Scope: e.Locks[0].Scope, Step: "other"})
	}},
	{"I6", "in place 2 times", func(e *evidence) { e.double(e.effect("fill")) }},
	{"I6", "without its journal row", func(e *evidence) { e.drop(e.step(2, plan.StepDone)) }},
	{"I6", "changed its effect by +0", func(e *evidence) { e.drop(e.effect("fill")) }},
	{"I7", "no such intent", func(e *evidence) { e.Calls[0].At = 1 }},
	{"I7", "without a call", func(e *evidence) { e.Calls = e.Calls[:1] }},
	{"I7", "in 4 claims", func(e *evidence) { e.Calls = append(e.Calls, slices.Repeat(e.Calls[1:2], 4)...) }},
	{"I7", "came after one with", func(e *evidence) { e.Calls[1].Fence = 1 }},
	{"I8", "got a second image", func(e *evidence) { e.double(e.image()) }},
	{"I8", "says \"old\"", func(e *evidence) { e.Calls[0].Found = "new" }},
	{"I8", "never taken", func(e *evidence) { e.Calls[1].Before = "new" }},
	{"I8", "was deleted while", func(e *evidence) { e.drop(e.step(4, plan.StepUndone)) }},
	{"I9", "step column was undone while the later step", func(e *evidence) { e.drop(e.step(2, plan.StepUndone)) }},
	{"I9", "ran while step 1 was", func(e *evidence) { e.drop(e.step(1, plan.StepDone)) }},
	{"I10", "was acknowledged", func(e *evidence) { e.hear(checker.HeardDone, 99, e.step(1, plan.StepDone)) }},
	{"I10", "said to have failed", func(e *evidence) { e.hear(checker.HeardFailed, 1, e.step(1, plan.StepDone)) }},
	{"I10", "unknown outcome", func(e *evidence) { e.hear(checker.HeardUnknown, 99, e.step(1, plan.StepDone)) }},
	{"I10", "never applied meanwhile", func(e *evidence) {
		e.Said = append(e.Said, checker.Said{Tenant: e.id, Change: "every-kind", Verdict: "applied", From: 1, To: 2})
	}},
	{"I10", "and moved its plan", func(e *evidence) {
		m := e.event(plan.EventSucceed)
		e.Said = append(e.Said, checker.Said{Tenant: e.id, PID: m.Event.PID, Change: "every-kind", Verdict: "busy", From: m.At - 1000, To: m.At + 1000})
	}},
	{"I10", "was skipped, and moved its plan 1 times", func(e *evidence) {
		m := e.event(plan.EventClaimApply)
		e.drop(e.event(plan.EventRecover))
		e.Said = append(e.Said, checker.Said{Tenant: e.id, PID: m.Event.PID, Change: "every-kind", Verdict: "skipped", From: m.At - 1000, To: m.At})
	}},
	{"I11", "after it was known to be lost", func(e *evidence) {
		m := e.step(1, plan.StepDone)
		e.Said = append(e.Said, checker.Said{Tenant: e.id, Fence: m.Step.Now.Fence, Heard: checker.HeardLost, To: m.At - 100})
	}},
	{"I12", "was live for another", func(e *evidence) { m := e.takeOver(); m.Lock.Was.ExpiresAt = m.At + 1000 }},
	{"I13", "changed its holder", func(e *evidence) { e.renewal().Lock.Now.Holder = "somebody else" }},
	{"I13", "more than a lease", func(e *evidence) { m := e.renewal(); e.Lease = time.Second; m.Lock.Now.ExpiresAt = m.At + 5000 }},
	{"I13", "moved the expiry back", func(e *evidence) { m := e.renewal(); m.Lock.Now.ExpiresAt = m.Lock.Was.ExpiresAt - 1 }},
	{"I14", "after its release", func(e *evidence) { e.late(e.last()) }},
	{"I15", "still held", func(e *evidence) { e.Locks[0].Holder = "somebody" }},
	{"I15", "is still applying", func(e *evidence) { e.Plans[0].Status = plan.Applying }},
	{"I16", "rests applied with 0 of 6", func(e *evidence) { e.Plans[0].Status = plan.Applied }},
	{"I16", "is the bound", func(e *evidence) { e.Quiet, e.Bound = time.UnixMilli(e.History[0].At), time.Millisecond }},
	{"I17", "took its attempts from", func(e *evidence) { e.claim().Plan.Now.Attempts = 3 }},
	{"I17", "without a claim", func(e *evidence) {
		m := e.claim()
		m.Plan.Was = m.Plan.Now
		c := *m.Plan.Now
		c.Attempts++
		m.Plan.Now = &c
	}},
	{"I18", "was recovered with steps in place", func(e *evidence) { e.event(plan.EventRecover).Event.Outcome = plan.OutcomeNeverRun }},
	{"I18", "calls itself rolled_back", func(e *evidence) { e.Plans[0].Status = plan.Applied }},
	{"I19", "after all was rolled back", func(e *evidence) { e.Data[e.id] = checker.Data{Before: "a", Now: "b"} }},
	{"I20", "though nobody worked on it", func(e *evidence) { e.Data["idle"] = checker.Data{Before: "a", Now: "b"} }},
	{"I20", "no tenant's", func(e *evidence) { e.effect("fill").Tenant = "" }},
	{"I21", "after the tenant had been removed", func(e *evidence) { e.lock(1).Lock.Now.RemovedAt = 1 }},
	{"I22", "which it was not at that time", func(e *evidence) {
		m := e.History[len(e.History)-1]
		e.Seen = append(e.Seen, checker.Sight{Tenant: e.id, Plan: e.Plans[0].ID, Status: plan.Applying, From: m.At + 5000, To: m.At + 6000})
	}},
	{"I23", "a session", func(e *evidence) { e.Left = append(e.Left, "a session idle in a transaction") }},
	{"I24", "page 7", func(e *evidence) { e.Unsound = append(e.Unsound, "page 7 is lost") }},
	{"I24", "was changed without a trace", func(e *evidence) { e.Journal[0].State = plan.StepDone }},
	{"I25", "the log of process 7", func(e *evidence) {
		e.Secrets, e.Texts = []string{"Ada"}, map[string]string{"the log of process 7": "duplicate key: Ada"}
	}},
}

// The evidence of an apply and a rollback, each of which died and was taken over, is sound; with any one thing in it
// tampered with, the checker names what broke.
func TestTheCheckerNamesWhatBroke(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, w *world) {
		s := newSite(w.watched(), "step")
		dies := func(op, point string) {
			c := startChild(t, point, s.args(op)...)
			if !c.reached() {
				t.Fatalf("%s was never passed", point)
			}
			c.kill()
			s.heal(op)
		}
		dies("apply", numbered(failpoint.AfterCheckpoint, 1))
		dies("rollback", numbered(failpoint.AfterCheckpoint, 1))
		s.sound()
		for _, tt := range tampered {
			e := &evidence{s.evidence(), s.id}
			tt.tamper(e)
			var found []string
			for _, v := range checker.Check(e.Evidence) {
				found = append(found, v.String())
			}
			if !slices.ContainsFunc(found, func(v string) bool { return strings.HasPrefix(v, tt.invariant+": ") && strings.Contains(v, tt.says) }) {
				t.Errorf("nobody said %s: %s, but\n%s", tt.invariant, tt.says, strings.Join(found, "\n"))
			}
		}
		void(t, s.evidence())
	})
}

// A run in which something never happened does not count. I26
func void(t *testing.T, e checker.Evidence) {
	t.Helper()
	lost := e
	lost.Said = []checker.Said{{Heard: checker.HeardUnknown}}
	if found := checker.Void(lost, map[string]int{"kill": 1}); len(found) > 0 {
		t.Errorf("a run in which all happened is void: %v", found)
	}
	want := "I26: void: the fault \"stop\" never took place\nI26: void: there was never a commit with an unknown outcome"
	equal(t, "void", sayings(checker.Void(e, map[string]int{"stop": 0})), want)
	e.History = nil
	contains(t, "void", sayings(checker.Void(e, nil)), "I26: void: there was never a resumed rollback")
	contains(t, "void", sayings(checker.Void(e, nil)), "I26: void: there was never a take-over")
}

func sayings(violations []checker.Violation) string {
	var lines []string
	for _, v := range violations {
		lines = append(lines, v.String())
	}
	return sorted(strings.Join(lines, "\n"))
}

// evidence is one to tamper with.
type evidence struct {
	checker.Evidence
	id tenant.ID
}

// find returns the nth moment, counted from 1, that matches.
func (e *evidence) find(nth int, match func(m checker.Moment) bool) *checker.Moment {
	for i := range e.History {
		if match(e.History[i]) {
			if nth--; nth == 0 {
				return &e.History[i]
			}
		}
	}
	panic("the evidence has no such moment")
}

func (e *evidence) lock(nth int) *checker.Moment {
	return e.find(nth, func(m checker.Moment) bool { return m.Lock != nil })
}

// takeOver is the first change of custody from a holder that was still there.
func (e *evidence) takeOver() *checker.Moment {
	return e.find(1, func(m checker.Moment) bool {
		return m.Lock != nil && m.Lock.Was != nil && m.Lock.Was.Holder != "" && m.Lock.Now.Fence > m.Lock.Was.Fence
	})
}

// renewal makes the first write of a lock that a holder has a renewal of it.
func (e *evidence) renewal() *checker.Moment {
	m := e.takeOver()
	now := *m.Lock.Now
	m = e.double(m)
	m.Lock.Was, m.Lock.Now = m.Lock.Now, &now
	return m
}

func (e *evidence) claim() *checker.Moment {
	return e.find(1, func(m checker.Moment) bool { return m.Plan != nil && m.Plan.Now.Status == plan.Applying })
}

// step is the first time that a step came to a state.
func (e *evidence) step(ordinal int, state plan.StepState) *checker.Moment {
	return e.find(1, func(m checker.Moment) bool {
		return m.Step != nil && m.Step.Now.Ordinal == ordinal && m.Step.Now.State == state
	})
}

// last is the last write of the journal.
func (e *evidence) last() *checker.Moment { return e.step(0, plan.StepUndone) }

func (e *evidence) effect(step string) *checker.Moment {
	return e.find(1, func(m checker.Moment) bool {
		return m.Effect != nil && m.Effect.Now != nil && m.Effect.Now.Step == step
	})
}

func (e *evidence) event(kind plan.Event) *checker.Moment {
	return e.find(1, func(m checker.Moment) bool { return m.Event != nil && m.Event.Kind == kind })
}

func (e *evidence) image() *checker.Moment {
	return e.find(1, func(m checker.Moment) bool { return m.Image != nil })
}

// drop takes a moment out of history.
func (e *evidence) drop(m *checker.Moment) {
	i := e.index(m)
	e.History = slices.Delete(e.History, i, i+1)
}

// double has a moment happen twice, and returns the second.
func (e *evidence) double(m *checker.Moment) *checker.Moment {
	i, again := e.index(m), *m
	if m.Step != nil {
		now := *m.Step.Now
		again.Step = &checker.Diff[checker.Step]{Was: m.Step.Now, Now: &now}
	}
	if m.Lock != nil {
		now := *m.Lock.Now
		again.Lock = &checker.Diff[checker.Lock]{Was: m.Lock.Now, Now: &now}
	}
	e.History = slices.Insert(e.History, i+1, again)
	return &e.History[i+1]
}

// late has a moment happen when all is over.
func (e *evidence) late(m *checker.Moment) { e.History = append(e.History, *m) }

func (e *evidence) index(m *checker.Moment) int {
	for i := range e.History {
		if &e.History[i] == m {
			return i
		}
	}
	panic("not a moment of this history")
}

// hear has a process say what it heard of the transaction of a journal row, of which it wrote one more: that of an ordinal.
func (e *evidence) hear(heard checker.Heard, other int, m *checker.Moment) {
	s := m.Step.Now
	e.Said = append(e.Said, checker.Said{
		Tenant: e.id, Fence: s.Fence, Heard: heard, Plan: s.Plan, From: m.At - 1, To: m.At + 1,
		Writes: map[int]plan.StepState{s.Ordinal: s.State, other: plan.StepDone},
	})
}
