package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/belayhq/belay/internal/render"
)

func (p *program) leaseCommand() *cobra.Command {
	return group("lease", "Show the named leases of background work", "  belay lease list", p.leaseListCommand())
}

func (p *program) leaseListCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List all named leases that were ever taken",
		Example: `  belay lease list
  belay lease list -o json`,
		Args: cobra.NoArgs,
	}
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		ctx := cmd.Context()
		s, err := p.open(ctx, mustExist)
		if err != nil {
			return err
		}
		defer s.close()
		leases, err := s.control.Leases(ctx)
		if err != nil {
			return err
		}
		document := render.NewLeases(leases)
		return s.show(document, func() error {
			table := render.NewTable("LEASE", "STATE", "FENCE", "HOST", "PID", "SINCE", "EXPIRES")
			for _, l := range leases {
				host, pid := l.Host, ""
				if l.PID != 0 {
					pid = fmt.Sprint(l.PID)
				}
				table.Add(l.Name, render.LeaseState(l), fmt.Sprint(l.Fence), host, pid, render.Time(l.Since), render.Time(l.Expires))
			}
			return table.Write(s.stdout)
		})
	}
	return cmd
}
