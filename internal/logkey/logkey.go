// Package logkey names the fields of log lines, so that a thing has one name in all of them.
package logkey

// The keys. Tenant is an id, TenantName what people call the tenant.
const (
	Tenant     = "tenant"
	TenantName = "tenant_name"
	Plan       = "plan"
	Change     = "change"
	Fence      = "fence"
	Lease      = "lease"
	Locks      = "locks"
	Target     = "target"
	Stack      = "stack"
)
