package main

import (
	"context"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/belayhq/belay/internal/render"
	"github.com/belayhq/belay/tenant"
)

func (p *program) tenantImportCommand() *cobra.Command {
	var create bool
	cmd := &cobra.Command{
		Use:   "import FILE",
		Short: "Register the tenants of a file",
		Long: `Import reads CSV with the header name,target,labels (labels as k=v;k=v) or JSON lines ({"name": …, "target": …, "labels":
{…}}); - is standard input. Importing a file again changes nothing but the labels given. What is wrong with a line is reported with
its number; the other lines are imported.`,
		Example: `  belay tenant import tenants.csv
  generate-tenants | belay tenant import - --create`,
		Args: cobra.ExactArgs(1),
	}
	cmd.Flags().BoolVar(&create, "create", false, "make files and schemas that are not there")
	cmd.RunE = func(cmd *cobra.Command, args []string) error { return p.importTenants(cmd.Context(), args[0], create) }
	return cmd
}

func (p *program) importTenants(ctx context.Context, name string, create bool) error {
	in := p.stdin
	if name != "-" {
		f, err := os.Open(p.path(name))
		if err != nil {
			return &failure{code: exitUsage, err: err}
		}
		defer f.Close() // read only
		in = f
	}
	s, err := p.open(ctx, createMissing)
	if err != nil {
		return err
	}
	defer s.close()
	view := s.tenantView(true)
	counts, bad := map[string]int{}, 0
	for r, err := range tenant.ReadImport(in, name, p.settings.Base) {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err == nil {
			err = s.importOne(ctx, name, r, create, view, counts)
		}
		if err != nil {
			bad++
			view.failed = true
			s.say("error: %v", err)
		}
	}
	if err := view.end(); err != nil {
		return err
	}
	s.say("%d added, %d updated, %d unchanged, %d wrong", counts["added"], counts["updated"], counts["unchanged"], bad)
	if bad > 0 {
		return fail(exitError, "%s: %s not imported", name, render.Plural(bad, "line"))
	}
	return nil
}

func (s *session) importOne(ctx context.Context, file string, r tenant.Registration, create bool, view *tenantView, counts map[string]int) error {
	t, result, err := s.register(ctx, tenant.Tenant{Name: r.Name, Target: r.Target, Labels: r.Labels}, create)
	if err != nil {
		return fmt.Errorf("%s:%d: %w", file, r.Line, err)
	}
	counts[result]++
	return view.add(t, result)
}
