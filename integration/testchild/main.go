// Command testchild is the process that crash tests kill. It embeds the engine as a product would, does one operation on one
// tenant, and prints the Result as one line of JSON. It is built with the failpoints tag, so that its parent can stop it at
// a named point.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/rs/zerolog"

	"github.com/belayhq/belay/engine"
	"github.com/belayhq/belay/integration/testchild/fake"
	"github.com/belayhq/belay/plan"
	"github.com/belayhq/belay/sitelock"
	"github.com/belayhq/belay/storage"
	"github.com/belayhq/belay/storage/postgres"
	"github.com/belayhq/belay/storage/sqlite"
	"github.com/belayhq/belay/tenant"
)

// Report is what the process prints.
type Report struct {
	Verdict   engine.Verdict `json:"verdict"`
	StepsDone int            `json:"steps_done"`
	Recovered int            `json:"recovered"`
	Error     string         `json:"error,omitempty"`
	Lost      bool           `json:"lost,omitempty"`
	Busy      bool           `json:"busy,omitempty"`
}

type options struct {
	target, id, change, changeID, op, ledger string
	lease, wait, step, action                time.Duration
}

func main() {
	var o options
	flag.StringVar(&o.target, "target", "", "target URL")
	flag.StringVar(&o.id, "id", "", "tenant id")
	flag.StringVar(&o.change, "change", "", "change directory (apply)")
	flag.StringVar(&o.changeID, "change-id", "", "change id (rollback)")
	flag.StringVar(&o.op, "op", "apply", "apply, rollback, or release: a hold, and its end")
	flag.StringVar(&o.ledger, "ledger", "", "file that stands for a resource outside the database")
	flag.DurationVar(&o.lease, "lease", 2*time.Second, "lease")
	flag.DurationVar(&o.wait, "wait", 0, "lock timeout")
	flag.DurationVar(&o.step, "step-timeout", 5*time.Second, "timeout of a statement")
	flag.DurationVar(&o.action, "action-timeout", 2*time.Second, "timeout of an action")
	flag.Parse()
	if err := run(o); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(o options) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	// The parent waits for this line, so that it knows the signal has arrived.
	defer context.AfterFunc(ctx, func() { fmt.Fprintln(os.NewFile(3, "parent"), "terminating") })()
	target, err := tenant.ParseTarget(o.target, "/")
	if err != nil {
		return err
	}
	directory, err := storage.NewDirectory(storage.DirectoryConfig{}, postgres.Driver(), sqlite.Driver())
	if err != nil {
		return err
	}
	defer directory.Close()
	actions := engine.NewActions()
	fake.Register(actions, o.ledger)
	e, err := engine.New(directory, engine.Config{
		Lease: o.lease, Actions: actions, StepTimeout: o.step, ActionTimeout: o.action, ActionGrace: time.Second,
		Log: zerolog.New(os.Stderr),
	})
	if err != nil {
		return err
	}
	defer e.Close()
	t := tenant.Tenant{ID: tenant.ID(o.id), Name: o.id, Target: target}
	result, err := operate(ctx, e, t, o)
	return json.NewEncoder(os.Stdout).Encode(report(result, err))
}

func operate(ctx context.Context, e *engine.Engine, t tenant.Tenant, o options) (engine.Result, error) {
	switch o.op {
	case "rollback":
		return e.Rollback(ctx, t, o.changeID, engine.RollbackOptions{LockTimeout: o.wait})
	case "release":
		if _, err := e.Hold(ctx, t, time.Minute, "somebody looks"); err != nil {
			return engine.Result{}, err
		}
		return engine.Result{Verdict: "released"}, e.ReleaseHold(ctx, t)
	}
	change, err := plan.Load(o.change)
	if err != nil {
		return engine.Result{}, err
	}
	return e.Apply(ctx, t, change, engine.ApplyOptions{LockTimeout: o.wait})
}

func report(result engine.Result, err error) Report {
	r := Report{Verdict: result.Verdict, StepsDone: result.StepsDone, Recovered: len(result.Recovered)}
	if err != nil {
		r.Error = err.Error()
	}
	_, r.Lost = errors.AsType[*sitelock.LockLostError](err)
	_, r.Busy = errors.AsType[*sitelock.LockBusyError](err)
	return r
}
