package storagetest

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"pgregory.net/rapid"

	"github.com/belayhq/belay/engine"
	"github.com/belayhq/belay/plan"
	"github.com/belayhq/belay/sitelock"
)

// told is an error as far as the contract says what it is.
func told(err error) string {
	_, lost := errors.AsType[*sitelock.LockLostError](err)
	switch {
	case err == nil:
		return "done"
	case lost:
		return "lock lost"
	}
	for _, known := range []error{
		sitelock.ErrRefused, sitelock.ErrContended, sitelock.ErrNotHeld, sitelock.ErrRemoved, sitelock.ErrScopeTaken, sitelock.ErrNewerBinary,
	} {
		if errors.Is(err, known) {
			return known.Error()
		}
	}
	return "illegal"
}

func (m *machine) sameError(rt *rapid.T, what string, got, want error) {
	rt.Helper()
	if told(got) != told(want) {
		rt.Fatalf("%s: %s (%v), by the model %s", what, told(got), got, told(want))
	}
}

// agree demands that the database says of the tenant what the model does.
func (m *machine) agree(rt *rapid.T) {
	state, err := m.db.State(m.t.Context(), m.id)
	if err != nil {
		rt.Fatalf("state: %v", err)
	}
	records, err := m.db.Records(m.t.Context(), m.id)
	if err != nil {
		rt.Fatalf("records: %v", err)
	}
	events, err := m.db.Events(m.t.Context(), m.id, 1000)
	if err != nil {
		rt.Fatalf("events: %v", err)
	}
	slices.Reverse(events)
	var inFlight []plan.ID
	for _, p := range state.InFlight {
		inFlight = append(inFlight, p.ID)
	}
	got := describe(state.Holder, state.Fence, state.Live, state.Operation, state.Reason, records, inFlight, events)
	inFlight = nil
	for _, r := range m.model.plans {
		if r.Plan.InFlight() {
			inFlight = append(inFlight, r.Plan.ID)
		}
	}
	model := &m.model
	want := describe(model.holder, model.fence, model.live, model.operation, model.reason, model.plans, inFlight, model.events)
	if got != want {
		rt.Fatalf("the database (+) and the model (-) disagree:\n%s\nThe database says:\n%s", differing(want, got), got)
	}
}

// describe tells all that is known of a tenant, a line for each fact.
func describe(holder sitelock.HolderID, fence plan.Fence, live bool, operation sitelock.Operation, reason string,
	records []plan.Record, inFlight []plan.ID, events []engine.Event,
) string {
	var b strings.Builder
	fmt.Fprintf(&b, "lock: holder %q, fence %d, live %v, operation %q, reason %q, in flight %v\n", holder, fence, live, operation, reason, inFlight)
	for _, r := range slices.SortedFunc(slices.Values(records), func(a, b plan.Record) int { return cmp.Compare(a.Plan.Change, b.Plan.Change) }) {
		p := r.Plan
		fmt.Fprintf(&b, "plan %s of %s: %s (from %q, fence %d), outcome %s, attempts %d, number %d, cycle %d, %d steps, content %s, error %s\n",
			p.ID, p.Change, p.Status, p.ClaimedFrom, p.Fence, p.Outcome, p.Attempts, p.AppliedSeq, p.Cycle, p.StepsTotal, p.Digest.Short(),
			inWords(p.LastError))
		for _, e := range slices.SortedFunc(slices.Values(r.Journal), func(a, b plan.Entry) int { return a.Ordinal - b.Ordinal }) {
			fmt.Fprintf(&b, "step %d of %s: %s by fence %d in cycle %d, attempt %d\n", e.Ordinal, p.Change, e.State, e.Fence, e.Cycle, e.Attempt)
		}
	}
	for i, e := range events {
		if e.Kind == plan.EventBreak {
			e.Change = "" // what a lock without a plan in flight is for, a store may say or not
		}
		fmt.Fprintf(&b, "event %d: %s of %q from %q to %q, outcome %q, fence %d, operation %q, holder %q, reason %q, failure %s\n",
			i, e.Kind, e.Change, e.From, e.To, e.Outcome, e.Fence, e.Operation, e.Holder, e.Reason, inWords(e.Failure))
	}
	return b.String()
}

func inWords(f *plan.Failure) string {
	text, err := json.Marshal(f)
	if err != nil {
		panic(err)
	}
	return string(text)
}
