package main

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/belayhq/belay/engine"
	"github.com/belayhq/belay/internal/render"
	"github.com/belayhq/belay/plan"
	"github.com/belayhq/belay/tenant"
)

// operationFlags are those of apply and rollback.
type operationFlags struct {
	selection
	lockTimeout time.Duration
	timeout     time.Duration
	maxFailures int
	retry       bool
	yes         bool
	verbose     bool
}

func (f *operationFlags) addTo(p *program, cmd *cobra.Command) {
	f.selection.addTo(cmd)
	flags := cmd.Flags()
	flags.StringVarP(&p.flags.workers, "workers", "p", "", "work on `N` tenants at once (default 8)")
	flags.DurationVar(&f.lockTimeout, "lock-timeout", 0, "how long to wait for a lock that someone else has; 0 does not wait (default 1.5 leases)")
	flags.DurationVar(&f.timeout, "timeout", 0, "how long the steps of one tenant may take (default no bound)")
	flags.IntVar(&f.maxFailures, "max-failures", 0, "start no further tenant once more than `N` have failed (default no number)")
	flags.BoolVar(&f.retry, "retry", false, "also take quarantined plans, and count their attempts anew")
	flags.BoolVarP(&f.yes, "yes", "y", false, "do not ask")
	flags.BoolVarP(&f.verbose, "verbose", "v", false, "show every tenant")
}

// pool returns how many tenants are worked on at once, and when to stop.
func (f *operationFlags) pool(p *program, cmd *cobra.Command) (engine.PoolOptions, error) {
	pool := engine.PoolOptions{Workers: p.settings.Workers}
	if f.maxFailures < 0 {
		return pool, misuse("--max-failures is %d, it must not be negative", f.maxFailures)
	}
	if f.timeout < 0 {
		return pool, misuse("--timeout is %s, it must not be negative", f.timeout)
	}
	if cmd.Flags().Changed("max-failures") {
		pool.StopAfter = f.maxFailures + 1
	}
	return pool, nil
}

type applyFlags struct {
	operationFlags
	allowIrreversible bool
	repin             bool
	outOfOrder        bool
	detailed          bool
	dryRun            bool
	expectPlan        string
}

// repeated lists the flags that the same apply needs again.
func (f *applyFlags) repeated() []string {
	return flagsGiven(map[string]bool{
		"--allow-irreversible": f.allowIrreversible, "--repin": f.repin, "--out-of-order": f.outOfOrder, "--retry": f.retry,
	})
}

// flagsGiven returns the flags that are set, in alphabetical order.
func flagsGiven(flags map[string]bool) []string {
	return slices.DeleteFunc(slices.Sorted(maps.Keys(flags)), func(flag string) bool { return !flags[flag] })
}

func (p *program) applyCommand() *cobra.Command {
	var f applyFlags
	cmd := &cobra.Command{
		Use:   "apply CHANGE|DIR",
		Short: "Apply a change, or all of a directory, to tenants",
		Long: `Apply brings each selected tenant to where every step of the change is in place. A plan that was left half-way is
resumed at its first step that is not in place; a tenant that has the change already is left as it is. So the same command
can always be run again.

CHANGE is a path if it holds a "/" or names a directory here, else the id of a change that was registered before.

DIR is a directory whose folders are changes. Each tenant gets those that it does not have, after those they require and
otherwise by id, and stops at the first that fails. A change that comes before one in place is refused: --out-of-order
applies it late. So one command brings a new tenant up to date.

With --dry-run it shows what would run on each tenant, steps and statements, takes no lock and writes nothing. Its JSON document is a
plan: with --expect-plan FILE an apply refuses every tenant that the plan does not have, or that has moved since.`,
		Example: `  belay apply changes/0042-customer-locale -t acme
  belay apply changes --all -y
  belay apply changes/0042-customer-locale -l ring=canary --expect 5 -y
  belay apply 0042-customer-locale --all --exclude 'test-*' -p 16 -o jsonl -y
  belay apply changes --all --dry-run -o json > plan.json
  belay apply changes --all --expect-plan plan.json -y`,
		Args: cobra.ExactArgs(1),
	}
	f.addTo(p, cmd)
	cmd.Flags().BoolVar(&f.allowIrreversible, "allow-irreversible", false, "apply a change that has a step without a way back")
	cmd.Flags().BoolVar(&f.repin, "repin", false, "let a partial plan take an edited change, if only steps not in place differ")
	cmd.Flags().BoolVar(&f.outOfOrder, "out-of-order", false, "of a DIR: also apply changes that come before one in place")
	cmd.Flags().BoolVar(&f.detailed, "detailed-exitcode", false, "exit 2 if work is left that nobody failed at")
	cmd.Flags().BoolVar(&f.dryRun, "dry-run", false, "show what would run, and run nothing")
	cmd.Flags().StringVar(&f.expectPlan, "expect-plan", "", "refuse tenants that are not as in `FILE`, what --dry-run -o json printed")
	cmd.RunE = func(cmd *cobra.Command, args []string) error { return p.apply(cmd, args[0], f) }
	return cmd
}

func (p *program) apply(cmd *cobra.Command, arg string, f applyFlags) error {
	ctx := cmd.Context()
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
	changes, several, err := s.findChanges(ctx, arg)
	if err != nil {
		return err
	}
	if cmd.Flags().Changed("expect-plan") && f.expectPlan == "" {
		return misuse("--expect-plan is empty")
	}
	if err := f.suit(several); err != nil {
		return err
	}
	expect, err := s.expected(f.expectPlan, changes)
	if err != nil {
		return err
	}
	tenants, err := s.choose(ctx, cmd, &f.selection)
	if err != nil {
		return err
	}
	if err := s.applicable(arg, changes, tenants, f.allowIrreversible); err != nil {
		return err
	}
	if err := s.startEngineFor(tenants); err != nil {
		return err
	}
	opts := engine.ApplyOptions{
		LockTimeout: wait, Timeout: f.timeout, AllowIrreversible: f.allowIrreversible, Retry: f.retry, Repin: f.repin,
		OutOfOrder: f.outOfOrder, Expect: expect,
	}
	if f.dryRun {
		return s.previewApply(ctx, f, arg, changes, several, tenants, opts)
	}
	if !f.yes {
		if err := s.confirmApply(ctx, arg, changes, tenants); err != nil {
			return err
		}
	}
	o := operation{
		session: s, command: render.Command{Name: "apply", Argument: arg, Flags: f.repeated()},
		register: changes, tenants: tenants, verbose: f.verbose, detailed: f.detailed,
	}
	if !several {
		o.command.Change = changes[0].ID
	}
	return o.run(ctx, func(ctx context.Context, ts iter.Seq2[tenant.Tenant, error], report func(engine.Result)) error {
		if several {
			return s.engine.ApplyAllMissing(ctx, ts, changes, opts, pool, report)
		}
		return s.engine.ApplyAll(ctx, ts, changes[0], opts, pool, report)
	})
}

// suit refuses flags that mean nothing for what is applied: one change, or a directory of them.
func (f *applyFlags) suit(several bool) error {
	switch {
	case f.dryRun && f.repin:
		return misuse("--dry-run cannot tell which edits a plan takes: that is known only under its lock; leave --repin out")
	case f.dryRun && f.expectPlan != "":
		return misuse("--dry-run makes a plan and --expect-plan follows one: give one of them")
	case several && f.repin:
		return misuse("--repin is for one change: name its folder")
	case !several && f.outOfOrder:
		return misuse("--out-of-order is for a directory of changes: one change has no order")
	}
	return nil
}

// applicable refuses, before any tenant is opened, changes that no tenant could take.
func (s *session) applicable(arg string, changes []*plan.Change, tenants *chosen, allowIrreversible bool) error {
	var problems []error
	for _, change := range changes {
		if err := engine.NewActions().Check(change); err != nil {
			return fail(exitRefused, "change %s: %w; actions are registered by the program that embeds belay, this one has none", change.ID, err)
		}
		for _, dialect := range tenants.dialects() {
			if _, err := change.Compile(dialect); err != nil {
				problems = append(problems, fmt.Errorf("change %s is not valid on %s:\n%w", change.ID, dialect, err))
			}
		}
		if step := change.Irreversible(); step != nil && !allowIrreversible {
			s.say("step %s of %s cannot be undone: %s", step.ID, change.ID, step.Undo.Irreversible)
		}
	}
	if len(problems) > 0 {
		return (&failure{code: exitRefused, err: errors.Join(problems...)}).
			advise("belay change validate "+render.Quote(arg), "shows everything that is wrong")
	}
	return nil
}

// confirmApply says what an apply would do, and asks. Where nothing is to be done there is nothing to ask.
func (s *session) confirmApply(ctx context.Context, arg string, changes []*plan.Change, tenants *chosen) error {
	about, subject := "", arg
	what := render.Plural(len(changes), "change")
	if len(changes) == 1 {
		about, subject = changes[0].ID, changes[0].ID
		what = render.Plural(len(changes[0].Steps), "step") + ", " + changes[0].Digest().Short()
	}
	var counts applyCounts
	for one, err := range s.engine.Survey(ctx, tenants.tenants(ctx), about) {
		if err != nil {
			return err
		}
		counts.add(one, changes)
	}
	s.say("%s (%s): %d to apply, %d to resume, %d already applied, %d locked by someone else, %d unreadable",
		subject, what, counts.fresh, counts.resume, counts.done, counts.busy, counts.unreadable)
	if todo := tenants.Count - counts.done; todo > 0 {
		return s.confirm(ctx, fmt.Sprintf("Apply %s to %s?", subject, render.Plural(todo, "tenant")))
	}
	return nil
}

// applyCounts counts tenants by what an apply has to do there.
type applyCounts struct{ fresh, resume, done, busy, unreadable int }

func (c *applyCounts) add(one engine.Surveyed, changes []*plan.Change) {
	applied, touched := 0, false
	for _, change := range changes {
		switch mine := planFor(one.Records, change.ID); {
		case mine == nil || mine.Plan.Status == plan.Pending && !mine.Touched():
		case mine.Plan.Status == plan.Applied && !mine.Partial():
			applied++
		default:
			touched = true
		}
	}
	switch {
	case one.Err != nil:
		c.unreadable++
	case one.Lock.Live:
		c.busy++
	case touched:
		c.resume++
	case applied == len(changes):
		c.done++
	default:
		c.fresh++
	}
}

func planFor(records []plan.Record, change string) *plan.Record {
	for i := range records {
		if records[i].Plan.Change == change {
			return &records[i]
		}
	}
	return nil
}
