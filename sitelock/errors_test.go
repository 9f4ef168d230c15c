package sitelock

import (
	"errors"
	"testing"
	"time"
)

func TestErrorsSayWhoSinceWhenAndHowItHeals(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 3, 1, 12, 0, 0, 0, time.FixedZone("", 3600))
	state := State{
		Holder: "h2", Process: Process{Host: "web-1", PID: 42}, Operation: OpApply, Change: "0042-customer",
		Since: at, Expires: at.Add(time.Minute), Live: true,
	}
	with := func(change func(*State)) *State {
		s := state
		change(&s)
		return &s
	}
	held := Held{Holder: "h1", Fence: 12}
	for name, tt := range map[string]struct {
		err  error
		want string
	}{
		"busy": {
			&LockBusyError{State: &state},
			"locked by apply of 0042-customer on web-1 (pid 42, alive) since 2026-03-01T11:00:00Z; lapses by 2026-03-01T11:01:00Z unless renewed, then the next apply or rollback recovers it",
		},
		"busy without a change": {
			&LockBusyError{State: with(func(s *State) { s.Operation, s.Change = OpResolve, "" })},
			"locked by resolve on web-1 (pid 42, alive) since 2026-03-01T11:00:00Z; lapses by 2026-03-01T11:01:00Z unless renewed, then the next apply or rollback recovers it",
		},
		"lapsed": {
			&LockBusyError{State: with(func(s *State) { s.Live = false })},
			"locked by apply of 0042-customer on web-1 (pid 42, lapsed) since 2026-03-01T11:00:00Z; lapsed at 2026-03-01T11:01:00Z, the next apply or rollback recovers it",
		},
		"lapsed and contended": {
			&LockBusyError{State: with(func(s *State) { s.Live = false }), Cause: ErrContended},
			"locked by apply of 0042-customer on web-1 (pid 42, lapsed) since 2026-03-01T11:00:00Z; lapsed at 2026-03-01T11:01:00Z, the next apply or rollback recovers it; the database is busy, try again",
		},
		"overtaken": {&LockBusyError{State: &State{Fence: 13}}, "locked: somebody else had it in between (fence 13)"},
		"hold": {
			&LockBusyError{State: with(func(s *State) { s.Operation, s.Reason = OpHold, "moving the disk" })},
			"held by an operator on web-1 (pid 42) since 2026-03-01T11:00:00Z, reason: moving the disk; ends by itself at 2026-03-01T11:01:00Z, or with: belay lock release",
		},
		"nobody any more": {&LockBusyError{}, "locked: the holder was just finishing, try again"},
		"contended":       {&LockBusyError{Cause: ErrContended}, "locked: database is busy, try again"},
		"unreadable":      {&LockBusyError{Cause: errCut}, "locked: reading by whom: connection lost"},
		"lost": {
			&LockLostError{Held: held, Lease: time.Minute},
			"lock lost (fence 12): not renewed within its lease of 1m0s, or taken over; stopped here, someone else may have recovered this plan",
		},
		"lost to": {
			&LockLostError{Held: held, Lease: time.Minute, Current: with(func(s *State) { s.Operation = OpRollback })},
			"lock lost (fence 12): not renewed within its lease of 1m0s, or taken over; stopped here, rollback on web-1 (pid 42) has it now and may have recovered this plan",
		},
		"lost without a known lease": {
			&LockLostError{Held: held},
			"lock lost (fence 12): not renewed in time, or taken over; stopped here, someone else may have recovered this plan",
		},
		"not renewed": {&NotRenewedError{Held: []Held{held}, Err: ErrContended}, "1 locks not renewed: database is busy"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := tt.err.Error(); got != tt.want {
				t.Errorf("got  %s\nwant %s", got, tt.want)
			}
		})
	}
	if !errors.Is(&LockBusyError{Cause: ErrContended}, ErrContended) || !errors.Is(&NotRenewedError{Err: ErrContended}, ErrContended) {
		t.Error("a cause is hidden")
	}
}
