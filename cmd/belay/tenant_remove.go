package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/belayhq/belay/internal/render"
	"github.com/belayhq/belay/plan"
	"github.com/belayhq/belay/sitelock"
	"github.com/belayhq/belay/storage"
	"github.com/belayhq/belay/tenant"
)

type removeFlags struct {
	selection
	force, yes  bool
	lockTimeout time.Duration
}

func (p *program) tenantRemoveCommand() *cobra.Command {
	var f removeFlags
	cmd := &cobra.Command{
		Use:   "remove TENANT | <selection>",
		Short: "Forget tenants; their data stay as they are",
		Long: `Remove takes a tenant out of the control database and frees its target for another registration. It deletes none of its data.
A tenant with a partial plan is refused, because nobody could finish it afterwards.`,
		Example: `  belay tenant remove acme
  belay tenant remove -l state=left --lock-timeout 0 -y`,
		Args: cobra.ArbitraryArgs,
	}
	f.addTo(cmd)
	cmd.Flags().BoolVar(&f.force, "force", false, "also with a partial plan, or with a database that is gone")
	cmd.Flags().BoolVarP(&f.yes, "yes", "y", false, "do not ask")
	cmd.Flags().DurationVar(&f.lockTimeout, "lock-timeout", 0, "how long to wait for a lock that someone else has; 0 does not wait (default 1.5 leases)")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		f.names = append(f.names, args...)
		return p.removeTenants(cmd, f)
	}
	return cmd
}

func (p *program) removeTenants(cmd *cobra.Command, f removeFlags) error {
	ctx := cmd.Context()
	wait, err := p.lockTimeout(f.lockTimeout, cmd.Flags().Changed("lock-timeout"))
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
		if err := s.confirm(ctx, fmt.Sprintf("Forget %s?", render.Plural(tenants.Count, "tenant"))); err != nil {
			return err
		}
	}
	locker, err := sitelock.NewLocker(sitelock.Config{Lease: s.settings.Lease, Log: s.log})
	if err != nil {
		return err
	}
	if err := locker.Start(context.WithoutCancel(ctx)); err != nil {
		return err
	}
	defer locker.Stop()
	view := s.tenantView(true)
	var problems []error
	for t, err := range tenants.tenants(ctx) {
		if err == nil {
			err = context.Cause(ctx)
		}
		if err != nil {
			return err
		}
		if err := s.removeTenant(ctx, locker, t, wait, f.force); err != nil {
			problems = append(problems, err)
			view.failed = true
			continue
		}
		if err := view.add(t, "removed"); err != nil {
			return err
		}
	}
	return errors.Join(append([]error{view.end()}, problems...)...)
}

// removeTenant leaves the tombstone in the target first and drops the control row second. After a crash in between the
// same call finds the tombstone, and does the rest.
func (s *session) removeTenant(ctx context.Context, locker *sitelock.Locker, t tenant.Tenant, wait time.Duration, force bool) error {
	err := s.retire(ctx, locker, t, wait, force)
	switch {
	case err == nil, errors.Is(err, sitelock.ErrRemoved):
	case force && errors.Is(err, storage.ErrNoDatabase):
		s.say("%s: its database is gone, so no tombstone is left there", t.Name)
	case force && errors.Is(err, sitelock.ErrScopeTaken):
		s.say("%s: its target belongs to another id, so no tombstone is left there", t.Name)
	case errors.Is(err, sitelock.ErrScopeTaken):
		return fail(exitRefused, "tenant %s: %w", t.Name, err).
			advise("belay tenant remove "+t.Name+" --force", "forgets it and leaves the target to the other id")
	case errors.Is(err, storage.ErrNoDatabase):
		return fail(exitRefused, "tenant %s: %w", t.Name, err).
			advise("belay tenant remove "+t.Name+" --force", "forgets it all the same")
	default:
		return fmt.Errorf("tenant %s: %w", t.Name, err)
	}
	if err := s.control.DropTenant(ctx, t.ID); err != nil {
		return fmt.Errorf("tenant %s: %w", t.Name, err)
	}
	return nil
}

// retire takes the tenant's lock and leaves a tombstone in its place. Taking it recovers whatever a dead holder left.
func (s *session) retire(ctx context.Context, locker *sitelock.Locker, t tenant.Tenant, wait time.Duration, force bool) error {
	db, release, err := s.directory.OpenDatabase(ctx, t.Target)
	if err != nil {
		return err
	}
	defer release()
	request := sitelock.Request{Tenant: t.ID, Scope: t.Target.Scope, Operation: sitelock.OpRemove, OnWait: func(w sitelock.Waiting) {
		s.say("%s: waiting until %s for %s", t.Name, render.Time(w.Deadline), render.Holder(w.State))
	}}
	return locker.Run(ctx, db, request, wait, func(ctx context.Context, lock *sitelock.Lock, _ sitelock.Grant) error {
		records, err := db.Records(ctx, t.ID)
		if err != nil {
			return err
		}
		if partial := partialPlans(records); len(partial) > 0 && !force {
			return fail(exitRefused, "partial: %s", strings.Join(partial, ", ")).
				advise("belay status -t "+t.Name, "shows what is in place").
				advise("belay tenant remove "+t.Name+" --force", "forgets it as it is, for good")
		}
		return lock.Releasing(ctx, func(ctx context.Context) error { return db.Retire(ctx, lock.Held()) })
	})
}

func partialPlans(records []plan.Record) []string {
	var ids []string
	for _, r := range records {
		if r.Partial() || r.Plan.InFlight() {
			ids = append(ids, r.Plan.Change)
		}
	}
	return ids
}
