package engine

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/belayhq/belay/plan"
	"github.com/belayhq/belay/sitelock"
)

func runOf(t *testing.T, words string, d plan.Direction, record plan.Record) *run {
	t.Helper()
	e, _, site := newFake(t, Config{})
	change := changeOf(words)
	program, err := e.prepare(change, change.Digest(), "sqlite")
	if err != nil {
		t.Fatal(err)
	}
	return &run{operation: &operation{engine: e, tenant: site}, program: program, record: record, direction: d}
}

func idsOf(steps []*plan.ProgramStep) string {
	var ids []string
	for _, s := range steps {
		ids = append(ids, s.Step.ID)
	}
	return strings.Join(ids, " ")
}

func TestWhatIsLeftIsTheJournalReadInTheDirection(t *testing.T) {
	t.Parallel()
	for journal, want := range map[string]struct{ up, down string }{
		"":                     {"a b c", ""},
		"a:done":               {"b c", "a"},
		"a:done b:done":        {"c", "b a"},
		"a:done b:done c:done": {"", "c b a"},
		"a:done b:undone":      {"b c", "a"},
		"a:done b:intent":      {"b c", "b a"},
		"a:done b:undo_intent": {"b c", "b a"},
		"a:undone b:done":      {"a c", "b"},
	} {
		up := runOf(t, "a b c", plan.Up, recordOf(t, "change", "applying "+journal, 3))
		equal(t, "up after "+journal, idsOf(up.remaining()), want.up)
		down := runOf(t, "a b c", plan.Down, recordOf(t, "change", "rolling_back "+journal, 3))
		equal(t, "down after "+journal, idsOf(down.remaining()), want.down)
	}
}

func TestACheckpointEndsWithTheFirstStepThatDoesMoreThanWriteRows(t *testing.T) {
	t.Parallel()
	all := "a:done b:done c:done"
	for steps, want := range map[string]struct{ up, down string }{
		"a b c":         {"a b c", "c b a"},
		"a b:ddl c":     {"a b", "c b"},
		"a:ddl b c":     {"a", "c b a"},
		"a b:inside c":  {"a b", "c b"},
		"a b:outside c": {"a", "c"},
		"a:outside b c": {"", "c b"},
		"a b c:outside": {"a b", ""},
	} {
		up := runOf(t, steps, plan.Up, recordOf(t, "change", "applying", 3))
		equal(t, "up: "+steps, idsOf(up.membersOf(up.remaining())), want.up)
		down := runOf(t, steps, plan.Down, recordOf(t, "change", "rolling_back "+all, 3))
		equal(t, "down: "+steps, idsOf(down.membersOf(down.remaining())), want.down)
	}
	one := runOf(t, "a b c", plan.Up, recordOf(t, "change", "applying", 3))
	one.oneByOne = true
	equal(t, "one by one", idsOf(one.membersOf(one.remaining())), "a")
}

func TestAnApplyAndARollbackMirrorEachOther(t *testing.T) {
	t.Parallel()
	e, store, site := newFake(t, Config{})
	r, err := e.Apply(t.Context(), site, changeOf("a b c:ddl d e:inside f:outside"), ApplyOptions{})
	if err != nil {
		t.Fatal(err)
	}
	equal(t, "verdict", r.Verdict, VerdictApplied)
	equal(t, "apply", strings.Join(store.groups, "\n"), "a b c\nd e\nf\nf +succeed release")
	store.groups = nil
	r, err = e.Rollback(t.Context(), site, "change", RollbackOptions{})
	if err != nil {
		t.Fatal(err)
	}
	equal(t, "verdict", r.Verdict, VerdictRolledBack)
	equal(t, "rollback", strings.Join(store.groups, "\n"), "f\nf\ne\nd c\nb a +succeed release")
	equal(t, "plan", fmt.Sprint(store.records[0].Plan.Status, store.records[0].InPlace()), fmt.Sprint(plan.Pending, 0))
}

func TestAStepThatFailsInAGroupIsFoundByTryingEachAlone(t *testing.T) {
	t.Parallel()
	refuse := func(g Group) error {
		for i := range g.Steps {
			if g.Steps[i].ID == "b" {
				return &StepFailure{Step: i, Err: errors.New("no")}
			}
		}
		return nil
	}
	for _, way := range []plan.Direction{plan.Up, plan.Down} {
		e, store, site := newFake(t, Config{})
		change := changeOf("a b c")
		want := "a b c +succeed release failed\na\nb failed\n+fail release"
		operation := func() (Result, error) { return e.Apply(t.Context(), site, change, ApplyOptions{}) }
		if way == plan.Down {
			if r, err := operation(); err != nil {
				t.Fatalf("%s: %v", r.Verdict, err)
			}
			store.groups = nil
			want = "c b a +succeed release failed\nc\nb failed\n+fail release"
			operation = func() (Result, error) { return e.Rollback(t.Context(), site, "change", RollbackOptions{}) }
		}
		store.refuse = refuse
		r, err := operation()
		equal(t, string(way), strings.Join(store.groups, "\n"), want)
		equal(t, "verdict", r.Verdict, VerdictPartial)
		if step, ok := errors.AsType[*StepError](err); !ok || step.Step != "b" || step.Direction != way {
			t.Errorf("%s: error %v", way, err)
		}
	}
}

// A plan that a cancelled claim leaves partial says so, also one that is rolled back but for its last move. G3
func TestACancelledClaimSaysWhatItLeavesBehind(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		record string
		from   plan.Status
		want   plan.Outcome
	}{
		{"applying", plan.Pending, ""},
		{"applying a:undone", plan.Pending, ""},
		{"applying a:done", plan.Pending, plan.OutcomeInterrupted},
		{"applying a:intent", plan.Pending, plan.OutcomeInterrupted},
		{"rolling_back a:undone", plan.Pending, ""},
		{"rolling_back a:done b:done", plan.Applied, plan.OutcomeInterrupted},
		{"rolling_back a:done b:undone", plan.Applied, plan.OutcomeInterrupted},
		{"rolling_back a:undone b:undone", plan.Applied, plan.OutcomeInterrupted},
	} {
		record := recordOf(t, "change", tt.record, 2)
		record.Plan.ClaimedFrom = tt.from
		r := runOf(t, "a b", plan.Up, record)
		equal(t, "cancelled while "+tt.record, r.outcomeAfter(errCancelled, nil), tt.want)
		equal(t, "failed while "+tt.record, r.outcomeAfter(errors.New("no"), nil), plan.OutcomeFailed)
		equal(t, "its undo failed while "+tt.record, r.outcomeAfter(errCancelled, errors.New("no")), plan.OutcomeFailed)
	}
}

func TestAFailedApplyTurnsBackOnlyWhereThatIsSafe(t *testing.T) {
	t.Parallel()
	failure := errors.New("no")
	for name, tt := range map[string]struct {
		err  error
		edit func(*run)
		may  bool
	}{
		"a step failed":               {failure, func(*run) {}, true},
		"cancelled":                   {errCancelled, func(*run) {}, true},
		"the change says stop":        {failure, func(r *run) { r.program.Change.OnFailure = plan.StopOnFailure }, false},
		"nothing is in place":         {failure, func(r *run) { r.record.Journal = nil }, false},
		"the lock is lost":            {fmt.Errorf("a: %w", &sitelock.LockLostError{}), func(*run) {}, false},
		"a verify could not run":      {fmt.Errorf("a: %w", ErrVerifyUnable), func(*run) {}, false},
		"the outcome is unknown":      {fmt.Errorf("a: %w", ErrUnknownOutcome), func(*run) {}, false},
		"the plan rests already":      {failure, func(r *run) { r.finished = true }, false},
		"an action may still be busy": {failure, func(r *run) { r.leftBehind = true }, false},
		"aborted":                     {failure, func(r *run) { r.engine.Abort() }, false},
	} {
		r := runOf(t, "a b", plan.Up, recordOf(t, "change", "applying a:done", 2))
		r.program.Change.OnFailure = plan.RollbackOnFailure
		tt.edit(r)
		equal(t, name, r.mayUndo(r, tt.err), tt.may)
	}
}

func TestTheVerdictOfAFailedRunIsWhatItLeft(t *testing.T) {
	t.Parallel()
	failure := errors.New("no")
	for name, tt := range map[string]struct {
		record string
		err    error
		want   Verdict
	}{
		"nothing in place":                  {"pending", failure, VerdictFailed},
		"a step in place":                   {"pending a:done", failure, VerdictPartial},
		"a step in doubt":                   {"pending a:intent", failure, VerdictPartial},
		"all undone again":                  {"pending a:undone", failure, VerdictFailed},
		"a rollback that undid nothing":     {"applied a:done b:done", failure, VerdictFailed},
		"a rollback half-way":               {"applied a:done b:undone", failure, VerdictPartial},
		"still in flight":                   {"applying", failure, VerdictPartial},
		"cancelled with a step in place":    {"pending a:done", errCancelled, VerdictCancelled},
		"refused, nothing in place":         {"pending", refuse(RefusedRequires, nil, "no"), VerdictRefused},
		"refused with a step in place":      {"pending a:done", refuse(RefusedRequires, nil, "no"), VerdictPartial},
		"refused because of another's rest": {"pending", refuse(RefusedBlocked, nil, "no"), VerdictPartial},
	} {
		r := runOf(t, "a b", plan.Up, recordOf(t, "change", tt.record, 2))
		equal(t, name, r.verdictAfter(tt.err), tt.want)
	}
}

// A database that does not answer while an operation looks what became of a commit is asked until the lease is long over, but
// not by an engine that was told to stop.
func TestAnAbortedEngineDoesNotAskOnAndOn(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		e, store, site := newFake(t, Config{})
		away := errors.New("connection refused")
		store.refuse = func(Group) error {
			asked := 0
			store.deny = func() error {
				if asked++; asked == 3 {
					e.Abort()
				}
				return away
			}
			return ErrUnknownOutcome
		}
		began := time.Now()
		r, err := e.Apply(t.Context(), site, changeOf("a"), ApplyOptions{})
		if !errors.Is(err, ErrUnknownOutcome) || !errors.Is(err, away) {
			t.Errorf("%s: %v", r.Verdict, err)
		}
		if took := time.Since(began); took > e.Lease()/4 {
			t.Errorf("took %s", took)
		}
		e.Close()
	})
}

func TestAClaimThatTheDatabaseWantsRepeatedIsRepeatedAFewTimes(t *testing.T) {
	t.Parallel()
	for _, failures := range []int{0, 3, 4} {
		e, store, site := newFake(t, Config{})
		o := &operation{engine: e, tenant: site, store: store, cancelled: func() bool { return false }}
		if _, err := o.acquire(t.Context(), sitelock.OpApply, nil, 0); err != nil {
			t.Fatal(err)
		}
		sent := 0
		err := o.repeated(t.Context(), func() error {
			if sent++; sent <= failures {
				return fmt.Errorf("commit: %w", ErrRetryTransaction)
			}
			return nil
		})
		equal(t, "sent", sent, min(failures+1, 4))
		equal(t, "gave up", errors.Is(err, ErrRetryTransaction), failures == 4)
		o.release(context.Background())
	}
}

// overdue is a context past its deadline whose timer has not fired: that of a process that was stopped and goes on.
type overdue struct{ context.Context }

func (overdue) Deadline() (time.Time, bool) { return time.Now().Add(-time.Second), true }

// Others wait a call's time out by the clock, so that is what a late call is stopped by. G5
func TestACallWhoseTimeIsUpDoesNotBegin(t *testing.T) {
	t.Parallel()
	e, store, site := newFake(t, Config{})
	o := &operation{engine: e, tenant: site, store: store}
	if _, err := o.acquire(t.Context(), sitelock.OpApply, nil, 0); err != nil {
		t.Fatal(err)
	}
	defer o.release(t.Context())
	r := &run{operation: o}
	if err := r.mayCall(t.Context()); err != nil {
		t.Errorf("a call in time: %v", err)
	}
	if err := r.mayCall(overdue{t.Context()}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a late call: %v", err)
	}
	o.lock.Lose(&sitelock.LockLostError{})
	if err := r.mayCall(t.Context()); !errors.As(err, new(*sitelock.LockLostError)) {
		t.Errorf("a call without the lock: %v", err)
	}
}
