package main

import (
	"context"
	"errors"
	"fmt"
	"maps"

	"github.com/spf13/cobra"

	"github.com/belayhq/belay/engine"
	"github.com/belayhq/belay/sitelock"
	"github.com/belayhq/belay/storage"
	"github.com/belayhq/belay/tenant"
)

func (p *program) tenantAddCommand() *cobra.Command {
	var create bool
	var labelArgs []string
	cmd := &cobra.Command{
		Use:   "add NAME TARGET",
		Short: "Register a tenant",
		Long: `Add registers a tenant under a name, with the target where its data live: sqlite://PATH, or postgres://… with
schema=NAME for a schema of its own. A target holds no password: use a passfile, a service file, the environment or
password_env=NAME. Adding the same tenant again changes nothing but the labels given.`,
		Example: `  belay tenant add acme sqlite://tenants/acme.db --create --label ring=canary
  belay tenant add umbrella 'postgres://app@db.example/fleet?schema=umbrella&password_env=FLEET_PASSWORD'`,
		Args: cobra.ExactArgs(2),
	}
	cmd.Flags().BoolVar(&create, "create", false, "make the file or schema if it is not there")
	cmd.Flags().StringSliceVarP(&labelArgs, "label", "L", nil, "label the tenant, `KEY=VALUE`")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		ctx := cmd.Context()
		if err := tenant.ValidateName(args[0]); err != nil {
			return &failure{code: exitUsage, err: err}
		}
		target, err := tenant.ParseTarget(args[1], p.settings.Base)
		if err != nil {
			return &failure{code: exitUsage, err: err}
		}
		labels, removed, err := tenant.ParseLabelChanges(labelArgs)
		if err == nil && len(removed) > 0 {
			err = fmt.Errorf("label %s-: add sets labels, belay tenant label removes them", removed[0])
		}
		if err != nil {
			return &failure{code: exitUsage, err: err}
		}
		s, err := p.open(ctx, createMissing)
		if err != nil {
			return err
		}
		defer s.close()
		view := s.tenantView(true)
		t, result, err := s.register(ctx, tenant.Tenant{Name: args[0], Target: target, Labels: labels}, create)
		if err != nil {
			return err
		}
		if err := view.add(t, result); err != nil {
			return err
		}
		return view.end()
	}
	return cmd
}

// register adds a tenant, or brings the one of its name up to date. The target is written first and the control row
// second: after a crash in between, the target knows the tenant's id, and the same call adopts it.
func (s *session) register(ctx context.Context, t tenant.Tenant, create bool) (tenant.Tenant, string, error) {
	known, err := s.control.Tenant(ctx, t.Name)
	switch {
	case errors.Is(err, storage.ErrNoTenant):
	case err != nil:
		return t, "", err
	case !sameTarget(known.Target, t.Target):
		return t, "", fail(exitRefused, "tenant %s is registered with another target: %s", t.Name, known.Target).
			advise("belay tenant remove "+t.Name, "forgets it; its locks and history stay behind in the old target")
	default:
		return s.update(ctx, known, t, create)
	}
	fresh := tenant.NewID()
	t.ID = fresh
	if t.ID, err = s.claimScope(ctx, t, create); err != nil {
		return t, "", err
	}
	if t.ID != fresh {
		if err := s.notAnothers(ctx, t); err != nil {
			return t, "", err
		}
	}
	stored, err := s.control.PutTenant(ctx, t)
	if errors.Is(err, storage.ErrTargetTaken) {
		return t, "", fail(exitRefused, "tenant %s: %w: %s", t.Name, storage.ErrTargetTaken, t.Target).
			advise("belay tenant list", "shows whose it is")
	}
	return stored, "added", err
}

// update gives a known tenant the labels and the way to its password that it was added with again.
func (s *session) update(ctx context.Context, known, given tenant.Tenant, create bool) (tenant.Tenant, string, error) {
	id, err := s.claimScope(ctx, known, create)
	if err != nil {
		return known, "", err
	}
	if id != known.ID {
		return known, "", fail(exitRefused, "tenant %s: %w: %s", known.Name, sitelock.ErrScopeTaken, known.Target).
			advise("belay tenant remove "+known.Name+" --force", "then add it again, which takes over the id that the target knows")
	}
	labels := maps.Clone(known.Labels)
	if labels == nil {
		labels = map[string]string{}
	}
	maps.Copy(labels, given.Labels)
	if maps.Equal(labels, known.Labels) && given.Target == known.Target {
		return known, "unchanged", nil
	}
	if err := tenant.ValidateLabels(labels); err != nil {
		return known, "", fail(exitRefused, "tenant %s: %w", known.Name, err)
	}
	known.Labels, known.Target = labels, given.Target
	stored, err := s.control.PutTenant(ctx, known)
	return stored, "updated", err
}

// notAnothers refuses an id that a tenant of another target has: the database that named it is a copy of that tenant's.
func (s *session) notAnothers(ctx context.Context, t tenant.Tenant) error {
	for other, err := range s.allTenants(ctx) {
		if err != nil {
			return err
		}
		if other.ID == t.ID && !sameTarget(other.Target, t.Target) {
			return fail(exitRefused, "tenant %s: %w, which is tenant %s here with the target %s: is it a copy of that database?",
				t.Name, sitelock.ErrScopeTaken, other.Name, other.Target).
				advise("copy the data without Belay's own tables", "a copied lock would be a second lock of one tenant")
		}
	}
	return nil
}

func sameTarget(a, b tenant.Target) bool {
	a.PasswordEnv, b.PasswordEnv = "", ""
	return a == b
}

// claimScope ties the tenant's scope to its id, and returns the id that it is tied to: that of an earlier add which did
// not get as far as the control database, where there was one. Another tenant of this control database keeps its own,
// because PutTenant refuses a target twice.
func (s *session) claimScope(ctx context.Context, t tenant.Tenant, create bool) (tenant.ID, error) {
	db, release, err := s.openTarget(ctx, t, create)
	if err != nil {
		return t.ID, err
	}
	defer release()
	if create {
		if err := db.Create(ctx, t.Target.Scope); err != nil {
			return t.ID, fmt.Errorf("tenant %s: create %s: %w", t.Name, t.Target, err)
		}
	}
	err = db.Register(ctx, t.ID, t.Target.Scope)
	if errors.Is(err, sitelock.ErrScopeTaken) {
		id, ownerErr := db.Owner(ctx, t.Target.Scope)
		if ownerErr == nil && id != "" {
			return id, nil
		}
		err = errors.Join(err, ownerErr)
	}
	switch {
	case errors.Is(err, engine.ErrNoScope):
		return t.ID, fail(exitRefused, "tenant %s: %w: %s", t.Name, err, t.Target).advise("--create", "makes the schema")
	case err != nil:
		return t.ID, fmt.Errorf("tenant %s: register %s: %w", t.Name, t.Target, err)
	}
	return t.ID, nil
}

// openTarget opens the database of a tenant; with create it makes a SQLite file that is not there.
func (s *session) openTarget(ctx context.Context, t tenant.Tenant, create bool) (storage.Database, func(), error) {
	db, release, err := s.directory.OpenDatabase(ctx, t.Target)
	if errors.Is(err, storage.ErrNoDatabase) {
		if !create || t.Target.Dialect != tenant.SQLite {
			f := fail(exitRefused, "tenant %s: %w", t.Name, err)
			if t.Target.Dialect == tenant.SQLite {
				f = f.advise("--create", "makes the file")
			}
			return nil, nil, f
		}
		if err := createFile(ctx, t.Target.Database); err != nil {
			return nil, nil, fmt.Errorf("tenant %s: %w", t.Name, err)
		}
		db, release, err = s.directory.OpenDatabase(ctx, t.Target)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("tenant %s: %w", t.Name, err)
	}
	return db, release, nil
}
