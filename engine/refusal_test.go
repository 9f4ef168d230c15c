package engine

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/belayhq/belay/plan"
	"github.com/belayhq/belay/sitelock"
)

// reasonOf says in a word what a rule answered.
func reasonOf(err error) string {
	if err == nil {
		return "ok"
	}
	if errors.Is(err, errAlready) {
		return "already"
	}
	if refused, ok := errors.AsType[*RefusedError](err); ok {
		return strings.TrimSpace(string(refused.Reason) + " " + strings.Join(refused.Changes, " "))
	}
	return err.Error()
}

func TestAPlansOwnStateSpeaksForOrAgainstBothDirections(t *testing.T) {
	t.Parallel()
	quarantined := func(r *plan.Record) { r.Plan.Outcome = plan.OutcomeQuarantined }
	edited := func(r *plan.Record) { r.Plan.Digest = "d0" }
	as := func(*plan.Record) {}
	for _, tt := range []struct {
		record          string
		edit            func(*plan.Record)
		retry, repin    bool
		apply, rollback string
	}{
		{"pending", as, false, false, "ok", "already"},
		{"pending a:undone", as, false, false, "ok", "already"},
		{"pending a:done", as, false, false, "ok", "ok"},
		{"pending a:intent", as, false, false, "ok", "ok"},
		{"applied a:done b:done", as, false, false, "already", "ok"},
		{"applied a:done b:undone", as, false, false, "half_undone", "ok"},
		{"applied a:done b:undo_intent", as, false, false, "half_undone", "ok"},
		{"pending", quarantined, false, false, "quarantined", "already"},
		{"pending a:done", quarantined, false, false, "quarantined", "quarantined"},
		{"pending a:done", quarantined, true, false, "ok", "ok"},
		{"applied a:done b:undone", quarantined, false, false, "half_undone", "quarantined"},
		{"pending", edited, false, false, "ok", "already"},
		{"pending a:done", edited, false, false, "digest", "ok"},
		{"pending a:done", edited, false, true, "ok", "ok"},
		{"applied a:done b:done", edited, false, false, "digest", "ok"},
		{"applied a:done b:done", edited, false, true, "digest", "ok"},
	} {
		r := recordOf(t, "change", tt.record, 2)
		tt.edit(&r)
		name := fmt.Sprintf("%s of %s, outcome %q, retry %v, repin %v", tt.record, r.Plan.Digest, r.Plan.Outcome, tt.retry, tt.repin)
		records := []plan.Record{r}
		apply := whyNotApply(records, changeOf("a b"), "d1", ApplyOptions{Retry: tt.retry, Repin: tt.repin})
		equal(t, "apply, "+name, reasonOf(apply), tt.apply)
		rollback := whyNotRollback(records, "change", r.Plan.Digest, nil, RollbackOptions{Retry: tt.retry})
		equal(t, "rollback, "+name, reasonOf(rollback), tt.rollback)
	}
}

func TestOtherPlansSpeakAgainstBothDirections(t *testing.T) {
	t.Parallel()
	at := func(seq int64, r plan.Record) plan.Record {
		r.Plan.AppliedSeq = seq
		return r
	}
	mine := at(5, recordOf(t, "change", "pending a:done", 2))
	for name, tt := range map[string]struct {
		other           plan.Record
		apply, rollback string
	}{
		"an older one in place": {at(1, recordOf(t, "other", "applied a:done", 1)), "ok", "ok"},
		"a newer one in place":  {at(9, recordOf(t, "other", "applied a:done", 1)), "ok", "newer_applied other"},
		"a newer one undone":    {at(9, recordOf(t, "other", "pending a:undone", 1)), "ok", "ok"},
		"one half in place":     {at(1, recordOf(t, "other", "pending a:done", 2)), "blocked other", "blocked other"},
		"one half undone":       {at(9, recordOf(t, "other", "applied a:undone", 1)), "blocked other", "blocked other"},
	} {
		records := []plan.Record{mine, tt.other}
		equal(t, "apply, "+name, reasonOf(whyNotApply(records, changeOf("a b"), "d1", ApplyOptions{})), tt.apply)
		equal(t, "rollback, "+name, reasonOf(whyNotRollback(records, "change", "d1", nil, RollbackOptions{})), tt.rollback)
		if together := whyNotRollback(records, "change", "d1", []string{"other"}, RollbackOptions{}); together != nil {
			t.Errorf("rollback together, %s: %v", name, together)
		}
	}
}

func TestTheNewestGoesBackFirst(t *testing.T) {
	t.Parallel()
	var records []plan.Record
	for i, id := range []string{"one", "two", "three", "four"} {
		r := recordOf(t, id, "applied a:done", 1)
		r.Plan.AppliedSeq = int64(i + 1)
		records = append(records, r)
	}
	equal(t, "newer than two", strings.Join(plan.NewerInPlace(records, records[1].Plan), " "), "four three")
}

func TestADatabaseToLeaveAloneIsARefusalWithItsReason(t *testing.T) {
	t.Parallel()
	for err, reason := range map[error]Refusal{
		ErrNewerSchema:          RefusedNewerSchema,
		ErrNoScope:              RefusedNoScope,
		sitelock.ErrNewerBinary: RefusedNewerBinary,
		sitelock.ErrScopeTaken:  RefusedScopeTaken,
		sitelock.ErrRemoved:     RefusedRemoved,
	} {
		told := AsRefusal(fmt.Errorf("open: %w", err))
		equal(t, err.Error(), reasonOf(told), string(reason))
		equal(t, "verdict", verdictOf(told), VerdictRefused)
		equal(t, "text", told.Error(), "open: "+err.Error())
		again, ok := AsRefusal(told).(*RefusedError) //nolint:errorlint // the outermost error is the one in question
		if !ok || !errors.Is(told, err) {
			t.Errorf("%v hides its cause", told)
		} else if _, twice := errors.AsType[*RefusedError](again.Err); twice {
			t.Errorf("%v is wrapped twice", told)
		}
	}
	other := AsRefusal(errors.New("connection refused"))
	if _, refused := errors.AsType[*RefusedError](other); refused || AsRefusal(nil) != nil {
		t.Error("another error is made a refusal")
	}
}

func TestEveryMoveIsAnEdgeOfThePlansLife(t *testing.T) {
	t.Parallel()
	p := plan.Plan{Status: plan.Applying, ClaimedFrom: plan.Pending}
	move, err := moveOf(p, plan.EventSucceed, plan.OutcomeApplied, nil)
	if err != nil || move.From != plan.Applying || move.To != plan.Applied || move.Outcome != plan.OutcomeApplied {
		t.Errorf("move %+v, %v", move, err)
	}
	if move, err = moveOf(plan.Plan{Status: plan.Pending}, plan.EventSucceed, "", nil); err == nil {
		t.Errorf("a pending plan made the move %+v", move)
	}
}
