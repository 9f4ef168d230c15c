package plan

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// nextTable lists every status and event. The five columns after the arrow are for a plan claimed from nothing,
// pending, applying, applied and rolling_back; "-" is a refusal. Short names: P pending, A applied, a applying,
// r rolling_back.
const nextTable = `
claimed from:                   ""  P  a  A  r

pending       claim_apply        a  a  a  a  a
pending       claim_rollback     r  r  r  r  r
pending       undo               -  -  -  -  -
pending       succeed            -  -  -  -  -
pending       fail               -  -  -  -  -
pending       recover            -  -  -  -  -
pending       resolve_applied    A  A  A  A  A
pending       resolve_rolled_back P P  P  P  P

applying      claim_apply        -  -  -  -  -
applying      claim_rollback     -  -  -  -  -
applying      undo               r  r  r  r  r
applying      succeed            A  A  A  A  A
applying      fail               P  P  -  -  -
applying      recover            P  P  -  -  -
applying      resolve_applied    -  -  -  -  -
applying      resolve_rolled_back -  -  -  -  -

applied       claim_apply        -  -  -  -  -
applied       claim_rollback     r  r  r  r  r
applied       undo               -  -  -  -  -
applied       succeed            -  -  -  -  -
applied       fail               -  -  -  -  -
applied       recover            -  -  -  -  -
applied       resolve_applied    A  A  A  A  A
applied       resolve_rolled_back P  P  P  P  P

rolling_back  claim_apply        -  -  -  -  -
rolling_back  claim_rollback     -  -  -  -  -
rolling_back  undo               -  -  -  -  -
rolling_back  succeed            P  P  P  P  P
rolling_back  fail               A  P  -  A  -
rolling_back  recover            A  P  -  A  -
rolling_back  resolve_applied    -  -  -  -  -
rolling_back  resolve_rolled_back -  -  -  -  -
`

// G3
func TestEveryStatusAndEvent(t *testing.T) {
	t.Parallel()
	short := map[string]Status{"-": "", "P": Pending, "a": Applying, "A": Applied, "r": RollingBack}
	statuses := []Status{Pending, Applying, Applied, RollingBack}
	claims := []Status{"", Pending, Applying, Applied, RollingBack}
	events := []Event{EventClaimApply, EventClaimRollback, EventUndo, EventSucceed, EventFail, EventRecover, EventResolveApplied, EventResolveRolledBack}
	seen := map[string]bool{}
	for line := range strings.Lines(nextTable) {
		f := strings.Fields(line)
		if len(f) != 2+len(claims) || strings.HasPrefix(line, "claimed") {
			continue
		}
		from, event := Status(f[0]), Event(f[1])
		if !slices.Contains(statuses, from) || !slices.Contains(events, event) {
			t.Fatalf("no such status or event: %q", line)
		}
		seen[f[0]+" "+f[1]] = true
		for i, claimed := range claims {
			want := short[f[2+i]]
			got, err := Next(from, claimed, event)
			if got != want || (err == nil) != (want != "") {
				t.Errorf("Next(%s, claimed from %q, %s) = %q, %v; want %q", from, claimed, event, got, err, want)
			}
		}
	}
	if len(seen) != len(statuses)*len(events) {
		t.Errorf("the table has %d rows, want %d", len(seen), len(statuses)*len(events))
	}
}

func TestAStatusOrEventThatIsNoneOfThemIsRefused(t *testing.T) {
	t.Parallel()
	for _, event := range []Event{EventClaimApply, EventClaimRollback, EventUndo, EventSucceed, EventFail, EventRecover, EventResolveApplied, EventResolveRolledBack} {
		for _, from := range []Status{"", "done", "PENDING"} {
			if got, err := Next(from, Pending, event); err == nil {
				t.Errorf("Next(%q, %s) = %s", from, event, got)
			}
		}
	}
	for _, from := range []Status{Pending, Applying, Applied, RollingBack} {
		if got, err := Next(from, Pending, "explode"); err == nil {
			t.Errorf("Next(%s, explode) = %s", from, got)
		}
	}
}

func TestOnlyAHolderHasAPlanInFlight(t *testing.T) {
	t.Parallel()
	for status, want := range map[Status]bool{Pending: false, Applying: true, Applied: false, RollingBack: true} {
		if got := status.InFlight(); got != want {
			t.Errorf("%s.InFlight() = %v", status, got)
		}
		if got := (Plan{Status: status, Outcome: OutcomeQuarantined}).Quarantined(); got == want {
			t.Errorf("a quarantined plan that is %s: Quarantined() = %v", status, got)
		}
	}
}

// journalTable says which state of a step may follow which: a row for the present one, a column for the next.
const journalTable = `
             none intent done undo_intent undone
none          -     x     x       -         -
intent        -     x     x       x         x
done          -     -     -       x         x
undo_intent   -     x     x       x         x
undone        -     x     x       -         -
`

func TestEveryMoveOfAStep(t *testing.T) {
	t.Parallel()
	states := []StepState{"", StepIntent, StepDone, StepUndoIntent, StepUndone}
	rows := strings.Split(strings.TrimSpace(journalTable), "\n")[1:]
	if len(rows) != len(states) {
		t.Fatalf("the table has %d rows", len(rows))
	}
	for i, from := range states {
		cells := strings.Fields(rows[i])[1:]
		for j, to := range states {
			if got, want := from.CanBecome(to), cells[j] == "x"; got != want {
				t.Errorf("%q to %q: %v, want %v", from, to, got, want)
			}
		}
	}
	if StepState("lost").CanBecome(StepDone) || StepDone.CanBecome("lost") {
		t.Error("a state that does not exist was allowed")
	}
}

// G3
func TestAPlanIsPartialWhereItsJournalContradictsItsStatus(t *testing.T) {
	t.Parallel()
	const total = 3
	for _, tc := range []struct {
		status  Status
		journal string // the states of steps 0, 1, 2; "." has no row
		partial bool
		touched bool
		inPlace int
	}{
		{Pending, ". . .", false, false, 0},
		{Pending, "undone . .", false, false, 0},
		{Pending, "undone undone undone", false, false, 0},
		{Pending, "done . .", true, true, 1},
		{Pending, "done undone undone", true, true, 1},
		{Pending, "done done done", true, true, 3},
		{Pending, "intent . .", true, true, 0},
		{Pending, "undone intent .", true, true, 0},
		{Pending, "undo_intent . .", true, true, 0},
		{Pending, "undone undo_intent undone", true, true, 0},
		{Applied, "done done done", false, true, 3},
		{Applied, "done done .", true, true, 2},
		{Applied, ". . .", true, false, 0},
		{Applied, "done done undone", true, true, 2},
		{Applied, "done done undo_intent", true, true, 2},
		{Applied, "done intent done", true, true, 2},
		{Applied, "undone undone undone", true, false, 0},
		{Applying, "done . .", false, true, 1},
		{Applying, "intent . .", false, true, 0},
		{RollingBack, "done undone undone", false, true, 1},
		{RollingBack, "done done undo_intent", false, true, 2},
	} {
		r := Record{Plan: Plan{Status: tc.status, StepsTotal: total}}
		for i, state := range strings.Fields(tc.journal) {
			if state != "." {
				r.Journal = append(r.Journal, Entry{Ordinal: i, Step: fmt.Sprint("step-", i), State: StepState(state)})
			}
		}
		if r.Partial() != tc.partial || r.Touched() != tc.touched || r.InPlace() != tc.inPlace {
			t.Errorf("%s with %s: partial %v, touched %v, in place %d; want %v, %v, %d", tc.status, tc.journal,
				r.Partial(), r.Touched(), r.InPlace(), tc.partial, tc.touched, tc.inPlace)
		}
	}
}
