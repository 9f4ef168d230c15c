package sitelock

import (
	"time"

	"github.com/belayhq/belay/plan"
)

// StateKind is what a lock's state comes down to for people.
type StateKind string

// The kinds of lock state.
const (
	StateIdle    StateKind = "idle"    // nobody has it, and no plan is in flight
	StateRunning StateKind = "running" // a live holder has it
	// StateInterrupted: plans in flight without a live lock. The next apply or rollback recovers them.
	StateInterrupted StateKind = "interrupted"
	StateHeld        StateKind = "held" // an operator holds it
)

// State is a site lock as read at Now, by the database's clock.
type State struct {
	// Holder is empty if the lock is free.
	Holder HolderID
	Fence  Fence
	Process
	Operation Operation
	Plan      plan.ID
	// Change is that of Plan, if the holder works on one.
	Change         string
	Reason         string
	Since, Expires time.Time
	Now            time.Time
	// Live reports whether the lease had not lapsed: the very predicate that Acquire uses.
	Live bool
	// InFlight lists the tenant's plans in flight, normally none or the holder's.
	InFlight []plan.Plan
}

// Kind says what the state comes down to.
func (s State) Kind() StateKind {
	switch {
	case s.Live && s.Operation == OpHold:
		return StateHeld
	case s.Live:
		return StateRunning
	case len(s.InFlight) > 0:
		return StateInterrupted
	}
	return StateIdle
}

// NeedsNewerBinary reports whether a plan in flight has a format that this binary cannot read and so must not recover.
func (s State) NeedsNewerBinary() bool {
	for _, p := range s.InFlight {
		if p.Format > plan.Format {
			return true
		}
	}
	return false
}
