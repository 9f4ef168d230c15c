package render

import (
	"github.com/belayhq/belay/plan"
	"github.com/belayhq/belay/sitelock"
)

// Leases is the document of belay lease list.
type Leases struct {
	Schema string  `json:"schema"`
	Leases []Lease `json:"leases"`
}

// Lease is a named lease.
type Lease struct {
	Name    string             `json:"name"`
	State   string             `json:"state"` // held, lapsed or free
	Fence   plan.Fence         `json:"fence"`
	Holder  *sitelock.HolderID `json:"holder"`
	Host    *string            `json:"host"`
	PID     *int               `json:"pid"`
	Since   *string            `json:"since"`
	Expires *string            `json:"expires"`
	Alive   bool               `json:"alive"`
}

// NewLeases makes the document of leases.
func NewLeases(leases []sitelock.Lease) Leases {
	d := Leases{Schema: Schema("leases"), Leases: []Lease{}}
	for _, l := range leases {
		d.Leases = append(d.Leases, Lease{
			Name: l.Name, State: LeaseState(l), Fence: l.Fence, Holder: optional(l.Holder), Host: optional(l.Host),
			PID: optional(l.PID), Since: timestamp(l.Since), Expires: timestamp(l.Expires), Alive: l.Live,
		})
	}
	return d
}

// LeaseState is held, lapsed or free.
func LeaseState(l sitelock.Lease) string {
	switch {
	case l.Live:
		return "held"
	case l.Holder != "":
		return "lapsed"
	}
	return "free"
}
