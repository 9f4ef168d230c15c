package checker

import (
	"strings"

	"github.com/belayhq/belay/plan"
	"github.com/belayhq/belay/tenant"
)

const (
	// slack is by how many milliseconds two readings of one clock may differ because they were rounded.
	slack = 1
	// unseen is for how many milliseconds a commit may be hidden from others: it gets its time before it is flushed.
	unseen = 2000
)

// said compares what processes heard and told with what was committed.
func (c *check) said() {
	under := map[custody][]Moment{}
	for _, m := range c.History {
		if fence, _, ok := m.wrote(); ok && m.Event == nil {
			under[custody{m.Tenant, fence}] = append(under[custody{m.Tenant, fence}], m)
		}
	}
	lost := map[custody]int64{}
	for _, s := range c.Said {
		if s.Heard == HeardLost {
			lost[custody{s.Tenant, s.Fence}] = s.To
		}
	}
	for _, s := range c.Said {
		if s.Verdict != "" {
			c.verdict(s)
			continue
		}
		mine := custody{s.Tenant, s.Fence}
		c.heard(s, under[mine])
		if at, ok := lost[mine]; ok && s.From > at+slack {
			c.report("I11", "tenant %s: a transaction was begun under fence %d, %d ms after it was known to be lost", s.Tenant, s.Fence, s.From-at)
		}
	}
	for mine, at := range lost {
		for _, m := range under[mine] {
			if m.At > at+slack {
				c.report("I11", "tenant %s: %s was written under fence %d, %d ms after it was known to be lost", mine.tenant, m.what(), mine.fence, m.At-at)
			}
		}
	}
	for where, text := range c.Texts {
		for _, secret := range c.Secrets {
			if strings.Contains(text, secret) {
				c.report("I25", "%s contains a secret", where)
			}
		}
	}
}

// custody is one term of a lock.
type custody struct {
	tenant tenant.ID
	fence  plan.Fence
}

// heard checks a transaction against what was committed under its fence while it ran: all of it if it was said to be
// done, nothing if it was said to have failed, one or the other if nobody knew.
func (c *check) heard(s Said, under []Moment) {
	there := 0
	for ordinal, state := range s.Writes {
		for _, m := range under {
			late := s.Heard != HeardUnknown && m.At > s.To+slack
			if m.Step != nil && m.Step.Now.Plan == s.Plan && m.Step.Now.Ordinal == ordinal && m.Step.Now.State == state &&
				m.At >= s.From-slack && !late {
				there++
				break
			}
		}
	}
	switch s.Heard {
	case HeardDone:
		if there < len(s.Writes) {
			c.report("I10", "tenant %s: a transaction under fence %d was acknowledged, and of its %d steps %d are in the journal", s.Tenant, s.Fence, len(s.Writes), there)
		}
	case HeardFailed, HeardLost:
		if there > 0 {
			c.report("I10", "tenant %s: a transaction under fence %d was said to have failed, and %d of its steps are in the journal", s.Tenant, s.Fence, there)
		}
	case HeardUnknown:
		if there != 0 && there != len(s.Writes) {
			c.report("I10", "tenant %s: of a transaction under fence %d with an unknown outcome %d of %d steps are in the journal", s.Tenant, s.Fence, there, len(s.Writes))
		}
	}
}

// verdict checks what an operation came to against the plan's history while it ran.
func (c *check) verdict(s Said) {
	during := c.during(s.Tenant, s.Change, s.From, s.To)
	want := plan.Status("")
	switch s.Verdict {
	case "applied", "already_applied":
		want = plan.Applied
	case "rolled_back", "already_rolled_back":
		want = plan.Pending
	case "skipped", "busy":
		if moves := c.moves(s); moves > 0 {
			c.report("I10", "tenant %s: process %d said that %s was %s, and moved its plan %d times", s.Tenant, s.PID, s.Change, s.Verdict, moves)
		}
	}
	if want != "" && !during[want] {
		c.report("I10", "tenant %s: process %d said that %s was %s, and the plan was never %s meanwhile", s.Tenant, s.PID, s.Change, s.Verdict, want)
	}
}

// moves counts the moves that a process made of a plan while it worked on it: but not a claim whose answer it never got, and
// which the next holder recovered at once. Of that all it can have heard is that someone else has the lock.
func (c *check) moves(s Said) int {
	n, claims := 0, 0
	for _, m := range c.told[s.Tenant] {
		e := m.Event
		if e.Change != s.Change || e.Kind == plan.EventBreak || m.At <= s.From+slack || m.At > s.To+slack {
			continue
		}
		switch {
		case e.Kind == plan.EventRecover:
			claims = 0
		case e.PID == s.PID && (e.Kind == plan.EventClaimApply || e.Kind == plan.EventClaimRollback):
			n, claims = n+claims, 1
		case e.PID == s.PID:
			n, claims = n+claims+1, 0
		}
	}
	return n + claims
}

// during lists the statuses that a plan may have been seen in between from and to: what a move led away from counts until
// the move cannot but have been visible. Where the database does not tell when it committed, that is at the next move.
func (c *check) during(id tenant.ID, change string, from, to int64) map[plan.Status]bool {
	statuses := map[plan.Status]bool{}
	last, before, open := plan.Pending, plan.Pending, false
	for _, m := range c.told[id] {
		e := m.Event
		if e.Change != change || e.Kind == plan.EventBreak {
			continue
		}
		at, hidden := m.At, int64(slack)
		if m.Committed != 0 {
			at, hidden = m.Committed, unseen
		}
		switch {
		case at < from-hidden:
			before, last, open = last, e.To, m.Committed == 0
		case m.At <= to+slack:
			statuses[e.To] = true
		}
	}
	statuses[last] = true
	if open {
		statuses[before] = true
	}
	return statuses
}

// seen checks that readers saw plans only as they were.
func (c *check) seen() {
	changes := map[plan.ID]string{}
	for _, p := range c.Plans {
		changes[p.ID] = p.Change
	}
	for _, s := range c.Seen {
		if !c.during(s.Tenant, changes[s.Plan], s.From, s.To)[s.Status] {
			c.report("I22", "tenant %s: a reader saw plan %s as %s, which it was not at that time", s.Tenant, s.Plan, s.Status)
		}
	}
}
