package integration

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/belayhq/belay/engine"
	"github.com/belayhq/belay/plan"
)

// A call that has returned, however it ended, is waited for by nobody: the next run may make it again at once.
func TestAFailedExternalCallIsNotWaitedFor(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, w *world) {
		x := &resource{value: "old"}
		fails := func(context.Context, plan.Direction) error { return errors.New("gateway timeout") }
		l := newLab(w, engine.Config{Actions: only(x.external()), ActionTimeout: 2 * hang}) // a wait would hang the test
		c := outsideChange("b")
		for _, step := range []struct {
			operation func() engine.Result
			failed    string
			done      engine.Verdict
			calls     string
			attempts  string
		}{
			{func() engine.Result { return l.apply(c) }, "do:a fail:x", engine.VerdictApplied, "do:x do:b", "capture1 do1(old) do?2(old)"},
			{func() engine.Result { return l.rollback("change") }, "undo:b fail:x", engine.VerdictRolledBack, "undo:x undo:a", "undo1(old) undo?2(old)"},
		} {
			x.before = fails
			l.came(step.operation(), engine.VerdictPartial, step.failed)
			if e := l.record("change").Journal[1]; e.WaitLeft != 0 || e.Attempt != 1 {
				t.Fatalf("the journal says %+v", e)
			}
			x.before = nil
			l.came(later(t, step.operation)(), step.done, step.calls)
			equal(t, "calls", x.calls.take(), step.attempts)
		}
	})
}

// One that ignores its end may still be at work: it keeps its time.
func TestAnExternalCallLeftBehindKeepsItsTime(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, w *world) {
		called, leave, returned := make(chan none), make(chan none), make(chan none)
		x := &resource{value: "old"}
		x.before = func(context.Context, plan.Direction) error {
			close(called)
			<-leave
			close(returned)
			return nil
		}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		l := newLab(w, engine.Config{Actions: only(x.external()), ActionTimeout: hang, ActionGrace: 10 * time.Millisecond})
		run := later(t, func() engine.Result {
			r, _ := l.engine.Apply(ctx, l.tenant, outsideChange("b"), engine.ApplyOptions{})
			return r
		})
		receive(t, "the call", called)
		cancel()
		r := run()
		if !errors.Is(r.Err, engine.ErrLeftBehind) && r.Verdict != engine.VerdictCancelled {
			t.Fatalf("%s: %v", r.Verdict, r.Err)
		}
		if e := l.record("change").Journal[1]; e.State != plan.StepIntent || e.WaitLeft <= 0 {
			t.Errorf("the journal says %+v", e)
		}
		close(leave)
		receive(t, "the end of the call", returned)
	})
}
