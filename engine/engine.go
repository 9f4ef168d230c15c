package engine

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"github.com/belayhq/belay/internal/logkey"
	"github.com/belayhq/belay/sitelock"
	"github.com/belayhq/belay/tenant"
)

// Config tunes an Engine. The zero value of each field is its default.
type Config struct {
	// Lease is how long a site lock lives without a renewal; it is renewed four times as often. Default 60 s, at least
	// 1 s, at most sitelock.MaxLease.
	Lease time.Duration
	// Process is what lock rows say of this process. Default: its host, pid and start.
	Process sitelock.Process
	// StepTimeout bounds a sql step whose change does not say. Default 15 minutes.
	StepTimeout time.Duration
	// ActionTimeout bounds an action whose step does not say. One outside the tenant's database that is left in doubt is
	// waited out for as long. Default 2 minutes.
	ActionTimeout time.Duration
	// UndoTimeout bounds the undo of a failed apply as a whole; it has a budget of its own so that a timed-out apply can
	// still be undone. Default 30 minutes.
	UndoTimeout time.Duration
	// LockWait bounds how long a step's SQL waits for a row or table lock. Default 10 s.
	LockWait time.Duration
	// GroupSteps is how many steps share a checkpoint at most. Default 64.
	GroupSteps int
	// GroupBudget is how long a shared checkpoint may take; past it, its steps run one by one. Default 5 s.
	GroupBudget time.Duration
	// ActionGrace is how long an action may run on after its context is cancelled before the engine goes on without it.
	// Default 5 s.
	ActionGrace time.Duration
	// Actions are those that changes may name. Default: none.
	Actions *Actions
	// Log gets warnings and debug lines. Default: nothing.
	Log zerolog.Logger
	// Observe is called for each thing that happens to a plan, from the goroutine that works on it. It must be quick and
	// safe for concurrent use. Default: nobody watches.
	Observe func(Progress)
}

func (c Config) withDefaults() Config {
	c.Lease = defaultTo(c.Lease, sitelock.DefaultLease)
	c.StepTimeout = defaultTo(c.StepTimeout, 15*time.Minute)
	c.ActionTimeout = defaultTo(c.ActionTimeout, 2*time.Minute)
	c.UndoTimeout = defaultTo(c.UndoTimeout, 30*time.Minute)
	c.LockWait = defaultTo(c.LockWait, 10*time.Second)
	c.GroupSteps = defaultTo(c.GroupSteps, 64)
	c.GroupBudget = defaultTo(c.GroupBudget, 5*time.Second)
	c.ActionGrace = defaultTo(c.ActionGrace, 5*time.Second)
	if c.Actions == nil {
		c.Actions = NewActions()
	}
	if c.Observe == nil {
		c.Observe = func(Progress) {}
	}
	return c
}

func defaultTo[T comparable](v, otherwise T) T {
	var zero T
	if v == zero {
		return otherwise
	}
	return v
}

func (c Config) validate() error {
	var problems []error
	for _, d := range []struct {
		name  string
		value time.Duration
	}{
		{"StepTimeout", c.StepTimeout},
		{"ActionTimeout", c.ActionTimeout},
		{"UndoTimeout", c.UndoTimeout},
		{"LockWait", c.LockWait},
		{"GroupBudget", c.GroupBudget},
		{"ActionGrace", c.ActionGrace},
	} {
		if d.value < 0 {
			problems = append(problems, fmt.Errorf("%s must not be negative, not %s", d.name, d.value))
		}
	}
	if c.GroupSteps < 0 || c.GroupSteps > 1000 {
		problems = append(problems, fmt.Errorf("GroupSteps must be between 1 and 1000, not %d", c.GroupSteps))
	}
	return errors.Join(problems...)
}

// Engine carries out plans. It is safe for concurrent use; operations on one tenant queue for its lock.
type Engine struct {
	directory Directory
	config    Config
	locker    *sitelock.Locker
	programs  programs

	abort     context.Context
	abortNow  context.CancelCauseFunc
	closeOnce sync.Once
}

// New returns an Engine that works on the tenants the directory opens. Close it when done; the directory stays the
// caller's.
func New(directory Directory, config Config) (*Engine, error) {
	if directory == nil {
		return nil, errors.New("engine: a directory is required")
	}
	configErr := config.validate()
	config = config.withDefaults()
	e := &Engine{directory: directory, config: config}
	locker, err := sitelock.NewLocker(sitelock.Config{Lease: config.Lease, Process: config.Process, Log: config.Log})
	if err := errors.Join(configErr, err); err != nil {
		return nil, fmt.Errorf("engine config: %w", err)
	}
	e.locker = locker
	e.abort, e.abortNow = context.WithCancelCause(context.Background())
	if err := locker.Start(context.Background()); err != nil {
		return nil, err
	}
	return e, nil
}

// Lease returns the length of this engine's leases.
func (e *Engine) Lease() time.Duration { return e.config.Lease }

// logOf is the engine's log, with the tenant in each line.
func (e *Engine) logOf(t tenant.Tenant) zerolog.Logger {
	return e.config.Log.With().Str(logkey.Tenant, string(t.ID)).Str(logkey.TenantName, t.Name).Logger()
}

// ErrAborted is the cause of what [Engine.Abort] cut short.
var ErrAborted = errors.New("aborted")

// Abort cuts short every step that is running: its statement is cancelled and its transaction rolled back. Plans are
// still finished truthfully and locks released, as far as the database answers. The engine starts nothing afterwards.
func (e *Engine) Abort() { e.abortNow(ErrAborted) }

// Close stops renewing locks. Call it when no operation runs any more. It is idempotent.
func (e *Engine) Close() {
	e.closeOnce.Do(func() {
		e.abortNow(ErrAborted)
		e.locker.Stop()
	})
}
