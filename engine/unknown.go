package engine

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/belayhq/belay/plan"
	"github.com/belayhq/belay/sitelock"
)

// errLookAgain says that a commit's outcome was unknown and is known now: whatever the run was about to do next rests on
// an old picture, so it starts over from its journal.
var errLookAgain = errors.New("look again")

// findOut settles a checkpoint whose outcome nobody knows: it takes the lock again under a new fence, which waits until
// the database has decided the old transaction, and reads the journal. The run then goes on from what the journal says.
// If someone else has taken the lock meanwhile, the old transaction is decided too, and reading is enough.
//
// It returns errLookAgain if the run may go on or is finished, and the first error otherwise.
func (r *run) findOut(ctx context.Context, unknown error) error {
	former := r.lock.Held()
	claim := *r.request.Claim
	claim.Direction, claim.Digest, claim.Retry = r.direction, r.record.Plan.Digest, true
	grant, err := r.takeAgain(ctx, &claim)
	if busy, isBusy := errors.AsType[*sitelock.LockBusyError](err); isBusy {
		return r.readOnly(ctx, unknown, busy)
	}
	if err != nil {
		return fmt.Errorf("%w; and the database did not answer while its outcome was looked up: %w", unknown, err)
	}
	if grant.Claimed != nil {
		r.record = *grant.Claimed
		r.waitNotForMyself(former.Fence)
		return errLookAgain
	}
	ended, err := r.ended(ctx)
	switch {
	case err != nil:
		return errors.Join(unknown, err)
	case !ended:
		return unknown
	}
	r.finished = true
	return errLookAgain
}

// waitNotForMyself spares the run the wait for calls that its own former term made: they have returned.
func (r *run) waitNotForMyself(former sitelock.Fence) {
	for i := range r.record.Journal {
		if e := &r.record.Journal[i]; e.Fence == former && !r.leftBehind {
			e.WaitLeft = 0
		}
	}
}

// takeAgain gives the lock up and takes it again under a new fence, with a claim. That waits until the database has decided
// the last transaction of the former term, and recovers what it left.
func (o *operation) takeAgain(ctx context.Context, claim *sitelock.Claim) (sitelock.Grant, error) {
	former := o.lock
	former.Lose(&sitelock.LockLostError{})
	req := o.request
	req.Replace, req.Claim = former.Held(), claim
	lock, grant, err := o.acquireAgain(ctx, req)
	if err == nil {
		o.lock = lock
	}
	return grant, err
}

// acquireAgain asks for the lock until the database answers, for as long as the old lease could still have protected
// the run: past that, anyone may have the tenant, and the next acquire by anyone recovers it. After an Abort it asks once.
func (o *operation) acquireAgain(ctx context.Context, req sitelock.Request) (*sitelock.Lock, sitelock.Grant, error) {
	ctx, cancel := o.engine.uncancelled(ctx, 2*o.engine.config.Lease)
	defer cancel()
	for tries := 1; ; tries++ {
		// One try at a time, because who waits queues behind others of this process, who wait for this very lock.
		lock, grant, err := o.engine.locker.Acquire(context.WithoutCancel(ctx), o.store, req, 0)
		busy, isBusy := errors.AsType[*sitelock.LockBusyError](err)
		if err == nil || isBusy && busy.State != nil && busy.Cause == nil {
			return lock, grant, err
		}
		if pause(ctx, tries) != nil {
			return nil, sitelock.Grant{}, err
		}
	}
}

// readOnly settles an unknown outcome when someone else has the lock.
func (r *run) readOnly(ctx context.Context, unknown error, busy *sitelock.LockBusyError) error {
	ended, err := r.ended(ctx)
	switch {
	case err != nil:
		return errors.Join(unknown, err)
	case ended:
		r.finished = true
		return errLookAgain
	}
	return fmt.Errorf("%w: %w", r.lostTo(r.lock.Held(), busy), unknown)
}

// ended reads whether the plan rests where a successful run leaves it, and takes over what it reads.
func (r *run) ended(ctx context.Context) (bool, error) {
	ctx, cancel := finishing(ctx)
	defer cancel()
	records, err := r.store.Records(ctx, r.tenant.ID)
	if err != nil {
		return false, err
	}
	mine := find(records, r.record.Plan.Change)
	if mine == nil {
		return false, nil
	}
	r.record = *mine
	if r.direction == plan.Up {
		return mine.Plan.Status == plan.Applied && !mine.Partial(), nil
	}
	return mine.Plan.Status == plan.Pending && !mine.Touched(), nil
}

// pause waits a little longer with each try, with jitter so that many do not return at once.
func pause(ctx context.Context, try int) error {
	const first, most = 25 * time.Millisecond, time.Second
	wait := min(first<<min(try, 10), most)
	timer := time.NewTimer(wait/2 + rand.N(wait/2))
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
