package engine

import (
	"context"
	"errors"
	"fmt"

	"github.com/belayhq/belay/plan"
	"github.com/belayhq/belay/sitelock"
)

// claim moves another plan in flight under the lock already held; nil if the claim is refused. It is as safe as a
// checkpoint: cancellation does not cut it short, what the database wants repeated is, and an outcome that nobody knows is
// settled by taking the lock again, with the same claim.
func (o *operation) claim(ctx context.Context, claim *sitelock.Claim) (*plan.Record, error) {
	if err := o.mayGoOn(ctx); err != nil {
		return nil, err
	}
	var record *plan.Record
	err := o.repeated(ctx, func() (err error) {
		record, err = o.tryClaim(ctx, claim)
		return err
	})
	_, lost := errors.AsType[*sitelock.LockLostError](err)
	switch {
	case err == nil:
		return record, nil
	case lost, errors.Is(err, ErrRetryTransaction):
		return nil, err
	case o.engine.abort.Err() != nil && !errors.Is(err, ErrUnknownOutcome):
		return nil, fmt.Errorf("%w: %w", errCancelled, err)
	}
	former := o.lock.Held()
	grant, againErr := o.takeAgain(ctx, claim)
	if busy, isBusy := errors.AsType[*sitelock.LockBusyError](againErr); isBusy {
		// Whoever has the lock has recovered the plan, if it was claimed at all.
		return nil, fmt.Errorf("%w: %w", o.lostTo(former, busy), err)
	}
	if againErr != nil {
		return nil, fmt.Errorf("%w; and the database did not answer while its outcome was looked up: %w", err, againErr)
	}
	return grant.Claimed, nil
}

func (o *operation) tryClaim(ctx context.Context, claim *sitelock.Claim) (record *plan.Record, err error) {
	ctx, cancel := o.engine.uncancelled(ctx, finishTimeout)
	defer cancel()
	err = o.lock.Proving(ctx, func(ctx context.Context) (err error) {
		record, err = o.store.Claim(ctx, o.lock.Held(), *claim)
		return err
	})
	return record, err
}

// repeated runs a transaction again, a few times, while the database asks for that.
func (o *operation) repeated(ctx context.Context, transaction func() error) error {
	err := transaction()
	for tries := 1; errors.Is(err, ErrRetryTransaction) && tries < 4; tries++ {
		if pause(ctx, tries) != nil {
			break
		}
		if lost := o.lock.Err(); lost != nil {
			return lost
		}
		err = transaction()
	}
	return err
}

// mayGoOn is asked before each transaction that begins something: the lock must be trusted, and nobody may have asked to
// stop.
func (o *operation) mayGoOn(ctx context.Context) error {
	if err := o.lock.Err(); err != nil {
		return err
	}
	if err := context.Cause(o.engine.abort); err != nil {
		return fmt.Errorf("%w: %w", errCancelled, err)
	}
	if err := ctx.Err(); err != nil {
		cause := context.Cause(ctx)
		if errors.Is(cause, context.DeadlineExceeded) {
			return fmt.Errorf("timed out: %w", cause)
		}
		return fmt.Errorf("%w: %w", errCancelled, cause)
	}
	return nil
}

// orCancelled puts the caller's wish to stop before an error that is only its consequence: nothing has failed then.
func (o *operation) orCancelled(ctx context.Context, err error) error {
	stop := o.mayGoOn(ctx)
	if errors.Is(stop, errCancelled) && (errors.Is(err, context.Canceled) || err != nil && errors.Is(err, context.Cause(ctx))) {
		return fmt.Errorf("%w: %w", stop, err)
	}
	return err
}

// orLost puts the loss of the lock before an error that may be only its consequence.
func (o *operation) orLost(err error) error {
	lost, isLost := errors.AsType[*sitelock.LockLostError](o.lock.Err())
	if _, already := errors.AsType[*sitelock.LockLostError](err); already || !isLost {
		return err
	}
	return fmt.Errorf("%w: %w", lost, err)
}

// lostTo says that someone else has a lock that was this operation's.
func (o *operation) lostTo(former sitelock.Held, busy *sitelock.LockBusyError) *sitelock.LockLostError {
	return &sitelock.LockLostError{Held: former, Lease: o.engine.config.Lease, Current: busy.State}
}
