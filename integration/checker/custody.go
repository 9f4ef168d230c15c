package checker

import (
	"github.com/belayhq/belay/plan"
)

// custody checks who had the tenant's lock, and that nobody else wrote.
func (h *history) custody() {
	var fence, highest plan.Fence
	var freed bool
	var removed int64
	for _, m := range h.moments {
		if removed != 0 && m.Lock == nil {
			h.report("I21", "%s was written after the tenant had been removed", m.what())
		}
		if m.Lock != nil {
			if m.Lock.Now == nil {
				h.report("I1", "the lock row with fence %d was deleted: the next one restarts the fence", m.Lock.Was.Fence)
				continue
			}
			h.fenceGrows(m, fence)
			h.theft(m)
			h.renewal(m)
			fence, freed, removed = m.Lock.Now.Fence, m.Lock.Now.Holder == "", max(removed, m.Lock.Now.RemovedAt)
			continue
		}
		f, what, carries := m.wrote()
		if !carries {
			continue
		}
		if f < fence {
			h.report("I2", "%s was committed under fence %d, after an acquire with %d", what, f, fence)
		}
		if f > fence {
			h.report("I2", "%s was committed under fence %d, which nobody had acquired: the lock had %d", what, f, fence)
		}
		if f < highest {
			h.report("I3", "fence %d after %d in the %s", f, highest, what)
		}
		highest = max(highest, f)
		if freed && m.Event == nil {
			h.report("I14", "%s was committed under fence %d after its release", what, f)
		}
	}
}

// fenceGrows checks that every change of custody raises the fence, and nothing else does.
func (h *history) fenceGrows(m Moment, last plan.Fence) {
	was, now := m.Lock.Was, m.Lock.Now
	switch {
	case was != nil && was.Fence != last && last != 0:
		h.report("I1", "the lock row has fence %d, and was last seen with %d", was.Fence, last)
	case now.Fence < last:
		h.report("I1", "fence %d after %d", now.Fence, last)
	case was != nil && now.Holder != "" && now.Holder != was.Holder && now.Fence <= was.Fence:
		h.report("I1", "holder %s got fence %d, as the one before had", now.Holder, now.Fence)
	case was != nil && now.Holder == "" && was.Holder != "" && now.Fence != was.Fence && now.Fence != was.Fence+1:
		h.report("I14", "a release moved the fence from %d to %d", was.Fence, now.Fence)
	}
}

// theft checks that a live lock was taken only by an operator, or by its own process that gave it up.
func (h *history) theft(m Moment) {
	was, now := m.Lock.Was, m.Lock.Now
	if was == nil || was.Holder == "" || now.Fence == was.Fence || was.ExpiresAt <= m.At {
		return
	}
	ownProcess := now.Holder != "" && was.Host == now.Host && was.PID == now.PID && was.StartedAt == now.StartedAt
	if !ownProcess && !h.broken(now.Fence) {
		h.report("I12", "fence %d was given away while fence %d was live for another %d ms", now.Fence, was.Fence, was.ExpiresAt-m.At)
	}
	if ownProcess && was.Holder != now.Holder && !h.replaced(m) && !h.broken(now.Fence) {
		h.report("I12", "a process took fence %d from its own live fence %d without having lost an answer", now.Fence, was.Fence)
	}
}

// broken says that an operator made the change of custody with this fence.
func (h *history) broken(fence plan.Fence) bool {
	for _, m := range h.moments {
		if m.Event != nil && m.Event.Kind == plan.EventBreak && m.Event.Fence == fence {
			return true
		}
	}
	return false
}

// replaced says that the process which gave its own lock up had heard something other than success under it, or that
// nobody kept what it heard.
func (h *history) replaced(m Moment) bool {
	kept := false
	for _, s := range h.Said {
		if s.Tenant != h.tenant || s.Fence == 0 {
			continue
		}
		kept = true
		if s.Fence == m.Lock.Was.Fence && s.Heard != HeardDone {
			return true
		}
	}
	return !kept
}

// renewal checks a row that changed without a change of custody.
func (h *history) renewal(m Moment) {
	was, now := m.Lock.Was, m.Lock.Now
	if was == nil || was.Fence != now.Fence || was.Holder == "" || now.Holder == "" {
		return
	}
	if was.Holder != now.Holder || was.PID != now.PID || was.StartedAt != now.StartedAt {
		h.report("I13", "the row of fence %d changed its holder without a new fence", now.Fence)
	}
	if now.ExpiresAt == Lapsed {
		return
	}
	if now.ExpiresAt < was.ExpiresAt {
		h.report("I13", "a renewal of fence %d moved the expiry back by %d ms", now.Fence, was.ExpiresAt-now.ExpiresAt)
	}
	if longest := m.At + h.Lease.Milliseconds(); h.Lease > 0 && now.ExpiresAt > longest {
		h.report("I13", "a renewal of fence %d gave %d ms more than a lease", now.Fence, now.ExpiresAt-longest)
	}
}

// what names a moment for people.
func (m Moment) what() string {
	if _, what, ok := m.wrote(); ok {
		return what
	}
	switch {
	case m.Effect != nil:
		return "an effect"
	case m.Plan != nil:
		return "a plan row"
	case m.Image != nil:
		return "an image"
	}
	return "a row"
}
