package render

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/belayhq/belay/engine"
	"github.com/belayhq/belay/plan"
	"github.com/belayhq/belay/sitelock"
	"github.com/belayhq/belay/tenant"
)

// Status is the document of belay status.
type Status struct {
	Schema  string         `json:"schema"`
	Summary StatusSummary  `json:"summary"`
	Tenants []TenantStatus `json:"tenants"`
}

// StatusSummary counts tenants by the state of their lock, and their plans by status. Partial and quarantined plans are
// counted under their status too.
type StatusSummary struct {
	Tenants     int `json:"tenants"`
	Idle        int `json:"idle"`
	Running     int `json:"running"`
	Interrupted int `json:"interrupted"`
	Held        int `json:"held"`
	Unreadable  int `json:"unreadable"`
	// Attention counts the tenants that a person should look at.
	Attention int `json:"attention"`
	// NoPlan counts the tenants without any plan, or without one for the change asked about.
	NoPlan      int `json:"no_plan"`
	Pending     int `json:"pending"`
	Applying    int `json:"applying"`
	Applied     int `json:"applied"`
	RollingBack int `json:"rolling_back"`
	Partial     int `json:"partial"`
	Quarantined int `json:"quarantined"`
	// Behind counts the tenants that lack a change of the directory asked about; nil if none was.
	Behind *int `json:"behind,omitempty"`
}

// TenantStatus is a tenant's lock and plans.
type TenantStatus struct {
	Tenant   string       `json:"tenant"`
	TenantID tenant.ID    `json:"tenant_id"`
	Disabled bool         `json:"disabled"`
	Lock     *Lock        `json:"lock"`
	Plans    []PlanStatus `json:"plans"`
	Error    *Failure     `json:"error"`
	// Attention says why a person should look at this tenant.
	Attention []string `json:"attention"`
	// Behind names the changes that this tenant lacks of the directory asked about, in their order; nil if none was.
	Behind []string `json:"behind,omitzero"`

	lockState sitelock.State
}

// PlanStatus is a plan as it stands.
type PlanStatus struct {
	Change      string       `json:"change"`
	Plan        plan.ID      `json:"plan"`
	Status      plan.Status  `json:"status"`
	Outcome     plan.Outcome `json:"outcome"`
	Partial     bool         `json:"partial"`
	Quarantined bool         `json:"quarantined"`
	// RecoversTo is the status that the next acquire returns an abandoned plan to; null for any other.
	RecoversTo *plan.Status  `json:"recovers_to"`
	StepsDone  int           `json:"steps_done"`
	StepsTotal int           `json:"steps_total"`
	Digest     plan.Digest   `json:"digest"`
	AppliedSeq int64         `json:"applied_seq"`
	Attempts   int           `json:"attempts"`
	LastError  *plan.Failure `json:"last_error"`
	UpdatedAt  *string       `json:"updated_at"`
}

// NewTenantStatus makes the document of a surveyed tenant. With a change, a tenant without a plan for it is no matter of
// concern, but other plans that are partial are.
func NewTenantStatus(s engine.Surveyed) TenantStatus {
	t := TenantStatus{
		Tenant: s.Tenant.Name, TenantID: s.Tenant.ID, Disabled: s.Tenant.Disabled, Plans: []PlanStatus{}, Attention: []string{},
	}
	if s.Err != nil {
		t.Error = NewFailure(s.Err)
		t.Attention = append(t.Attention, "cannot be read: "+s.Err.Error())
		return t
	}
	t.lockState = s.Lock
	lock := NewLock(s.Lock)
	t.Lock = &lock
	switch s.Lock.Kind() {
	case sitelock.StateInterrupted:
		who := Holder(s.Lock)
		if who == "" {
			who = "its holder is gone"
		}
		t.Attention = append(t.Attention, "interrupted: "+who)
		if s.Lock.NeedsNewerBinary() {
			t.Attention = append(t.Attention, "its plan in flight needs a newer belay")
		}
	case sitelock.StateHeld:
		t.Attention = append(t.Attention, Holder(s.Lock))
	case sitelock.StateIdle, sitelock.StateRunning:
	}
	for _, r := range s.Records {
		p := newPlanStatus(r, s.Lock)
		t.Plans = append(t.Plans, p)
		if note := p.concern(); note != "" {
			t.Attention = append(t.Attention, note)
		}
	}
	return t
}

// Lags notes which of these changes the tenant lacks: it has those that are applied, and whole.
func (t *TenantStatus) Lags(changes []*plan.Change) {
	if t.Error != nil {
		return
	}
	t.Behind = []string{}
	for _, c := range changes {
		has := func(p PlanStatus) bool { return p.Change == c.ID && p.Status == plan.Applied && !p.Partial }
		if !slices.ContainsFunc(t.Plans, has) {
			t.Behind = append(t.Behind, c.ID)
		}
	}
}

func newPlanStatus(r plan.Record, lock sitelock.State) PlanStatus {
	p := PlanStatus{
		Change: r.Plan.Change, Plan: r.Plan.ID, Status: r.Plan.Status, Outcome: r.Plan.Outcome,
		Partial: r.Partial(), Quarantined: r.Plan.Quarantined(),
		StepsDone: r.InPlace(), StepsTotal: r.Plan.StepsTotal, Digest: r.Plan.Digest, AppliedSeq: r.Plan.AppliedSeq,
		Attempts: r.Plan.Attempts, LastError: r.Plan.LastError, UpdatedAt: timestamp(r.Plan.UpdatedAt),
	}
	if r.Plan.InFlight() && !lock.Live {
		if to, err := plan.Next(r.Plan.Status, r.Plan.ClaimedFrom, plan.EventRecover); err == nil {
			p.RecoversTo = &to
		}
	}
	return p
}

// concern says why a person should look at a plan; empty if none need.
func (p PlanStatus) concern() string {
	steps := fmt.Sprintf("%d of %d steps in place", p.StepsDone, p.StepsTotal)
	switch {
	case p.RecoversTo != nil:
		return fmt.Sprintf("%s is abandoned (%s, %s): the next apply or rollback returns it to %s", p.Change, p.Status, steps, *p.RecoversTo)
	case p.Quarantined:
		return fmt.Sprintf("%s is quarantined after %s without a step committing (%s)", p.Change, Plural(p.Attempts, "attempt"), steps)
	case p.Partial && p.Status == plan.Applied:
		return fmt.Sprintf("%s is partial (%s): a half-done rollback, finish it", p.Change, steps)
	case p.Partial:
		return fmt.Sprintf("%s is partial (%s)", p.Change, steps)
	case p.Status == plan.Pending && p.Outcome == plan.OutcomeFailed:
		return p.Change + " failed, nothing of it is in place"
	}
	return ""
}

// Count adds a tenant. With a change, only its plan counts.
func (s *StatusSummary) Count(t TenantStatus, change string) {
	s.Tenants++
	if len(t.Attention) > 0 {
		s.Attention++
	}
	if t.Error != nil {
		s.Unreadable++
		return
	}
	switch t.Lock.State {
	case sitelock.StateIdle:
		s.Idle++
	case sitelock.StateRunning:
		s.Running++
	case sitelock.StateInterrupted:
		s.Interrupted++
	case sitelock.StateHeld:
		s.Held++
	}
	if s.Behind != nil && len(t.Behind) > 0 {
		*s.Behind++
	}
	plans := 0
	for _, p := range t.Plans {
		if change == "" || p.Change == change {
			plans++
			s.countPlan(p)
		}
	}
	if plans == 0 {
		s.NoPlan++
	}
}

func (s *StatusSummary) countPlan(p PlanStatus) {
	switch p.Status {
	case plan.Pending:
		s.Pending++
	case plan.Applying:
		s.Applying++
	case plan.Applied:
		s.Applied++
	case plan.RollingBack:
		s.RollingBack++
	}
	if p.Partial {
		s.Partial++
	}
	if p.Quarantined {
		s.Quarantined++
	}
}

// Lines is the summary in words, one line for tenants and one for plans, without what does not occur.
func (s *StatusSummary) Lines() []string {
	words := func(counts ...counted) string { return cmp.Or(inWords(counts...), "none") }
	lines := []string{
		fmt.Sprintf("tenants: %d (%s)", s.Tenants, words(counted{s.Idle, "idle"}, counted{s.Running, "running"},
			counted{s.Interrupted, "interrupted"}, counted{s.Held, "held"}, counted{s.Unreadable, "unreadable"})),
		"plans:   " + words(counted{s.Applied, "applied"}, counted{s.Pending, "pending"}, counted{s.Applying, "applying"},
			counted{s.RollingBack, "rolling back"}, counted{s.Partial, "of them partial"}, counted{s.Quarantined, "of them quarantined"},
			counted{s.NoPlan, Noun(s.NoPlan, "tenant") + " without one"}),
	}
	if s.Behind != nil {
		lines = append(lines, fmt.Sprintf("behind:  %s", Plural(*s.Behind, "tenant")))
	}
	return lines
}

// StatusTable shows tenants for people.
type StatusTable struct {
	table *Table
	add   func(TenantStatus)
}

// NewStatusTable returns a table without tenants, which shows each plan of a tenant on a line of its own.
func NewStatusTable() *StatusTable {
	st := &StatusTable{table: NewTable("TENANT", "LOCK", "CHANGE", "STATUS", "STEPS", "NOTE")}
	st.add = st.addPlans
	return st
}

// NewBehindTable returns a table without tenants, which shows the changes that each tenant lacks.
func NewBehindTable() *StatusTable {
	st := &StatusTable{table: NewTable("TENANT", "LOCK", "BEHIND", "LACKS")}
	st.add = st.addBehind
	return st
}

// Add shows a tenant.
func (st *StatusTable) Add(t TenantStatus) { st.add(t) }

func (st *StatusTable) addBehind(t TenantStatus) {
	if t.Error != nil {
		st.table.Add(t.Tenant, "unreadable", "", t.Error.Message)
		return
	}
	st.table.Add(t.Tenant, string(t.Lock.State), strconv.Itoa(len(t.Behind)), strings.Join(t.Behind, ", "))
}

func (st *StatusTable) addPlans(t TenantStatus) {
	if t.Error != nil {
		st.table.Add(t.Tenant, "unreadable", "", "", "", t.Error.Message)
		return
	}
	note := ""
	if t.Lock.State != sitelock.StateIdle {
		note = Holder(t.lockState)
	}
	if len(t.Plans) == 0 {
		st.table.Add(t.Tenant, string(t.Lock.State), "", "", "", note)
		return
	}
	name, lock, about := t.Tenant, string(t.Lock.State), t.lockedPlan()
	for i, p := range t.Plans {
		text := p.note()
		if i == about {
			text = join(text, note)
		}
		st.table.Add(name, lock, p.Change, p.statusWord(), fmt.Sprintf("%d/%d", p.StepsDone, p.StepsTotal), text)
		name, lock = " ", " " // the same tenant: blank, where an empty cell would show a dash
	}
}

// lockedPlan is the index of the plan that the lock is about: the holder's, else the one in flight, else the first.
func (t TenantStatus) lockedPlan() int {
	holders := func(p PlanStatus) bool { return p.Plan == t.lockState.Plan }
	inFlight := func(p PlanStatus) bool { return p.Status == plan.Applying || p.Status == plan.RollingBack }
	for _, matches := range []func(PlanStatus) bool{holders, inFlight} {
		if i := slices.IndexFunc(t.Plans, matches); i >= 0 {
			return i
		}
	}
	return 0
}

// Listed reports whether a tenant is shown without being asked for: it lacks a change, where that was asked; else it needs
// a person, or its lock is not idle.
func (t TenantStatus) Listed() bool {
	if t.Behind != nil {
		return len(t.Behind) > 0
	}
	return len(t.Attention) > 0 || t.Lock != nil && t.Lock.State != sitelock.StateIdle
}

// Write writes the table; one without tenants writes nothing.
func (st *StatusTable) Write(w io.Writer) error { return st.table.Write(w) }

func (p PlanStatus) statusWord() string {
	switch {
	case p.RecoversTo != nil:
		return string(p.Status) + " (abandoned)"
	case p.Quarantined && p.Partial:
		return string(p.Status) + " (partial, quarantined)"
	case p.Quarantined:
		return string(p.Status) + " (quarantined)"
	case p.Partial:
		return string(p.Status) + " (partial)"
	}
	return string(p.Status)
}

func (p PlanStatus) note() string {
	var parts []string
	if p.RecoversTo != nil {
		parts = append(parts, "recovers to "+string(*p.RecoversTo))
	}
	if p.Status == plan.Pending || p.Partial || p.Quarantined {
		parts = append(parts, "last outcome: "+string(p.Outcome))
	}
	if e := p.LastError; e != nil && (p.Status != plan.Applied || p.Partial) {
		parts = append(parts, strings.TrimPrefix(e.Step+": ", ": ")+e.Message)
		if e.UndoMessage != "" {
			parts = append(parts, "undo: "+e.UndoMessage)
		}
	}
	return strings.Join(parts, "; ")
}

func join(a, b string) string {
	if a == "" || b == "" {
		return a + b
	}
	return a + "; " + b
}
