package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/belayhq/belay/internal/render"
	"github.com/belayhq/belay/storage"
	"github.com/belayhq/belay/tenant"
)

// finding says how a check went: ok, warn where something should be done, fail where something cannot work.
type finding string

const (
	findingOK   finding = "ok"
	findingWarn finding = "warn"
	findingFail finding = "fail"
)

// doctorDocument is what belay doctor found.
type doctorDocument struct {
	Schema  string        `json:"schema"`
	Summary doctorSummary `json:"summary"`
	Checks  []checkResult `json:"checks"`
}

type doctorSummary struct {
	OK   int `json:"ok"`
	Warn int `json:"warn"`
	Fail int `json:"fail"`
}

type checkResult struct {
	Check   string  `json:"check"`
	Result  finding `json:"result"`
	Message string  `json:"message"`
	// Fix is a command, or what else to do; null where nothing is.
	Fix *string `json:"fix"`
}

func (d *doctorDocument) add(check string, result finding, message, fix string) {
	one := checkResult{Check: check, Result: result, Message: message}
	if fix != "" {
		one.Fix = &fix
	}
	switch result {
	case findingOK:
		d.Summary.OK++
	case findingWarn:
		d.Summary.Warn++
	case findingFail:
		d.Summary.Fail++
	}
	d.Checks = append(d.Checks, one)
}

func (p *program) doctorCommand() *cobra.Command {
	var sel selection
	cmd := &cobra.Command{
		Use:   "doctor [<selection>]",
		Short: "Look for what is wrong, and say how to put it right",
		Long: `Doctor looks at the settings, the control database, the databases of the tenants, whether each target belongs to its tenant, and
which tenants need a person. It takes no lock and writes nothing. Without a selection it is about every tenant.

It exits with 1 if a check fails; a warning is something that works but should be looked at.`,
		Example: `  belay doctor
  belay doctor -l ring=canary -o json`,
		Args: cobra.NoArgs,
	}
	sel.addTo(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		d := &doctorDocument{Schema: render.Schema("doctor"), Checks: []checkResult{}}
		if err := p.examine(cmd, &sel, d); err != nil {
			return err
		}
		err := p.show(d, func() error {
			table := render.NewTable("RESULT", "CHECK", "FINDING", "FIX")
			for _, c := range d.Checks {
				fix := ""
				if c.Fix != nil {
					fix = *c.Fix
				}
				table.Add(string(c.Result), c.Check, c.Message, fix)
			}
			return table.Write(p.stdout)
		})
		if err == nil && d.Summary.Fail > 0 {
			err = fail(exitError, "%s", render.Plural(d.Summary.Fail, "check")+" failed")
		}
		return err
	}
	return cmd
}

// examine makes all checks. Its error is one of usage, or of the list of tenants: what a check finds is in the document.
func (p *program) examine(cmd *cobra.Command, sel *selection, d *doctorDocument) error {
	ctx := cmd.Context()
	if p.settings.File != "" {
		d.add("settings", findingOK, p.settings.File, "")
	} else {
		d.add("settings", findingWarn, "no belay.yaml here or above: defaults, flags and variables alone count", "belay init")
	}
	target, err := p.settings.controlTarget()
	if err != nil {
		return err
	}
	s, err := p.open(ctx, mustExist)
	if err != nil {
		fix := "make " + target.String() + " reachable"
		if errors.Is(err, storage.ErrNoDatabase) {
			fix = "belay init"
		}
		d.add("control database", findingFail, err.Error(), fix)
		return nil
	}
	defer s.close()
	if !d.addTables(ctx, "control database", target, s.control, "belay db migrate") {
		return nil
	}
	tenants, err := s.chooseAny(ctx, cmd, sel)
	if err != nil {
		return err
	}
	if err := s.startEngine(); err != nil {
		return err
	}
	if err := s.examineTargets(ctx, tenants, d); err != nil {
		return err
	}
	return s.examinePlans(ctx, tenants, d)
}

// addTables checks Belay's own tables, and reports whether this binary can read them.
func (d *doctorDocument) addTables(ctx context.Context, check string, target tenant.Target, db storage.Database, migrate string) bool {
	version, err := db.SchemaVersion(ctx)
	is := tableVersion(target.Dialect)
	switch {
	case err != nil:
		d.add(check, findingFail, fmt.Sprintf("%s: %v", target, err), "make it readable for this role")
	case version > is:
		d.add(check, findingFail, fmt.Sprintf("%s: tables of version %d, this belay knows %d", target, version, is), "run a belay as new as the tables")
	case version == 0:
		d.add(check, findingWarn, target.String()+": no tables yet, the first write makes them", migrate)
	case version < is:
		d.add(check, findingWarn, fmt.Sprintf("%s: tables of version %d, the next write brings them to %d", target, version, is), migrate)
	default:
		d.add(check, findingOK, fmt.Sprintf("%s: tables of version %d", target, version), "")
	}
	return err == nil && version <= is
}

// examineTargets checks each database once, and of each tenant that its target belongs to it.
func (s *session) examineTargets(ctx context.Context, tenants *chosen, d *doctorDocument) error {
	reachable := map[database]bool{}
	count, wrong := 0, 0
	for t, err := range tenants.tenants(ctx) {
		if err != nil {
			return err
		}
		count++
		key := database{t.Target.Dialect, t.Target.Database}
		ok, seen := reachable[key]
		if !seen {
			ok = s.examineDatabase(ctx, t, d)
			reachable[key] = ok
		}
		if ok && !s.examineTarget(ctx, t, d) {
			wrong++
		}
	}
	switch {
	case count == 0:
		d.add("tenants", findingWarn, "there are none", "belay tenant add NAME TARGET, or belay tenant import FILE")
	case wrong == 0:
		d.add("tenants", findingOK, render.Plural(count, "tenant")+" in "+render.Plural(len(reachable), "database"), "")
	}
	return nil
}

// examineDatabase reports whether a tenant's database can be read.
func (s *session) examineDatabase(ctx context.Context, t tenant.Tenant, d *doctorDocument) bool {
	target := t.Target
	target.Scope = ""
	db, release, err := s.directory.OpenDatabase(ctx, target)
	if err != nil {
		fix := "make it reachable, or: belay tenant remove " + render.Quote(t.Name) + " --force"
		d.add("database", findingFail, fmt.Sprintf("%s: %v", target, err), fix)
		return false
	}
	defer release()
	return d.addTables(ctx, "database", target, db, "belay db migrate -t "+render.Quote(t.Name))
}

// examineTarget reports whether a target belongs to its tenant.
func (s *session) examineTarget(ctx context.Context, t tenant.Tenant, d *doctorDocument) bool {
	db, release, err := s.directory.OpenDatabase(ctx, t.Target)
	var owner tenant.ID
	if err == nil {
		owner, err = db.Owner(ctx, t.Target.Scope)
		release()
	}
	again := strings.Join([]string{"belay tenant add", render.Quote(t.Name), render.Quote(t.Target.String())}, " ")
	switch {
	case err != nil:
		d.add("tenant "+t.Name, findingFail, err.Error(), "belay tenant show "+render.Quote(t.Name))
	case owner == "":
		d.add("tenant "+t.Name, findingFail, "its target does not know it", again)
	case owner != t.ID:
		d.add("tenant "+t.Name, findingFail, "its target belongs to another registration",
			"if the target is right: belay tenant remove "+render.Quote(t.Name)+" --force, then "+again)
	default:
		return true
	}
	return false
}

// examinePlans lists the tenants that need a person.
func (s *session) examinePlans(ctx context.Context, tenants *chosen, d *doctorDocument) error {
	before := len(d.Checks)
	for one, err := range s.engine.Survey(ctx, tenants.tenants(ctx), "") {
		if err != nil {
			return err
		}
		t := render.NewTenantStatus(one)
		if t.Error == nil && len(t.Attention) > 0 { // one that cannot be read has been found already
			d.add("plans of "+t.Tenant, findingWarn, strings.Join(t.Attention, "; "), "belay status -t "+render.Quote(t.Tenant))
		}
	}
	if len(d.Checks) == before {
		d.add("plans", findingOK, "no tenant that can be read needs a person", "")
	}
	return nil
}
