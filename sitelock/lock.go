package sitelock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"
)

// Lock is a site lock that this process acquired. It is renewed in the background until it is released or lost, and loss is
// final. Its methods are safe for concurrent use, but what uses a lock must have ended before Release.
//
// What a Lock says of itself is trust, not proof: it stops this process in time. Only a transaction that proves the fence
// decides.
type Lock struct {
	held   Held
	lease  time.Duration
	store  Store
	keeper *keeper
	ctx    context.Context
	cancel context.CancelCauseFunc
	// freed tells the next waiter in this process.
	freed func()
	// turn is full while a renewal of this lock is under way, or its release: one at a time, because a renewal that meets a
	// release would report a loss that is none.
	turn chan struct{}

	mu         sync.Mutex
	trustUntil time.Time
	trustEnds  *time.Timer
	// open counts transactions that prove the fence themselves. While there is one, the end of trust waits for its end.
	open int
	// releasing says that one of them releases the lock. A renewal that finds it gone then sets doubted and decides nothing.
	releasing, doubted bool
	released           bool
	lost               *LockLostError
	// gone says that the database said so: there is nothing left to release.
	gone bool
}

// trust is how long the last successful renewal is believed after it was sent: the lease without a margin of an eighth.
// Three renewals fall into it, and the margin, at least 125 ms, is left to stop in.
func trust(lease time.Duration) time.Duration { return lease - lease/8 }

// newLock begins to renew a lock that was asked for at sentAt. It fails when the keeper is stopped.
func newLock(ctx context.Context, k *keeper, store Store, held Held, lease time.Duration, sentAt time.Time, freed func()) (*Lock, error) {
	l := &Lock{held: held, lease: lease, store: store, keeper: k, freed: freed, turn: make(chan struct{}, 1)}
	// A lock outlives the cancellation of its caller, who may still have something to undo under it.
	l.ctx, l.cancel = context.WithCancelCause(context.WithoutCancel(ctx))
	l.trustUntil = sentAt.Add(trust(lease))
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := k.add(l); err != nil {
		l.cancel(err)
		return nil, err
	}
	l.trustEnds = time.AfterFunc(time.Until(l.trustUntil), func() { _ = l.Err() })
	return l, nil
}

// Held returns the proof of custody for calls that write.
func (l *Lock) Held() Held { return l.held }

// Context returns a context that lives as long as the lock. It has the values of the one given to Acquire but not its
// cancellation, is cancelled with a cause of *[LockLostError] when the lock is lost, and ends with Release.
func (l *Lock) Context() context.Context { return l.ctx }

// Err returns nil while the lock is trusted, *[LockLostError] once it is lost, and [ErrNotHeld] after its release. It asks
// no database. Call it before each step begins.
func (l *Lock) Err() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.check()
}

func (l *Lock) check() error {
	switch {
	case l.lost != nil:
		return l.lost
	case l.released:
		return ErrNotHeld
	case l.open == 0 && !time.Now().Before(l.trustUntil):
		l.lose(&LockLostError{})
		return l.lost
	}
	return nil
}

// AssertHeld renews the lock and so proves that it was held when the database answered. A database that cannot tell is asked
// again for as long as the lock is trusted: one slow answer must not fail what goes on under it. It returns *[LockLostError]
// if the lock was not held, or trust ended without an answer, and another error only if ctx has ended, which is no loss. While
// a transaction that proves the fence is open it only looks at Err: that transaction is the proof, and on some databases
// it would block the renewal.
func (l *Lock) AssertHeld(ctx context.Context) error {
	l.mu.Lock()
	err, open := l.check(), l.open > 0
	l.mu.Unlock()
	if err != nil || open {
		return err
	}
	return l.renew(ctx)
}

// renew renews this lock alone, after a renewal of it under way, until an answer comes, the lock is lost or ctx ends.
func (l *Lock) renew(ctx context.Context) error {
	if err := l.take(ctx); err != nil {
		return fmt.Errorf("renew lock: wait for a renewal under way: %w", err)
	}
	defer l.give()
	var unanswered error
	for pause := range pauses() {
		// Looked at again in every round: no renewal is sent after a release.
		switch err := l.Err(); {
		case err != nil && unanswered != nil:
			return fmt.Errorf("%w: renew lock: %w", err, unanswered)
		case err != nil:
			return err
		}
		sentAt := time.Now()
		lost, err := l.sendRenewal(ctx)
		switch {
		case slices.Contains(lost, l.held):
			l.denied()
			return l.Err()
		case err == nil:
			l.Extended(sentAt)
			return l.Err()
		case !sleep(ctx, pause, nil): // whatever failed, a renewal may be sent twice
			return fmt.Errorf("renew lock: %w", err)
		}
		unanswered = err
	}
	return nil
}

func (l *Lock) sendRenewal(ctx context.Context) (lost []Held, err error) {
	ctx, cancel := context.WithTimeout(ctx, attempt(l.lease))
	defer cancel()
	return renew(ctx, l.store, []Held{l.held}, l.lease)
}

// Proving runs a transaction that proves the fence itself. While it is open its row lock keeps every take-over out, so the
// end of trust does not interrupt it; if trust ended meanwhile, the lock is renewed once when it has returned, and lost if
// that fails. If tx returns a *[LockLostError], the lock is lost. The error is that of tx, or *[LockLostError] if the lock
// was lost before it began.
func (l *Lock) Proving(ctx context.Context, tx func(ctx context.Context) error) (err error) {
	if err := l.begin(); err != nil {
		return err
	}
	defer func() { l.end(ctx, err) }()
	return tx(ctx)
}

// Releasing runs a transaction that releases the lock, and is otherwise like Proving: others see a live lock for as long as
// it takes. If it succeeds, the lock is released, and only its context lives on until Release is called. If it fails, the
// lock goes on being renewed; where a renewal has meanwhile found it gone, which may be the transaction's own doing, one more
// decides. One Releasing at a time.
func (l *Lock) Releasing(ctx context.Context, tx func(ctx context.Context) error) (err error) {
	if err := l.begin(); err != nil {
		return err
	}
	l.mu.Lock()
	l.releasing = true
	l.mu.Unlock()
	defer func() { l.end(ctx, err) }()
	if err := tx(ctx); err != nil {
		return err
	}
	l.finish()
	l.freed()
	return nil
}

func (l *Lock) begin() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.check(); err != nil {
		return err
	}
	l.open++
	return nil
}

// end settles what the lock is after a transaction that returned err, or panicked.
func (l *Lock) end(ctx context.Context, err error) {
	if lost, ok := errors.AsType[*LockLostError](err); ok {
		l.Lose(lost)
	}
	l.mu.Lock()
	undecided := l.lost == nil && !l.released && (l.doubted || !time.Now().Before(l.trustUntil))
	l.releasing, l.doubted = false, false
	l.mu.Unlock()
	if undecided {
		// The caller may be cancelled, and the question is still whether the lock is held. Failure shows in check below. There
		// is time for a renewal under way, and for one of its own.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*attempt(l.lease))
		_ = l.renew(ctx)
		cancel()
	}

	l.mu.Lock()
	defer l.mu.Unlock()
	l.open--
	_ = l.check()
}

// Extended says that a transaction sent at sentAt extended the lease, and has committed.
func (l *Lock) Extended(sentAt time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.check() != nil { // an answer that comes after the end of trust comes too late
		return
	}
	if until := sentAt.Add(trust(l.lease)); until.After(l.trustUntil) {
		l.trustUntil = until
		l.trustEnds.Reset(time.Until(until))
	}
}

// Lose says that the database no longer has this lock as the caller's. The lock fills in what err leaves empty. It
// does nothing to a lock already lost or released.
func (l *Lock) Lose(err *LockLostError) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.gone = true
	l.lose(err)
}

// denied takes in that a renewal found the lock gone or taken.
func (l *Lock) denied() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.releasing {
		l.doubted = true
		return
	}
	l.gone = true
	l.lose(&LockLostError{})
}

func (l *Lock) lose(err *LockLostError) {
	if l.lost != nil || l.released {
		return
	}
	lost := *err
	lost.Held, lost.Lease = l.held, l.lease
	l.lost = &lost
	l.trustEnds.Stop()
	l.keeper.drop(l)
	l.cancel(l.lost)
}

// Release frees the lock and ends its context. It runs on a deadline of its own, also when ctx has ended. An error is
// worth no more than a log line: the lock lapses by itself. [ErrNotHeld] says that it had lapsed and was taken. After the
// first call, and after Releasing, it only waits for a renewal under way and returns nil: then none uses the store any more.
func (l *Lock) Release(ctx context.Context) error {
	defer l.cancel(nil)
	released, gone := l.finish()
	if gone && !released {
		return fmt.Errorf("release lock: %w", ErrNotHeld)
	}
	// A cancelled caller still frees its lock. A renewal under way ends within the first half of this.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*attempt(l.lease))
	defer cancel()
	if err := l.take(ctx); err != nil {
		return fmt.Errorf("release lock: wait for a renewal under way: %w", err)
	}
	defer l.give()
	if released {
		return nil
	}
	defer l.freed()
	if err := l.store.Release(ctx, l.held); err != nil {
		return fmt.Errorf("release lock: %w", err)
	}
	return nil
}

// finish ends renewals and trust for good, and returns whether the lock was released before and whether it is gone.
func (l *Lock) finish() (released, gone bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	released, l.released = l.released, true
	l.trustEnds.Stop()
	l.keeper.drop(l)
	return released, l.gone
}

func (l *Lock) take(ctx context.Context) error {
	select {
	case l.turn <- struct{}{}:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (l *Lock) tryTake() bool {
	select {
	case l.turn <- struct{}{}:
		return true
	default:
		return false
	}
}

func (l *Lock) give() { <-l.turn }
