package sitelock

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"github.com/belayhq/belay/internal/failpoint"
	"github.com/belayhq/belay/internal/logkey"
)

// interval is the time between renewals: four to a lease.
func interval(lease time.Duration) time.Duration { return lease / 4 }

// attempt bounds one call to a database about a lock. It is no longer than the interval, so that a call that hangs is over
// when the next one is due.
func attempt(lease time.Duration) time.Duration { return min(interval(lease), 15*time.Second) }

var (
	errNotRunning = errors.New("locker is not running")
	errStarted    = errors.New("locker was started before")
)

// keeper renews all locks of a Locker. Locks of one store and one lease length form a group, renewed by one call; groups
// do not wait for each other, so that a database that hangs delays no other.
type keeper struct {
	log zerolog.Logger
	wg  sync.WaitGroup

	// mu may be taken while a Lock's mu is held, never the other way round.
	mu     sync.Mutex
	ctx    context.Context // nil before the start
	quit   context.CancelFunc
	groups map[groupKey]*group
}

type groupKey struct {
	store Store
	lease time.Duration
}

// group lives while it has locks.
type group struct {
	groupKey
	locks map[*Lock]struct{}
	empty chan struct{} // closed when the last lock is dropped
}

func newKeeper(log zerolog.Logger) *keeper {
	return &keeper{log: log, groups: make(map[groupKey]*group)}
}

func (k *keeper) start(ctx context.Context) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.ctx != nil {
		return errStarted
	}
	k.ctx, k.quit = context.WithCancel(ctx)
	return nil
}

func (k *keeper) stop() {
	k.mu.Lock()
	if k.quit != nil {
		k.quit() // under mu, so that nothing is added to wg after this
	}
	k.mu.Unlock()
	k.wg.Wait()
}

func (k *keeper) running() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.runs()
}

func (k *keeper) runs() error {
	if k.ctx == nil || k.ctx.Err() != nil {
		return errNotRunning
	}
	return nil
}

// add begins to renew a lock; one that is renewed already stays so.
func (k *keeper) add(l *Lock) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if err := k.runs(); err != nil {
		return err
	}
	key := groupKey{l.store, l.lease}
	g := k.groups[key]
	if g == nil {
		g = &group{groupKey: key, locks: make(map[*Lock]struct{}), empty: make(chan struct{})}
		k.groups[key] = g
		k.wg.Go(func() { k.keep(g) })
	}
	g.locks[l] = struct{}{}
	return nil
}

// drop ends the renewals of a lock. One under way may still be: it has the lock's turn.
func (k *keeper) drop(l *Lock) {
	k.mu.Lock()
	defer k.mu.Unlock()
	g := k.groups[groupKey{l.store, l.lease}]
	if g == nil {
		return
	}
	delete(g.locks, l)
	if len(g.locks) == 0 {
		delete(k.groups, g.groupKey)
		close(g.empty)
	}
}

func (k *keeper) keep(g *group) {
	ticker := time.NewTicker(interval(g.lease))
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
			k.renew(g)
		case <-g.empty:
			return
		case <-k.ctx.Done():
			return
		}
	}
}

// renew sends one renewal for all locks of a group but those that are being renewed or released by a call of their own.
func (k *keeper) renew(g *group) {
	batch := k.batch(g)
	if len(batch) == 0 {
		return
	}
	defer func() {
		for _, l := range batch {
			l.give()
		}
	}()
	held := make([]Held, len(batch))
	for i, l := range batch {
		held[i] = l.held
	}
	ctx, cancel := context.WithTimeout(k.ctx, attempt(g.lease))
	defer cancel()

	sentAt := time.Now() // before the call: the database counts from some moment after it
	gone, err := renew(ctx, g.store, held, g.lease)
	lost := newHeldSet(gone)
	skipped, known := skippedBy(err)
	for _, l := range batch {
		switch {
		case lost.has(l.held):
			l.denied()
		case known && !skipped.has(l.held):
			l.Extended(sentAt)
		}
	}
	if err != nil && k.ctx.Err() == nil {
		k.log.Warn().Err(err).Int(logkey.Locks, len(batch)).Msg("locks not renewed, trying again")
	}
}

// renew is the one call that renews. An error leaves open whether the leases were extended.
func renew(ctx context.Context, store Store, held []Held, lease time.Duration) (gone []Held, err error) {
	if err := failpoint.Hit(failpoint.BeforeRenew); err != nil {
		return nil, err
	}
	gone, err = store.Renew(ctx, held, lease)
	if failure := failpoint.Hit(failpoint.AfterRenew); failure != nil {
		return nil, failure
	}
	return gone, err
}

// batch takes the turns of a group's locks. It does so while they cannot be dropped: who drops a lock and then takes its
// turn has waited out every renewal.
func (k *keeper) batch(g *group) []*Lock {
	k.mu.Lock()
	defer k.mu.Unlock()
	batch := make([]*Lock, 0, len(g.locks))
	for l := range g.locks {
		if l.tryTake() {
			batch = append(batch, l)
		}
	}
	return batch
}

// heldSet keeps the answer for a thousand locks from being searched a thousand times.
type heldSet map[Held]struct{}

func newHeldSet(held []Held) heldSet {
	set := make(heldSet, len(held))
	for _, h := range held {
		set[h] = struct{}{}
	}
	return set
}

func (s heldSet) has(h Held) bool {
	_, ok := s[h]
	return ok
}

// skippedBy returns the locks that a renewal did not reach; known is false if that may be any of them.
func skippedBy(err error) (skipped heldSet, known bool) {
	if err == nil {
		return nil, true
	}
	if partial, ok := errors.AsType[*NotRenewedError](err); ok {
		return newHeldSet(partial.Held), true
	}
	return nil, false
}
