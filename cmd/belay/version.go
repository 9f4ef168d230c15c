package main

import (
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"

	"github.com/belayhq/belay/internal/render"
	"github.com/belayhq/belay/migrations"
	"github.com/belayhq/belay/plan"
	"github.com/belayhq/belay/tenant"
)

// version is set by the linker in a release.
var version = ""

type versionDocument struct {
	Schema  string `json:"schema"`
	Version string `json:"version"`
	Commit  string `json:"commit"`
	Go      string `json:"go"`
	// Tables is the version of Belay's own tables, PlanFormat the newest form of plans, that this binary knows.
	Tables     int `json:"tables"`
	PlanFormat int `json:"plan_format"`
}

func (p *program) versionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Show the version of belay",
		Example: `  belay version
  belay version -o json`,
		Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			d := versionDocument{
				Schema: render.Schema("version"), Version: version, Go: runtime.Version(),
				Tables: tableVersion(tenant.SQLite), PlanFormat: plan.Format,
			}
			if info, ok := debug.ReadBuildInfo(); ok {
				if d.Version == "" {
					d.Version = info.Main.Version
				}
				for _, setting := range info.Settings {
					if setting.Key == "vcs.revision" {
						d.Commit = setting.Value
					}
				}
			}
			if d.Version == "" {
				d.Version = "(devel)"
			}
			return p.show(d, func() error {
				_, err := fmt.Fprintf(p.stdout, "belay %s, tables %d, %s\n", d.Version, d.Tables, d.Go)
				return err
			})
		},
	}
}

// tableVersion is the newest version of Belay's own tables that this binary knows; it is the same on both databases.
func tableVersion(d tenant.Dialect) int { return len(migrations.For(d)) }
