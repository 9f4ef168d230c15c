package render

import (
	"fmt"

	"github.com/belayhq/belay/plan"
	"github.com/belayhq/belay/sitelock"
	"github.com/belayhq/belay/tenant"
)

// Lock is the document of a site lock.
type Lock struct {
	State     sitelock.StateKind  `json:"state"`
	Operation *sitelock.Operation `json:"operation"`
	Plan      *plan.ID            `json:"plan"`
	Change    *string             `json:"change"`
	Holder    *sitelock.HolderID  `json:"holder"`
	Host      *string             `json:"host"`
	PID       *int                `json:"pid"`
	Since     *string             `json:"since"`
	Expires   *string             `json:"expires"`
	Alive     bool                `json:"alive"`
	Fence     plan.Fence          `json:"fence"`
	Reason    *string             `json:"reason"`
}

// NewLock makes the document of a lock's state. Of a free lock it tells only the state and the fence.
func NewLock(s sitelock.State) Lock {
	l := Lock{State: s.Kind(), Alive: s.Live, Fence: s.Fence}
	if s.Holder == "" {
		return l
	}
	l.Operation, l.Plan, l.Change = optional(s.Operation), optional(s.Plan), optional(s.Change)
	l.Holder, l.Host, l.PID = optional(s.Holder), optional(s.Host), optional(s.PID)
	l.Since, l.Expires, l.Reason = timestamp(s.Since), timestamp(s.Expires), optional(s.Reason)
	return l
}

// Holder says in words who has a lock, since when and when it lapses; empty if nobody is in its row.
func Holder(s sitelock.State) string {
	if s.Holder == "" {
		return ""
	}
	what := string(s.Operation)
	if s.Change != "" {
		what += " of " + s.Change
	}
	switch {
	case s.Operation == sitelock.OpHold && s.Live:
		return fmt.Sprintf("held by an operator on %s (pid %d) since %s, ends by itself at %s, reason: %s",
			s.Host, s.PID, Time(s.Since), Time(s.Expires), s.Reason)
	case s.Live:
		return fmt.Sprintf("%s on %s (pid %d, alive) since %s, lapses at %s unless renewed",
			what, s.Host, s.PID, Time(s.Since), Time(s.Expires))
	}
	return fmt.Sprintf("%s on %s (pid %d) since %s, lapsed at %s", what, s.Host, s.PID, Time(s.Since), Time(s.Expires))
}

// recoveredAdvice says what to do about a plan that a dead holder left behind.
func recoveredAdvice(was plan.Status) string {
	switch was {
	case plan.Applying:
		return "an abandoned apply: this tenant may be partly changed, apply again or roll back"
	case plan.RollingBack:
		return "an abandoned rollback: it can be retried"
	case plan.Pending, plan.Applied:
	}
	return ""
}

func recoveredLine(r sitelock.Recovered) string {
	from := ""
	if r.Process.Host != "" {
		from = fmt.Sprintf(" from %s (pid %d)", r.Process.Host, r.Process.PID)
	}
	return fmt.Sprintf("recovered %s%s, it is %s again: %s", r.Change, from, r.Status, recoveredAdvice(r.Was))
}

// Locks is the document of belay lock list and show.
type Locks struct {
	Schema string       `json:"schema"`
	Locks  []TenantLock `json:"locks"`
}

// TenantLock is the lock of a tenant.
type TenantLock struct {
	Tenant   string    `json:"tenant"`
	TenantID tenant.ID `json:"tenant_id"`
	Lock
}

// NewTenantLock makes the document of a tenant's lock.
func NewTenantLock(t tenant.Tenant, s sitelock.State) TenantLock {
	return TenantLock{Tenant: t.Name, TenantID: t.ID, Lock: NewLock(s)}
}

// LockChanges is the document of belay lock break, hold and release.
type LockChanges struct {
	Schema  string       `json:"schema"`
	Tenants []LockChange `json:"tenants"`
}

// LockChange is what was done to one tenant's lock.
type LockChange struct {
	Tenant    string      `json:"tenant"`
	TenantID  tenant.ID   `json:"tenant_id"`
	Result    string      `json:"result"` // done or failed
	Error     *Failure    `json:"error"`
	Recovered []Recovered `json:"recovered"`
}

// NewLockChange makes the document of a change of a lock.
func NewLockChange(t tenant.Tenant, recovered []sitelock.Recovered, err error) LockChange {
	c := LockChange{Tenant: t.Name, TenantID: t.ID, Result: "done", Error: NewFailure(err), Recovered: []Recovered{}}
	if err != nil {
		c.Result = "failed"
	}
	for _, r := range recovered {
		c.Recovered = append(c.Recovered, NewRecovered(r))
	}
	return c
}

// Note says why it failed, or what was recovered.
func (c LockChange) Note() string {
	if c.Error != nil {
		return c.Error.Message
	}
	note := ""
	for _, r := range c.Recovered {
		note = join(note, fmt.Sprintf("%s is %s again: %s", r.Change, r.Status, r.Advice))
	}
	return note
}
