package main

import (
	"github.com/spf13/cobra"

	"github.com/belayhq/belay/plan"
)

func (p *program) changeSchemaCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "schema",
		Short: "Print the JSON Schema of change.yaml, for editors",
		Long: `Schema prints the JSON Schema (draft 2020-12) of change.yaml, whatever --output says. Editors complete and check with it; what a
schema cannot say, belay change validate checks.`,
		Example: `  belay change schema > change.schema.json`,
		Args:    cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			_, err := p.stdout.Write(plan.Schema())
			return err
		},
	}
}
