package engine

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"iter"
	"slices"

	"github.com/belayhq/belay/plan"
	"github.com/belayhq/belay/sitelock"
	"github.com/belayhq/belay/tenant"
)

// Preview is what an apply would do to a tenant, as far as can be told without its lock.
type Preview struct {
	Tenant tenant.Tenant
	Lock   sitelock.State
	// Changes would be applied, in this order. None means that there is nothing to do.
	Changes []PreviewedChange
	// Basis stands for the plans and journals that the preview rests on: see [ApplyOptions]. It is the same as long as
	// nothing about the tenant's plans changes.
	Basis Basis
	// Err is why nothing would be applied: a *RefusedError, or what kept the tenant from being read. Nil otherwise.
	Err error
}

// Verdict is what the apply would come to if none of its steps failed.
func (p Preview) Verdict() Verdict {
	switch {
	case p.Err != nil:
		return verdictOf(p.Err)
	case len(p.Changes) == 0:
		return VerdictAlreadyApplied
	}
	return VerdictApplied
}

// Basis identifies the state of a tenant's plans.
type Basis string

// PreviewedChange is a change with the steps of it that would run.
type PreviewedChange struct {
	Change     string
	Digest     plan.Digest
	Plan       plan.ID // empty if the tenant has none for it yet
	Steps      []PreviewedStep
	StepsTotal int
}

// PreviewedStep is a step that would run.
type PreviewedStep struct {
	*plan.ProgramStep
	// InDoubt says that the step was begun before and nobody knows whether its effect happened.
	InDoubt bool
}

// Preview tells what [Engine.ApplyMissing], or for one change [Engine.Apply], would do to tenants. It reads as
// [Engine.Survey] does, takes no lock and writes nothing. A plan in flight is taken as the next acquire recovers it. opts.Repin
// is not heeded: which edits a partial plan takes is known only under its lock.
func (e *Engine) Preview(ctx context.Context, tenants iter.Seq2[tenant.Tenant, error], changes []*plan.Change, opts ApplyOptions) iter.Seq2[Preview, error] {
	list := pin(changes)
	opts.Repin = false
	return func(yield func(Preview, error) bool) {
		for one, err := range e.Survey(ctx, tenants, "") {
			if err != nil {
				yield(Preview{}, err)
				return
			}
			if !yield(e.preview(one, list, opts), nil) {
				return
			}
		}
	}
}

func (e *Engine) preview(s Surveyed, list []pinned, opts ApplyOptions) Preview {
	p := Preview{Tenant: s.Tenant, Lock: s.Lock, Err: s.Err}
	if s.Err != nil {
		return p
	}
	if s.Lock.NeedsNewerBinary() {
		p.Err = AsRefusal(sitelock.ErrNewerBinary) // the next acquire would refuse to recover it
		return p
	}
	records := atRest(s.Records)
	p.Basis = basisOf(records)
	missing, _, err := missingOf(records, list, opts)
	for i := 0; err == nil && i < len(missing); i++ {
		var program *plan.Program
		if program, err = e.prepare(missing[i].change, missing[i].digest, s.Tenant.Target.Dialect); err == nil {
			p.Changes = append(p.Changes, previewed(program, find(records, missing[i].change.ID)))
		}
	}
	if err != nil {
		p.Changes, p.Err = nil, err
	}
	return p
}

// previewed lists the steps of a change that are not in place.
func previewed(program *plan.Program, mine *plan.Record) PreviewedChange {
	c := PreviewedChange{Change: program.Change.ID, Digest: program.Digest, StepsTotal: len(program.Steps)}
	if mine == nil {
		mine = &plan.Record{}
	}
	c.Plan = mine.Plan.ID
	for i := range program.Steps {
		s := &program.Steps[i]
		state := mine.State(s.Ordinal)
		if state == plan.StepDone {
			continue
		}
		c.Steps = append(c.Steps, PreviewedStep{s, state == plan.StepIntent || state == plan.StepUndoIntent})
	}
	return c
}

// atRest is a tenant's plans as the next acquire recovers them.
func atRest(records []plan.Record) []plan.Record {
	rested := make([]plan.Record, len(records))
	for i, r := range records {
		if to, err := plan.Next(r.Plan.Status, r.Plan.ClaimedFrom, plan.EventRecover); err == nil {
			r.Plan.Status = to
		}
		rested[i] = r
	}
	return rested
}

// basisOf sums up plans at rest: which there are, in which status, and which of their steps are in place or in doubt.
func basisOf(records []plan.Record) Basis {
	var text []byte
	inOrder := slices.SortedFunc(slices.Values(records), func(a, b plan.Record) int { return cmp.Compare(a.Plan.ID, b.Plan.ID) })
	for _, r := range inOrder {
		text = fmt.Appendf(text, "%s %s %s %s %d\n", r.Plan.ID, r.Plan.Change, r.Plan.Digest, r.Plan.Status, r.Plan.Cycle)
		for _, e := range r.Journal {
			text = fmt.Appendf(text, " %d %s %d\n", e.Ordinal, e.State, e.Cycle)
		}
	}
	const short = 16 // bytes: it need not withstand an attacker
	sum := sha256.Sum256(text)
	return Basis(hex.EncodeToString(sum[:short]))
}

// whyMoved refuses a tenant whose plans are not those that a preview was made of.
func whyMoved(id tenant.ID, records []plan.Record, expect func(tenant.ID) Basis) error {
	if expect == nil {
		return nil
	}
	switch expect(id) {
	case "":
		return refuse(RefusedMoved, nil, "the preview that is expected says nothing of this tenant, or that it is refused")
	case basisOf(atRest(records)):
		return nil
	}
	return refuse(RefusedMoved, nil, "this tenant's plans are no longer those of the preview that is expected")
}
