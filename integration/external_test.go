package integration

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/belayhq/belay/engine"
	"github.com/belayhq/belay/plan"
	"github.com/belayhq/belay/sitelock"
	"github.com/belayhq/belay/tenant"
)

type none = struct{}

// doNothing is the Do of a transactional action that has no effect.
func doNothing[A any](context.Context, engine.Tx, engine.ActionCall[A]) ([]byte, error) {
	return nil, nil
}

// resource stands for something outside the tenant's database. It has one value, and logs every call with what the call
// was told.
type resource struct {
	mu    sync.Mutex
	value string
	calls calls
	// before and after, if set, run in place of the moment before and after an effect in a direction.
	before, after func(ctx context.Context, d plan.Direction) error
}

// told writes a call down: "do", whether it may have run before ("?"), its attempt, and its before-image.
func (x *resource) told(what string, c engine.ActionCall[none]) {
	if c.MayHaveRun {
		what += "?"
	}
	what += fmt.Sprint(c.Attempt)
	if c.Before != nil {
		what += "(" + string(c.Before) + ")"
	}
	x.calls.add(what)
}

func (x *resource) read() string {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.value
}

func (x *resource) set(value string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.value = value
}

func (x *resource) effect(ctx context.Context, d plan.Direction, value string) error {
	if x.before != nil {
		if err := x.before(ctx, d); err != nil {
			return err
		}
	}
	x.set(value)
	if x.after != nil {
		return x.after(ctx, d)
	}
	return nil
}

// external is an action that sets the resource to "new", and back.
func (x *resource) external() engine.External[none] {
	return engine.External[none]{
		Capture: func(_ context.Context, c engine.ActionCall[none]) ([]byte, error) {
			x.told("capture", c)
			return []byte(x.read()), nil
		},
		Do: func(ctx context.Context, c engine.ActionCall[none]) error {
			x.told("do", c)
			return x.effect(ctx, plan.Up, "new")
		},
		Undo: func(ctx context.Context, c engine.ActionCall[none]) error {
			x.told("undo", c)
			return x.effect(ctx, plan.Down, string(c.Before))
		},
	}
}

// inspecting adds an Inspect that looks at the value.
func (x *resource) inspecting(a engine.External[none]) engine.External[none] {
	a.Inspect = func(_ context.Context, c engine.ActionCall[none]) (bool, error) {
		x.told("inspect-"+string(c.Direction), c)
		return (x.read() == "new") == (c.Direction == plan.Up), nil
	}
	return a
}

// only makes a set of one external action, "outside".
func only(x engine.External[none]) *engine.Actions {
	actions := engine.NewActions()
	engine.RegisterExternal(actions, "outside", x)
	return actions
}

// outsideChange has a sql step, one on the resource and whatever steps follow.
func outsideChange(after string) *plan.Change {
	c := newChange("change", "a "+after)
	c.Steps = append(c.Steps[:1:1], append([]plan.Step{actionStep("x", "outside")}, c.Steps[1:]...)...)
	return c
}

// faults is a directory whose stores have a fault injected around each checkpoint.
type faults struct {
	engine.Directory
	// around makes the checkpoint by calling commit, or does not, and returns what the engine hears of it.
	around func(g engine.Group, commit func() error) error
}

func (d *faults) Open(ctx context.Context, t tenant.Tenant) (engine.Store, func(), error) {
	store, release, err := d.Directory.Open(ctx, t)
	if err != nil {
		return nil, nil, err
	}
	// A value, so that the same database is the same store each time.
	return faulty{store, d}, release, nil
}

type faulty struct {
	engine.Store
	faults *faults
}

func (s faulty) Checkpoint(ctx context.Context, held sitelock.Held, group engine.Group) error {
	commit := func() error { return s.Store.Checkpoint(ctx, held, group) }
	if s.faults.around == nil {
		return commit()
	}
	return s.faults.around(group, commit)
}

// writes chooses the first checkpoint that brings step to a state.
func writes(step string, state plan.StepState) func(engine.Group) bool {
	return func(g engine.Group) bool {
		for _, s := range g.Steps {
			if s.ID == step && s.State == state {
				return true
			}
		}
		return false
	}
}

// newFaultyLab is a lab whose directory can be told to break.
func newFaultyLab(w *world, config engine.Config) (*lab, *faults) {
	w.t.Helper()
	l := newLab(w, config)
	broken := &faults{Directory: l.directory}
	watch := config.Observe
	config.Observe = func(p engine.Progress) {
		l.calls.observe(p)
		if watch != nil {
			watch(p)
		}
	}
	l.engine = newEngine(w.t, broken, config)
	return l, broken
}

// once injects a fault at the first checkpoint that is chosen.
func (d *faults) once(at func(engine.Group) bool, fault func(commit func() error) error) {
	met := false
	d.around = func(g engine.Group, commit func() error) error {
		if met || !at(g) {
			return commit()
		}
		met = true
		return fault(commit)
	}
}

// dies makes the run end at a checkpoint as if its process had: the lock is lost, and nothing more is written.
func (d *faults) dies(at func(engine.Group) bool) {
	d.once(at, func(func() error) error { return &sitelock.LockLostError{} })
}

// losesAnswer makes a checkpoint end with an unknown outcome.
func (d *faults) losesAnswer(at func(engine.Group) bool, commits bool) {
	d.once(at, func(commit func() error) error {
		if commits {
			if err := commit(); err != nil {
				return err
			}
		}
		return engine.ErrUnknownOutcome
	})
}

// G5
func TestAnExternalStepIsIntendedBeforeItsEffect(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, w *world) {
		x := &resource{value: "old"}
		l := newLab(w, engine.Config{Actions: only(x.external())})
		x.before = func(_ context.Context, d plan.Direction) error {
			entry := l.record("change").Journal[1]
			want := map[plan.Direction]plan.StepState{plan.Up: plan.StepIntent, plan.Down: plan.StepUndoIntent}[d]
			if entry.State != want || entry.Attempt != 1 {
				return fmt.Errorf("the journal says %+v at the time of %s", entry, d)
			}
			image, err := l.store().Image(context.Background(), l.tenant.ID, l.record("change").Plan.ID, 1)
			if err != nil || string(image) != "old" {
				return fmt.Errorf("image %q: %w", image, err)
			}
			return nil
		}
		l.came(l.apply(outsideChange("b")), engine.VerdictApplied, "do:a do:x do:b")
		equal(t, "value", x.read(), "new")
		l.came(l.rollback("change"), engine.VerdictRolledBack, "undo:b undo:x undo:a")
		equal(t, "value", x.read(), "old")
		l.came(l.apply(outsideChange("b")), engine.VerdictApplied, "do:a do:x do:b")
		equal(t, "calls", x.calls.take(), "capture1 do1(old) undo1(old) capture1 do1(old)")
	})
}

// A later failure takes the external effect back within the same run, which is the undo's first attempt. G6
func TestAnExternalStepIsUndoneOnceInAFailedApply(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, w *world) {
		x := &resource{value: "old"}
		l := newLab(w, engine.Config{Actions: only(x.external())})
		l.came(l.apply(rollingBack(outsideChange("b c:fail"))), engine.VerdictFailed, "do:a do:x do:b fail:c undo:b undo:x undo:a")
		equal(t, "value", x.read(), "old")
		equal(t, "calls", x.calls.take(), "capture1 do1(old) undo1(old)")
	})
}

// An external step that failed may have taken effect all the same, so it is in doubt and part of the undo.
func TestAFailedExternalStepIsPartOfTheUndo(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		happens, inspect bool
		calls            string
	}{
		"it happened":                 {true, false, "capture1 do1(old) undo1(old)"},
		"it did not":                  {false, false, "capture1 do1(old) undo1(old)"},
		"it happened, as Inspect saw": {true, true, "capture1 do1(old) inspect-up?1(old) undo1(old)"},
		"it did not, as Inspect saw":  {false, true, "capture1 do1(old) inspect-up?1(old)"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			onBoth(t, func(t *testing.T, w *world) {
				x := &resource{value: "old"}
				fails := func(_ context.Context, d plan.Direction) error {
					if d == plan.Up {
						return errors.New("gateway timeout")
					}
					return nil
				}
				if x.before = fails; tc.happens {
					x.before, x.after = nil, fails
				}
				action := x.external()
				if tc.inspect {
					action = x.inspecting(action)
				}
				l := newLab(w, engine.Config{Actions: only(action)})
				r := l.apply(rollingBack(outsideChange("b")))
				l.came(r, engine.VerdictFailed, "do:a fail:x undo:x undo:a")
				contains(t, "error", r.Err.Error(), "step x: gateway timeout")
				equal(t, "value", x.read(), "old")
				equal(t, "calls", x.calls.take(), tc.calls)
				l.rests("change", "pending rolled_back 0/3")
			})
		})
	}
}

// A holder dies around an effect, and nobody wrote down how it ended. The next one goes on from the captured image: it
// never captures its predecessor's effect. G5
func TestAnEffectInDoubtIsSettled(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		sentence string
		dies     plan.StepState // at the checkpoint that writes it
		inspect  bool
		next     string // operation
		calls    string
	}{
		{"an apply is run again", plan.StepDone, false, "apply", "do?2(old)"},
		{"an apply that happened is found done", plan.StepDone, true, "apply", "inspect-up?1(old)"},
		{"an apply in doubt is undone", plan.StepDone, false, "rollback", "undo1(old)"},
		{"an apply that happened is undone", plan.StepDone, true, "rollback", "inspect-up?1(old) undo1(old)"},
		{"an undo is run again", plan.StepUndone, false, "rollback", "undo?2(old)"},
		{"an undo that happened is found undone", plan.StepUndone, true, "rollback", "inspect-down?1(old)"},
	} {
		t.Run(tc.sentence, func(t *testing.T) {
			t.Parallel()
			onBoth(t, func(t *testing.T, w *world) {
				x := &resource{value: "old"}
				action := x.external()
				if action.FencesChecked = true; tc.inspect {
					action = x.inspecting(action)
				}
				l, broken := newFaultyLab(w, engine.Config{Actions: only(action)})
				c := outsideChange("b")
				if tc.dies == plan.StepUndone {
					l.came(l.apply(c), engine.VerdictApplied, "do:a do:x do:b")
				}
				broken.dies(writes("x", tc.dies))
				var r engine.Result
				if tc.dies == plan.StepUndone {
					r = l.rollback("change")
				} else {
					r = l.apply(c)
				}
				if _, lost := errors.AsType[*sitelock.LockLostError](r.Err); !lost {
					t.Fatal(r.Err)
				}
				l.expire()
				l.calls.take()
				x.calls.take()
				if tc.next == "apply" {
					l.came(l.apply(c), engine.VerdictApplied, "recover:change do:x do:b")
					l.rests("change", "applied applied 3/3")
					equal(t, "value", x.read(), "new")
				} else {
					if r := l.rollback("change"); r.Verdict != engine.VerdictRolledBack {
						t.Fatal(r.Err)
					}
					l.rests("change", "pending rolled_back 0/3")
					equal(t, "value", x.read(), "old")
				}
				equal(t, "calls", x.calls.take(), tc.calls)
			})
		})
	}
}

// An undo in doubt that did not happen, or a do: Inspect's other answer.
func TestAnEffectThatDidNotHappenIsSettled(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, w *world) {
		x := &resource{value: "old"}
		action := x.inspecting(x.external())
		action.FencesChecked = true
		l := newLab(w, engine.Config{Actions: only(action)})
		dies := func(context.Context, plan.Direction) error { return &sitelock.LockLostError{} }
		x.before = dies
		l.came(l.apply(outsideChange("b")), engine.VerdictPartial, "do:a")
		x.before = nil
		l.expire()
		l.came(l.apply(outsideChange("b")), engine.VerdictApplied, "recover:change do:x do:b")
		equal(t, "calls", x.calls.take(), "capture1 do1(old) inspect-up?1(old) do?2(old)")
		x.before = dies
		l.came(l.rollback("change"), engine.VerdictPartial, "undo:b")
		x.before = nil
		l.expire()
		l.came(l.rollback("change"), engine.VerdictRolledBack, "recover:change undo:x undo:a")
		equal(t, "calls", x.calls.take(), "undo1(old) inspect-down?1(old) undo?2(old)")
	})
}

// After a take-over the former holder's call may still be under way: the new holder lets its time run out, unless the
// resource itself shuts out lower fences. G5
func TestANewHolderWaitsOutTheFormerHoldersCall(t *testing.T) {
	t.Parallel()
	for _, checked := range []bool{false, true} {
		t.Run(fmt.Sprintf("fences checked %t", checked), func(t *testing.T) {
			t.Parallel()
			onBoth(t, func(t *testing.T, w *world) {
				x := &resource{value: "old"}
				action := x.external()
				action.FencesChecked = checked
				l, broken := newFaultyLab(w, engine.Config{Actions: only(action)})
				c := outsideChange("b")
				timeout := hang // longer than the test: a wait would hang it
				if !checked {
					timeout = 1500 * time.Millisecond
				}
				c.Steps[1].Timeout = timeout
				var began time.Time
				x.before = func(context.Context, plan.Direction) error { began = time.Now(); return nil }
				broken.dies(writes("x", plan.StepDone))
				l.apply(c)
				first := began
				l.expire()
				l.calls.take()
				l.came(later(t, func() engine.Result { return l.apply(c) })(), engine.VerdictApplied, "recover:change do:x do:b")
				// The deadline was written a moment before the call began.
				if waited := began.Sub(first); !checked && waited < timeout-200*time.Millisecond {
					t.Fatalf("the second call began %s after the first, whose time was %s", waited, timeout)
				}
			})
		})
	}
}

// The run whose own mark lost its answer knows that its call has returned: it waits for nobody. G7
func TestALostAnswerAroundAnEffectIsSettledAtOnce(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		state   plan.StepState
		commits bool
		calls   string
	}{
		"intent written":     {plan.StepIntent, true, "capture1 do?2(old)"},
		"intent not written": {plan.StepIntent, false, "capture1 capture1 do1(old)"},
		"done written":       {plan.StepDone, true, "capture1 do1(old)"},
		"done not written":   {plan.StepDone, false, "capture1 do1(old) do?2(old)"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			onBoth(t, func(t *testing.T, w *world) {
				x := &resource{value: "old"}
				l, broken := newFaultyLab(w, engine.Config{Actions: only(x.external())})
				broken.losesAnswer(writes("x", tc.state), tc.commits)
				wait := later(t, func() engine.Result { return l.apply(outsideChange("b")) })
				if r := wait(); r.Verdict != engine.VerdictApplied {
					t.Fatal(r.Err)
				}
				l.rests("change", "applied applied 3/3")
				l.holds("a b")
				equal(t, "calls", x.calls.take(), tc.calls)
			})
		})
	}
}

// Looking what became of a commit takes the lock again at once, though others of this process wait for it.
func TestALostAnswerIsSettledWhileOthersWaitForTheLock(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, w *world) {
		waiting := make(chan none, 1)
		l, broken := newFaultyLab(w, engine.Config{Lease: hang, Observe: func(p engine.Progress) {
			if p.Kind == engine.KindWaiting {
				waiting <- none{}
			}
		}})
		var second func() engine.Result
		broken.once(writes("b", plan.StepDone), func(commit func() error) error {
			second = later(t, func() engine.Result {
				return l.applyWith(newChange("other", "z"), engine.ApplyOptions{LockTimeout: hang})
			})
			receive(t, "the second to wait", waiting)
			check(t, commit())
			return engine.ErrUnknownOutcome
		})
		first := later(t, func() engine.Result { return l.apply(oneByOne(newChange("change", "a b c"))) })
		if r := first(); r.Verdict != engine.VerdictApplied {
			t.Fatal(r.Err)
		}
		l.came(second(), engine.VerdictApplied, "do:a do:c do:z")
		l.holds("a b c z")
	})
}

// What a database refuses for good is reported with the step it hit, not as a mystery of the network.
func TestAPermanentFailureOfACheckpointIsReportedAsItIs(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, w *world) {
		l, broken := newFaultyLab(w, engine.Config{})
		full, tries := errors.New("the disk is full"), 0
		hit := writes("b", plan.StepDone)
		broken.around = func(g engine.Group, commit func() error) error {
			if !hit(g) {
				return commit()
			}
			tries++
			return full
		}
		r := l.apply(oneByOne(newChange("change", "a b c")))
		l.came(r, engine.VerdictPartial, "do:a fail:b")
		if !errors.Is(r.Err, full) || planError(t, r.Err).Failed != "b" || tries > 3 {
			t.Fatalf("after %d tries: %v", tries, r.Err)
		}
		l.rests("change", "pending failed 1/3 partial")
	})
}

// A connection that broke before the commit was sent is replaced, and the run goes on.
func TestARunOutlivesABrokenConnection(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, w *world) {
		l, broken := newFaultyLab(w, engine.Config{})
		broken.once(writes("b", plan.StepDone), func(func() error) error { return errors.New("connection reset") })
		l.came(l.apply(oneByOne(newChange("change", "a b c"))), engine.VerdictApplied, "do:a do:b do:c")
		l.holds("a b c")
	})
}
