package engine

import (
	"cmp"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/belayhq/belay/plan"
	"github.com/belayhq/belay/sitelock"
	"github.com/belayhq/belay/tenant"
)

// Verdict is what an operation came to on one tenant.
type Verdict string

// The verdicts.
const (
	VerdictApplied           Verdict = "applied"
	VerdictAlreadyApplied    Verdict = "already_applied"
	VerdictRolledBack        Verdict = "rolled_back"
	VerdictAlreadyRolledBack Verdict = "already_rolled_back"
	VerdictVerified          Verdict = "verified"
	VerdictResolved          Verdict = "resolved"
	VerdictFailed            Verdict = "failed"  // failed, and nothing of it is left in place
	VerdictPartial           Verdict = "partial" // needs a person: some steps are in place, or the plan is quarantined
	VerdictBusy              Verdict = "busy"    // someone else has the lock
	VerdictCancelled         Verdict = "cancelled"
	VerdictRefused           Verdict = "refused" // before anything was touched
	VerdictSkipped           Verdict = "skipped" // never started: the run had stopped before
)

// Result is what an operation did to one tenant.
type Result struct {
	Tenant  tenant.Tenant
	Plan    plan.ID
	Change  string
	Digest  plan.Digest
	Verdict Verdict
	// StepsDone counts the steps in place at the end, of StepsTotal.
	StepsDone, StepsTotal int
	// Recovered lists plans that a dead holder had left in flight.
	Recovered []sitelock.Recovered
	// Also lists the other changes that the same operation applied or rolled back before, in that order: those missing from
	// a list, or those on top of the one to go back to.
	Also []string
	// Err is why the verdict is not a good one; nil otherwise.
	Err      error
	Duration time.Duration
}

// StepError says which step of a plan failed, and where.
type StepError struct {
	Tenant    string
	Change    string
	Plan      plan.ID
	Step      string
	Direction plan.Direction
	// File and Line are of the statement that failed; empty and 0 if it was no statement.
	File string
	Line int
	Err  error
}

func (e *StepError) Error() string {
	verb := "step"
	if e.Direction == plan.Down {
		verb = "undo of step"
	}
	if e.File != "" {
		return fmt.Sprintf("%s %s (%s:%d): %s", verb, e.Step, e.File, e.Line, e.Err)
	}
	return fmt.Sprintf("%s %s: %s", verb, e.Step, e.Err)
}

func (e *StepError) Unwrap() error { return e.Err }

// PlanError says how an operation on one tenant failed and what is in place now. An apply that failed and whose undo
// failed too carries both errors, the first one first.
type PlanError struct {
	Tenant string
	Plan   plan.ID
	Change string
	// Applied names the steps in place now, in order; Undone those that were in place and are not any more.
	Applied, Undone []string
	// Failed is the step that failed; empty if it was no step.
	Failed string
	// Err is the first error; UndoErr the one that then stopped the undo, nil if none did.
	Err, UndoErr error
}

func (e *PlanError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "tenant %s, change %s: %s", e.Tenant, e.Change, e.Err)
	if e.UndoErr != nil {
		fmt.Fprintf(&b, "; then the undo failed: %s", e.UndoErr)
	}
	when := "in place now"
	if _, lost := errors.AsType[*sitelock.LockLostError](e.Err); lost {
		when = "in place when last seen"
	}
	fmt.Fprintf(&b, "; %s: %s", when, cmp.Or(strings.Join(e.Applied, ", "), "nothing"))
	return b.String()
}

func (e *PlanError) Unwrap() []error {
	if e.UndoErr != nil {
		return []error{e.Err, e.UndoErr}
	}
	return []error{e.Err}
}

// Progress is one thing that happened to a plan, for those who watch.
type Progress struct {
	At     time.Time
	Kind   ProgressKind
	Tenant tenant.ID
	Name   string
	Plan   plan.ID
	Change string
	// Step is the one it is about, if any.
	Step                  string
	StepsDone, StepsTotal int
	// Waiting is set for KindWaiting, Recovered for KindRecovered.
	Waiting   *sitelock.Waiting
	Recovered *sitelock.Recovered
	Err       error
}

// ProgressKind is what happened.
type ProgressKind string

// The kinds of progress.
const (
	KindWaiting    ProgressKind = "waiting"     // someone else has the lock
	KindRecovered  ProgressKind = "recovered"   // a dead holder's plan was taken back
	KindClaimed    ProgressKind = "claimed"     // the plan is in flight
	KindStepDone   ProgressKind = "step_done"   // committed
	KindStepUndone ProgressKind = "step_undone" // committed
	KindStepFailed ProgressKind = "step_failed" // nothing of it is in place
	KindUndoing    ProgressKind = "undoing"     // a failed apply turns back
	KindFinished   ProgressKind = "finished"    // the plan rests
)
