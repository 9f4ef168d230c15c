package render

import (
	"maps"
	"slices"
	"strings"

	"github.com/belayhq/belay/tenant"
)

// TenantList is the document of the commands that list or change tenants.
type TenantList struct {
	Schema  string   `json:"schema"`
	Tenants []Tenant `json:"tenants"`
}

// Tenant is a tenant as the control database knows it.
type Tenant struct {
	Tenant   string            `json:"tenant"`
	TenantID tenant.ID         `json:"tenant_id"`
	Target   string            `json:"target"`
	Labels   map[string]string `json:"labels"`
	Disabled bool              `json:"disabled"`
	// Result says what a command did: added, updated, unchanged or removed. Empty where it only reads.
	Result string `json:"result,omitempty"`
}

// NewTenant makes the document of a tenant. Its target is the canonical URL, which cannot hold a password.
func NewTenant(t tenant.Tenant, result string) Tenant {
	labels := t.Labels
	if labels == nil {
		labels = map[string]string{}
	}
	return Tenant{Tenant: t.Name, TenantID: t.ID, Target: t.Target.String(), Labels: labels, Disabled: t.Disabled, Result: result}
}

// LabelText shows labels for people, by key.
func (t Tenant) LabelText() string {
	parts := make([]string, 0, len(t.Labels))
	for _, key := range slices.Sorted(maps.Keys(t.Labels)) {
		parts = append(parts, key+"="+t.Labels[key])
	}
	return strings.Join(parts, ",")
}
