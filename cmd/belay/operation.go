package main

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"strconv"
	"strings"

	"github.com/belayhq/belay/engine"
	"github.com/belayhq/belay/internal/render"
	"github.com/belayhq/belay/plan"
	"github.com/belayhq/belay/tenant"
)

// operation is apply, rollback, verify or resolve over the tenants of a selection: it shows progress, gathers the
// results, and tells them in the form asked for.
type operation struct {
	session *session
	command render.Command
	// register are the changes to register in the control database, in the order in which they apply.
	register []*plan.Change
	tenants  *chosen
	verbose  bool
	// detailed turns work that is left into exit code 2.
	detailed bool

	names    *render.Tenants
	stream   *render.Stream
	report   render.Report
	table    *render.Table
	problems []render.Problem
	// taken are the changes that some tenant was given.
	taken map[string]bool
	// untold counts the problems beyond those kept.
	untold int
}

const (
	// problemsShown bounds what is written for people when many tenants fail alike.
	problemsShown = 20
	// tenantsShown is how many tenants a table may have without being asked for: of more, the counts say enough.
	tenantsShown = 30
)

// work is what an operation does with the tenants: one of the engine's calls over many.
type work func(ctx context.Context, tenants iter.Seq2[tenant.Tenant, error], report func(engine.Result)) error

// run does the work and returns how it ended, as an error with its exit code.
func (o *operation) run(ctx context.Context, do work) error {
	s := o.session
	o.names = render.NewTenants()
	o.table = render.NewTable("TENANT", "RESULT", "STEPS", "TIME")
	o.report = render.Report{Schema: render.Schema(o.command.Name), Change: o.command.Change, Tenants: []render.TenantResult{}}
	o.command.Elsewhere = s.elsewhere(ctx, o.command.Argument)
	o.taken = map[string]bool{}
	edited, err := o.registerNew(ctx)
	if err != nil {
		return err
	}
	watcher := o.newWatcher()
	s.watcher = named{watcher, o.names}
	done := s.interrupts.during(s.engine.Abort, o.names.InFlight)
	err = do(ctx, o.noted(ctx), o.result)
	done()
	watcher.Stop()
	s.watcher = nil
	if err != nil && ctx.Err() != nil {
		err = nil // the tenants that were not listed are as if they had not been selected: the signal says why
	}
	for _, change := range edited {
		if o.taken[change.ID] {
			err = errors.Join(err, s.registerEdit(ctx, change))
		}
	}
	return errors.Join(o.tell(), o.ending(err))
}

// registerNew registers the changes that are not known yet, and returns those that are known as something else.
func (o *operation) registerNew(ctx context.Context) (edited []*plan.Change, err error) {
	several := o.command.Change == ""
	for _, change := range o.register {
		if several {
			o.report.Changes = append(o.report.Changes, render.ChangeRef{Change: change.ID, Digest: change.Digest()})
		} else {
			o.report.Digest = change.Digest()
		}
		other, err := o.session.registerNew(ctx, change)
		if err != nil {
			return nil, err
		}
		if other {
			edited = append(edited, change)
		}
	}
	return edited, nil
}

// subject is what the operation is about, for people.
func (o *operation) subject() string {
	if o.command.Change != "" {
		return o.command.Change
	}
	return o.command.Argument
}

// noted passes the tenants on and remembers their names.
func (o *operation) noted(ctx context.Context) iter.Seq2[tenant.Tenant, error] {
	return func(yield func(tenant.Tenant, error) bool) {
		for t, err := range o.tenants.tenants(ctx) {
			if err == nil {
				o.names.Add(t)
			}
			if !yield(t, err) {
				return
			}
		}
	}
}

func (o *operation) newWatcher() render.Watcher {
	s := o.session
	switch {
	case s.settings.Format == formatLines:
		o.stream = render.NewStream(s.stdout, o.command.Name)
		return o.stream
	case s.animated():
		return s.stderr.draw(o.command.Name+" "+o.subject(), o.tenants.Count)
	}
	return render.NewLines(s.stderr)
}

// named is a watcher whose events carry the names of their tenants.
type named struct {
	render.Watcher
	names *render.Tenants
}

func (n named) Event(p engine.Progress) { n.Watcher.Event(n.names.Event(p)) }

// result takes one tenant's result. The engine calls it from one goroutine at a time.
func (o *operation) result(r engine.Result) {
	o.names.Done(r.Tenant.ID)
	o.session.watcher.Result(r)
	o.report.Summary.Selected++
	o.report.Summary.Count(r.Verdict)
	if takes(r) {
		o.taken[r.Change] = true
	}
	for _, change := range r.Also {
		o.taken[change] = true
	}
	switch o.session.settings.Format {
	case formatJSON:
		o.report.Tenants = append(o.report.Tenants, render.NewTenantResult(r))
	case formatTable, formatNames:
		if o.verbose || r.Err != nil || worthShowing(r.Verdict) && o.tenants.Count <= tenantsShown {
			o.table.Add(r.Tenant.Name, strings.ReplaceAll(string(r.Verdict), "_", " "),
				fmt.Sprintf("%d/%d", r.StepsDone, r.StepsTotal), render.Duration(r.Duration))
		}
	case formatLines:
	}
	problem, ok := render.NewProblem(o.command, r)
	switch {
	case !ok:
	case len(o.problems) < problemsShown:
		o.problems = append(o.problems, problem)
	default:
		o.untold++
	}
}

// worthShowing tells the results of tenants on which something was done or went wrong.
func worthShowing(v engine.Verdict) bool {
	switch v {
	case engine.VerdictAlreadyApplied, engine.VerdictAlreadyRolledBack, engine.VerdictSkipped:
		return false
	case engine.VerdictApplied, engine.VerdictRolledBack, engine.VerdictVerified, engine.VerdictResolved, engine.VerdictFailed,
		engine.VerdictPartial, engine.VerdictBusy, engine.VerdictCancelled, engine.VerdictRefused:
	}
	return true
}

// takes reports whether a tenant was given the change that its result is about, whatever then came of it.
func takes(r engine.Result) bool {
	if _, refused := errors.AsType[*engine.RefusedError](r.Err); refused {
		return false
	}
	switch r.Verdict {
	case engine.VerdictApplied, engine.VerdictFailed, engine.VerdictPartial, engine.VerdictCancelled, engine.VerdictResolved:
		return r.Plan != ""
	case engine.VerdictAlreadyApplied, engine.VerdictRolledBack, engine.VerdictAlreadyRolledBack, engine.VerdictVerified,
		engine.VerdictBusy, engine.VerdictRefused, engine.VerdictSkipped:
	}
	return false
}

// tell writes the results.
func (o *operation) tell() error {
	s := o.session
	for _, problem := range o.problems {
		if err := problem.Write(s.stderr); err != nil {
			break // nobody reads
		}
	}
	if o.untold > 0 {
		s.say("and %s more: belay status shows all", render.Plural(o.untold, "problem"))
	}
	switch s.settings.Format {
	case formatJSON:
		return render.JSON(s.stdout, o.report)
	case formatLines:
		o.stream.Summary(o.report)
		return nil
	case formatTable, formatNames:
	}
	if err := o.table.Write(s.stdout); err != nil {
		return err
	}
	_, err := fmt.Fprintln(s.stdout, o.summaryLine())
	return err
}

func (o *operation) summaryLine() string {
	head := render.Clean(o.subject()) + ": "
	switch sum := &o.report.Summary; {
	case sum.Selected == 0:
		return head + "no tenants, nothing to do"
	case sum.NothingToDo():
		return head + "nothing to do, " + sum.String()
	default:
		return head + sum.String()
	}
}

// ending is the error that leads to the exit code; nil for success.
func (o *operation) ending(err error) error {
	sum := o.report.Summary
	code := worst(sum, err)
	if code == exitDone && o.detailed && sum.Skipped > 0 {
		return fail(exitPending, "%s skipped", render.Plural(sum.Skipped, "tenant"))
	}
	switch {
	case code == exitDone:
		return nil
	case err != nil:
		return &failure{code: code, err: err}
	}
	bad := sum.Failed + sum.Partial + sum.Busy + sum.Cancelled + sum.Refused
	return fail(code, "%s: %s of %s not brought there: %s", o.command.Name, strconv.Itoa(bad), render.Plural(sum.Selected, "tenant"), sum.String())
}
