package main

import (
	"context"
	"fmt"
	"maps"

	"github.com/spf13/cobra"

	"github.com/belayhq/belay/internal/render"
	"github.com/belayhq/belay/tenant"
)

func (p *program) tenantCommand() *cobra.Command {
	return group("tenant", "Register tenants, and say where their data live", `  belay tenant add acme sqlite://tenants/acme.db --create -L ring=canary
  belay tenant import tenants.csv
  belay tenant list -l ring=canary`,
		p.tenantAddCommand(), p.tenantImportCommand(), p.tenantListCommand(), p.tenantShowCommand(), p.tenantLabelCommand(),
		p.tenantEnableCommand(), p.tenantDisableCommand(), p.tenantRemoveCommand())
}

func (p *program) tenantListCommand() *cobra.Command {
	var sel selection
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List tenants",
		Example: `  belay tenant list
  belay tenant list -l 'ring in (canary,early)' -o jsonl
  belay tenant list -o name | belay verify 0042-customer-locale --tenants-from -`,
		Args: cobra.NoArgs, Annotations: map[string]string{listsNames: "yes"},
	}
	sel.addTo(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error { return p.listTenants(cmd, &sel) }
	return cmd
}

func (p *program) tenantShowCommand() *cobra.Command {
	var sel selection
	cmd := &cobra.Command{
		Use:   "show TENANT | <selection>",
		Short: "Show a tenant's id, target and labels",
		Example: `  belay tenant show acme
  belay tenant show acme -o json`,
		Args: cobra.ArbitraryArgs, Annotations: map[string]string{listsNames: "yes"},
	}
	sel.addTo(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		sel.names = append(sel.names, args...)
		if !sel.given() {
			return misuse("which tenant?").advise("belay tenant list", "shows all of them")
		}
		return p.listTenants(cmd, &sel)
	}
	return cmd
}

func (p *program) listTenants(cmd *cobra.Command, sel *selection) error {
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
	view := s.tenantView(false)
	for t, err := range tenants.tenants(ctx) {
		if err != nil {
			return err
		}
		if err := view.add(t, ""); err != nil {
			return err
		}
	}
	return view.end()
}

func (p *program) tenantLabelCommand() *cobra.Command {
	var sel selection
	cmd := &cobra.Command{
		Use:   "label TENANT KEY=VALUE… KEY-… | <selection> KEY=VALUE… KEY-…",
		Short: "Set and remove labels",
		Example: `  belay tenant label acme ring=canary
  belay tenant label -l ring=canary tier=gold trial-`,
		Args: cobra.MinimumNArgs(1),
	}
	sel.addTo(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if !sel.given() {
			sel.names, args = args[:1], args[1:]
		}
		if len(args) == 0 {
			return misuse("which labels? KEY=VALUE sets one, KEY- removes one")
		}
		set, remove, err := tenant.ParseLabelChanges(args)
		if err != nil {
			return &failure{code: exitUsage, err: err}
		}
		return p.editTenants(cmd, &sel, func(t *tenant.Tenant) bool {
			labels := maps.Clone(t.Labels)
			if labels == nil {
				labels = map[string]string{}
			}
			maps.Copy(labels, set)
			for _, key := range remove {
				delete(labels, key)
			}
			changed := !maps.Equal(labels, t.Labels)
			t.Labels = labels
			return changed
		})
	}
	return cmd
}

func (p *program) tenantEnableCommand() *cobra.Command {
	return p.tenantSwitch("enable", "Let selections take tenants again", false)
}

func (p *program) tenantDisableCommand() *cobra.Command {
	return p.tenantSwitch("disable", "Leave tenants out of every selection that does not name them", true)
}

func (p *program) tenantSwitch(verb, short string, disabled bool) *cobra.Command {
	var sel selection
	cmd := &cobra.Command{
		Use: verb + " TENANT | <selection>", Short: short, Args: cobra.ArbitraryArgs,
		Example: "  belay tenant " + verb + " acme",
	}
	sel.addTo(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		sel.names = append(sel.names, args...)
		return p.editTenants(cmd, &sel, func(t *tenant.Tenant) bool {
			changed := t.Disabled != disabled
			t.Disabled = disabled
			return changed
		})
	}
	return cmd
}

// editTenants stores what edit makes of the tenants of a selection; edit says whether it changed anything.
func (p *program) editTenants(cmd *cobra.Command, sel *selection, edit func(*tenant.Tenant) bool) error {
	ctx := cmd.Context()
	s, err := p.open(ctx, mustExist)
	if err != nil {
		return err
	}
	defer s.close()
	tenants, err := s.choose(ctx, cmd, sel)
	if err != nil {
		return err
	}
	view := s.tenantView(true)
	for t, err := range tenants.tenants(ctx) {
		if err == nil {
			err = ctx.Err()
		}
		if err != nil {
			return err
		}
		result, err := s.editTenant(ctx, &t, edit)
		if err != nil {
			return err
		}
		if err := view.add(t, result); err != nil {
			return err
		}
	}
	return view.end()
}

func (s *session) editTenant(ctx context.Context, t *tenant.Tenant, edit func(*tenant.Tenant) bool) (result string, err error) {
	if !edit(t) {
		return "unchanged", nil
	}
	if err := tenant.ValidateLabels(t.Labels); err != nil {
		return "", fail(exitRefused, "tenant %s: %w", t.Name, err)
	}
	*t, err = s.control.PutTenant(ctx, *t)
	return "updated", err
}

// tenantView writes tenants in one of the formats.
type tenantView struct {
	session  *session
	document render.TenantList
	table    *render.Table
	results  bool
	// failed says that there is an error to tell, so that an empty table is not the answer.
	failed bool
}

// tenantView returns a view; with results it shows what was done to each tenant.
func (s *session) tenantView(results bool) *tenantView {
	head := []string{"TENANT", "TARGET", "LABELS", "STATE", "ID"}
	if results {
		head = append([]string{"RESULT"}, head...)
	}
	return &tenantView{
		session: s, document: render.TenantList{Schema: render.Schema("tenants"), Tenants: []render.Tenant{}},
		table: render.NewTable(head...), results: results,
	}
}

type tenantLine struct {
	Type   string `json:"type"`
	Schema string `json:"schema"`
	render.Tenant
}

func (v *tenantView) add(t tenant.Tenant, result string) error {
	one := render.NewTenant(t, result)
	switch v.session.settings.Format {
	case formatLines:
		return render.JSONLine(v.session.stdout, tenantLine{"tenant", v.document.Schema, one})
	case formatNames:
		_, err := fmt.Fprintln(v.session.stdout, t.Name)
		return err
	case formatTable, formatJSON:
	}
	v.document.Tenants = append(v.document.Tenants, one)
	state := "enabled"
	if t.Disabled {
		state = "disabled"
	}
	cells := []string{one.Tenant, one.Target, one.LabelText(), state, string(one.TenantID)}
	if v.results {
		cells = append([]string{result}, cells...)
	}
	v.table.Add(cells...)
	return nil
}

func (v *tenantView) end() error {
	if f := v.session.settings.Format; f == formatLines || f == formatNames {
		return nil
	}
	return v.session.show(v.document, func() error {
		if v.table.Len() == 0 && !v.failed {
			_, err := fmt.Fprintln(v.session.stderr, "no tenants")
			return err
		}
		return v.table.Write(v.session.stdout)
	})
}
