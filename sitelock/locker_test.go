package sitelock

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/belayhq/belay/tenant"
)

const lease = 60 * time.Second

// started returns a running locker that stops with the test. Inside a bubble it must be called in the bubble.
func started(t *testing.T, cfg Config) *Locker {
	t.Helper()
	l, err := NewLocker(cfg)
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.Stop)
	return l
}

// pass lets the bubble's clock run on.
func pass(d time.Duration) { <-time.After(d) }

func request() Request { return Request{Tenant: tenant.NewID(), Operation: OpApply} }

func acquire(t *testing.T, l *Locker, store Store, req Request) *Lock {
	t.Helper()
	lock, _, err := l.Acquire(t.Context(), store, req, 0)
	if err != nil {
		t.Fatal(err)
	}
	return lock
}

func release(t *testing.T, lock *Lock) {
	t.Helper()
	if err := lock.Release(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestConfigNamesEveryFieldThatIsOutOfBounds(t *testing.T) {
	t.Parallel()
	good := Process{Host: "h", PID: 1}
	for name, tt := range map[string]struct {
		cfg  Config
		want []string // nil if valid
	}{
		"zero value":         {Config{}, nil},
		"shortest":           {Config{Lease: MinLease, Process: good}, nil},
		"longest":            {Config{Lease: MaxLease, Process: good}, nil},
		"too short":          {Config{Lease: MinLease - 1}, []string{"Lease is 999.999999ms", "from 1s to 1h0m0s"}},
		"too long":           {Config{Lease: MaxLease + 1}, []string{"Lease is 1h0m0.000000001s", "from 1s to 1h0m0s"}},
		"negative":           {Config{Lease: -lease}, []string{"Lease is -1m0s"}},
		"everything at once": {Config{Lease: 1, Process: Process{PID: -1}}, []string{"Lease", "Process.Host", "Process.PID"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := NewLocker(tt.cfg)
			if (err == nil) != (tt.want == nil) {
				t.Fatalf("error %v, want %q", err, tt.want)
			}
			for _, part := range tt.want {
				if !strings.Contains(err.Error(), part) {
					t.Errorf("error %q does not say %q", err, part)
				}
			}
		})
	}
}

func TestTheZeroConfigIsThisProcessWithTheDefaultLease(t *testing.T) {
	t.Parallel()
	l := started(t, Config{})
	if l.cfg.Lease != DefaultLease {
		t.Errorf("lease %s", l.cfg.Lease)
	}
	if p := l.Process(); p.Host == "" || p.PID <= 0 || p.StartedAt.IsZero() {
		t.Errorf("process %+v", p)
	}
}

func TestALockerAcquiresOnlyWhileItRuns(t *testing.T) {
	t.Parallel()
	l, err := NewLocker(Config{})
	if err != nil {
		t.Fatal(err)
	}
	store := newMemory()
	if _, _, err := l.Acquire(t.Context(), store, request(), 0); !errors.Is(err, errNotRunning) {
		t.Errorf("before the start: %v", err)
	}
	if err := l.Start(t.Context()); err != nil {
		t.Error(err)
	}
	if err := l.Start(t.Context()); !errors.Is(err, errStarted) {
		t.Errorf("second start: %v", err)
	}
	lock := acquire(t, l, store, request())
	l.Stop()
	l.Stop()
	if _, _, err := l.Acquire(t.Context(), store, request(), 0); !errors.Is(err, errNotRunning) {
		t.Errorf("after the stop: %v", err)
	}
	if n := store.count("acquire"); n != 1 {
		t.Errorf("the store was asked %d times", n)
	}
	release(t, lock)
}

func TestALeaseLengthOfTheRequestIsBoundedUnlessItIsAHold(t *testing.T) {
	t.Parallel()
	l, store := started(t, Config{}), newMemory()
	for _, tt := range []struct {
		op    Operation
		lease time.Duration
		ok    bool
	}{
		{OpApply, MinLease, true},
		{OpApply, MaxLease, true},
		{OpApply, MinLease - 1, false},
		{OpApply, MaxLease + 1, false},
		{OpHold, MaxLease + 1, true},
		{OpHold, MinLease - 1, false},
	} {
		req := request()
		req.Operation, req.Lease = tt.op, tt.lease
		lock, _, err := l.Acquire(t.Context(), store, req, 0)
		if (err == nil) != tt.ok {
			t.Errorf("%s for %s: %v", tt.op, tt.lease, err)
		}
		if err == nil {
			release(t, lock)
		}
	}
}

var errCut = errors.New("connection lost")
