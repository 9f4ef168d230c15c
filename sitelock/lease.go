package sitelock

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"github.com/belayhq/belay/internal/logkey"
)

// LeaseConfig is what a named lease may be told. The zero value is valid.
type LeaseConfig struct {
	// TTL is how long the lease lives without a renewal, from MinLease to MaxLease. Zero is DefaultLease.
	TTL time.Duration
	// Process is what the lease tells people about its holder. The zero value is this process.
	Process Process
	// Log gets what failed and will be tried again. The zero value logs nothing.
	Log zerolog.Logger
}

// resolve fills in defaults and checks the result.
func (c LeaseConfig) resolve() (LeaseConfig, error) {
	if c.TTL == 0 {
		c.TTL = DefaultLease
	}
	common := Config{Process: c.Process}.withDefaults()
	c.Process = common.Process
	if err := errors.Join(checkLease("TTL", c.TTL), common.validate()); err != nil {
		return c, fmt.Errorf("lease config: %w", err)
	}
	return c, nil
}

// leasePoll is the mean pause between two tries for a lease that someone else has. It bounds how long a deploy takes to
// hand over.
const leasePoll = 2 * time.Second

// Term is one holding of a named lease. It renews nothing by itself.
type Term struct {
	store LeaseStore
	lease Lease
	ttl   time.Duration

	mu         sync.Mutex
	trustUntil time.Time
}

// TryLease takes a named lease if it is free or lapsed, under a fresh holder. Busy is false, not an error. The caller renews
// the term, and releases it at the end.
func TryLease(ctx context.Context, store LeaseStore, name string, cfg LeaseConfig) (*Term, bool, error) {
	cfg, err := cfg.resolve()
	if err != nil {
		return nil, false, err
	}
	return tryLease(ctx, store, name, NewHolderID(), cfg)
}

func tryLease(ctx context.Context, store LeaseStore, name string, holder HolderID, cfg LeaseConfig) (*Term, bool, error) {
	ctx, cancel := lingering(ctx, attempt(cfg.TTL))
	defer cancel()
	sentAt := time.Now()
	lease, ok, err := store.AcquireLease(ctx, name, holder, cfg.Process, cfg.TTL)
	if err != nil {
		return nil, false, fmt.Errorf("acquire lease %s: %w", name, err)
	}
	if !ok {
		return nil, false, nil
	}
	return &Term{store: store, lease: lease, ttl: cfg.TTL, trustUntil: sentAt.Add(trust(cfg.TTL))}, true, nil
}

// Lease returns the lease as it was acquired.
func (t *Term) Lease() Lease { return t.lease }

// Fence returns the fence that every write under the lease must prove.
func (t *Term) Fence() Fence { return t.lease.Fence }

// Renew extends the lease by its TTL. [ErrNotHeld] says that it is lost; any other error that the database could not tell.
func (t *Term) Renew(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, attempt(t.ttl))
	defer cancel()
	sentAt := time.Now()
	if err := t.store.RenewLease(ctx, t.lease.Held(), t.ttl); err != nil {
		return fmt.Errorf("renew lease %s: %w", t.lease.Name, err)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.trustUntil = sentAt.Add(trust(t.ttl))
	return nil
}

// TrustLeft returns how long the lease may still be believed held without a renewal; nothing or less when it may not.
func (t *Term) TrustLeft() time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	return time.Until(t.trustUntil)
}

// Release frees the lease, on a deadline of its own, also when ctx has ended. [ErrNotHeld] says that it had lapsed and was
// taken.
func (t *Term) Release(ctx context.Context) error {
	// Who shuts down still hands over.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), attempt(t.ttl))
	defer cancel()
	if err := t.store.ReleaseLease(ctx, t.lease.Held()); err != nil {
		return fmt.Errorf("release lease %s: %w", t.lease.Name, err)
	}
	return nil
}

// RunWhileLeader runs fn in one process at a time: it waits for the named lease, calls fn with the term's fence, and renews
// the lease meanwhile. When the lease is lost, fn's context is cancelled with a cause that is [ErrNotHeld], and once fn has
// returned the wait begins anew. The lease is released when fn returns, so that another process takes over within seconds.
//
// It returns nil when ctx has ended, or what fn returned by itself under a lease still held. Errors of the database are
// logged and waited out. The lease alone protects nothing: every write of fn proves the fence.
func RunWhileLeader(ctx context.Context, store LeaseStore, name string, cfg LeaseConfig,
	fn func(ctx context.Context, fence Fence) error,
) error {
	cfg, err := cfg.resolve()
	if err != nil {
		return err
	}
	for {
		term := campaign(ctx, store, name, cfg)
		if term == nil {
			return nil
		}
		err := lead(ctx, term, cfg, fn)
		switch {
		case ctx.Err() != nil && (err == nil || errors.Is(err, ctx.Err()) || errors.Is(err, context.Cause(ctx))):
			return nil
		case !errors.Is(err, errLeaseLost):
			return err
		}
		cfg.Log.Warn().Err(err).Str(logkey.Lease, name).Msg("lease lost, trying to get it back")
	}
}

// campaign polls for the lease and returns nil when ctx ends.
func campaign(ctx context.Context, store LeaseStore, name string, cfg LeaseConfig) *Term {
	// One holder for all tries: a try whose answer was lost is recognised by the next.
	holder := NewHolderID()
	for ctx.Err() == nil {
		term, ok, err := tryLease(ctx, store, name, holder, cfg)
		switch {
		case ok && ctx.Err() != nil:
			term.giveUp(ctx, cfg.Log)
		case ok && term.TrustLeft() > 0:
			return term
		case err != nil:
			cfg.Log.Warn().Err(err).Str(logkey.Lease, name).Msg("lease not acquired, trying again")
		}
		sleep(ctx, jitter(min(leasePoll, interval(cfg.TTL))), nil)
	}
	return nil
}

// giveUp releases a term; what it cannot release lapses.
func (t *Term) giveUp(ctx context.Context, log zerolog.Logger) {
	if err := t.Release(ctx); err != nil && !errors.Is(err, ErrNotHeld) {
		log.Warn().Err(err).Str(logkey.Lease, t.lease.Name).Msg("lease not released, it lapses by itself")
	}
}

// errLeaseLost marks that a term ended before its fn did.
var errLeaseLost = fmt.Errorf("lease lost: %w", ErrNotHeld)

// lead runs fn under a term. The error is fn's, or errLeaseLost.
func lead(ctx context.Context, term *Term, cfg LeaseConfig, fn func(ctx context.Context, fence Fence) error) error {
	leading, cancel := context.WithCancelCause(ctx)
	var renewals sync.WaitGroup
	renewals.Go(func() { keepTerm(leading, cancel, term, cfg.Log) })
	defer func() { // also when fn panics
		cancel(nil)
		renewals.Wait() // no renewal is sent after the release
		term.giveUp(ctx, cfg.Log)
	}()
	err := fn(leading, term.Fence())
	if cause := context.Cause(leading); errors.Is(cause, errLeaseLost) {
		return errors.Join(cause, err)
	}
	return err
}

// keepTerm renews a term until ctx ends, and ends ctx when the term is lost.
func keepTerm(ctx context.Context, cancel context.CancelCauseFunc, term *Term, log zerolog.Logger) {
	// Trust has a timer of its own: a renewal that does not come back must not outlast it.
	trustEnds := time.AfterFunc(term.TrustLeft(), func() {
		if term.TrustLeft() <= 0 {
			cancel(errLeaseLost)
		}
	})
	defer trustEnds.Stop()
	ticker := time.NewTicker(interval(term.ttl))
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		err := term.Renew(ctx)
		switch {
		case err == nil:
			trustEnds.Reset(term.TrustLeft())
		case errors.Is(err, ErrNotHeld):
			cancel(errLeaseLost)
			return
		case ctx.Err() == nil:
			log.Warn().Err(err).Str(logkey.Lease, term.lease.Name).Msg("lease not renewed, trying again")
		}
	}
}
