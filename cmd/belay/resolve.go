package main

import (
	"context"
	"errors"
	"iter"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/belayhq/belay/engine"
	"github.com/belayhq/belay/internal/render"
	"github.com/belayhq/belay/plan"
	"github.com/belayhq/belay/tenant"
)

type resolveFlags struct {
	selection
	as, reason  string
	lockTimeout time.Duration
}

func (p *program) resolveCommand() *cobra.Command {
	var f resolveFlags
	cmd := &cobra.Command{
		Use:   "resolve TENANT CHANGE | CHANGE <selection>",
		Short: "Say what is true of a plan that a person has put right",
		Long: `Resolve sets a plan's status and journal to what you say is true, and keeps your reason in the tenant's history. It touches
none of the tenant's data. It lifts a quarantine, and adopts a tenant that was changed by hand: resolve a change as applied that
the tenant has no plan for, and give it as a path or register it first.`,
		Example: `  belay resolve acme 0042-customer-locale --as applied --reason "column added by hand, ticket 4711"
  belay resolve changes/0001-baseline --all --as applied --reason "databases from before belay"`,
		Args: cobra.RangeArgs(1, 2),
	}
	f.addTo(cmd)
	cmd.Flags().StringVar(&f.as, "as", "", "what is true: applied or rolled-back")
	cmd.Flags().StringVar(&f.reason, "reason", "", "why, a `TEXT` for the history")
	cmd.Flags().DurationVar(&f.lockTimeout, "lock-timeout", 0, "how long to wait for a lock that someone else has; 0 does not wait (default 1.5 leases)")
	cmd.RunE = func(cmd *cobra.Command, args []string) error { return p.resolve(cmd, args, f) }
	return cmd
}

func (p *program) resolve(cmd *cobra.Command, args []string, f resolveFlags) error {
	ctx := cmd.Context()
	if len(args) == 2 {
		if f.given() {
			return misuse("name one TENANT and a CHANGE, or a CHANGE and a selection, not both")
		}
		f.names, args = []string{args[0]}, args[1:]
	}
	truth := engine.Truth(f.as)
	if truth != engine.ResolveApplied && truth != engine.ResolveRolledBack {
		return misuse("--as must say what is true: applied or rolled-back")
	}
	if strings.TrimSpace(f.reason) == "" {
		return misuse("--reason TEXT is needed: it is kept in the history")
	}
	wait, err := p.lockTimeout(f.lockTimeout, cmd.Flags().Changed("lock-timeout"))
	if err != nil {
		return err
	}
	s, err := p.open(ctx, mustExist)
	if err != nil {
		return err
	}
	defer s.close()
	id, change, err := s.changeToResolve(ctx, args[0], truth)
	if err != nil {
		return err
	}
	tenants, err := s.choose(ctx, cmd, &f.selection)
	if err != nil {
		return err
	}
	if err := s.startEngineFor(tenants); err != nil {
		return err
	}
	o := operation{session: s, command: render.Command{Name: "resolve", Argument: args[0], Change: id}, tenants: tenants}
	if s.namesPath(args[0]) {
		o.register = []*plan.Change{change}
	}
	opts := engine.ResolveOptions{As: truth, Reason: f.reason, Change: change, LockTimeout: wait}
	pool := engine.PoolOptions{Workers: p.settings.Workers}
	return o.run(ctx, func(ctx context.Context, ts iter.Seq2[tenant.Tenant, error], report func(engine.Result)) error {
		return s.engine.Each(ctx, ts, id, pool, func(ctx context.Context, t tenant.Tenant) engine.Result {
			result, _ := s.engine.Resolve(ctx, t, id, opts) // its error is in the result
			return result
		}, report)
	})
}

// changeToResolve returns the id of a change, and the change itself where it may be needed: a tenant without a plan can
// only be adopted by a change that is known. One that is not registered is no obstacle for the others.
func (s *session) changeToResolve(ctx context.Context, arg string, truth engine.Truth) (string, *plan.Change, error) {
	if truth == engine.ResolveRolledBack {
		id, err := s.changeID(arg)
		return id, nil, err
	}
	if !s.namesPath(arg) {
		change, err := s.control.ChangeByID(ctx, arg)
		if errors.Is(err, engine.ErrChangeUnknown) {
			return arg, nil, nil // tenants that have a plan for it keep the change themselves
		}
		return arg, change, err
	}
	change, err := s.loadChange(arg)
	if err != nil {
		return "", nil, err
	}
	return change.ID, change, nil
}
