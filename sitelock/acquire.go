package sitelock

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"math/rand/v2"
	"time"

	"github.com/belayhq/belay/internal/logkey"
)

const (
	pauseMin = 50 * time.Millisecond
	pauseMax = time.Second
	// sends is how often an acquire without a usable answer is sent in all: the first time and three more.
	sends = 4
	// answerMax bounds the wait for one answer to an acquire, which may carry a whole change.
	answerMax = 30 * time.Second
	// answerGrace is how long an answer is waited for when nobody wants the lock any more.
	answerGrace = 2 * time.Second
)

// acquisition is one call of Acquire. All its tries have the same holder.
type acquisition struct {
	locker          *Locker
	store           Store
	req             Request
	since, deadline time.Time
	// told is the holder that OnWait was last called for.
	told HolderID
}

func (a *acquisition) run(ctx context.Context) (*Lock, Grant, error) {
	place, err := a.queue(ctx)
	if err != nil {
		return nil, Grant{}, err
	}
	defer place.leave()

	lock, grant, err := a.try(ctx)
	for pause := range pauses() {
		busy, ok := errors.AsType[*LockBusyError](err)
		if !ok || !time.Now().Before(a.deadline) {
			return lock, grant, err
		}
		a.tell(busy.State)
		if !sleep(ctx, a.shorten(pause, busy.State), place.freed) {
			return nil, Grant{}, context.Cause(ctx)
		}
		// A look costs the holder nothing, so the lock is asked for only when it seems to be there.
		if state, readErr := a.store.State(ctx, a.req.Tenant); readErr == nil && a.blocks(state) {
			err = a.busy(state)
			continue
		}
		lock, grant, err = a.try(ctx)
	}
	return lock, grant, err
}

// queue waits for the turn to look at the database. Only those who are ready to wait queue: who is not has one try, and so
// does who waited in vain.
func (a *acquisition) queue(ctx context.Context) (*place, error) {
	key := queueKey{a.store, a.req.Tenant}
	if !time.Now().Before(a.deadline) {
		return &place{}, nil
	}
	place, first := a.locker.queues.join(key)
	if first {
		return place, nil
	}
	if a.req.OnWait != nil {
		if state, err := a.store.State(ctx, a.req.Tenant); err == nil && a.blocks(state) {
			a.tell(&state)
		}
	}
	if !place.wait(ctx, a.deadline) {
		place.leave()
		return nil, context.Cause(ctx)
	}
	return place, nil
}

// try asks for the lock, and once more if it was refused but is free when looked at.
func (a *acquisition) try(ctx context.Context) (*Lock, Grant, error) {
	for range 2 {
		lock, grant, err := a.send(ctx)
		if !errors.Is(err, ErrRefused) && !errors.Is(err, ErrContended) {
			return lock, grant, err
		}
		if why := a.whyRefused(ctx, err); why != nil {
			return nil, Grant{}, why
		}
	}
	return nil, Grant{}, &LockBusyError{}
}

// whyRefused looks who has a lock that was asked for in vain; nil if it seems to be free now.
func (a *acquisition) whyRefused(ctx context.Context, refused error) error {
	state, readErr := a.store.State(ctx, a.req.Tenant)
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case readErr == nil && (a.blocks(state) || a.overtaken(state)):
		return a.busy(state)
	case errors.Is(refused, ErrContended):
		busy := &LockBusyError{Cause: refused}
		if readErr == nil && state.Holder != "" && !a.own(state) {
			busy.State = &state // lapsed, and not to be had yet
		}
		return busy
	case readErr != nil:
		return &LockBusyError{Cause: readErr}
	}
	return nil
}

// blocks reports whether the lock is someone else's.
func (a *acquisition) blocks(s State) bool { return s.Live && !a.own(s) }

// own reports whether the lock is this acquisition's own, by a try whose answer was lost, or the one it replaces.
func (a *acquisition) own(s State) bool {
	return s.Holder == a.req.Holder || a.req.Replace.Holder != "" && s.Holder == a.req.Replace.Holder
}

// overtaken reports whether anybody has had the lock since the acquisition that this one replaces, so that no try succeeds.
func (a *acquisition) overtaken(s State) bool {
	return a.req.Replace.Holder != "" && s.Fence != a.req.Replace.Fence && !a.own(s)
}

func (a *acquisition) busy(s State) error {
	if s.NeedsNewerBinary() {
		return ErrNewerBinary
	}
	return &LockBusyError{State: &s}
}

// send asks for the lock, again if the answer is lost: the store recognises the holder. An answer that took longer than
// the lock would be trusted is as good as lost.
func (a *acquisition) send(ctx context.Context) (*Lock, Grant, error) {
	var lastErr error
	sent := 0
	for pause := range pauses() {
		if ctx.Err() != nil {
			return nil, Grant{}, context.Cause(ctx)
		}
		sentAt := time.Now()
		grant, err := a.ask(ctx)
		switch {
		case err == nil && ctx.Err() != nil:
			a.giveBack(ctx, grant)
			return nil, Grant{}, context.Cause(ctx)
		case err == nil && time.Since(sentAt) < trust(a.req.Lease):
			freed := a.locker.queues.freed(queueKey{a.store, a.req.Tenant})
			lock, err := newLock(ctx, a.locker.keeper, a.store, grant.Held, a.req.Lease, sentAt, freed)
			if err != nil {
				a.giveBack(ctx, grant)
				return nil, Grant{}, err
			}
			return lock, grant, nil
		case err == nil:
			err = fmt.Errorf("answer took %s, too long for a lease of %s", time.Since(sentAt).Round(time.Millisecond), a.req.Lease)
		case settled(err):
			return nil, Grant{}, err
		}
		lastErr = err
		if sent++; sent == sends {
			break
		}
		if !sleep(ctx, pause, nil) {
			return nil, Grant{}, context.Cause(ctx)
		}
	}
	return nil, Grant{}, lastErr
}

// settled reports whether an error of Store.Acquire says that the lock was not taken.
func settled(err error) bool {
	for _, known := range []error{ErrRefused, ErrContended, ErrNewerBinary, ErrScopeTaken, ErrRemoved} {
		if errors.Is(err, known) {
			return true
		}
	}
	return false
}

func (a *acquisition) ask(ctx context.Context) (Grant, error) {
	ctx, cancel := lingering(ctx, min(trust(a.req.Lease), answerMax))
	defer cancel()
	return a.store.Acquire(ctx, a.req)
}

// lingering returns a context for one call that acquires. When ctx ends meanwhile, the answer is waited for a moment longer:
// a call that is cut off may have taken what nobody would then release.
func lingering(ctx context.Context, limit time.Duration) (context.Context, context.CancelFunc) {
	asking, cancel := context.WithTimeout(context.WithoutCancel(ctx), limit)
	stop := context.AfterFunc(ctx, func() { time.AfterFunc(answerGrace, cancel) })
	return asking, func() {
		stop()
		cancel()
	}
}

// giveBack frees a lock that came too late to be wanted. If that fails, it lapses.
func (a *acquisition) giveBack(ctx context.Context, grant Grant) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), answerGrace)
	defer cancel()
	if err := a.store.Release(ctx, grant.Held); err != nil {
		a.locker.cfg.Log.Warn().Err(err).Str(logkey.Tenant, string(a.req.Tenant)).Int64(logkey.Fence, int64(grant.Held.Fence)).
			Msg("lock not released, it lapses by itself")
	}
}

// tell calls OnWait, once for each holder.
func (a *acquisition) tell(s *State) {
	if a.req.OnWait == nil || s == nil || s.Holder == a.told {
		return
	}
	a.told = s.Holder
	a.req.OnWait(Waiting{Tenant: a.req.Tenant, State: *s, Since: a.since, Deadline: a.deadline})
}

// shorten cuts a pause to what is left of the wait, and to just after the moment when the lease seen would lapse.
func (a *acquisition) shorten(pause time.Duration, s *State) time.Duration {
	pause = min(pause, time.Until(a.deadline))
	if s != nil && s.Live {
		// Apart by chance, because every waiter of every process wakes for the same moment.
		pause = min(pause, s.Expires.Sub(s.Now)+time.Millisecond+rand.N(pauseMin))
	}
	return max(pause, 0)
}

// pauses yields lengths for the pauses between tries without end, growing, and spread by chance so that many who begin
// together do not go on together.
func pauses() iter.Seq[time.Duration] {
	return func(yield func(time.Duration) bool) {
		for pause := pauseMin; yield(jitter(pause)); pause = min(2*pause, pauseMax) {
		}
	}
}

// jitter returns something from a half to one and a half of a pause.
func jitter(pause time.Duration) time.Duration { return pause/2 + rand.N(pause) }

// sleep returns false if ctx ends before the pause does. It ends early when wake is written to.
func sleep(ctx context.Context, pause time.Duration, wake <-chan struct{}) bool {
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-wake:
	case <-ctx.Done():
	}
	return ctx.Err() == nil
}
