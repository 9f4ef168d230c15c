package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/belayhq/belay/engine"
	"github.com/belayhq/belay/internal/render"
	"github.com/belayhq/belay/sitelock"
	"github.com/belayhq/belay/tenant"
)

func (p *program) lockCommand() *cobra.Command {
	return group("lock", "Show, hold and break the locks of tenants", `  belay lock list
  belay lock hold acme --ttl 30m --reason "repairing by hand"`,
		p.lockListCommand(), p.lockShowCommand(), p.lockBreakCommand(), p.lockHoldCommand(), p.lockReleaseCommand())
}

func (p *program) lockListCommand() *cobra.Command {
	var sel selection
	var verbose bool
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List the locks that are not idle",
		Example: `  belay lock list
  belay lock list -v -l ring=canary -o json`,
		Args: cobra.NoArgs,
	}
	sel.addTo(cmd)
	cmd.Flags().BoolVarP(&verbose, "verbose", "v", false, "list idle ones too")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return p.locks(cmd, &sel, func(s sitelock.State) bool { return verbose || s.Kind() != sitelock.StateIdle })
	}
	return cmd
}

func (p *program) lockShowCommand() *cobra.Command {
	var sel selection
	cmd := &cobra.Command{
		Use:   "show TENANT | <selection>",
		Short: "Show who has a lock, since when, and when it lapses",
		Example: `  belay lock show acme
  belay lock show -t 'shop-*' -o json`,
		Args: cobra.ArbitraryArgs,
	}
	sel.addTo(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		sel.names = append(sel.names, args...)
		if !sel.given() {
			return misuse("which tenant's lock?").advise("belay lock list", "shows all that are not idle")
		}
		return p.locks(cmd, &sel, func(sitelock.State) bool { return true })
	}
	return cmd
}

// locks lists the locks of a selection that are wanted.
func (p *program) locks(cmd *cobra.Command, sel *selection, wanted func(sitelock.State) bool) error {
	ctx := cmd.Context()
	s, err := p.open(ctx, mustExist)
	if err != nil {
		return err
	}
	defer s.close()
	tenants, err := s.chooseAny(ctx, cmd, sel)
	if err != nil {
		return err
	}
	if err := s.startEngine(); err != nil {
		return err
	}
	document := render.Locks{Schema: render.Schema("locks"), Locks: []render.TenantLock{}}
	table := render.NewTable("TENANT", "STATE", "FENCE", "HOLDER")
	var unreadable []error
	for one, err := range s.engine.Survey(ctx, tenants.tenants(ctx), "") {
		if err != nil {
			return err
		}
		if one.Err != nil {
			unreadable = append(unreadable, fmt.Errorf("tenant %s: %w", one.Tenant.Name, one.Err))
			continue
		}
		if wanted(one.Lock) {
			document.Locks = append(document.Locks, render.NewTenantLock(one.Tenant, one.Lock))
			table.Add(one.Tenant.Name, string(one.Lock.Kind()), fmt.Sprint(one.Lock.Fence), render.Holder(one.Lock))
		}
	}
	if err := s.show(document, func() error { return table.Write(s.stdout) }); err != nil {
		return err
	}
	return errors.Join(unreadable...)
}

func (p *program) lockBreakCommand() *cobra.Command {
	var reason string
	return p.lockChange("break", "Take a lock from whoever has it, and recover the tenant's plans",
		`Break is for a holder that is alive and must not go on. A dead one needs no break: its lock lapses by itself, and the next
apply or rollback recovers the tenant. The former holder can commit nothing any more. The reason is kept in the history.`,
		`  belay lock break acme --reason "worker on host-7 hangs"`,
		func(cmd *cobra.Command) {
			cmd.Flags().StringVar(&reason, "reason", "", "why, a `TEXT` for the history")
		},
		func() error { return needReason(reason) },
		func(ctx context.Context, e *engine.Engine, t tenant.Tenant) ([]sitelock.Recovered, error) {
			return e.Break(ctx, t, reason)
		})
}

func (p *program) lockHoldCommand() *cobra.Command {
	var reason string
	var ttl time.Duration
	return p.lockChange("hold", "Keep everyone off a tenant for a time",
		"Hold ends by itself. Those who are kept off are told the reason. It refuses a tenant that someone is working on.",
		`  belay lock hold acme --ttl 30m --reason "repairing by hand"`,
		func(cmd *cobra.Command) {
			cmd.Flags().StringVar(&reason, "reason", "", "why, a `TEXT` for those who are kept off")
			cmd.Flags().DurationVar(&ttl, "ttl", 30*time.Minute, "how long")
		},
		func() error {
			if ttl < time.Second {
				return misuse("--ttl is %s, it must be at least 1s", ttl)
			}
			return needReason(reason)
		},
		func(ctx context.Context, e *engine.Engine, t tenant.Tenant) ([]sitelock.Recovered, error) {
			grant, err := e.Hold(ctx, t, ttl, reason)
			return grant.Recovered, err
		})
}

func (p *program) lockReleaseCommand() *cobra.Command {
	return p.lockChange("release", "End an operator's hold", "Release ends a hold, from any machine. It ends no other lock: see break.",
		"  belay lock release acme",
		func(*cobra.Command) {}, func() error { return nil },
		func(ctx context.Context, e *engine.Engine, t tenant.Tenant) ([]sitelock.Recovered, error) {
			return nil, e.ReleaseHold(ctx, t)
		})
}

// lockChange makes a command that changes the locks of the tenants it is told, one after the other.
func (p *program) lockChange(verb, short, long, example string, flags func(*cobra.Command), check func() error,
	change func(context.Context, *engine.Engine, tenant.Tenant) ([]sitelock.Recovered, error),
) *cobra.Command {
	var sel selection
	cmd := &cobra.Command{
		Use: verb + " TENANT | <selection>", Short: short, Long: long, Example: example, Args: cobra.ArbitraryArgs,
	}
	sel.addTo(cmd)
	flags(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		ctx := cmd.Context()
		if err := check(); err != nil {
			return err
		}
		sel.names = append(sel.names, args...)
		s, err := p.open(ctx, mustExist)
		if err != nil {
			return err
		}
		defer s.close()
		tenants, err := s.choose(ctx, cmd, &sel)
		if err != nil {
			return err
		}
		if err := s.startEngine(); err != nil {
			return err
		}
		return s.changeLocks(ctx, verb, tenants, change)
	}
	return cmd
}

func (s *session) changeLocks(ctx context.Context, verb string, tenants *chosen,
	change func(context.Context, *engine.Engine, tenant.Tenant) ([]sitelock.Recovered, error),
) error {
	document := render.LockChanges{Schema: render.Schema("lock-" + verb), Tenants: []render.LockChange{}}
	table := render.NewTable("TENANT", "RESULT", "NOTE")
	var problems []error
	for t, err := range tenants.tenants(ctx) {
		if err != nil {
			return err
		}
		if err := ctx.Err(); err != nil {
			problems = append(problems, context.Cause(ctx))
			break
		}
		recovered, err := change(ctx, s.engine, t)
		one := render.NewLockChange(t, recovered, err)
		document.Tenants = append(document.Tenants, one)
		table.Add(t.Name, one.Result, one.Note())
		if err != nil {
			problems = append(problems, fmt.Errorf("tenant %s: %w", t.Name, err))
		}
	}
	if err := s.show(document, func() error { return table.Write(s.stdout) }); err != nil {
		return err
	}
	return errors.Join(problems...)
}

func needReason(reason string) error {
	if strings.TrimSpace(reason) == "" {
		return misuse("--reason TEXT is needed")
	}
	return nil
}
