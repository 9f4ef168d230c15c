package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/belayhq/belay/internal/render"
	"github.com/belayhq/belay/tenant"
)

const configTemplate = `# Settings of belay in this folder and those below it. Flags and BELAY_* variables come first.

# The control database: tenants and changes. A SQLite path is relative to this file; a PostgreSQL URL holds no password.
database_url: %s

# How long a lock lives without a renewal. A dead process's tenants can be taken over after this time.
# lease: 60s

# How many tenants are worked on at once.
# workers: 8

# How many connections one process opens at most, to all databases together.
# max_connections: 200
`

// initDocument is what belay init made or found.
type initDocument struct {
	Schema      string `json:"schema"`
	Config      string `json:"config"`
	DatabaseURL string `json:"database_url"`
}

func (p *program) initCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "init [DIR]",
		Short: "Make belay.yaml and the control database",
		Long: `Init makes belay.yaml in a folder, which becomes the root of a project, and Belay's tables in the control database. What is there
already stays as it is.`,
		Example: `  belay init
  belay init fleet --database-url postgres://belay@db.example/control`,
		Args: cobra.MaximumNArgs(1),
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		dir := "."
		if len(args) == 1 {
			dir = args[0]
		}
		return p.init(cmd, dir)
	}
	return cmd
}

func (p *program) init(cmd *cobra.Command, dir string) error {
	base, err := filepath.Abs(p.path(dir))
	if err != nil {
		return err
	}
	file := filepath.Join(base, configFile)
	if p.settings.File != file { // settings from a folder above are not this project's
		if p.settings, err = p.settingsFor(cmd, base, file); err != nil {
			return err
		}
	}
	target, err := p.settings.controlTarget()
	if err != nil {
		return err
	}
	if err := os.MkdirAll(base, 0o755); err != nil {
		return err
	}
	if err := p.writeConfig(file); err != nil {
		return err
	}
	if err := keepOutOfGit(base, target); err != nil {
		return err
	}
	ctx := cmd.Context()
	s, err := p.open(ctx, createMissing)
	if err != nil {
		return err
	}
	defer s.close()
	if _, _, err := s.control.Migrate(ctx); err != nil {
		return fmt.Errorf("control database: %w", err)
	}
	document := initDocument{render.Schema("init"), file, target.String()}
	return s.show(document, func() error {
		_, err := fmt.Fprintf(s.stdout, "settings:         %s\ncontrol database: %s\n", render.Clean(file), render.Clean(target.String()))
		return err
	})
}

// settingsFor loads the settings of a folder that may not have a belay.yaml yet.
func (p *program) settingsFor(cmd *cobra.Command, base, file string) (settings, error) {
	if _, err := os.Stat(file); err == nil {
		p.flags.config = file
		return p.loadSettings(cmd.Flags())
	}
	s := p.settings
	s.File, s.Base = "", base
	if !cmd.Flags().Changed("database-url") && p.env.Getenv("BELAY_DATABASE_URL") == "" {
		s.DatabaseURL, s.DefaultDatabase = defaultDatabaseURL, true
	}
	return s, nil
}

// writeConfig makes belay.yaml, unless it is there.
func (p *program) writeConfig(file string) error {
	f, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(f, configTemplate, strconv.Quote(p.settings.DatabaseURL))
	return errors.Join(err, f.Close())
}

// keepOutOfGit gives the folder of the default control database a .gitignore: a database that is checked out again would
// forget locks.
func keepOutOfGit(base string, target tenant.Target) error {
	folder := filepath.Join(base, ".belay")
	if target.Dialect != tenant.SQLite || filepath.Dir(target.Database) != folder {
		return nil
	}
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return err
	}
	file := filepath.Join(folder, ".gitignore")
	if _, err := os.Stat(file); err == nil {
		return nil
	}
	return os.WriteFile(file, []byte("*\n"), 0o644)
}
