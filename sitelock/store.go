package sitelock

import (
	"context"
	"time"

	"github.com/google/uuid"

	"github.com/belayhq/belay/plan"
	"github.com/belayhq/belay/tenant"
)

// Fence is the number that grows at every change of custody of a lock and never restarts.
type Fence = plan.Fence

// HolderID identifies one acquisition: a fresh UUID each time, so that a process never takes an old row for its own.
type HolderID string

// NewHolderID returns a fresh random HolderID.
func NewHolderID() HolderID { return HolderID(uuid.NewString()) }

// Held is the proof of custody that every writing call carries. It stays valid exactly as long as the lock row has this
// holder and this fence.
type Held struct {
	Tenant tenant.ID
	Holder HolderID
	Fence  Fence
}

// Process is what a lock row tells people about its holder. No decision rests on it.
type Process struct {
	Host      string
	PID       int
	StartedAt time.Time
}

// Operation is what a holder does with a tenant.
type Operation string

// The operations.
const (
	OpApply    Operation = "apply"
	OpRollback Operation = "rollback"
	OpResolve  Operation = "resolve"
	OpHold     Operation = "hold" // an operator's own lease; see [Request.Reason]
	OpRemove   Operation = "remove"
)

// Claim asks for a plan to be moved in flight in the transaction that acquires the lock, or in one that proves it.
//
// The store makes the claim only if nothing speaks against it: [plan.WhyNotClaim] is the rule. Otherwise the grant comes back
// without a plan, and the caller reads why.
type Claim struct {
	Direction plan.Direction
	// Change is the change's id, Digest its content. A rollback takes the digest that the plan is pinned to.
	Change string
	Digest plan.Digest
	// Body is the change itself, stored by digest. Only an apply needs it.
	Body *plan.Change
	// NewPlan is the id that the plan gets if the tenant has none for Change yet. Only an apply creates plans.
	NewPlan plan.ID
	// Retry claims a quarantined plan too, and counts its attempts from 1 again.
	Retry bool
	// Repin lets a partial plan take a new digest. The caller has checked that only steps not in place differ.
	Repin bool
}

// Request is one try to acquire a site lock.
type Request struct {
	Tenant tenant.ID
	// Scope is where the tenant's data live in this database; a scope belongs to one tenant id.
	Scope     string
	Holder    HolderID
	Process   Process
	Operation Operation
	// Lease is how long the lock lives without a renewal.
	Lease time.Duration
	// Claim is the plan to move in flight; nil to hold the lock without one.
	Claim *Claim
	// Replace is an acquisition of the caller's own, given up because the outcome of its last transaction is unknown. The
	// new acquisition takes over from it at once, and so waits for that transaction to be decided. It is refused if
	// anybody had the lock in between, even if it is free again: what they did must not be done over.
	Replace Held
	// Reason is why an operator holds the tenant. Only for OpHold.
	Reason string
	// OnWait is called by [Locker.Acquire] when a wait for someone else's lock begins, and again when the lock changes hands
	// meanwhile, by the goroutine that waits. May be nil; no store looks at it.
	OnWait func(Waiting)
}

// Grant is an acquired lock.
type Grant struct {
	Held    Held
	Expires time.Time
	// Recovered lists the plans that a dead holder had left in flight, now back in the status they were claimed from.
	Recovered []Recovered
	// Claimed is the plan that the request asked for, with its journal; nil if the claim was refused or none was asked.
	Claimed *plan.Record
}

// Recovered is a plan taken back from a dead holder.
type Recovered struct {
	Plan   plan.ID
	Change string
	// Was is the status the dead holder left behind, Status the one it was claimed from.
	Was, Status plan.Status
	// Process is of the dead holder; empty when its lock row had been freed.
	Process Process
}

// Store keeps site locks in a database. One Store serves many tenants. Times are of the database's clock throughout: no
// method takes a time. Every error is translated: [ErrRefused], [ErrContended], *[LockLostError], [ErrNotHeld], or one
// that wraps the driver's.
type Store interface {
	// Acquire takes a lock that is free, lapsed, the holder's own or Replace, raises its fence, returns every abandoned
	// plan of the tenant to the status it was claimed from, and makes the claim: all in one transaction, without waiting
	// for any row. A second call with the same Holder recognises its row, and keeps its fence. It returns ErrRefused if
	// someone else's lease is live, ErrContended if a row is locked at this moment.
	Acquire(ctx context.Context, req Request) (Grant, error)
	// Renew extends all the given locks to now + lease in one statement and returns those that are lost: gone or taken.
	// A lock it could not look at is neither renewed nor lost, and an error says so: *[NotRenewedError] if the others were
	// renewed.
	Renew(ctx context.Context, held []Held, lease time.Duration) (lost []Held, err error)
	// Release frees the lock and keeps its fence. It returns ErrNotHeld if the caller no longer holds it.
	Release(ctx context.Context, held Held) error
	// State reads who has the tenant's lock. A tenant never locked is idle.
	State(ctx context.Context, id tenant.ID) (State, error)
	// Break takes the lock over from whoever has it, recovers the tenant's plans and frees it, in one transaction. The
	// event records by and reason. A free lock may be broken too.
	Break(ctx context.Context, id tenant.ID, by Process, reason string) ([]Recovered, error)
}

// LeaseStore keeps named leases: the same primitive without plans, for work that must run on one process only.
type LeaseStore interface {
	// AcquireLease takes a named lease that is free, lapsed or the holder's own, and raises its fence. Busy is false,
	// not an error, and the lease returned is the one there is.
	AcquireLease(ctx context.Context, name string, holder HolderID, by Process, ttl time.Duration) (Lease, bool, error)
	// RenewLease extends a lease to now + ttl. It returns ErrNotHeld if the lease is gone or taken.
	RenewLease(ctx context.Context, held HeldLease, ttl time.Duration) error
	// ReleaseLease frees a lease and keeps its fence. It returns ErrNotHeld if the caller does not hold it.
	ReleaseLease(ctx context.Context, held HeldLease) error
	// Lease reads one named lease; false if it was never taken.
	Lease(ctx context.Context, name string) (Lease, bool, error)
	// Leases lists all that were ever taken, by name.
	Leases(ctx context.Context) ([]Lease, error)
}

// HeldLease is the proof of custody of a named lease, as [Held] is of a site lock.
type HeldLease struct {
	Name   string
	Holder HolderID
	Fence  Fence
}

// Lease is a named lease as the database has it.
type Lease struct {
	Name   string
	Holder HolderID // empty if free
	Fence  Fence
	Process
	Since, Expires time.Time
	// Live reports whether the lease had not lapsed, by the database's clock, when it was read.
	Live bool
}

// Held returns the custody of whoever has the lease.
func (l Lease) Held() HeldLease { return HeldLease{Name: l.Name, Holder: l.Holder, Fence: l.Fence} }
