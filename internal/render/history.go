package render

import (
	"fmt"
	"time"

	"github.com/belayhq/belay/engine"
	"github.com/belayhq/belay/plan"
	"github.com/belayhq/belay/sitelock"
	"github.com/belayhq/belay/tenant"
)

// History is the document of belay history.
type History struct {
	Schema  string          `json:"schema"`
	Tenants []TenantHistory `json:"tenants"`
}

// TenantHistory is what happened to a tenant, newest first.
type TenantHistory struct {
	Tenant   string    `json:"tenant"`
	TenantID tenant.ID `json:"tenant_id"`
	Events   []Event   `json:"events"`
}

// Event is one transition.
type Event struct {
	Seq       int64               `json:"seq"`
	At        *string             `json:"at"`
	Kind      plan.Event          `json:"kind"`
	Change    *string             `json:"change"`
	Plan      *plan.ID            `json:"plan"`
	From      *plan.Status        `json:"from"`
	To        *plan.Status        `json:"to"`
	Outcome   *plan.Outcome       `json:"outcome"`
	Operation *sitelock.Operation `json:"operation"`
	Fence     plan.Fence          `json:"fence"`
	Holder    *sitelock.HolderID  `json:"holder"`
	Host      *string             `json:"host"`
	PID       *int                `json:"pid"`
	Reason    *string             `json:"reason"`
	Failure   *plan.Failure       `json:"failure"`

	at time.Time
}

// NewTenantHistory makes the document of a tenant's events.
func NewTenantHistory(t tenant.Tenant, events []engine.Event) TenantHistory {
	h := TenantHistory{Tenant: t.Name, TenantID: t.ID, Events: make([]Event, len(events))}
	for i, e := range events {
		h.Events[i] = Event{
			Seq: e.Seq, At: timestamp(e.At), Kind: e.Kind, Change: optional(e.Change), Plan: optional(e.Plan),
			From: optional(e.From), To: optional(e.To), Outcome: optional(e.Outcome), Operation: optional(e.Operation),
			Fence: e.Fence, Holder: optional(e.Holder), Host: optional(e.Host), PID: optional(e.PID),
			Reason: optional(e.Reason), Failure: e.Failure, at: e.At,
		}
	}
	return h
}

// AddTo shows the events in a table of TENANT, WHEN, WHAT, CHANGE, FROM, TO, OUTCOME, WHO and WHY.
func (h TenantHistory) AddTo(table *Table) {
	for _, e := range h.Events {
		what := string(e.Kind)
		if e.Operation != nil && string(*e.Operation) != what {
			what += " by " + string(*e.Operation)
		}
		table.Add(h.Tenant, Time(e.at), what, text(e.Change), text(e.From), text(e.To), text(e.Outcome), e.who(), e.why())
	}
}

func (e Event) who() string {
	if e.Host == nil {
		return ""
	}
	return fmt.Sprintf("%s/%d", *e.Host, value(e.PID))
}

func (e Event) why() string {
	why := text(e.Reason)
	if f := e.Failure; f != nil {
		if f.Step != "" {
			why = join(why, "step "+f.Step)
		}
		why = join(why, f.Message)
		if f.UndoMessage != "" {
			why = join(why, "undo: "+f.UndoMessage)
		}
	}
	return why
}

func text[T ~string](p *T) string { return string(value(p)) }

func value[T any](p *T) T {
	if p == nil {
		var zero T
		return zero
	}
	return *p
}
