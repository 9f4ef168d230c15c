package checker

import (
	"fmt"
	"maps"
	"slices"

	"github.com/belayhq/belay/plan"
	"github.com/belayhq/belay/tenant"
)

// Violation is one thing that must never be and is.
type Violation struct {
	// Invariant is its number, "I3".
	Invariant string
	What      string
}

func (v Violation) String() string { return v.Invariant + ": " + v.What }

// Check returns everything in the evidence that must never be; nothing for a sound run.
func Check(e Evidence) []Violation {
	c := &check{Evidence: e, told: map[tenant.ID][]Moment{}}
	histories := map[tenant.ID][]Moment{}
	for _, m := range e.History {
		histories[m.Tenant] = append(histories[m.Tenant], m)
		if m.Event != nil {
			c.told[m.Tenant] = append(c.told[m.Tenant], m)
		}
	}
	for _, id := range slices.Sorted(maps.Keys(histories)) {
		if id == "" {
			c.report("I20", "an effect lies in a scope that is no tenant's")
			continue
		}
		h := &history{check: c, tenant: id, moments: histories[id]}
		h.custody()
		h.paths()
		h.effects()
		h.images()
		h.outside()
	}
	c.said()
	c.seen()
	c.rest()
	c.storage()
	return c.found
}

type check struct {
	Evidence
	// told holds the events of each tenant.
	told  map[tenant.ID][]Moment
	found []Violation
}

func (c *check) report(invariant, format string, args ...any) {
	c.found = append(c.found, Violation{invariant, fmt.Sprintf(format, args...)})
}

// history is what happened to one tenant, in the order of the commits.
type history struct {
	*check
	tenant  tenant.ID
	moments []Moment
}

func (h *history) report(invariant, format string, args ...any) {
	h.check.report(invariant, "tenant "+string(h.tenant)+": "+format, args...)
}

// step names a step of a plan.
type step struct {
	plan    plan.ID
	ordinal int
}

// wrote returns the fence under which a moment was written, and what it is; false for what carries none.
func (m Moment) wrote() (plan.Fence, string, bool) {
	switch {
	case m.Step != nil && m.Step.Now != nil:
		return m.Step.Now.Fence, "journal row of step " + m.Step.Now.ID, true
	case m.Image != nil && m.Image.Now != nil:
		return m.Image.Now.Fence, fmt.Sprintf("image of step %d", m.Image.Now.Ordinal), true
	case m.Plan != nil && m.Plan.Now != nil && m.Plan.Now.Status.InFlight():
		return m.Plan.Now.Fence, "row of plan " + string(m.Plan.Now.ID), true
	case m.Event != nil:
		return m.Event.Fence, "event " + string(m.Event.Kind), true
	}
	return 0, "", false
}
