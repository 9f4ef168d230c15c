package sitelock

import (
	"errors"
	"fmt"
	"time"
)

var (
	// ErrRefused is returned by a store when someone else's lease is live.
	ErrRefused = errors.New("lock is held by someone else")
	// ErrContended is returned by a store when a row it must not wait for is locked at this moment, or the database is
	// busy. Trying again shortly is right.
	ErrContended = errors.New("database is busy")
	// ErrNotHeld is returned to a caller who releases or renews what is no longer its own. After a release it is
	// usually not worth acting on: the lock had lapsed and was taken.
	ErrNotHeld = errors.New("lock is not held")
	// ErrNewerBinary is returned when the tenant has a plan in flight that only a newer Belay can read.
	ErrNewerBinary = errors.New("a plan in flight was written by a newer version of belay; this one must not touch it")
	// ErrScopeTaken is returned when the scope in the database belongs to another tenant id: two registrations of one
	// site would have two locks.
	ErrScopeTaken = errors.New("this target belongs to another tenant id")
	// ErrRemoved is returned when the tenant has been removed.
	ErrRemoved = errors.New("tenant has been removed")
)

// LockBusyError says that a tenant's lock is someone else's.
type LockBusyError struct {
	// State is who has it, or had it last; nil if the holder was just finishing, or if the database is too busy to tell.
	State *State
	// Cause wraps ErrContended if the database was busy, so that trying again shortly is right, or is why State could not be
	// read; nil otherwise.
	Cause error
}

func (e *LockBusyError) Error() string {
	switch {
	case e.State == nil && errors.Is(e.Cause, ErrContended):
		return "locked: database is busy, try again" + e.why()
	case e.State == nil && e.Cause != nil:
		return fmt.Sprintf("locked: reading by whom: %v", e.Cause)
	case e.State == nil:
		return "locked: the holder was just finishing, try again"
	}
	s := e.State
	if s.Operation == OpHold {
		return fmt.Sprintf("held by an operator on %s (pid %d) since %s, reason: %s; ends by itself at %s, or with: belay lock release",
			s.Host, s.PID, clock(s.Since), s.Reason, clock(s.Expires))
	}
	what := string(s.Operation)
	if s.Change != "" {
		what += " of " + s.Change
	}
	if s.Holder == "" {
		return fmt.Sprintf("locked: somebody else had it in between (fence %d)", s.Fence)
	}
	if !s.Live {
		lapsed := fmt.Sprintf("locked by %s on %s (pid %d, lapsed) since %s; lapsed at %s, the next apply or rollback recovers it",
			what, s.Host, s.PID, clock(s.Since), clock(s.Expires))
		if errors.Is(e.Cause, ErrContended) {
			lapsed += "; the database is busy, try again"
		}
		return lapsed
	}
	return fmt.Sprintf("locked by %s on %s (pid %d, alive) since %s; lapses by %s unless renewed, then the next apply or rollback recovers it",
		what, s.Host, s.PID, clock(s.Since), clock(s.Expires))
}

// why is what else is known of a busy database: that a row is locked, or that it takes no more connections.
func (e *LockBusyError) why() string {
	if e.Cause.Error() == ErrContended.Error() {
		return ""
	}
	return ": " + e.Cause.Error()
}

func (e *LockBusyError) Unwrap() error { return e.Cause }

// LockLostError says that a holder no longer has its lock. It is final: a lease found lost never becomes held again.
type LockLostError struct {
	Held  Held
	Lease time.Duration
	// Current is who has the lock now; nil if that is not known.
	Current *State
}

func (e *LockLostError) Error() string {
	who := "someone else may have recovered this plan"
	if e.Current != nil && e.Current.Live && e.Current.Holder != e.Held.Holder {
		who = fmt.Sprintf("%s on %s (pid %d) has it now and may have recovered this plan", e.Current.Operation, e.Current.Host, e.Current.PID)
	}
	within := "in time"
	if e.Lease > 0 {
		within = "within its lease of " + e.Lease.String()
	}
	return fmt.Sprintf("lock lost (fence %d): not renewed %s, or taken over; stopped here, %s", e.Held.Fence, within, who)
}

// NotRenewedError is returned by [Store.Renew] when it renewed some locks and could not look at others, whose rows were
// locked at this moment. What it does not list, and is not lost, was renewed. After any other error nothing counts as
// renewed.
type NotRenewedError struct {
	Held []Held
	// Err says why, normally ErrContended.
	Err error
}

func (e *NotRenewedError) Error() string {
	return fmt.Sprintf("%d locks not renewed: %v", len(e.Held), e.Err)
}

func (e *NotRenewedError) Unwrap() error { return e.Err }

func clock(t time.Time) string { return t.UTC().Format(time.RFC3339) }
