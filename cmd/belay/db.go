package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/belayhq/belay/internal/render"
	"github.com/belayhq/belay/storage"
	"github.com/belayhq/belay/tenant"
)

func (p *program) dbCommand() *cobra.Command {
	return group("db", "Look after Belay's own tables", `  belay db status --all
  belay db migrate`, p.dbMigrateCommand(), p.dbStatusCommand())
}

// dbDocument tells of the control database and, where tenants are selected, of their databases.
type dbDocument struct {
	Schema string `json:"schema"`
	// Version is the one of this binary.
	Version   int          `json:"version"`
	Databases []dbVersions `json:"databases"`
}

type dbVersions struct {
	Database string `json:"database"`
	Control  bool   `json:"control"`
	// From is the version before, To the one now; 0 where there are no tables.
	From  int     `json:"from"`
	To    int     `json:"to"`
	Error *string `json:"error"`
}

func (p *program) dbMigrateCommand() *cobra.Command {
	return p.dbCommandFor("migrate", "Bring Belay's own tables up to date",
		`Migrate makes or updates Belay's own tables in the control database and, with a selection, in the databases of those tenants.
Every command that writes does the same on its way; migrate does it beforehand.`,
		"  belay db migrate\n  belay db migrate --all", createMissing,
		func(ctx context.Context, db storage.Database) (int, int, error) { return db.Migrate(ctx) })
}

func (p *program) dbStatusCommand() *cobra.Command {
	return p.dbCommandFor("status", "Show the versions of Belay's own tables",
		"Status shows which version Belay's own tables have in the control database and, with a selection, in the databases of those tenants.",
		"  belay db status\n  belay db status -l ring=canary -o json", mustExist,
		func(ctx context.Context, db storage.Database) (int, int, error) {
			v, err := db.SchemaVersion(ctx)
			return v, v, err
		})
}

func (p *program) dbCommandFor(verb, short, long, example string, m missing,
	do func(context.Context, storage.Database) (from, to int, err error),
) *cobra.Command {
	var sel selection
	cmd := &cobra.Command{Use: verb + " [<selection>]", Short: short, Long: long, Example: example, Args: cobra.NoArgs}
	sel.addTo(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		ctx := cmd.Context()
		s, err := p.open(ctx, m)
		if err != nil {
			return err
		}
		defer s.close()
		control, err := s.settings.controlTarget()
		if err != nil {
			return err
		}
		d := dbDocument{Schema: render.Schema("db-" + verb), Version: tableVersion(control.Dialect)}
		problems := []error{d.add(ctx, control, true, s.control, do)}
		if sel.given() {
			tenants, err := s.choose(ctx, cmd, &sel)
			if err != nil {
				return err
			}
			problems = append(problems, s.eachDatabase(ctx, tenants, &d, do))
		}
		return errors.Join(append([]error{s.show(d, func() error { return d.write(s) })}, problems...)...)
	}
	return cmd
}

// eachDatabase does it once for every database of the tenants.
func (s *session) eachDatabase(ctx context.Context, tenants *chosen, d *dbDocument,
	do func(context.Context, storage.Database) (from, to int, err error),
) error {
	seen := map[string]bool{}
	var problems []error
	for t, err := range tenants.tenants(ctx) {
		if err != nil {
			return err
		}
		target := t.Target
		target.Scope = ""
		if key := string(target.Dialect) + " " + target.Database; seen[key] {
			continue
		} else {
			seen[key] = true
		}
		problems = append(problems, s.oneDatabase(ctx, target, d, do))
	}
	return errors.Join(problems...)
}

func (s *session) oneDatabase(ctx context.Context, target tenant.Target, d *dbDocument,
	do func(context.Context, storage.Database) (from, to int, err error),
) error {
	db, release, err := s.directory.OpenDatabase(ctx, target)
	if err != nil {
		return d.add(ctx, target, false, nil, func(context.Context, storage.Database) (int, int, error) { return 0, 0, err })
	}
	defer release()
	return d.add(ctx, target, false, db, do)
}

func (d *dbDocument) add(ctx context.Context, target tenant.Target, control bool, db storage.Database,
	do func(context.Context, storage.Database) (from, to int, err error),
) error {
	from, to, err := do(ctx, db)
	one := dbVersions{Database: target.String(), Control: control, From: from, To: to}
	if err != nil {
		message := err.Error()
		one.Error = &message
		err = fmt.Errorf("%s: %w", target, err)
	}
	d.Databases = append(d.Databases, one)
	return err
}

func (d *dbDocument) write(s *session) error {
	table := render.NewTable("DATABASE", "TABLES", "NOTE")
	for _, one := range d.Databases {
		note := ""
		switch {
		case one.Error != nil:
			note = *one.Error
		case one.From != one.To:
			note = fmt.Sprintf("brought from version %d", one.From)
		case one.To == 0:
			note = "no tables yet: the first write makes them"
		case one.To > d.Version:
			note = fmt.Sprintf("made by a newer belay: this one knows version %d and refuses to write", d.Version)
		case one.To < d.Version:
			note = fmt.Sprintf("this binary has version %d: the next write or belay db migrate updates them", d.Version)
		}
		if one.Control {
			one.Database += " (control)"
		}
		table.Add(one.Database, fmt.Sprint(one.To), note)
	}
	return table.Write(s.stdout)
}
