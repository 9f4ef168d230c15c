// Package fake registers the actions of the crash tests: one on the tenant's own database, and one on a file that stands for
// a resource outside it and records every call with its fence.
package fake

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"github.com/belayhq/belay/engine"
	"github.com/belayhq/belay/plan"
	"github.com/belayhq/belay/sitelock"
)

// Args of both actions.
type Args struct {
	Value string `json:"value"`
}

// Entry is one call that the outside resource saw.
type Entry struct {
	Direction  plan.Direction `json:"direction"`
	Fence      sitelock.Fence `json:"fence"`
	Attempt    int            `json:"attempt"`
	MayHaveRun bool           `json:"may_have_run"`
	Key        string         `json:"key"`
	Before     string         `json:"before"`
	// Found is the value that the call was about to overwrite, and At when it came, in Unix milliseconds.
	Found string `json:"found"`
	At    int64  `json:"at"`
}

// Register adds the actions "ledger.insert", "processor.burn", whose value is a duration, "file.set", and "file.await", which is
// like it but does nothing before the file that [Open] makes is there. ledger is the path of the outside resource: its value
// is in that file, the calls it saw in ledger + ".calls".
func Register(actions *engine.Actions, ledger string) {
	registerLedger(actions)
	engine.RegisterExternal(actions, "processor.burn", engine.External[Args]{
		Do: func(_ context.Context, c engine.ActionCall[Args]) error {
			d, err := time.ParseDuration(c.Args.Value)
			for end := time.Now().Add(d); time.Now().Before(end); {
				continue
			}
			return err
		},
	})
	file := file{ledger}
	set := engine.External[Args]{
		Capture: func(context.Context, engine.ActionCall[Args]) ([]byte, error) { return file.read() },
		Do: func(_ context.Context, c engine.ActionCall[Args]) error {
			return errors.Join(file.record(c), os.WriteFile(file.path, []byte(c.Args.Value), 0o600))
		},
		Undo: func(_ context.Context, c engine.ActionCall[Args]) error {
			return errors.Join(file.record(c), os.WriteFile(file.path, c.Before, 0o600))
		},
	}
	await := set
	await.Do = func(ctx context.Context, c engine.ActionCall[Args]) error {
		if err := errors.Join(file.record(c), file.opened(ctx)); err != nil {
			return err
		}
		return os.WriteFile(file.path, []byte(c.Args.Value), 0o600)
	}
	engine.RegisterExternal(actions, "file.set", set)
	engine.RegisterExternal(actions, "file.await", await)
}

// Open lets the action "file.await" of a resource go on.
func Open(ledger string) error { return os.WriteFile(ledger+".open", nil, 0o600) }

// opened waits for Open.
func (f file) opened(ctx context.Context) error {
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		if _, err := os.Stat(f.path + ".open"); err == nil && ctx.Err() == nil {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

func registerLedger(actions *engine.Actions) {
	engine.Register(actions, "ledger.insert", engine.Transactional[Args]{
		Do: func(ctx context.Context, tx engine.Tx, c engine.ActionCall[Args]) ([]byte, error) {
			_, err := tx.Exec(ctx, "INSERT INTO ledger (step) VALUES ('"+c.StepID+"')")
			return []byte("inserted"), err
		},
		Undo: func(ctx context.Context, tx engine.Tx, c engine.ActionCall[Args]) error {
			if string(c.Before) != "inserted" {
				return fmt.Errorf("before-image is %q", c.Before)
			}
			_, err := tx.Exec(ctx, "DELETE FROM ledger WHERE step = '"+c.StepID+"'")
			return err
		},
	})
}

type file struct{ path string }

func (f file) read() ([]byte, error) {
	b, err := os.ReadFile(f.path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return b, err
}

func (f file) record(c engine.ActionCall[Args]) error {
	found, err := f.read()
	if err != nil {
		return err
	}
	line, err := json.Marshal(Entry{
		c.Direction, c.Fence, c.Attempt, c.MayHaveRun, c.IdempotencyKey, string(c.Before), string(found), time.Now().UnixMilli(),
	})
	if err != nil {
		return err
	}
	out, err := os.OpenFile(f.path+".calls", os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = out.Write(append(line, '\n'))
	return errors.Join(err, out.Close())
}

// Calls reads what the outside resource saw.
func Calls(ledger string) ([]Entry, error) {
	b, err := os.ReadFile(ledger + ".calls")
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var entries []Entry
	for line := range bytes.Lines(b) {
		var e Entry
		if err := json.Unmarshal(line, &e); err != nil {
			return nil, err
		}
		entries = append(entries, e)
	}
	return entries, nil
}
