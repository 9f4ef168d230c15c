package render

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/belayhq/belay/engine"
	"github.com/belayhq/belay/tenant"
)

// Watcher shows an operation over many tenants while it runs. Its methods are safe for concurrent use.
type Watcher interface {
	// Event is called for each thing that happens to a plan.
	Event(p engine.Progress)
	// Result is called once for each tenant.
	Result(r engine.Result)
	// Stop ends the showing. Nothing may be called afterwards.
	Stop()
}

// Tenants knows the names of tenants under way, and which of them have a plan in flight.
type Tenants struct {
	mu       sync.Mutex
	names    map[tenant.ID]string
	inFlight map[tenant.ID]string
}

// NewTenants returns an empty set.
func NewTenants() *Tenants {
	return &Tenants{names: make(map[tenant.ID]string), inFlight: make(map[tenant.ID]string)}
}

// Add notes a tenant's name until its result.
func (ts *Tenants) Add(t tenant.Tenant) {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	ts.names[t.ID] = t.Name
}

// Event notes what an event says of a plan, and returns the event with the tenant's name.
func (ts *Tenants) Event(p engine.Progress) engine.Progress {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	if p.Name == "" {
		p.Name = ts.names[p.Tenant]
	}
	switch p.Kind {
	case engine.KindClaimed:
		ts.inFlight[p.Tenant] = p.Name
	case engine.KindFinished:
		delete(ts.inFlight, p.Tenant)
	case engine.KindWaiting, engine.KindRecovered, engine.KindStepDone, engine.KindStepUndone, engine.KindStepFailed, engine.KindUndoing:
	}
	return p
}

// Done forgets a tenant.
func (ts *Tenants) Done(id tenant.ID) {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	delete(ts.names, id)
	delete(ts.inFlight, id)
}

// InFlight names the tenants whose plans are in flight, sorted.
func (ts *Tenants) InFlight() []string {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	return slices.Sorted(maps.Values(ts.inFlight))
}

// NewLines returns a watcher that writes one line for each change of state.
func NewLines(w io.Writer) Watcher { return &lines{w: w} }

type lines struct {
	mu sync.Mutex
	w  io.Writer
}

func (l *lines) Event(p engine.Progress) { l.write(eventLine(p)) }

func (l *lines) Result(r engine.Result) { l.write(resultLine(r)) }

func (l *lines) Stop() {}

func (l *lines) write(line string) {
	if line == "" {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	// What cannot be shown must not stop the work.
	_, _ = io.WriteString(l.w, Clean(line)+"\n")
}

// eventLine tells an event in words; empty if the result says it anyway.
func eventLine(p engine.Progress) string {
	steps := fmt.Sprintf("(%d/%d)", p.StepsDone, p.StepsTotal)
	switch p.Kind {
	case engine.KindWaiting:
		return fmt.Sprintf("%s: waiting until %s for %s", p.Name, Time(p.Waiting.Deadline), waitedFor(p))
	case engine.KindRecovered:
		return p.Name + ": " + recoveredLine(*p.Recovered)
	case engine.KindClaimed:
		return fmt.Sprintf("%s: started %s", p.Name, steps)
	case engine.KindStepDone:
		return fmt.Sprintf("%s: %s done %s", p.Name, p.Step, steps)
	case engine.KindStepUndone:
		return fmt.Sprintf("%s: %s undone %s", p.Name, p.Step, steps)
	case engine.KindStepFailed:
		return fmt.Sprintf("%s: %v", p.Name, p.Err)
	case engine.KindUndoing:
		return fmt.Sprintf("%s: undoing the steps in place %s", p.Name, steps)
	case engine.KindFinished:
	}
	return ""
}

func waitedFor(p engine.Progress) string {
	if who := Holder(p.Waiting.State); who != "" {
		return who
	}
	return "the lock, whose holder is just finishing"
}

// resultLine tells a result in words; empty where nothing was done to the tenant.
func resultLine(r engine.Result) string {
	switch r.Verdict {
	case engine.VerdictAlreadyApplied, engine.VerdictAlreadyRolledBack, engine.VerdictSkipped:
		return ""
	case engine.VerdictVerified, engine.VerdictResolved:
		return fmt.Sprintf("%s: %s", r.Tenant.Name, r.Verdict)
	case engine.VerdictApplied, engine.VerdictRolledBack, engine.VerdictFailed, engine.VerdictPartial, engine.VerdictBusy,
		engine.VerdictCancelled, engine.VerdictRefused:
	}
	return fmt.Sprintf("%s: %s (%d/%d) in %s", r.Tenant.Name, strings.ReplaceAll(string(r.Verdict), "_", " "),
		r.StepsDone, r.StepsTotal, Duration(r.Duration))
}
