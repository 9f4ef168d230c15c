package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/belayhq/belay/engine"
	"github.com/belayhq/belay/internal/render"
	"github.com/belayhq/belay/tenant"
)

const historyDefault = 20

func (p *program) historyCommand() *cobra.Command {
	var sel selection
	var limit int
	cmd := &cobra.Command{
		Use:   "history [TENANT]",
		Short: "Show what happened to tenants: who, when, what and why",
		Long:  "History shows each transition of a tenant's plans and lock, newest first, as its own database recorded it.",
		Example: `  belay history acme
  belay history -l ring=canary -n 5 -o json`,
		Args: cobra.MaximumNArgs(1),
	}
	sel.addTo(cmd)
	cmd.Flags().IntVarP(&limit, "limit", "n", historyDefault, "show the newest `N` of each tenant")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		ctx := cmd.Context()
		if limit < 1 {
			return misuse("-n is %d, it must be at least 1", limit)
		}
		sel.names = append(sel.names, args...)
		s, err := p.open(ctx, mustExist)
		if err != nil {
			return err
		}
		defer s.close()
		tenants, err := s.chooseAny(ctx, cmd, &sel)
		if err != nil {
			return err
		}
		return s.history(ctx, tenants, limit)
	}
	return cmd
}

func (s *session) history(ctx context.Context, tenants *chosen, limit int) error {
	document := render.History{Schema: render.Schema("history"), Tenants: []render.TenantHistory{}}
	table := render.NewTable("TENANT", "WHEN", "WHAT", "CHANGE", "FROM", "TO", "OUTCOME", "WHO", "WHY")
	var unreadable []error
	for t, err := range tenants.tenants(ctx) {
		if err != nil {
			return err
		}
		events, err := s.events(ctx, t, limit)
		if err != nil {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			unreadable = append(unreadable, fmt.Errorf("tenant %s: %w", t.Name, err))
			continue
		}
		one := render.NewTenantHistory(t, events)
		if s.settings.Format == formatLines {
			if err := render.JSONLine(s.stdout, one); err != nil {
				return err
			}
			continue
		}
		document.Tenants = append(document.Tenants, one)
		one.AddTo(table)
	}
	if s.settings.Format != formatLines {
		if err := s.show(document, func() error { return table.Write(s.stdout) }); err != nil {
			return err
		}
	}
	return errors.Join(unreadable...)
}

func (s *session) events(ctx context.Context, t tenant.Tenant, limit int) ([]engine.Event, error) {
	db, release, err := s.directory.OpenDatabase(ctx, t.Target)
	if err != nil {
		return nil, err
	}
	defer release()
	return db.Events(ctx, t.ID, limit)
}
