package render

import (
	"errors"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/belayhq/belay/engine"
	"github.com/belayhq/belay/plan"
	"github.com/belayhq/belay/sitelock"
	"github.com/belayhq/belay/tenant"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestTextFromOutsideMovesNoCursorAndForgesNoLine(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"plain, naïve, 日本":       "plain, naïve, 日本",
		"a\x1b[31mred":           `a\x1b[31mred`,
		"line\nerror: forged\r":  `line\nerror: forged\r`,
		"bell\a tab\t del\x7f":   `bell\a tab\t del\x7f`,
		"C1 \u009b31m":           `C1 \u009b31m`,
		"not utf-8 \xff\xc0":     `not utf-8 \xff\xc0`,
		"right to left \u202e":   `right to left \u202e`,
		"separator \u2028 inner": `separator \u2028 inner`,
	} {
		if got := Clean(in); got != want {
			t.Errorf("Clean(%q) = %q, want %q", in, got, want)
		}
	}
	if got := CleanLines("one\ntwo\x1b"); got != "one\ntwo\\x1b" {
		t.Errorf("CleanLines: %q", got)
	}
	var b strings.Builder
	if err := JSONLine(&b, map[string]string{"name": "\x1b \u009b \x7f <é>"}); err != nil {
		t.Fatal(err)
	}
	if got, want := b.String(), `{"name":"\u001b \u009b \u007f <é>"}`+"\n"; got != want {
		t.Errorf("JSON: %q, want %q", got, want)
	}
	table := NewTable("A", "B")
	table.Add("x\ny", "")
	b.Reset()
	if err := table.Write(&b); err != nil || b.String() != "A     B\nx\\ny  -\n" {
		t.Errorf("table: %q, %v", b.String(), err)
	}
}

func TestAWordIsQuotedForTheShell(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"changes/0042-x": "changes/0042-x", "with space": "'with space'", "it's": `'it'\''s'`, "": "''", "$(rm)": "'$(rm)'",
	} {
		if got := Quote(in); got != want {
			t.Errorf("Quote(%q) = %s, want %s", in, got, want)
		}
	}
}

var (
	acme  = tenant.Tenant{ID: "id-acme", Name: "acme"}
	apply = Command{Name: "apply", Argument: "changes/0042", Change: "0042"}
	undo  = Command{Name: "rollback", Argument: "0042", Change: "0042"}

	undoTo    = Command{Name: "rollback", Argument: "0042", Change: "0042", To: true}
	purge     = Command{Name: "apply", Argument: "changes/0042", Change: "0042", Flags: []string{"--allow-irreversible"}}
	elsewhere = Command{Name: "apply", Argument: "changes/0042", Change: "0042", Elsewhere: func(id string) string { return "changes/" + id }}
	held      = sitelock.State{
		Holder: "h", Process: sitelock.Process{Host: "host-7", PID: 4711}, Operation: sitelock.OpHold, Reason: "by hand", Live: true,
		Since: time.Unix(0, 0), Expires: time.Unix(60, 0),
	}
)

func TestEveryProblemNamesTheCommandsThatAreSafeNext(t *testing.T) {
	t.Parallel()
	refused := func(why engine.Refusal, changes ...string) error {
		return &engine.RefusedError{Reason: why, Changes: changes, Err: errors.New("why")}
	}
	boom := errors.New("boom")
	for _, c := range []struct {
		name    string
		command Command
		verdict engine.Verdict
		err     error
		says    string // parts, separated by |
	}{
		{
			"partial apply", apply, engine.VerdictPartial, &engine.PlanError{Change: "0042", Applied: []string{"a", "b"}, Err: boom},
			"in place now: a, b|belay apply changes/0042 -t acme|belay rollback 0042 -t acme|belay resolve acme 0042",
		},
		{
			"undo failed", apply, engine.VerdictPartial, &engine.PlanError{Change: "0042", Applied: []string{"a"}, Undone: []string{"b"}, Err: boom, UndoErr: errors.New("bang")},
			"0042: boom|then the undo failed: bang|undone: b|in place now: a|next: belay rollback 0042 -t acme",
		},
		{
			"clean failure", apply, engine.VerdictFailed, &engine.PlanError{Change: "0042", Err: boom},
			"in place now: nothing of this change|belay apply changes/0042 -t acme",
		},
		{
			"partial rollback", undo, engine.VerdictPartial, &engine.PlanError{Change: "0042", Applied: []string{"a"}, Err: boom},
			"next: belay rollback 0042 -t acme|belay resolve",
		},
		{
			"cancelled", apply, engine.VerdictCancelled, &engine.PlanError{Change: "0042", Applied: []string{"a"}, Err: boom},
			"to go on from here|to take back",
		},
		{
			"cancelled rollback to", undoTo, engine.VerdictCancelled, &engine.PlanError{Change: "0043", Applied: []string{"a"}, Err: boom},
			"belay rollback --to 0042 -t acme",
		},
		{
			"flags again", purge, engine.VerdictPartial, &engine.PlanError{Change: "0042", Applied: []string{"a"}, Err: boom},
			"belay apply changes/0042 -t acme --allow-irreversible",
		},
		{"newer tables", apply, engine.VerdictRefused, engine.AsRefusal(engine.ErrNewerSchema), "belay db status -t acme"},
		{"newer binary", apply, engine.VerdictRefused, engine.AsRefusal(sitelock.ErrNewerBinary), "a belay as new as"},
		{"scope taken", apply, engine.VerdictRefused, engine.AsRefusal(sitelock.ErrScopeTaken), "belay tenant remove acme --force"},
		{"no schema", apply, engine.VerdictRefused, engine.AsRefusal(engine.ErrNoScope), "belay tenant show acme|when the schema is there"},
		{"removed", apply, engine.VerdictRefused, engine.AsRefusal(sitelock.ErrRemoved), "belay tenant remove acme"},
		{"requires what is not registered", elsewhere, engine.VerdictRefused, refused(engine.RefusedRequires, "0041"), "belay apply changes/0041 -t acme"},
		{
			"lock lost", apply, engine.VerdictPartial, &engine.PlanError{Change: "0042", Err: &sitelock.LockLostError{Lease: time.Minute}},
			"lock lost|within its lease of 1m0s|stopped here|belay status -t acme",
		},
		{"held", apply, engine.VerdictBusy, &sitelock.LockBusyError{State: &held}, "by hand|belay lock release acme"},
		{"busy", apply, engine.VerdictBusy, &sitelock.LockBusyError{}, "just finishing|--lock-timeout|belay lock show acme"},
		{
			"digest", apply, engine.VerdictRefused, &engine.RefusedError{Reason: engine.RefusedDigest, Err: &plan.DigestMismatchError{Change: "0042", Pinned: "sha256:aa", Given: "sha256:bb"}},
			"in place: sha256:aa|given:    sha256:bb|--repin",
		},
		{"irreversible", apply, engine.VerdictRefused, refused(engine.RefusedIrreversible), "--allow-irreversible"},
		{"no way back", undo, engine.VerdictRefused, refused(engine.RefusedIrreversible), "write a change that puts right"},
		{"requires", apply, engine.VerdictRefused, refused(engine.RefusedRequires, "0040", "0041"), "belay apply 0040 -t acme|belay apply 0041 -t acme"},
		{"blocked", apply, engine.VerdictPartial, refused(engine.RefusedBlocked, "0041"), "belay apply 0041 -t acme|belay rollback 0041 -t acme|belay resolve acme 0041"},
		{"quarantined", undo, engine.VerdictPartial, refused(engine.RefusedQuarantined), "belay rollback 0042 -t acme --retry"},
		{"half undone", apply, engine.VerdictPartial, refused(engine.RefusedHalfUndone), "belay rollback 0042 -t acme"},
		{"newer", undo, engine.VerdictRefused, refused(engine.RefusedNewer, "0043"), "--cascade"},
		{"moved", apply, engine.VerdictRefused, refused(engine.RefusedMoved), "belay apply changes/0042 -t acme --dry-run"},
		{"invalid", apply, engine.VerdictRefused, refused(engine.RefusedInvalid), "belay change validate changes/0042"},
		{"unknown", undo, engine.VerdictRefused, refused(engine.RefusedUnknown), "belay status -t acme"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			result := engine.Result{Tenant: acme, Verdict: c.verdict, Err: c.err}
			if e, ok := errors.AsType[*engine.PlanError](c.err); ok {
				result.StepsDone = len(e.Applied)
			}
			p, ok := NewProblem(c.command, result)
			if !ok {
				t.Fatal("no problem")
			}
			var b strings.Builder
			if err := p.Write(&b); err != nil {
				t.Fatal(err)
			}
			for part := range strings.SplitSeq(c.says, "|") {
				if !strings.Contains(b.String(), part) {
					t.Errorf("does not say %q:\n%s", part, b.String())
				}
			}
		})
	}
	if _, ok := NewProblem(apply, engine.Result{Tenant: acme, Verdict: engine.VerdictApplied}); ok {
		t.Error("success is a problem")
	}
}

func TestWithNothingInPlaceThereIsNothingToTakeBack(t *testing.T) {
	t.Parallel()
	p, _ := NewProblem(apply, engine.Result{Tenant: acme, Verdict: engine.VerdictCancelled, Err: &engine.PlanError{Change: "0042", Err: errors.New("cancelled")}})
	for _, next := range p.Next {
		if strings.Contains(next.Command, "rollback") {
			t.Errorf("advises %s", next.Command)
		}
	}
}

func TestTheNoteOnALockStandsBesideThePlanItIsAbout(t *testing.T) {
	t.Parallel()
	first := plan.Record{Plan: plan.Plan{ID: "p1", Change: "0001", Status: plan.Applied}}
	second := plan.Record{Plan: plan.Plan{ID: "p2", Change: "0002", Status: plan.Applying, ClaimedFrom: plan.Pending}}
	live := sitelock.State{Holder: "h", Process: sitelock.Process{Host: "host-7"}, Operation: sitelock.OpApply, Live: true}
	holders, unnamed := live, live
	holders.Plan, holders.Change = "p2", "0002"
	third := plan.Record{Plan: plan.Plan{ID: "p3", Change: "0003", Status: plan.Pending}}
	for _, c := range []struct {
		name    string
		lock    sitelock.State
		records []plan.Record
		beside  string
	}{
		{"the holder's plan", holders, []plan.Record{first, second, third}, "0002"},
		{"the plan in flight", unnamed, []plan.Record{first, second, third}, "0002"},
		{"none in flight", held, []plan.Record{first, third}, "0001"},
	} {
		table := NewStatusTable()
		status := NewTenantStatus(engine.Surveyed{Tenant: acme, Lock: c.lock, Records: c.records})
		if !status.Listed() {
			t.Errorf("%s: not listed", c.name)
		}
		table.Add(status)
		var b strings.Builder
		if err := table.Write(&b); err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(b.String()) {
			if strings.Contains(line, "host-7") != strings.Contains(line, " "+c.beside+" ") {
				t.Errorf("%s: the note is not beside %s alone:\n%s", c.name, c.beside, b.String())
				break
			}
		}
	}
	if NewTenantStatus(engine.Surveyed{Tenant: acme, Records: []plan.Record{first}}).Listed() {
		t.Error("an idle tenant is listed")
	}
}

func TestOneIsSingular(t *testing.T) {
	t.Parallel()
	if got := Plural(1, "tenant") + ", " + Plural(0, "tenant"); got != "1 tenant, 0 tenants" {
		t.Error(got)
	}
	if lines := (&StatusSummary{Tenants: 1, NoPlan: 1}).Lines(); lines[1] != "plans:   1 tenant without one" {
		t.Error(lines[1])
	}
}

func TestAFailureCarriesBothErrors(t *testing.T) {
	t.Parallel()
	step := &engine.StepError{Step: "fill", File: "fill.sql", Line: 3, Err: errors.New("boom")}
	f := NewFailure(&engine.PlanError{Failed: "fill", Applied: []string{"a"}, Undone: []string{"b"}, Err: step, UndoErr: errors.New("bang")})
	if f.Step != "fill" || f.File != "fill.sql" || f.Line != 3 || f.UndoMessage != "bang" || !strings.Contains(f.Message, "boom") {
		t.Errorf("%+v", f)
	}
	if NewFailure(nil) != nil {
		t.Error("no error is a failure")
	}
}

func TestTheSummaryCountsEveryVerdict(t *testing.T) {
	t.Parallel()
	verdicts := []engine.Verdict{
		engine.VerdictApplied, engine.VerdictAlreadyApplied, engine.VerdictRolledBack, engine.VerdictAlreadyRolledBack,
		engine.VerdictVerified, engine.VerdictResolved, engine.VerdictFailed, engine.VerdictPartial, engine.VerdictBusy,
		engine.VerdictCancelled, engine.VerdictRefused, engine.VerdictSkipped,
	}
	for _, v := range verdicts {
		var s Summary
		s.Selected++
		s.Count(v)
		if !strings.HasPrefix(s.String(), "1 ") {
			t.Errorf("%s is not counted: %q", v, s.String())
		}
	}
}

func TestOnlyWhatNeedsAPersonIsOfConcern(t *testing.T) {
	t.Parallel()
	record := func(p plan.Plan, states ...plan.StepState) plan.Record {
		p.Change, p.StepsTotal = "0042", 2
		r := plan.Record{Plan: p}
		for i, s := range states {
			r.Journal = append(r.Journal, plan.Entry{Ordinal: i, State: s})
		}
		return r
	}
	done := plan.StepDone
	for _, c := range []struct {
		name    string
		record  plan.Record
		lock    sitelock.State
		concern string
	}{
		{"applied", record(plan.Plan{Status: plan.Applied, Outcome: plan.OutcomeApplied}, done, done), sitelock.State{}, ""},
		{"never run", record(plan.Plan{Status: plan.Pending, Outcome: plan.OutcomeNeverRun}), sitelock.State{}, ""},
		{"rolled back", record(plan.Plan{Status: plan.Pending, Outcome: plan.OutcomeRolledBack}, plan.StepUndone), sitelock.State{}, ""},
		{"failed", record(plan.Plan{Status: plan.Pending, Outcome: plan.OutcomeFailed}), sitelock.State{}, "nothing of it is in place"},
		{"partial", record(plan.Plan{Status: plan.Pending, Outcome: plan.OutcomeFailed}, done), sitelock.State{}, "partial (1 of 2"},
		{"half undone", record(plan.Plan{Status: plan.Applied, Outcome: plan.OutcomeFailed}, done, plan.StepUndone), sitelock.State{}, "half-done rollback"},
		{"quarantined", record(plan.Plan{Status: plan.Pending, Outcome: plan.OutcomeQuarantined, Attempts: 5}), sitelock.State{}, "quarantined after 5 attempts"},
		{"running", record(plan.Plan{Status: plan.Applying, ClaimedFrom: plan.Pending}, done), sitelock.State{Live: true}, ""},
		{"abandoned apply", record(plan.Plan{Status: plan.Applying, ClaimedFrom: plan.Pending}, done), sitelock.State{}, "returns it to pending"},
		{"abandoned rollback", record(plan.Plan{Status: plan.RollingBack, ClaimedFrom: plan.Applied}, done), sitelock.State{}, "returns it to applied"},
		{"abandoned without a word", record(plan.Plan{Status: plan.RollingBack}), sitelock.State{}, "returns it to applied"},
	} {
		got := newPlanStatus(c.record, c.lock).concern()
		if c.concern == "" && got != "" || !strings.Contains(got, c.concern) {
			t.Errorf("%s: %q, want %q", c.name, got, c.concern)
		}
	}
}

func TestLinesTellEachChangeOfStateOnce(t *testing.T) {
	t.Parallel()
	var b strings.Builder
	w := NewLines(&b)
	waiting := sitelock.Waiting{State: held, Deadline: time.Unix(90, 0)}
	recovered := sitelock.Recovered{Change: "0042", Was: plan.RollingBack, Status: plan.Applied, Process: sitelock.Process{Host: "host-7", PID: 1}}
	for _, p := range []engine.Progress{
		{Kind: engine.KindWaiting, Name: "acme", Waiting: &waiting},
		{Kind: engine.KindRecovered, Name: "acme", Recovered: &recovered},
		{Kind: engine.KindClaimed, Name: "acme", StepsTotal: 2},
		{Kind: engine.KindStepDone, Name: "acme", Step: "a", StepsDone: 1, StepsTotal: 2},
		{Kind: engine.KindStepFailed, Name: "acme", Err: errors.New("step b: boom\nagain")},
		{Kind: engine.KindUndoing, Name: "acme", StepsDone: 1, StepsTotal: 2},
		{Kind: engine.KindStepUndone, Name: "acme", Step: "a", StepsTotal: 2},
		{Kind: engine.KindFinished, Name: "acme"},
	} {
		w.Event(p)
	}
	w.Result(engine.Result{Tenant: acme, Verdict: engine.VerdictFailed, StepsTotal: 2, Duration: 1500 * time.Millisecond})
	w.Result(engine.Result{Tenant: acme, Verdict: engine.VerdictAlreadyApplied})
	w.Stop()
	want := `acme: waiting until 1970-01-01 00:01:30Z for held by an operator on host-7 (pid 4711) since 1970-01-01 00:00:00Z, ends by itself at 1970-01-01 00:01:00Z, reason: by hand
acme: recovered 0042 from host-7 (pid 1), it is applied again: an abandoned rollback: it can be retried
acme: started (0/2)
acme: a done (1/2)
acme: step b: boom\nagain
acme: undoing the steps in place (1/2)
acme: a undone (0/2)
acme: failed (0/2) in 1.5s
`
	if b.String() != want {
		t.Errorf("got:\n%s\nwant:\n%s", b.String(), want)
	}
}

func TestTheNamesOfTenantsUnderWayAreKnown(t *testing.T) {
	t.Parallel()
	ts := NewTenants()
	ts.Add(acme)
	if p := ts.Event(engine.Progress{Kind: engine.KindWaiting, Tenant: acme.ID}); p.Name != "acme" {
		t.Errorf("an event without a name gets %q", p.Name)
	}
	if names := ts.InFlight(); len(names) != 0 {
		t.Errorf("in flight: %v", names)
	}
	ts.Event(engine.Progress{Kind: engine.KindClaimed, Tenant: acme.ID, Name: "acme"})
	if names := ts.InFlight(); len(names) != 1 {
		t.Errorf("in flight: %v", names)
	}
	ts.Event(engine.Progress{Kind: engine.KindFinished, Tenant: acme.ID, Name: "acme"})
	ts.Done(acme.ID)
	if names := ts.InFlight(); len(names) != 0 || len(ts.names) != 0 {
		t.Errorf("in flight: %v, names: %v", names, ts.names)
	}
}

func TestABarThatIsStoppedEarlyEnds(t *testing.T) {
	t.Parallel()
	var b strings.Builder
	bar := NewBar(&b, "apply 0042", 2)
	bar.Event(engine.Progress{Kind: engine.KindClaimed, Name: "acme"})
	bar.Event(engine.Progress{Kind: engine.KindStepFailed, Name: "acme", Err: errors.New("boom")})
	bar.Event(engine.Progress{Kind: engine.KindFinished, Name: "acme"})
	bar.Result(engine.Result{Tenant: acme, Verdict: engine.VerdictFailed, Err: errors.New("boom")})
	bar.Stop()
}
