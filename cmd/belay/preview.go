package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"slices"

	"github.com/belayhq/belay/engine"
	"github.com/belayhq/belay/internal/render"
	"github.com/belayhq/belay/plan"
	"github.com/belayhq/belay/tenant"
)

// preview is apply --dry-run: it tells in the form asked for what an apply would do to the tenants of a selection.
type preview struct {
	session  *session
	command  render.Command
	document *render.Preview
	table    *render.Table
	problems []render.Problem
	// every tenant is shown, not only those with something to do.
	every bool
}

func (s *session) previewApply(ctx context.Context, f applyFlags, arg string, changes []*plan.Change, several bool,
	tenants *chosen, opts engine.ApplyOptions,
) error {
	v := preview{
		session: s, command: render.Command{Name: "apply", Argument: arg, Flags: f.repeated(), Elsewhere: s.elsewhere(ctx, arg)},
		document: render.NewPreview(changes), table: render.NewTable("TENANT", "RESULT", "CHANGE", "STEPS", "NOTE"), every: f.verbose,
	}
	if !several {
		v.command.Change = changes[0].ID
		v.document.Change = changes[0].ID
	}
	for one, err := range s.engine.Preview(ctx, tenants.tenants(ctx), changes, opts) {
		if err == nil {
			err = v.add(one, tenants.Count)
		}
		if err != nil {
			return err
		}
	}
	if err := v.tell(arg); err != nil {
		return err
	}
	return v.ending(f.detailed)
}

type previewLine struct {
	Type   string `json:"type"`
	Schema string `json:"schema"`
	render.PreviewedTenant
}

type previewSummaryLine struct {
	Type   string `json:"type"`
	Schema string `json:"schema"`

	Change  string                 `json:"change"`
	Changes []render.PreviewChange `json:"changes"`
	Summary render.PreviewSummary  `json:"summary"`
}

func (v *preview) add(one engine.Preview, selected int) error {
	t := v.document.Add(one)
	problem, bad := render.NewProblem(v.command, engine.Result{Tenant: one.Tenant, Verdict: one.Verdict(), Err: one.Err})
	if bad && len(v.problems) < problemsShown {
		v.problems = append(v.problems, problem)
	}
	switch v.session.settings.Format {
	case formatLines:
		return render.JSONLine(v.session.stdout, previewLine{"tenant", v.document.Schema, t})
	case formatJSON:
		v.document.Tenants = append(v.document.Tenants, t)
	case formatTable, formatNames:
		if v.every || bad || t.Result == render.WouldApply && selected <= tenantsShown {
			t.Rows(v.table)
		}
	}
	return nil
}

func (v *preview) tell(subject string) error {
	s := v.session
	for _, problem := range v.problems {
		if err := problem.Write(s.stderr); err != nil {
			break // nobody reads
		}
	}
	d := v.document
	switch s.settings.Format {
	case formatJSON:
		return render.JSON(s.stdout, d)
	case formatLines:
		return render.JSONLine(s.stdout, previewSummaryLine{"summary", d.Schema, d.Change, d.Changes, d.Summary})
	case formatTable, formatNames:
	}
	if err := d.WriteStatements(s.stdout); err != nil {
		return err
	}
	if err := v.table.Write(s.stdout); err != nil {
		return err
	}
	_, err := fmt.Fprintf(s.stdout, "%s: %s; nothing was run\n", render.Clean(subject), d.Summary)
	return err
}

// ending is the error that leads to the exit code; nil for success.
func (v *preview) ending(detailed bool) error {
	sum := v.document.Summary
	switch {
	case sum.Partial > 0:
		return fail(exitPerson, "%s in need of a person", isOrAre(sum.Partial, "tenant"))
	case sum.Failed > 0:
		return fail(exitError, "%s could not be read", render.Plural(sum.Failed, "tenant"))
	case sum.Refused > 0:
		return fail(exitRefused, "%s would be refused", render.Plural(sum.Refused, "tenant"))
	case detailed && sum.WouldApply > 0:
		return fail(exitPending, "%s would change", render.Plural(sum.WouldApply, "tenant"))
	}
	return nil
}

// expected reads what apply --dry-run printed, and returns the basis of each tenant on which it may be carried out. It must be
// of these very changes. Without a file nothing is expected.
func (s *session) expected(file string, changes []*plan.Change) (func(tenant.ID) engine.Basis, error) {
	if file == "" {
		return nil, nil
	}
	text, err := os.ReadFile(s.path(file))
	if err != nil {
		return nil, &failure{code: exitUsage, err: fmt.Errorf("--expect-plan: %w", err)}
	}
	var saved render.Preview
	if err := json.Unmarshal(text, &saved); err != nil {
		return nil, misuse("--expect-plan %s: not a document of apply --dry-run -o json: %w", file, err)
	}
	now := render.NewPreview(changes)
	if saved.Schema != now.Schema {
		return nil, misuse("--expect-plan %s: its schema is %q, it must be %s", file, saved.Schema, now.Schema)
	}
	same := func(a, b render.PreviewChange) bool { return a.ChangeRef == b.ChangeRef }
	if !slices.EqualFunc(saved.Changes, now.Changes, same) {
		return nil, fail(exitRefused, "--expect-plan %s: it is of other changes, or they have been edited since: nothing was touched", file)
	}
	bases := make(map[tenant.ID]engine.Basis, len(saved.Tenants))
	for _, t := range saved.Tenants {
		if t.Basis != nil {
			bases[t.TenantID] = *t.Basis
		}
	}
	return func(id tenant.ID) engine.Basis { return bases[id] }, nil
}
