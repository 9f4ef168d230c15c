package plan

import (
	"cmp"
	"slices"
)

// Obstacle is what speaks against a claim.
type Obstacle struct {
	Kind ObstacleKind
	// Changes are the other changes that it is about, if any: what is partial or in flight, what is newer.
	Changes []string
}

// ObstacleKind says in a word why a claim is refused.
type ObstacleKind string

// The kinds of obstacles.
const (
	ObstacleNoPlan      ObstacleKind = "no_plan"      // a rollback, and the tenant has no plan for the change
	ObstacleNothingToDo ObstacleKind = "nothing"      // applied already, or nothing is in place
	ObstacleHalfUndone  ObstacleKind = "half_undone"  // an apply of an applied plan with steps missing: its rollback comes first
	ObstacleDigest      ObstacleKind = "digest"       // the plan is pinned to other content
	ObstacleNewerFormat ObstacleKind = "newer_format" // only a newer binary reads the plan
	ObstacleQuarantined ObstacleKind = "quarantined"
	ObstaclePartial     ObstacleKind = "partial"   // another plan of the tenant is partial
	ObstacleNewer       ObstacleKind = "newer"     // a rollback, and a plan claimed later has something in place
	ObstacleInFlight    ObstacleKind = "in_flight" // this plan or another is in flight
)

// ClaimOptions are what a person may allow.
type ClaimOptions struct {
	// Retry claims a quarantined plan too.
	Retry bool
	// Repin lets a partial plan take a new digest in an apply.
	Repin bool
}

// WhyNotClaim is the rule for claims: it returns what speaks against moving a tenant's plan for a change in flight, nil if
// nothing does. records are all of the tenant's plans, or at least that one and those that are unfinished or, for a rollback,
// in place. digest is the content that is asked for.
//
//	the change's plan               apply                      rollback
//	none                            yes                        no_plan
//	pending, nothing in place       yes, any content           nothing
//	pending and partial             yes, of its content¹       yes, of its content
//	applied, whole                  nothing                    yes, of its content
//	applied and partial             half_undone                yes, of its content
//	of a newer format               newer_format               newer_format
//	quarantined                     with Retry                 with Retry
//	in flight                       in_flight                  in_flight
//
//	another plan of the tenant      apply                      rollback
//	at rest and not partial         yes                        yes, unless it is newer and has something in place
//	partial                         partial                    partial
//	in flight                       in_flight                  in_flight
//
// ¹ or of other content, with Repin.
//
// The stores follow the same rule, in the transaction that claims: storage/sqlite in Go beside two queries, storage/postgres in
// the statements that claim. storagetest holds both to this function, for every combination. Whoever reads without the lock
// knows only what was true then; a plan in flight is then no reason to give up, because a live holder may finish it and a
// dead one's is recovered. So in flight is the last thing that is said: nothing else speaks against the claim.
//
// Some rules are the engine's alone, and no race can break them. What a change requires, the engine looks up again once the
// plan is claimed, under the lock, before the first step; while it is held, no other plan moves. Whether a step is
// irreversible is a property of the content, which the claim pins. What a repin may edit is compared under the lock, before
// the claim.
func WhyNotClaim(records []Record, d Direction, change string, digest Digest, opts ClaimOptions) *Obstacle {
	var mine *Record
	for i := range records {
		if records[i].Plan.Change == change {
			mine = &records[i]
		}
	}
	kind := whyNotUp(mine, digest, opts)
	if d == Down {
		kind = whyNotDown(mine, digest, opts)
	}
	if kind != "" {
		return &Obstacle{Kind: kind}
	}
	return whyNotBeside(records, d, change, mine)
}

func whyNotUp(mine *Record, digest Digest, opts ClaimOptions) ObstacleKind {
	if mine == nil {
		return ""
	}
	p := mine.Plan
	pinned := p.Digest != digest && mine.Touched()
	switch {
	case pinned && (p.Status == Applied || !opts.Repin):
		return ObstacleDigest
	case p.Status == Applied && mine.Partial():
		return ObstacleHalfUndone
	case p.Status == Applied:
		return ObstacleNothingToDo
	}
	return whyNotEither(p, opts)
}

func whyNotDown(mine *Record, digest Digest, opts ClaimOptions) ObstacleKind {
	switch {
	case mine == nil:
		return ObstacleNoPlan
	case mine.Plan.Status == Pending && !mine.Touched():
		return ObstacleNothingToDo
	case mine.Plan.Digest != digest:
		return ObstacleDigest
	}
	return whyNotEither(mine.Plan, opts)
}

func whyNotEither(p Plan, opts ClaimOptions) ObstacleKind {
	switch {
	case p.Format > Format:
		return ObstacleNewerFormat
	case p.Quarantined() && !opts.Retry:
		return ObstacleQuarantined
	}
	return ""
}

// whyNotBeside says which of a tenant's plans speak against a claim that the plan itself allows.
func whyNotBeside(records []Record, d Direction, change string, mine *Record) *Obstacle {
	var partial, newer, inFlight []string
	for _, r := range records {
		if r.Plan.InFlight() {
			inFlight = append(inFlight, r.Plan.Change)
		}
		if r.Plan.Change != change && r.Partial() {
			partial = append(partial, r.Plan.Change)
		}
	}
	if d == Down {
		newer = NewerInPlace(records, mine.Plan)
	}
	switch {
	case len(partial) > 0:
		return &Obstacle{ObstaclePartial, partial}
	case len(newer) > 0:
		return &Obstacle{ObstacleNewer, newer}
	case len(inFlight) > 0:
		return &Obstacle{ObstacleInFlight, inFlight}
	}
	return nil
}

// NewerInPlace lists the changes whose plans were first claimed after p in the present cycle and have a step in place or in
// doubt, newest first.
func NewerInPlace(records []Record, p Plan) []string {
	var newer []Plan
	for _, r := range records {
		if r.Plan.AppliedSeq > p.AppliedSeq && r.Touched() && r.Plan.Change != p.Change {
			newer = append(newer, r.Plan)
		}
	}
	slices.SortFunc(newer, func(a, b Plan) int { return cmp.Compare(b.AppliedSeq, a.AppliedSeq) })
	var changes []string
	for _, n := range newer {
		changes = append(changes, n.Change)
	}
	return changes
}
