package plan

import (
	"time"

	"github.com/google/uuid"

	"github.com/belayhq/belay/tenant"
)

// Fence is the number that grows at every change of custody of a site lock and never restarts.
type Fence int64

// MaxAttempts is how many claims in a row may pass without one step committing; the plan is then quarantined.
const MaxAttempts = 5

// Format is the newest form of a plan that this binary reads. A plan in flight with a higher one is left alone.
const Format = 1

// ID identifies a plan: a UUID in canonical text.
type ID string

// NewID returns a fresh random ID.
func NewID() ID { return ID(uuid.NewString()) }

// Plan is a change addressed to one tenant. A tenant has at most one plan for each change.
type Plan struct {
	ID     ID
	Tenant tenant.ID
	Change string
	// Digest pins the content of the change from the first claim of a cycle until nothing is in place.
	Digest Digest
	Status Status
	// ClaimedFrom is the status to return to if the claim ends without success; empty unless in flight.
	ClaimedFrom Status
	// Fence is that of the claim; zero unless in flight.
	Fence   Fence
	Outcome Outcome
	// Attempts counts claims since a step last committed.
	Attempts int
	// AppliedSeq orders a tenant's plans by their first claim of the present cycle; zero while nothing is in place. Rollback
	// goes against this order.
	AppliedSeq int64
	// Cycle counts how often the plan went from pending to in flight with nothing in place: 0 before the first claim.
	Cycle      int
	StepsTotal int
	Format     int
	// LastError is what ended the last claim that failed; nil if it succeeded.
	LastError            *Failure
	CreatedAt, UpdatedAt time.Time
}

// InFlight reports whether a holder has claimed the plan.
func (p Plan) InFlight() bool { return p.Status.InFlight() }

// Quarantined reports whether the plan is claimed again only when a person asks.
func (p Plan) Quarantined() bool { return p.Outcome == OutcomeQuarantined && !p.InFlight() }

// Failure is the reason, for people, why a claim failed. It holds no row value and no secret.
type Failure struct {
	Step        string `json:"step,omitempty"`
	Message     string `json:"message"`
	UndoMessage string `json:"undo_message,omitempty"`
}

// Direction is the way a plan's steps are carried out.
type Direction string

// The directions.
const (
	Up   Direction = "up"   // apply
	Down Direction = "down" // roll back
)

// StepState is what the journal says of one step.
type StepState string

// The states of a step. A step without a row never ran. In doubt means that the holder was to run an effect outside
// the database and nobody recorded how it ended.
const (
	StepIntent     StepState = "intent"      // about to run, or in doubt
	StepDone       StepState = "done"        // in place
	StepUndoIntent StepState = "undo_intent" // about to be undone, or its undo in doubt: neither in place nor undone
	StepUndone     StepState = "undone"
)

// Entry is the journal row of one step of a plan.
type Entry struct {
	// Ordinal counts the steps of the change from 0.
	Ordinal int
	Step    string
	State   StepState
	// Fence is that of the term that wrote the row.
	Fence Fence
	Cycle int
	// Attempt counts the intents written for this step in this direction.
	Attempt int
	// WaitLeft is how long an effect begun by the term that wrote the intent may still be running, by the clock of the
	// database at the time of reading. Zero for any other state.
	WaitLeft  time.Duration
	UpdatedAt time.Time
}

// Record is a plan with its journal, ordered by Ordinal.
type Record struct {
	Plan    Plan
	Journal []Entry
}

// InPlace counts the steps whose effects are in place.
func (r Record) InPlace() int {
	n := 0
	for _, e := range r.Journal {
		if e.State == StepDone {
			n++
		}
	}
	return n
}

// Touched reports whether any step is in place or in doubt.
func (r Record) Touched() bool {
	for _, e := range r.Journal {
		if e.State != StepUndone {
			return true
		}
	}
	return false
}

// Partial reports whether the plan rests in a status that its journal contradicts: pending with a step in place or in
// doubt, or applied with a step missing or in doubt. It is derived, never stored.
func (r Record) Partial() bool {
	switch r.Plan.Status {
	case Pending:
		return r.Touched()
	case Applied:
		return r.InPlace() < r.Plan.StepsTotal
	case Applying, RollingBack:
		return false
	}
	return false
}

// Unfinished reports whether the plan needs another operation before it rests as its status says: it is partial, or in
// flight, alive or abandoned.
func (r Record) Unfinished() bool { return r.Plan.InFlight() || r.Partial() }

// State returns what the journal says of the step at ordinal; empty if it never ran.
func (r Record) State(ordinal int) StepState {
	for _, e := range r.Journal {
		if e.Ordinal == ordinal {
			return e.State
		}
	}
	return ""
}
