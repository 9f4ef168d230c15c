package main

import (
	"context"
	"iter"

	"github.com/spf13/cobra"

	"github.com/belayhq/belay/engine"
	"github.com/belayhq/belay/internal/render"
	"github.com/belayhq/belay/tenant"
)

func (p *program) verifyCommand() *cobra.Command {
	var sel selection
	var verbose bool
	cmd := &cobra.Command{
		Use:   "verify CHANGE",
		Short: "Repeat the verify queries of an applied change",
		Long:  "Verify repeats every verify query of a change that is applied, read-only and without a lock.",
		Example: `  belay verify 0042-customer-locale --all
  belay verify 0042-customer-locale -l ring=canary -o json`,
		Args: cobra.ExactArgs(1),
	}
	sel.addTo(cmd)
	cmd.Flags().StringVarP(&p.flags.workers, "workers", "p", "", "look at `N` tenants at once (default 8)")
	cmd.Flags().BoolVarP(&verbose, "verbose", "v", false, "show every tenant")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		ctx := cmd.Context()
		change, err := p.changeID(args[0])
		if err != nil {
			return err
		}
		s, err := p.open(ctx, mustExist)
		if err != nil {
			return err
		}
		defer s.close()
		tenants, err := s.choose(ctx, cmd, &sel)
		if err != nil {
			return err
		}
		if err := s.startEngineFor(tenants); err != nil {
			return err
		}
		o := operation{
			session: s, command: render.Command{Name: "verify", Argument: change, Change: change}, tenants: tenants, verbose: verbose,
		}
		pool := engine.PoolOptions{Workers: p.settings.Workers}
		return o.run(ctx, func(ctx context.Context, ts iter.Seq2[tenant.Tenant, error], report func(engine.Result)) error {
			return s.engine.Each(ctx, ts, change, pool, func(ctx context.Context, t tenant.Tenant) engine.Result {
				result, _ := s.engine.Verify(ctx, t, change) // its error is in the result
				return result
			}, report)
		})
	}
	return cmd
}
