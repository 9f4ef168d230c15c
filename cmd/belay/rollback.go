package main

import (
	"context"
	"fmt"
	"iter"

	"github.com/spf13/cobra"

	"github.com/belayhq/belay/engine"
	"github.com/belayhq/belay/internal/render"
	"github.com/belayhq/belay/tenant"
)

type rollbackFlags struct {
	operationFlags
	to      string
	cascade bool
}

func (p *program) rollbackCommand() *cobra.Command {
	var f rollbackFlags
	cmd := &cobra.Command{
		Use:   "rollback CHANGE | --to CHANGE",
		Short: "Take tenants back to before a change",
		Long: `Rollback undoes exactly the steps of a change that are in place, newest first, also where an apply was left half-way. It
needs no files: each tenant's database keeps the change. It refuses, before it touches anything, where a step has no way
back or a newer change is in place on top.

With --to it takes tenants back to where CHANGE was the newest one applied: all newer ones go, it stays itself.`,
		Example: `  belay rollback 0042-customer-locale -t acme
  belay rollback 0042-customer-locale -l ring=canary --cascade -y
  belay rollback --to 0040-orders --all -y`,
		Args: cobra.MaximumNArgs(1),
	}
	f.addTo(p, cmd)
	cmd.Flags().StringVar(&f.to, "to", "", "roll back everything newer than `CHANGE`, which stays")
	cmd.Flags().BoolVar(&f.cascade, "cascade", false, "roll back newer changes first, where there are any in place")
	cmd.RunE = func(cmd *cobra.Command, args []string) error { return p.rollback(cmd, args, f) }
	return cmd
}

func (p *program) rollback(cmd *cobra.Command, args []string, f rollbackFlags) error {
	ctx := cmd.Context()
	if (len(args) == 1) == (f.to != "") {
		return misuse("rollback needs either a CHANGE or --to CHANGE").
			advise(cmd.CommandPath()+" CHANGE …", "undoes that one").
			advise(cmd.CommandPath()+" --to CHANGE …", "undoes all newer ones and leaves it")
	}
	arg, question := f.to, "Roll back everything newer than %s on %s?"
	if f.to == "" {
		arg, question = args[0], "Roll back %s on %s?"
	} else if f.cascade {
		return misuse("--to always takes newer changes back: leave --cascade out")
	}
	change, err := p.changeID(arg)
	if err != nil {
		return err
	}
	wait, err := p.lockTimeout(f.lockTimeout, cmd.Flags().Changed("lock-timeout"))
	if err != nil {
		return err
	}
	pool, err := f.pool(p, cmd)
	if err != nil {
		return err
	}
	s, err := p.open(ctx, mustExist)
	if err != nil {
		return err
	}
	defer s.close()
	tenants, err := s.choose(ctx, cmd, &f.selection)
	if err != nil {
		return err
	}
	if !f.yes && tenants.Count > 0 {
		if err := s.confirm(ctx, fmt.Sprintf(question, change, render.Plural(tenants.Count, "tenant"))); err != nil {
			return err
		}
	}
	if err := s.startEngineFor(tenants); err != nil {
		return err
	}
	o := operation{
		session: s, tenants: tenants, verbose: f.verbose,
		command: render.Command{
			Name: "rollback", Argument: change, Change: change, To: f.to != "",
			Flags: flagsGiven(map[string]bool{"--cascade": f.cascade, "--retry": f.retry}),
		},
	}
	opts := engine.RollbackOptions{LockTimeout: wait, Timeout: f.timeout, Cascade: f.cascade, Retry: f.retry}
	return o.run(ctx, func(ctx context.Context, ts iter.Seq2[tenant.Tenant, error], report func(engine.Result)) error {
		if f.to != "" {
			return s.engine.RollbackAllTo(ctx, ts, change, opts, pool, report)
		}
		return s.engine.RollbackAll(ctx, ts, change, opts, pool, report)
	})
}
