package engine

import (
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
// if it is applied, a *RefusedError otherwise.
func whyNotApply(records []plan.Record, change *plan.Change, digest plan.Digest, opts ApplyOptions) error {
	if err := whyNotClaim(records, plan.Up, change.ID, digest, opts.claim()); err != nil {
		return err
	}
	if err := whyNotRequires(records, change, nil); err != nil {
		return err
	}
	return whyIrreversible(change, opts)
}

// whyNotClaim tells people what [plan.WhyNotClaim] says of a claim. A plan in flight is no reason: who has it is waited for,
// or was recovered under the lock.
func whyNotClaim(records []plan.Record, d plan.Direction, change string, digest plan.Digest, opts plan.ClaimOptions) error {
	obstacle := plan.WhyNotClaim(records, d, change, digest, opts)
	if obstacle == nil {
		return nil
	}
	switch obstacle.Kind {
	case plan.ObstacleNothingToDo:
		return errAlready
	case plan.ObstacleNoPlan:
		return refuse(RefusedUnknown, nil, "this tenant has no plan for change %s", change)
	case plan.ObstacleHalfUndone:
		return refuse(RefusedHalfUndone, nil, "change %s is half rolled back: finish the rollback first", change)
	case plan.ObstacleDigest:
		if d == plan.Down { // it was chosen by its digest, before the lock was had
			return refuse(RefusedDigest, nil, "change %s was applied with other content while this rollback waited: run it again", change)
		}
		pinned := find(records, change).Plan.Digest
		return &RefusedError{Reason: RefusedDigest, Err: &plan.DigestMismatchError{Change: change, Pinned: pinned, Given: digest}}
	case plan.ObstacleNewerFormat:
		return refuse(RefusedNewerBinary, nil, "plan of %s was written by a newer version of belay; this one must not touch it", change)
	case plan.ObstacleQuarantined:
		return refuseQuarantined(find(records, change).Plan, "plan", nil)
	case plan.ObstaclePartial:
		other := find(records, obstacle.Changes[0])
		return refuse(RefusedBlocked, []string{other.Plan.Change},
			"change %s is partial on this tenant (%d of %d steps in place): apply it again, roll it back or resolve it first",
			other.Plan.Change, other.InPlace(), other.Plan.StepsTotal)
	case plan.ObstacleNewer:
		return refuse(RefusedNewer, obstacle.Changes, "newer than %s and still in place: %s", change, strings.Join(obstacle.Changes, ", "))
	case plan.ObstacleInFlight:
	}
	return nil
}

func refuseQuarantined(p plan.Plan, which string, others []string) *RefusedError {
	return refuse(RefusedQuarantined, others, "%s is quarantined: claimed %d times in a row without one step committing", which, p.Attempts)
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

// whyNotRollback is whyNotApply's mirror. The plans named in together go back first, in the same operation.
func whyNotRollback(records []plan.Record, change string, digest plan.Digest, together []string, opts RollbackOptions) error {
	others := records[:0:0]
	for _, r := range records {
		if !slices.Contains(together, r.Plan.Change) {
			others = append(others, r)
		}
	}
	if err := whyNotClaim(others, plan.Down, change, digest, opts.claim()); err != nil {
		return err
	}
	return whyQuarantined(named(records, together), opts)
}

// whyQuarantined refuses a rollback that takes back a plan which must not be claimed.
func whyQuarantined(chosen []plan.Record, opts RollbackOptions) error {
	for _, r := range chosen {
		if r.Plan.Quarantined() && !opts.Retry {
			return refuseQuarantined(r.Plan, "plan of "+r.Plan.Change, []string{r.Plan.Change})
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

func find(records []plan.Record, change string) *plan.Record {
	for i := range records {
		if records[i].Plan.Change == change {
			return &records[i]
		}
	}
	return nil
}
