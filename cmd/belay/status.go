package main

import (
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/belayhq/belay/internal/render"
)

func (p *program) statusCommand() *cobra.Command {
	var sel selection
	var change string
	var verbose bool
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show where tenants stand",
		Long: `Status counts tenants by the state of their lock and plans by their status, then shows the tenants whose lock is not idle, with
who has it, and those that need a person: unreadable, or with a plan that is abandoned, partial, quarantined or failed. It takes
no lock.`,
		Example: `  belay status
  belay status -v -t 'shop-*'
  belay status --change 0042-customer-locale -o json`,
		Args: cobra.NoArgs,
	}
	sel.addTo(cmd)
	cmd.Flags().StringVar(&change, "change", "", "only the plans of `CHANGE`, and those that are partial")
	cmd.Flags().BoolVarP(&verbose, "verbose", "v", false, "show every tenant")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		ctx := cmd.Context()
		if change != "" {
			var err error
			if change, err = p.changeID(change); err != nil {
				return err
			}
		}
		s, err := p.open(ctx, mustExist)
		if err != nil {
			return err
		}
		defer s.close()
		tenants, err := s.chooseAny(ctx, cmd, &sel)
		if err != nil {
			return err
		}
		return s.status(ctx, tenants, change, verbose)
	}
	return cmd
}

func (s *session) status(ctx context.Context, tenants *chosen, change string, verbose bool) error {
	if err := s.startEngine(); err != nil {
		return err
	}
	view := statusView{format: s.settings.Format, verbose: verbose, change: change, w: s.stdout, table: render.NewStatusTable()}
	view.document = render.Status{Schema: render.Schema("status"), Tenants: []render.TenantStatus{}}
	for one, err := range s.engine.Survey(ctx, tenants.tenants(ctx), change) {
		if err != nil {
			return err
		}
		if err := view.add(render.NewTenantStatus(one)); err != nil {
			return err
		}
	}
	if err := view.end(); err != nil {
		return err
	}
	if n := view.document.Summary.Unreadable; n > 0 {
		return fail(exitError, "%s could not be read", render.Plural(n, "tenant"))
	}
	return nil
}

// statusView writes tenants in one of the formats, keeping no more of them than the format needs.
type statusView struct {
	format   format
	verbose  bool
	change   string
	w        io.Writer
	document render.Status
	table    *render.StatusTable
}

type statusLine struct {
	Type   string `json:"type"`
	Schema string `json:"schema"`
	render.TenantStatus
}

type statusSummaryLine struct {
	Type    string               `json:"type"`
	Schema  string               `json:"schema"`
	Summary render.StatusSummary `json:"summary"`
}

func (v *statusView) add(t render.TenantStatus) error {
	v.document.Summary.Count(t, v.change)
	switch v.format {
	case formatLines:
		return render.JSONLine(v.w, statusLine{"tenant", v.document.Schema, t})
	case formatJSON:
		v.document.Tenants = append(v.document.Tenants, t)
	case formatTable:
		if v.verbose || t.Listed() {
			v.table.Add(t)
		}
	}
	return nil
}

func (v *statusView) end() error {
	switch v.format {
	case formatLines:
		return render.JSONLine(v.w, statusSummaryLine{"summary", v.document.Schema, v.document.Summary})
	case formatJSON:
		return render.JSON(v.w, v.document)
	case formatTable:
	}
	for _, line := range v.document.Summary.Lines() {
		if _, err := fmt.Fprintln(v.w, line); err != nil {
			return err
		}
	}
	return v.table.Write(v.w)
}
