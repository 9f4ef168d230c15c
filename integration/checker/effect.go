package checker

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"slices"
	"strings"

	"github.com/belayhq/belay/plan"
	"github.com/belayhq/belay/tenant"
)

// effects checks that every effect in the database was committed together with its journal row, once.
func (h *history) effects() {
	external, scope := h.external(), h.scope()
	inPlace, open := map[string]int{}, map[string]int{}
	tx := ""
	settle := func() {
		for name, n := range open {
			if n == 0 {
				continue
			}
			if others := h.othersIn(tx); len(others) > 0 {
				h.report("I20", "step %s wrote here in a transaction of tenant %s", name, strings.Join(others, ", "))
				continue
			}
			h.report("I6", "an effect of step %s was committed without its journal row", name)
		}
		clear(open)
	}
	for _, m := range h.moments {
		if m.Tx != tx {
			settle()
			tx = m.Tx
		}
		switch {
		case m.Lock != nil:
			settle() // the last write of a checkpoint, where the database does not name transactions
		case m.Effect != nil:
			name, n := m.Effect.row().Step, m.Effect.delta()
			open[name] += n
			if inPlace[name] += n; inPlace[name] < 0 || inPlace[name] > 1 {
				h.report("I6", "the effect of step %s is in place %d times", name, inPlace[name])
			}
		case m.Step != nil && m.Step.Now != nil:
			s := m.Step.Now
			if external[step{s.Plan, s.Ordinal}] {
				continue
			}
			want := map[plan.StepState]int{plan.StepDone: 1, plan.StepUndone: -1}[s.State]
			if open[s.ID] != want {
				h.report("I6", "step %s became %s, and its transaction changed its effect by %+d", s.ID, s.State, open[s.ID])
			}
			delete(open, s.ID)
		}
	}
	settle()
	h.effectsNow(scope, inPlace, external)
}

// effectsNow compares what is in place with what the journal says, and with what history left.
func (h *history) effectsNow(scope string, inPlace map[string]int, external map[step]bool) {
	now := map[string]int{}
	for _, e := range h.InPlace {
		if e.Scope == scope {
			now[e.Step]++
		}
	}
	for _, s := range h.Journal {
		if s.Tenant != h.tenant || external[step{s.Plan, s.Ordinal}] {
			continue
		}
		want := 0
		if s.State == plan.StepDone {
			want = 1
		}
		if now[s.ID] != want {
			h.report("I5", "step %s is %s, and its effect is in place %d times", s.ID, s.State, now[s.ID])
		}
		if now[s.ID] != inPlace[s.ID] {
			h.report("I5", "the effect of step %s is in place %d times, and by its history %d times", s.ID, now[s.ID], inPlace[s.ID])
		}
		delete(now, s.ID)
	}
	for name := range now {
		h.report("I5", "the effect of step %s is in place, and the journal does not know it", name)
	}
}

// external lists the steps whose effect is outside the database: those that ever had an intent.
func (h *history) external() map[step]bool {
	found := map[step]bool{}
	for _, m := range h.moments {
		if m.Step != nil && m.Step.Now != nil && (m.Step.Now.State == plan.StepIntent || m.Step.Now.State == plan.StepUndoIntent) {
			found[step{m.Step.Now.Plan, m.Step.Now.Ordinal}] = true
		}
	}
	return found
}

// scope is where the tenant's data are.
func (h *history) scope() string {
	for _, l := range h.Locks {
		if l.Tenant == h.tenant {
			return l.Scope
		}
	}
	return ""
}

// othersIn lists the other tenants whose rows a transaction wrote.
func (h *history) othersIn(tx string) []string {
	var others []string
	for _, m := range h.History {
		if tx != "" && m.Tx == tx && m.Tenant != h.tenant && !slices.Contains(others, string(m.Tenant)) {
			others = append(others, string(m.Tenant))
		}
	}
	return others
}

// row is the row that was written, or the one that was deleted.
func (d *Diff[T]) row() *T {
	if d.Now == nil {
		return d.Was
	}
	return d.Now
}

// delta is what was done to the number of rows.
func (d *Diff[T]) delta() int {
	switch {
	case d.Was == nil:
		return 1
	case d.Now == nil:
		return -1
	}
	return 0
}

// images checks that a before-image is written once, before the effect that it is of, and stays.
func (h *history) images() {
	images, steps := map[step]*Image{}, map[step]Step{}
	for _, m := range h.moments {
		switch {
		case m.Step != nil && m.Step.Now != nil:
			steps[step{m.Step.Now.Plan, m.Step.Now.Ordinal}] = *m.Step.Now
		case m.Image != nil && m.Image.Now == nil:
			was := m.Image.Was
			at := step{was.Plan, was.Ordinal}
			if s := steps[at]; s.State != plan.StepUndone {
				h.report("I8", "the image of step %s was deleted while the step was %s", s.ID, s.State)
			}
			delete(images, at)
		case m.Image != nil:
			h.imageTaken(m, images, steps)
		}
	}
	now := 0
	for _, i := range h.Images {
		if i.Tenant != h.tenant {
			continue
		}
		now++
		if kept := images[step{i.Plan, i.Ordinal}]; kept == nil || !bytes.Equal(kept.Body, i.Body) {
			h.report("I8", "the image of step %d of plan %s is not the one that was taken", i.Ordinal, i.Plan)
		}
		if sum := sha256.Sum256(i.Body); !bytes.Equal(sum[:], i.Checksum) {
			h.report("I8", "the image of step %d of plan %s does not match its checksum", i.Ordinal, i.Plan)
		}
	}
	if now != len(images) {
		h.report("I8", "%d images are left of %d", now, len(images))
	}
}

// imageTaken checks a new image.
func (h *history) imageTaken(m Moment, images map[step]*Image, steps map[step]Step) {
	i := m.Image.Now
	at := step{i.Plan, i.Ordinal}
	s, external := steps[at], h.external()[at]
	switch {
	case m.Image.Was != nil || images[at] != nil:
		h.report("I8", "step %s got a second image in cycle %d", s.ID, i.Cycle)
	case external && (s.State != plan.StepIntent || s.Attempt != 1):
		h.report("I8", "the image of step %s was taken when it was %s for the %d. time: after its effect", s.ID, s.State, s.Attempt)
	case !external && s.State != plan.StepDone:
		h.report("I8", "the image of step %s was taken when it was %q", s.ID, s.State)
	}
	images[at] = i
}

// outside checks the calls that resources outside the database saw.
func (h *history) outside() {
	claims := map[plan.ID]int{}
	for _, m := range h.moments {
		if m.Event != nil && (m.Event.Kind == plan.EventClaimApply || m.Event.Kind == plan.EventClaimRollback) {
			claims[m.Event.Plan]++
		}
	}
	calls, last := map[string]int{}, map[string]plan.Fence{}
	for _, c := range h.Calls {
		id, name, _ := strings.Cut(c.Key, "/")
		p := plan.ID(id)
		if claims[p] == 0 {
			continue // another tenant's
		}
		name, _, _ = strings.Cut(name, "/")
		if calls[c.Key]++; calls[c.Key] > claims[p] {
			h.report("I7", "step %s was called %d times (%s) in %d claims", name, calls[c.Key], c.Key, claims[p])
		}
		if c.Fence < last[id+name] {
			h.report("I7", "a call of step %s with fence %d came after one with %d", name, c.Fence, last[id+name])
		}
		last[id+name] = c.Fence
		if !h.intended(p, name, c.Direction, c.Fence, c.At) {
			h.report("I7", "step %s was called (%s) with fence %d, and no such intent had been committed", name, c.Direction, c.Fence)
		}
		h.before(p, name, c.Key, c.Before, c.Found, calls[c.Key] == 1 && c.Direction == plan.Up)
	}
	h.doneWasCalled(calls)
}

// intended says that an intent for a call was written before it.
func (h *history) intended(p plan.ID, name string, d plan.Direction, fence plan.Fence, at int64) bool {
	state := plan.StepIntent
	if d == plan.Down {
		state = plan.StepUndoIntent
	}
	return slices.ContainsFunc(h.moments, func(m Moment) bool {
		return m.Step != nil && m.Step.Now != nil && m.Step.Now.Plan == p && m.Step.Now.ID == name && m.Step.Now.State == state &&
			m.Step.Now.Fence == fence && m.At <= at+slack
	})
}

// before compares the image that a call was given with the one that was taken, and with what the first call found.
func (h *history) before(p plan.ID, name, key, given, found string, first bool) {
	if first && given != found {
		h.report("I8", "the first call of step %s found %q, and its image says %q", name, found, given)
	}
	taken := slices.ContainsFunc(h.moments, func(m Moment) bool {
		return m.Image != nil && m.Image.Now != nil && m.Image.Now.Plan == p && string(m.Image.Now.Body) == given
	})
	if !taken {
		h.report("I8", "step %s was called (%s) with an image that was never taken", name, key)
	}
}

// doneWasCalled checks that no external step was marked without a call.
func (h *history) doneWasCalled(calls map[string]int) {
	external := h.external()
	for _, m := range h.moments {
		if m.Step == nil || m.Step.Now == nil || !external[step{m.Step.Now.Plan, m.Step.Now.Ordinal}] {
			continue
		}
		s := m.Step.Now
		d, settled := map[plan.StepState]plan.Direction{plan.StepDone: plan.Up, plan.StepUndone: plan.Down}[s.State]
		if settled && calls[key(s, d)] == 0 {
			h.report("I7", "step %s became %s without a call", s.ID, s.State)
		}
	}
}

// key is the idempotency key that the engine gives a call.
func key(s *Step, d plan.Direction) string {
	return fmt.Sprintf("%s/%s/%d/%s", s.Plan, s.ID, s.Cycle, d)
}

// tenantsOf says whose each scope is.
func tenantsOf(locks []Lock) map[string]tenant.ID {
	owners := map[string]tenant.ID{}
	for _, l := range locks {
		if l.RemovedAt == 0 {
			owners[l.Scope] = l.Tenant
		}
	}
	return owners
}
