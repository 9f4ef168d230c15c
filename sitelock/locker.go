package sitelock

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/rs/zerolog"

	"github.com/belayhq/belay/tenant"
)

const (
	// DefaultLease is how long a lock lives without a renewal where nothing else is said.
	DefaultLease = 60 * time.Second
	// MinLease bounds every lease from below: a quarter of it must leave a database time to answer.
	MinLease = time.Second
	// MaxLease bounds every lease but an operator's hold. The databases know the same number: a row further ahead counts as
	// lapsed.
	MaxLease = time.Hour
)

// Config is what a [Locker] may be told. The zero value is valid.
type Config struct {
	// Lease is how long a lock lives without a renewal, from MinLease to MaxLease. Zero is DefaultLease. A request may ask
	// for a length of its own.
	Lease time.Duration
	// Process is what lock rows tell people about the holder. The zero value is this process.
	Process Process
	// Log gets renewals and releases that failed. The zero value logs nothing.
	Log zerolog.Logger
}

// Waiting tells what an acquire waits for.
type Waiting struct {
	Tenant tenant.ID
	// State says who has the lock, since when, and when it lapses.
	State State
	// Since is when the wait began and Deadline when it will be given up, both by this process's clock.
	Since, Deadline time.Time
}

// startedAt is when this process started, closely enough for people.
var startedAt = time.Now()

func (c Config) withDefaults() Config {
	if c.Lease == 0 {
		c.Lease = DefaultLease
	}
	if c.Process == (Process{}) {
		host, err := os.Hostname()
		if err != nil {
			host = "unknown" // only people read it
		}
		c.Process = Process{Host: host, PID: os.Getpid(), StartedAt: startedAt}
	}
	return c
}

// validate returns all problems of a config with its defaults filled in.
func (c Config) validate() error {
	var problems []error
	if err := checkLease("Lease", c.Lease); err != nil {
		problems = append(problems, err)
	}
	if c.Process.Host == "" {
		problems = append(problems, errors.New("Process.Host is empty"))
	}
	if c.Process.PID <= 0 {
		problems = append(problems, fmt.Errorf("Process.PID is %d, it must be positive", c.Process.PID))
	}
	return errors.Join(problems...)
}

// checkLease names the field and its bounds. The names of fields begin with capitals.
func checkLease(field string, lease time.Duration) error {
	if lease < MinLease || lease > MaxLease {
		return fmt.Errorf("%s is %s, it must be from %s to %s", field, lease, MinLease, MaxLease)
	}
	return nil
}

// Locker acquires site locks and renews those it acquired until they are released or lost. One serves a whole process;
// it is safe for concurrent use.
type Locker struct {
	cfg    Config
	keeper *keeper
	queues queues
}

// NewLocker returns a Locker that is yet to be started.
func NewLocker(cfg Config) (*Locker, error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, fmt.Errorf("lock config: %w", err)
	}
	return &Locker{cfg: cfg, keeper: newKeeper(cfg.Log)}, nil
}

// Process returns what lock rows tell people about this Locker's process.
func (l *Locker) Process() Process { return l.cfg.Process }

// Start lets the Locker acquire locks. Renewals end with ctx, as they do with Stop. A Locker starts once.
func (l *Locker) Start(ctx context.Context) error { return l.keeper.start(ctx) }

// Stop ends all renewals and returns when the last one under way has ended. Locks can still be released; one that is not
// is lost when its trust ends. A stopped Locker acquires nothing. Stop is idempotent.
func (l *Locker) Stop() { l.keeper.stop() }

// Acquire takes a tenant's lock, or waits up to wait for it. It fills in the request's Holder, which is always fresh, its
// Process, and its Lease if that is zero. A wait of zero is one try.
//
// Callers of one Locker that wait for the same lock form a queue, and only its head looks at the database. Waiting means
// short reads with pauses between; no statement ever waits for a row.
//
// The lock outlives ctx. If ctx ends while the database is being asked, Acquire waits a moment for the answer,
// so that it leaves no lock behind.
//
// Errors: *[LockBusyError] if it is someone else's when the wait is over; [ErrNewerBinary], [ErrScopeTaken] and
// [ErrRemoved], without waiting; the cause of ctx; or, if the database gave no usable answer several times, its last error,
// in which case a lock may stand in the database and lapses after one lease.
func (l *Locker) Acquire(ctx context.Context, store Store, req Request, wait time.Duration) (*Lock, Grant, error) {
	req.Holder, req.Process = NewHolderID(), l.cfg.Process
	if req.Lease == 0 {
		req.Lease = l.cfg.Lease
	}
	if req.Operation != OpHold || req.Lease < MinLease {
		if err := checkLease("Lease", req.Lease); err != nil {
			return nil, Grant{}, fmt.Errorf("acquire lock: %w", err)
		}
	}
	if err := l.keeper.running(); err != nil {
		return nil, Grant{}, fmt.Errorf("acquire lock: %w", err)
	}
	a := acquisition{locker: l, store: store, req: req, since: time.Now()}
	a.deadline = a.since.Add(wait)

	lock, grant, err := a.run(ctx)
	if _, busy := errors.AsType[*LockBusyError](err); busy {
		return nil, Grant{}, err // it is a whole sentence
	}
	if err != nil {
		return nil, Grant{}, fmt.Errorf("acquire lock: %w", err)
	}
	return lock, grant, nil
}
