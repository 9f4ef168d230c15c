package engine

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/belayhq/belay/plan"
	"github.com/belayhq/belay/sitelock"
)

// Refusal says why the engine would not touch a tenant.
type Refusal string

// The refusals.
const (
	RefusedDigest       Refusal = "digest"       // the change was edited after it was pinned
	RefusedIrreversible Refusal = "irreversible" // a step has no way back
	RefusedRequires     Refusal = "requires"     // a change it requires is not applied
	RefusedBlocked      Refusal = "blocked"      // another plan of the tenant is partial
	RefusedQuarantined  Refusal = "quarantined"
	RefusedHalfUndone   Refusal = "half_undone"   // an applied plan with steps missing: finish the rollback
	RefusedNewer        Refusal = "newer_applied" // a newer plan is in place on top of it
	RefusedOutOfOrder   Refusal = "out_of_order"  // a change that comes later in the list is in place already
	RefusedImage        Refusal = "image_damaged" // a before-image that the way back needs is damaged or gone
	RefusedMoved        Refusal = "moved"         // the tenant's plans are not those that a preview was made of
	RefusedUnknown      Refusal = "unknown_change"
	RefusedInvalid      Refusal = "invalid_change"

	// The database is one that this binary must leave as it is.

	RefusedNewerSchema Refusal = "newer_schema" // Belay's tables are of a newer Belay
	RefusedNewerBinary Refusal = "newer_binary" // a plan in flight is one that only a newer Belay can read
	RefusedScopeTaken  Refusal = "scope_taken"  // the target belongs to another tenant id
	RefusedRemoved     Refusal = "removed"      // the tenant has been removed
	RefusedNoScope     Refusal = "no_scope"     // there is no such schema
)

// untouchable are the errors by which a store says that a database is to be left as it is.
var untouchable = []struct {
	err    error
	reason Refusal
}{
	{ErrNewerSchema, RefusedNewerSchema},
	{sitelock.ErrNewerBinary, RefusedNewerBinary},
	{sitelock.ErrScopeTaken, RefusedScopeTaken},
	{sitelock.ErrRemoved, RefusedRemoved},
	{ErrNoScope, RefusedNoScope},
}

// AsRefusal makes a *RefusedError of an error by which a store says that its database is to be left as it is. The engine
// has done so with what it returns; who calls a store without one does it here. Any other error stays as it is.
func AsRefusal(err error) error {
	if _, already := errors.AsType[*RefusedError](err); already {
		return err
	}
	for _, u := range untouchable {
		if errors.Is(err, u.err) {
			return &RefusedError{Reason: u.reason, Err: err}
		}
	}
	return err
}

// RefusedError is returned before anything of a plan was put in place or taken back.
type RefusedError struct {
	Reason Refusal
	// Changes are the other changes it is about, if any: what is required, what blocks, what is newer.
	Changes []string
	Err     error
}

func (e *RefusedError) Error() string { return e.Err.Error() }
func (e *RefusedError) Unwrap() error { return e.Err }

func refuse(reason Refusal, changes []string, format string, args ...any) *RefusedError {
	return &RefusedError{Reason: reason, Changes: changes, Err: fmt.Errorf(format, args...)}
}

// errAlready says that there is nothing to do.
var errAlready = errors.New("nothing to do")

// whyNotApply says what speaks against applying a change to a tenant with these plans: nil if nothing does, errAlready
// if it is applied, a *RefusedError otherwise. It is the rule that the stores' claim follows, told to people.
func whyNotApply(records []plan.Record, change *plan.Change, digest plan.Digest, opts ApplyOptions) error {
	mine := find(records, change.ID)
	if mine != nil {
		if err := whyNotApplyMine(mine, digest, opts); err != nil {
			return err
		}
	}
	if err := blockedByPartial(records, change.ID); err != nil {
		return err
	}
	if err := whyNotRequires(records, change, nil); err != nil {
		return err
	}
	return whyIrreversible(change, opts)
}

func whyIrreversible(change *plan.Change, opts ApplyOptions) error {
	if s := change.Irreversible(); s != nil && !opts.AllowIrreversible {
		return refuse(RefusedIrreversible, nil, "step %s cannot be undone: %s", s.ID, s.Undo.Irreversible)
	}
	return nil
}

// whyNotRequires names the required changes that are neither applied nor among those applied first, in the same operation.
func whyNotRequires(records []plan.Record, change *plan.Change, ahead []string) error {
	var missing []string
	for _, id := range change.Requires {
		r := find(records, id)
		applied := r != nil && r.Plan.Status == plan.Applied && !r.Partial()
		if !applied && !slices.Contains(ahead, id) {
			missing = append(missing, id)
		}
	}
	if len(missing) == 0 {
		return nil
	}
	return refuse(RefusedRequires, missing, "change %s requires %s, which this tenant does not have", change.ID, strings.Join(missing, ", "))
}

func whyNotApplyMine(r *plan.Record, digest plan.Digest, opts ApplyOptions) error {
	pinned := r.Plan.Digest != digest && r.Touched()
	switch {
	case pinned && (r.Plan.Status == plan.Applied || !opts.Repin):
		return &RefusedError{Reason: RefusedDigest, Err: &plan.DigestMismatchError{Change: r.Plan.Change, Pinned: r.Plan.Digest, Given: digest}}
	case r.Plan.Status == plan.Applied && r.Partial():
		return refuse(RefusedHalfUndone, nil, "change %s is half rolled back: finish the rollback first", r.Plan.Change)
	case r.Plan.Status == plan.Applied:
		return errAlready
	case r.Plan.Quarantined() && !opts.Retry:
		return refuse(RefusedQuarantined, nil,
			"plan is quarantined: claimed %d times in a row without one step committing", r.Plan.Attempts)
	}
	return nil
}

// whyNotRollback is whyNotApply's mirror. The plans named in together go back first, in the same operation.
func whyNotRollback(records []plan.Record, change string, together []string, opts RollbackOptions) error {
	mine := find(records, change)
	switch {
	case mine == nil:
		return refuse(RefusedUnknown, nil, "this tenant has no plan for change %s", change)
	case mine.Plan.Status == plan.Pending && !mine.Touched():
		return errAlready
	}
	if err := whyQuarantined(append(named(records, together), *mine), change, opts); err != nil {
		return err
	}
	others := records[:0:0]
	for _, r := range records {
		if !slices.Contains(together, r.Plan.Change) {
			others = append(others, r)
		}
	}
	if err := blockedByPartial(others, change); err != nil {
		return err
	}
	if newer := newerInPlace(others, mine.Plan); len(newer) > 0 {
		return refuse(RefusedNewer, newer, "newer than %s and still in place: %s", change, strings.Join(newer, ", "))
	}
	return nil
}

// whyQuarantined refuses the rollback of a change where one of the plans that it takes back must not be claimed.
func whyQuarantined(chosen []plan.Record, change string, opts RollbackOptions) error {
	for _, r := range chosen {
		if r.Plan.Quarantined() && !opts.Retry {
			which, others := "plan", []string(nil)
			if r.Plan.Change != change {
				which, others = "plan of "+r.Plan.Change, []string{r.Plan.Change}
			}
			return refuse(RefusedQuarantined, others,
				"%s is quarantined: claimed %d times in a row without one step committing", which, r.Plan.Attempts)
		}
	}
	return nil
}

// named picks the plans of changes, in the order of their names.
func named(records []plan.Record, changes []string) []plan.Record {
	picked := make([]plan.Record, 0, len(changes)+1)
	for _, id := range changes {
		picked = append(picked, *find(records, id))
	}
	return picked
}

// newerInPlace lists the changes whose plans were first claimed after p and have a step in place or in doubt, newest
// first.
func newerInPlace(records []plan.Record, p plan.Plan) []string {
	var newer []string
	for _, r := range records {
		if r.Plan.AppliedSeq > p.AppliedSeq && r.Touched() && r.Plan.Change != p.Change {
			newer = append(newer, r.Plan.Change)
		}
	}
	slices.SortFunc(newer, func(a, b string) int {
		return cmp.Compare(find(records, b).Plan.AppliedSeq, find(records, a).Plan.AppliedSeq)
	})
	return newer
}

func blockedByPartial(records []plan.Record, except string) error {
	for _, r := range records {
		if r.Plan.Change != except && r.Partial() {
			return refuse(RefusedBlocked, []string{r.Plan.Change},
				"change %s is partial on this tenant (%d of %d steps in place): apply it again, roll it back or resolve it first",
				r.Plan.Change, r.InPlace(), r.Plan.StepsTotal)
		}
	}
	return nil
}

func find(records []plan.Record, change string) *plan.Record {
	for i := range records {
		if records[i].Plan.Change == change {
			return &records[i]
		}
	}
	return nil
}
