package engine

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/belayhq/belay/plan"
	"github.com/belayhq/belay/sitelock"
	"github.com/belayhq/belay/tenant"
)

// Directory opens the database that a tenant's data live in. Tenants of one database share one Store: stores are
// compared by identity to batch their renewals.
type Directory interface {
	// Open returns the store of the tenant's target. The caller calls release once, when it needs the store no longer;
	// nothing may use the store afterwards.
	Open(ctx context.Context, t tenant.Tenant) (store Store, release func(), err error)
}

// Store keeps the locks, plans and journals of one target database and carries out steps in it. There is no way to
// begin or commit a transaction from outside: Claim and Checkpoint are the only calls that write for a holder, and both
// begin by proving the fence.
type Store interface {
	sitelock.Store

	// Dialect says which of a change's scripts this database takes.
	Dialect() tenant.Dialect

	// Claim moves a plan in flight under a lock already held. It returns nil without an error if the claim is refused, by
	// the rule of [plan.WhyNotClaim].
	Claim(ctx context.Context, held sitelock.Held, claim sitelock.Claim) (*plan.Record, error)
	// Checkpoint commits a group of steps, or nothing: prove the fence, carry the steps out, write their journal rows,
	// and make the group's move. Errors: *sitelock.LockLostError, *StepFailure, ErrUnknownOutcome, ErrRetryTransaction,
	// ErrBudgetSpent, or another failure after which nothing of the group is in place.
	Checkpoint(ctx context.Context, held sitelock.Held, group Group) error
	// Submit stores a pending plan without running it, unless the tenant has one for this change, and returns the plan
	// either way. A pending plan with nothing in place or in doubt takes the digest of the change given.
	Submit(ctx context.Context, id tenant.ID, scope string, newPlan plan.ID, change *plan.Change) (plan.Plan, error)

	// Records reads all plans of a tenant with their journals, by AppliedSeq (those never claimed last, by creation).
	Records(ctx context.Context, id tenant.ID) ([]plan.Record, error)
	// Change reads a change by digest.
	Change(ctx context.Context, digest plan.Digest) (*plan.Change, error)
	// Survey reads, in a constant number of round trips, the lock and the plans with their journals of up to 1,000
	// tenants; with a change id only that plan and those that are partial. The order is that of ids.
	Survey(ctx context.Context, ids []tenant.ID, change string) ([]Survey, error)
	// Image reads the before-image of a step: nil if it has none, not nil if it has an empty one. A damaged image is
	// ErrImageDamaged.
	Image(ctx context.Context, id tenant.ID, p plan.ID, ordinal int) ([]byte, error)
	// Events reads a tenant's history, newest first, at most limit rows.
	Events(ctx context.Context, id tenant.ID, limit int) ([]Event, error)
	// Verify runs a verify query read-only in the tenant's scope, without a lock.
	Verify(ctx context.Context, scope string, v plan.Verify, timeout time.Duration) error
}

// Survey is what one read says of a tenant.
type Survey struct {
	Tenant  tenant.ID
	Lock    sitelock.State
	Records []plan.Record
}

// Event is one row of a tenant's history: a transition, written in its own transaction.
type Event struct {
	Seq       int64
	At        time.Time
	Fence     sitelock.Fence
	Plan      plan.ID
	Change    string
	Kind      plan.Event
	From, To  plan.Status
	Outcome   plan.Outcome
	Operation sitelock.Operation
	Holder    sitelock.HolderID
	sitelock.Process
	Reason  string
	Failure *plan.Failure
}

// Group is one checkpoint as data.
type Group struct {
	Plan      plan.ID
	Scope     string
	Direction plan.Direction
	Cycle     int
	Steps     []GroupStep
	// Move, if set, changes the plan's status in this transaction, after the steps.
	Move *Move
	// Progressed says that a step of this claim was committed before, so that the count of attempts is 0 already.
	Progressed bool
	// Release frees the lock in this transaction, after the move. If the group fails, the lock is still held.
	Release bool
	// Lease extends the lock as the transaction's last write, on databases where an open transaction keeps renewals
	// out (SQLite).
	Lease time.Duration
	// Budget is the time that a group of several steps may take; the store fails with ErrBudgetSpent when it is used up
	// and steps are left. Zero means no bound. A group of one step has none but the step's timeout.
	Budget time.Duration
	Limits Limits
}

// Limits are what the database itself enforces on the transaction, so that a stalled holder cannot keep rows locked.
type Limits struct {
	// Idle ends a transaction whose client has gone silent (PostgreSQL: idle_in_transaction_session_timeout).
	Idle time.Duration
	// LockWait bounds every wait for a row or table lock of a step.
	LockWait time.Duration
}

// GroupStep is one step of a group. Its parts happen in this order: Statements, Action, Verify, the journal row.
type GroupStep struct {
	Ordinal int
	ID      string
	// State is what the journal says afterwards. An intent or undo intent runs nothing: it is written before an
	// effect outside the database.
	State plan.StepState
	// New says that the journal has no row of this step. The store refuses the group if there is one.
	New        bool
	Statements []plan.Statement
	// Action runs inside the transaction and returns the before-image to keep; nil keeps none. The store calls it at
	// most once per Checkpoint.
	Action func(ctx context.Context, tx Tx) (before []byte, err error)
	// Image is stored with the journal row, unless the step has one already: it is write-once until the step is undone.
	Image  []byte
	Verify *plan.Verify
	// Timeout bounds each statement, the action and the verify query. For an intent it is the deadline of the effect; zero
	// says that the call of the attempt before has returned, so that nobody need wait for it: it counts no new attempt.
	Timeout time.Duration
}

// returned reports whether the step says only that a call has returned.
func (s *GroupStep) returned() bool {
	return s.Timeout == 0 && (s.State == plan.StepIntent || s.State == plan.StepUndoIntent)
}

// Move changes the status of a group's plan.
type Move struct {
	Event    plan.Event
	From, To plan.Status
	// Outcome to record; empty leaves the one before. A move that would leave the plan partial with an outcome that is not
	// [plan.Outcome.Unsettled] is refused. The store writes OutcomeQuarantined instead of a failed or
	// interrupted one once the plan has used up plan.MaxAttempts claims without a step committing.
	Outcome plan.Outcome
	Failure *plan.Failure
	// Reason is a person's, for a resolve.
	Reason string
}

// Tx is the open transaction of a checkpoint, as an action sees it. It has no commit. Placeholders are the database's
// own: $1 on PostgreSQL, ? on SQLite. The storage packages' Unwrap give the native one.
type Tx interface {
	// Exec runs one statement and returns the rows it changed.
	Exec(ctx context.Context, sql string, args ...any) (int64, error)
	// Query runs one statement and calls row for each row, with a function that scans it. It stops at row's first error.
	Query(ctx context.Context, sql string, args []any, row func(scan func(dest ...any) error) error) error
}

var (
	// ErrUnknownOutcome says that the connection died around a commit: the transaction may or may not have taken effect.
	ErrUnknownOutcome = errors.New("connection lost around a commit, its outcome is unknown")
	// ErrRetryTransaction says that the database asked to run the transaction again (serialization failure, deadlock).
	ErrRetryTransaction = errors.New("database asked to retry the transaction")
	// ErrBudgetSpent says that a group of several steps took longer than its budget; nothing of it is in place.
	ErrBudgetSpent = errors.New("group used up its budget")
	// ErrVerifyUnable is wrapped when a verify query could not run, as opposed to said no.
	ErrVerifyUnable = errors.New("verify could not run")
	// ErrVerifyNo is wrapped when a verify query ran and its answer is not the expected one.
	ErrVerifyNo = errors.New("verify says no")
	// ErrStepEscaped is wrapped when a step left its scope: ended the transaction, changed the role or the search
	// path, or reached for Belay's own tables.
	ErrStepEscaped = errors.New("step left its scope")
	// ErrLeftBehind is wrapped in the error of an action that ignored the end of its context, and may still be running. A
	// store that gets it from a step's Action gives up the connection at once, without waiting for a call under way on it,
	// and never uses it again.
	ErrLeftBehind = errors.New("action ignored the end of its context")
	// ErrImageDamaged says that a before-image does not match its checksum, or is gone.
	ErrImageDamaged = errors.New("before-image is damaged")
	// ErrNewerSchema is wrapped when Belay's tables were made by a newer Belay; the message names both versions.
	ErrNewerSchema = errors.New("belay's tables are of a newer version")
	// ErrNoScope is wrapped when the database has no such schema.
	ErrNoScope = errors.New("no such schema")
	// ErrChangeUnknown says that no change with this digest is stored.
	ErrChangeUnknown = errors.New("change is not stored in this database")
)

// StepFailure says which step of a group failed. Nothing of the group is in place.
type StepFailure struct {
	// Step indexes the group's steps.
	Step int
	// File and Line are of the statement that failed; empty and 0 for an action or a verify query.
	File string
	Line int
	Err  error
}

func (e *StepFailure) Error() string {
	if e.File == "" {
		return e.Err.Error()
	}
	return fmt.Sprintf("%s:%d: %s", e.File, e.Line, e.Err)
}

func (e *StepFailure) Unwrap() error { return e.Err }
