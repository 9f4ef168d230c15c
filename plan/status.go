package plan

import "fmt"

// Status is where a plan stands. A plan in flight (applying or rolling_back) belongs to exactly one live holder of its
// tenant's site lock.
type Status string

// The four statuses. There are no others.
const (
	Pending     Status = "pending"
	Applying    Status = "applying"
	Applied     Status = "applied"
	RollingBack Status = "rolling_back"
)

// InFlight reports whether only a live holder may have a plan in this status.
func (s Status) InFlight() bool { return s == Applying || s == RollingBack }

// Event is what moves a plan from one status to another.
type Event string

// The events of a plan's life.
const (
	EventClaimApply        Event = "claim_apply"    // a holder begins to apply
	EventClaimRollback     Event = "claim_rollback" // a holder begins to roll back
	EventUndo              Event = "undo"           // a failed apply turns into a rollback under the same lease
	EventSucceed           Event = "succeed"        // every step is in place, or every step is undone
	EventFail              Event = "fail"           // the holder gives up, and says so
	EventRecover           Event = "recover"        // the holder died; the next acquire returns its plan
	EventResolveApplied    Event = "resolve_applied"
	EventResolveRolledBack Event = "resolve_rolled_back"
	EventBreak             Event = "break" // an operator took the lock away: in histories only, no move of [Next]
)

// Next is the one place where it is decided how a plan's status changes.
//
//	           claim_apply                    succeed
//	pending ───────────────▶ applying ─────────────────▶ applied
//	 ▲ ▲  │  ◀── fail, recover ──┘ │ undo                 ▲   │
//	 │ │  │                        ▼      fail, recover   │   │
//	 │ │  └─ claim_rollback ─▶ rolling_back ──────────────┘   │
//	 │ │     (if partial)      │   ▲  │                       │
//	 │ └─────── succeed ───────┘   └──┼──── claim_rollback ───┘
//	 └─────── fail, recover ──────────┘
//
// Fail and recover return a plan to claimedFrom, the status it was claimed from; a plan without one (a row that an
// operator edited) goes back to the status before the one it is in. Whether a pending plan may be rolled back at all is
// a matter of its journal, see [Record.Partial]; resolve moves a plan that is not in flight to what a person says.
//
// PostgreSQL claims and recovers in one statement each (storage/postgres/claim.go), which spell these edges in SQL;
// storagetest holds both stores to this table.
func Next(from, claimedFrom Status, event Event) (Status, error) {
	switch event {
	case EventClaimApply:
		if from == Pending {
			return Applying, nil
		}
	case EventClaimRollback:
		if from == Applied || from == Pending {
			return RollingBack, nil
		}
	case EventUndo:
		if from == Applying {
			return RollingBack, nil
		}
	case EventSucceed:
		switch from {
		case Applying:
			return Applied, nil
		case RollingBack:
			return Pending, nil
		case Pending, Applied:
		}
	case EventFail, EventRecover:
		if from.InFlight() {
			return returnTo(from, claimedFrom)
		}
	case EventResolveApplied:
		if from == Pending || from == Applied {
			return Applied, nil
		}
	case EventResolveRolledBack:
		if from == Pending || from == Applied {
			return Pending, nil
		}
	case EventBreak:
	}
	return "", fmt.Errorf("a plan that is %s cannot %s", from, event)
}

func returnTo(from, claimedFrom Status) (Status, error) {
	switch {
	case claimedFrom == Pending, claimedFrom == Applied && from == RollingBack:
		return claimedFrom, nil
	case claimedFrom == "" && from == Applying:
		return Pending, nil
	case claimedFrom == "" && from == RollingBack:
		return Applied, nil
	}
	return "", fmt.Errorf("a plan that is %s cannot have been claimed from %s", from, claimedFrom)
}

// Outcome tells what brought a plan to the status it rests in. The move that ends a claim writes it.
type Outcome string

// The outcomes.
const (
	OutcomeNeverRun    Outcome = "never_run"
	OutcomeInterrupted Outcome = "interrupted" // its holder died or was cancelled with something in place
	OutcomeFailed      Outcome = "failed"
	OutcomeRolledBack  Outcome = "rolled_back"
	OutcomeApplied     Outcome = "applied"
	OutcomeQuarantined Outcome = "quarantined" // claimed MaxAttempts times without one step committing
	OutcomeResolved    Outcome = "resolved"    // a person said what is true
)

// Unsettled reports whether a plan at rest with this outcome may be partial. No store lets one rest partial with any other:
// whoever looks for partial plans, which block their tenant, need look only among these.
func (o Outcome) Unsettled() bool {
	return o == OutcomeInterrupted || o == OutcomeFailed || o == OutcomeQuarantined
}
