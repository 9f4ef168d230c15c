package render

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/belayhq/belay/engine"
	"github.com/belayhq/belay/plan"
	"github.com/belayhq/belay/sitelock"
	"github.com/belayhq/belay/tenant"
)

// Preview is the document of apply --dry-run: what an apply would run, and on which tenants.
type Preview struct {
	Schema string `json:"schema"`
	// Change is empty where the apply is of a directory of changes.
	Change  string            `json:"change"`
	Changes []PreviewChange   `json:"changes"`
	Summary PreviewSummary    `json:"summary"`
	Tenants []PreviewedTenant `json:"tenants"`
}

// PreviewChange is a change with what its steps run.
type PreviewChange struct {
	ChangeRef
	Steps []PreviewStep `json:"steps"`
}

// PreviewStep is a step with its statements for each database on which some tenant would run it.
type PreviewStep struct {
	Step       string             `json:"step"`
	Kind       plan.Kind          `json:"kind"`
	Action     *string            `json:"action"`
	Statements []PreviewStatement `json:"statements"`
}

// PreviewStatement is a statement as it would be sent.
type PreviewStatement struct {
	Database tenant.Dialect `json:"database"`
	File     string         `json:"file"`
	Line     int            `json:"line"`
	SQL      string         `json:"sql"`
}

// PreviewSummary counts tenants by what an apply would come to.
type PreviewSummary struct {
	Selected       int `json:"selected"`
	WouldApply     int `json:"would_apply"`
	AlreadyApplied int `json:"already_applied"`
	Refused        int `json:"refused"`
	Partial        int `json:"partial"`
	Failed         int `json:"failed"`
}

// WouldApply is the result of a tenant on which an apply has something to do.
const WouldApply = "would_apply"

// PreviewedTenant is what an apply would do to one tenant.
type PreviewedTenant struct {
	Tenant   string    `json:"tenant"`
	TenantID tenant.ID `json:"tenant_id"`
	Result   string    `json:"result"`
	// Basis stands for the plans that this rests on; null where nothing may be applied.
	Basis   *engine.Basis   `json:"basis"`
	Lock    *Lock           `json:"lock"`
	Changes []PreviewedPlan `json:"changes"`
	Error   *Failure        `json:"error"`

	lockState sitelock.State
}

// PreviewedPlan names the steps of a change that would run.
type PreviewedPlan struct {
	Change     string   `json:"change"`
	Plan       *plan.ID `json:"plan"`
	Steps      []string `json:"steps"`
	InDoubt    []string `json:"in_doubt"`
	StepsTotal int      `json:"steps_total"`
}

// NewPreview makes a document without tenants.
func NewPreview(changes []*plan.Change) *Preview {
	p := &Preview{Schema: Schema("apply-preview"), Changes: []PreviewChange{}, Tenants: []PreviewedTenant{}}
	for _, c := range changes {
		one := PreviewChange{ChangeRef: ChangeRef{c.ID, c.Digest()}}
		for i := range c.Steps {
			s := PreviewStep{Step: c.Steps[i].ID, Kind: c.Steps[i].Kind, Statements: []PreviewStatement{}}
			if a := c.Steps[i].Action; a != nil {
				s.Action = &a.Name
			}
			one.Steps = append(one.Steps, s)
		}
		p.Changes = append(p.Changes, one)
	}
	return p
}

// Add counts a tenant and returns its part of the document.
func (p *Preview) Add(one engine.Preview) PreviewedTenant {
	t := PreviewedTenant{Tenant: one.Tenant.Name, TenantID: one.Tenant.ID, Error: NewFailure(one.Err), Changes: []PreviewedPlan{}}
	p.Summary.Selected++
	switch verdict := one.Verdict(); verdict {
	case engine.VerdictApplied:
		t.Result = WouldApply
		p.Summary.WouldApply++
	case engine.VerdictAlreadyApplied:
		t.Result = string(verdict)
		p.Summary.AlreadyApplied++
	case engine.VerdictRefused:
		t.Result = string(verdict)
		p.Summary.Refused++
	case engine.VerdictPartial:
		t.Result = string(verdict)
		p.Summary.Partial++
	case engine.VerdictFailed, engine.VerdictBusy, engine.VerdictCancelled, engine.VerdictSkipped, engine.VerdictRolledBack,
		engine.VerdictAlreadyRolledBack, engine.VerdictVerified, engine.VerdictResolved:
		t.Result = string(engine.VerdictFailed)
		p.Summary.Failed++
	}
	if one.Err == nil {
		t.Basis = &one.Basis
	}
	if one.Err == nil || one.Basis != "" {
		lock := NewLock(one.Lock)
		t.Lock, t.lockState = &lock, one.Lock
	}
	for _, c := range one.Changes {
		t.Changes = append(t.Changes, p.previewed(c, one.Tenant.Target.Dialect))
	}
	return t
}

func (p *Preview) previewed(c engine.PreviewedChange, on tenant.Dialect) PreviewedPlan {
	out := PreviewedPlan{Change: c.Change, Plan: optional(c.Plan), Steps: []string{}, InDoubt: []string{}, StepsTotal: c.StepsTotal}
	at := slices.IndexFunc(p.Changes, func(known PreviewChange) bool { return known.Change == c.Change })
	for _, s := range c.Steps {
		out.Steps = append(out.Steps, s.Step.ID)
		if s.InDoubt {
			out.InDoubt = append(out.InDoubt, s.Step.ID)
		}
		p.Changes[at].Steps[s.Ordinal].add(s.Up, on)
	}
	return out
}

// add notes the statements for a database, once.
func (s *PreviewStep) add(statements []plan.Statement, on tenant.Dialect) {
	if slices.ContainsFunc(s.Statements, func(st PreviewStatement) bool { return st.Database == on }) {
		return
	}
	for _, one := range statements {
		s.Statements = append(s.Statements, PreviewStatement{on, one.File, one.Line, one.SQL})
	}
}

// WriteStatements shows the steps that would run on some tenant, each with its statements.
func (p *Preview) WriteStatements(w io.Writer) error {
	var b strings.Builder
	for _, c := range p.Changes {
		for _, s := range c.Steps {
			if s.Kind == plan.Action {
				fmt.Fprintf(&b, "-- %s: %s: action %s\n", Clean(c.Change), Clean(s.Step), Clean(*s.Action))
			}
			for _, st := range s.Statements {
				fmt.Fprintf(&b, "-- %s: %s: %s:%d, on %s\n%s;\n", Clean(c.Change), Clean(s.Step), Clean(st.File), st.Line, st.Database,
					CleanLines(strings.ReplaceAll(st.SQL, "\t", "    ")))
			}
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// Rows adds a tenant to a table of tenant, result, change, steps and note.
func (t PreviewedTenant) Rows(table *Table) {
	result := strings.ReplaceAll(t.Result, "_", " ")
	if t.Error != nil {
		table.Add(t.Tenant, result, "", "", t.Error.Message)
		return
	}
	note := ""
	if t.Lock.State != sitelock.StateIdle {
		note = Holder(t.lockState)
	}
	if len(t.Changes) == 0 {
		table.Add(t.Tenant, result, "", "", note)
		return
	}
	name := t.Tenant
	for _, c := range t.Changes {
		if len(c.InDoubt) > 0 {
			note = join(note, "in doubt: "+strings.Join(c.InDoubt, ", "))
		}
		steps := fmt.Sprintf("%d of %d: %s", len(c.Steps), c.StepsTotal, strings.Join(c.Steps, ", "))
		table.Add(name, result, c.Change, steps, note)
		name, result, note = " ", " ", ""
	}
}

// String is the counts in words.
func (s PreviewSummary) String() string {
	return inWords(
		counted{s.WouldApply, "to apply"}, counted{s.AlreadyApplied, "already applied"}, counted{s.Refused, "refused"},
		counted{s.Partial, "in need of a person"}, counted{s.Failed, "unreadable"},
	)
}
