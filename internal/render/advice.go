package render

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/belayhq/belay/engine"
	"github.com/belayhq/belay/plan"
	"github.com/belayhq/belay/sitelock"
)

// Command is what an operation was called as, for advice that repeats it.
type Command struct {
	// Name is apply, rollback, verify or resolve.
	Name string
	// Argument is the change as it was given: a path or an id.
	Argument string
	// Change is its id.
	Change string
	// To says that a rollback was one to the change, which stays.
	To bool
	// Flags are those that the same command needs again, such as --cascade.
	Flags []string
	// Elsewhere tells how to name another change, by its id, on the command line. Nil: by its id.
	Elsewhere func(id string) string
}

// Next is a command that is safe to run now, and what for.
type Next struct{ Command, Why string }

// Problem is a tenant's result that is not a good one, told to people: what happened and why, what is in place now, and
// what is safe to do next.
type Problem struct {
	Tenant string
	What   string
	Facts  []string
	Next   []Next
}

// NewProblem tells a result; false if there is nothing to tell.
func NewProblem(c Command, r engine.Result) (Problem, bool) {
	if r.Err == nil {
		return Problem{}, false
	}
	p := Problem{Tenant: r.Tenant.Name, What: r.Err.Error()}
	a := advice{Command: c, tenant: r.Tenant.Name, digest: r.Digest}
	if e, ok := errors.AsType[*engine.PlanError](r.Err); ok {
		p.What = fmt.Sprintf("%s: %v", e.Change, e.Err)
		p.Facts = planFacts(e)
		if e.Change != "" {
			a.Change = e.Change
		}
	}
	if lost, ok := errors.AsType[*sitelock.LockLostError](r.Err); ok {
		p.Facts = nil // what this process last knew is not what is in place
		p.Next = a.lost(lost)
		return p, true
	}
	for _, one := range r.Recovered {
		p.Facts = append(p.Facts, recoveredLine(one))
	}
	if e, ok := errors.AsType[*plan.DigestMismatchError](r.Err); ok {
		p.Facts = append(p.Facts, "in place: "+string(e.Pinned), "given:    "+string(e.Given))
	}
	p.Next = a.next(r)
	return p, true
}

// planFacts says what is in place.
func planFacts(e *engine.PlanError) []string {
	var facts []string
	if e.UndoErr != nil {
		facts = append(facts, fmt.Sprintf("then the undo failed: %v", e.UndoErr))
	}
	if len(e.Undone) > 0 {
		facts = append(facts, "undone: "+strings.Join(e.Undone, ", "))
	}
	if len(e.Applied) == 0 {
		return append(facts, "in place now: nothing of this change")
	}
	return append(facts, "in place now: "+strings.Join(e.Applied, ", "))
}

// advice makes the commands for one tenant.
type advice struct {
	Command
	tenant string
	digest plan.Digest
}

func (a advice) apply(flags string) string    { return a.line("apply", a.argument(), flags) }
func (a advice) rollback(flags string) string { return a.line("rollback", a.Change, flags) }

// again is the command as it was given, for this tenant.
func (a advice) again(more ...string) string {
	flags := strings.Join(append(slices.Clone(a.Flags), more...), " ")
	if a.To {
		return a.line("rollback --to", a.argument(), flags)
	}
	return a.line(a.Name, a.argument(), flags)
}

// argument is the change for a command that may need its files.
func (a advice) argument() string {
	if a.Argument == "" {
		return a.Change
	}
	return a.Argument
}

func (a advice) line(verb, change, flags string) string {
	return strings.TrimSpace(fmt.Sprintf("belay %s %s -t %s %s", verb, Quote(Clean(change)), Quote(a.tenant), flags))
}

func (a advice) resolve() Next {
	return Next{
		fmt.Sprintf("belay resolve %s %s --as applied|rolled-back --reason TEXT", Quote(a.tenant), Quote(Clean(a.Change))),
		"if you have put the tenant right by hand: say what is true of it",
	}
}

func (a advice) status() Next {
	return Next{"belay status -t " + Quote(a.tenant), "to see where it stands"}
}

func (a advice) next(r engine.Result) []Next {
	if e, ok := errors.AsType[*engine.RefusedError](r.Err); ok {
		return a.refused(e)
	}
	if e, ok := errors.AsType[*sitelock.LockBusyError](r.Err); ok {
		return a.busy(e)
	}
	switch r.Verdict {
	case engine.VerdictPartial:
		return a.partial(r)
	case engine.VerdictCancelled:
		next := []Next{{a.again(), "to go on from here"}}
		if a.Name == "apply" && r.StepsDone > 0 {
			next = append(next, Next{a.rollback(""), "to take back what is in place"})
		}
		return next
	case engine.VerdictFailed:
		return []Next{{a.again(), "when the cause is removed"}}
	case engine.VerdictApplied, engine.VerdictAlreadyApplied, engine.VerdictRolledBack, engine.VerdictAlreadyRolledBack,
		engine.VerdictVerified, engine.VerdictResolved, engine.VerdictBusy, engine.VerdictRefused, engine.VerdictSkipped:
	}
	return []Next{a.status()}
}

// partial is for a plan with some steps in place. An apply can be resumed; a rollback from applied can only go on.
func (a advice) partial(r engine.Result) []Next {
	next := []Next{{a.again(), "to go on from here when the cause is removed"}}
	if a.Name == "apply" {
		next = append(next, Next{a.rollback(""), "to take back what is in place"})
	}
	if e, ok := errors.AsType[*engine.PlanError](r.Err); ok && e.UndoErr != nil {
		next = []Next{
			{a.rollback(""), "to finish the undo when its cause is removed"},
			{a.apply(""), "to go forward again"},
		}
	}
	return append(next, a.resolve())
}

func (a advice) refused(e *engine.RefusedError) []Next {
	switch e.Reason {
	case engine.RefusedDigest:
		return []Next{
			{a.rollback(""), "then apply the edited change"},
			{"give the edit an id of its own", "a change in place is immutable"},
			{a.again("--repin"), "if only steps that are not in place were edited"},
		}
	case engine.RefusedIrreversible:
		if a.Name == "apply" {
			return []Next{{a.again("--allow-irreversible"), "if there need be no way back"}}
		}
		return []Next{{"write a change that puts right what this one did", "it cannot be undone"}, a.resolve()}
	case engine.RefusedRequires:
		return a.each(e.Changes, "apply", "first")
	case engine.RefusedBlocked:
		next := append(a.each(e.Changes, "apply", "to finish it"), a.each(e.Changes, "rollback", "to take it back")...)
		for _, change := range e.Changes {
			other := a
			other.Change = change
			next = append(next, other.resolve())
		}
		return next
	case engine.RefusedQuarantined:
		return []Next{{a.again("--retry"), "to try again when the cause is removed"}, a.resolve()}
	case engine.RefusedImage:
		return []Next{
			{"restore the tenant's database from a backup that has it", "then roll back again"},
			{"undo the step by hand", "then say so:"},
			a.resolve(),
		}
	case engine.RefusedHalfUndone:
		return []Next{{a.rollback(""), "to finish the rollback"}, a.resolve()}
	case engine.RefusedNewer:
		return []Next{{a.again("--cascade"), "to take the newer ones back too, newest first"}}
	case engine.RefusedOutOfOrder:
		return []Next{{a.again("--out-of-order"), "if it does not matter that they come late"}, a.status()}
	case engine.RefusedMoved:
		return []Next{{a.again("--dry-run"), "to see what would be done now"}, a.status()}
	case engine.RefusedInvalid:
		return []Next{{"belay change validate " + Quote(Clean(a.argument())), "to see everything that is wrong with it"}}
	case engine.RefusedNewerSchema:
		return []Next{{"belay db status -t " + Quote(a.tenant), "to see both versions; only a belay as new as the tables may write"}}
	case engine.RefusedNewerBinary:
		return []Next{{a.again(), "with a belay as new as the one that died on this tenant"}, a.status()}
	case engine.RefusedScopeTaken:
		return []Next{
			{"belay tenant show " + Quote(a.tenant), "to see the target; if it is the right one:"},
			{"belay tenant remove " + Quote(a.tenant) + " --force", "then add it again, which takes over the id that the target knows"},
		}
	case engine.RefusedRemoved:
		return []Next{{"belay tenant remove " + Quote(a.tenant), "to finish the removal; then add it again if it is to stay"}}
	case engine.RefusedNoScope:
		return []Next{
			{"belay tenant show " + Quote(a.tenant), "to see the target"},
			{a.again(), "when the schema is there"},
		}
	case engine.RefusedUnknown:
	}
	return []Next{a.status()}
}

func (a advice) each(changes []string, verb, why string) []Next {
	next := make([]Next, len(changes))
	for i, change := range changes {
		if verb == "apply" && a.Elsewhere != nil {
			change = a.Elsewhere(change)
		}
		next[i] = Next{a.line(verb, change, ""), why}
	}
	return next
}

func (a advice) busy(e *sitelock.LockBusyError) []Next {
	if e.State != nil && e.State.Live && e.State.Operation == sitelock.OpHold {
		return []Next{{"belay lock release " + Quote(a.tenant), "to end the hold, if it is over"}}
	}
	return []Next{
		{a.again("--lock-timeout 5m"), "to wait longer"},
		{"belay lock show " + Quote(a.tenant), "to see who has it"},
	}
}

func (a advice) lost(e *sitelock.LockLostError) []Next {
	next := []Next{a.status()}
	if e.Current == nil || !e.Current.Live {
		next = append(next, Next{a.again(), "recovers the plan and goes on"})
	}
	return next
}

// Write writes the problem as a block of lines.
func (p Problem) Write(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "error: %s: %s\n", Clean(p.Tenant), indentLines(CleanLines(p.What)))
	for _, fact := range p.Facts {
		fmt.Fprintf(&b, "  %s\n", indentLines(CleanLines(fact)))
	}
	WriteNext(&b, p.Next)
	_, err := io.WriteString(w, b.String())
	return err
}

// WriteNext writes commands that are safe next, each with its reason.
func WriteNext(b *strings.Builder, next []Next) {
	width := 0
	for _, n := range next {
		width = max(width, len(n.Command))
	}
	for i, n := range next {
		label := "  next: "
		if i > 0 {
			label = "        "
		}
		fmt.Fprintf(b, "%s%-*s  %s\n", label, width, n.Command, n.Why)
	}
}

func indentLines(s string) string { return strings.ReplaceAll(s, "\n", "\n  ") }
