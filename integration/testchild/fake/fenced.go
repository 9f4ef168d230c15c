package fake

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/belayhq/belay/engine"
	"github.com/belayhq/belay/tenant"
)

// Resource is the path of a tenant's resource in a directory of them.
func Resource(dir string, id tenant.ID) string { return filepath.Join(dir, string(id)) }

// RegisterFenced adds the actions "ledger.insert", as [Register] does, and "resource.set": every tenant has a resource of
// its own in a directory, which refuses a fence lower than it has seen.
func RegisterFenced(actions *engine.Actions, dir string) {
	registerLedger(actions)
	set := func(value func(engine.ActionCall[Args]) []byte) func(context.Context, engine.ActionCall[Args]) error {
		return func(ctx context.Context, c engine.ActionCall[Args]) error {
			f := file{Resource(dir, c.Tenant.ID)}
			return f.fenced(ctx, c, value(c))
		}
	}
	engine.RegisterExternal(actions, "resource.set", engine.External[Args]{
		Capture: func(_ context.Context, c engine.ActionCall[Args]) ([]byte, error) {
			return file{Resource(dir, c.Tenant.ID)}.read()
		},
		Do:            set(func(c engine.ActionCall[Args]) []byte { return []byte(c.Args.Value) }),
		Undo:          set(func(c engine.ActionCall[Args]) []byte { return c.Before }),
		FencesChecked: true,
	})
}

// errStale is what the resource answers to a former holder.
var errStale = errors.New("the resource has seen a higher fence")

// fenced records a call and carries it out, unless a later term has called.
func (f file) fenced(ctx context.Context, c engine.ActionCall[Args], value []byte) error {
	unlock, err := lock(ctx, f.path+".lock")
	if err != nil {
		return err
	}
	defer unlock()
	calls, err := Calls(f.path)
	if err != nil {
		return err
	}
	if n := len(calls); n > 0 && calls[n-1].Fence > c.Fence {
		return fmt.Errorf("%w than %d", errStale, c.Fence)
	}
	// Written aside, because a caller that dies half-way must not leave half a value.
	if err := errors.Join(f.record(c), os.WriteFile(f.path+".new", value, 0o600)); err != nil {
		return err
	}
	return os.Rename(f.path+".new", f.path)
}

// lock waits for the lock of a file, which a process that is stopped may have.
func lock(ctx context.Context, path string) (unlock func(), err error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		if err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err == nil {
			return func() { _ = f.Close() }, nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil, errors.Join(context.Cause(ctx), f.Close())
		}
	}
}
