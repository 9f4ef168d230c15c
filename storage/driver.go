// Package storage ties the two databases together: the Driver that opens one, the Database that Belay's tables make of
// it, and the bounded Directory that engines open tenants through. It imports neither driver, so that a program that uses
// one database links only that one.
package storage

import (
	"context"
	"errors"

	"github.com/rs/zerolog"

	"github.com/belayhq/belay/engine"
	"github.com/belayhq/belay/plan"
	"github.com/belayhq/belay/sitelock"
	"github.com/belayhq/belay/tenant"
)

// Driver opens databases of one kind.
type Driver interface {
	Dialect() tenant.Dialect
	// Open connects to the database of a target; the target's scope plays no part. It fails if the database does not
	// exist, and makes no tables: the first write does.
	Open(ctx context.Context, target tenant.Target, opts Options) (Database, error)
}

// RenewalConnections is what a PostgreSQL database opens beside [Options.Connections].
const RenewalConnections = 1

// Options bound and name the connections to one database.
type Options struct {
	// Connections is how many may be open at once, beside the one for renewals. Zero means 8. SQLite always has one for
	// writing; the rest read.
	Connections int
	Log         zerolog.Logger
}

// Database is a database that has, or will have at the first write, Belay's tables. Any database can be a target, and
// any can be the control database; one PostgreSQL is often both.
type Database interface {
	engine.Store
	sitelock.LeaseStore
	Registry

	// Create makes a scope where a tenant's data will live: a schema, or the SQLite file itself. It is idempotent.
	Create(ctx context.Context, scope string) error
	// Register ties a scope to a tenant id, by making the tenant's lock row. It is idempotent for the same id. Errors:
	// sitelock.ErrScopeTaken, engine.ErrNoScope.
	Register(ctx context.Context, id tenant.ID, scope string) error
	// Owner returns the id of the tenant that a scope belongs to; empty if it is free.
	Owner(ctx context.Context, scope string) (tenant.ID, error)
	// Retire leaves a tombstone for a removed tenant: its scope is free for another id, its fence is kept, and its
	// lock can never be acquired again. It proves the fence, and frees the lock.
	Retire(ctx context.Context, held sitelock.Held) error

	// Migrate brings Belay's tables up to this binary's version and returns the versions before and after. It is safe
	// to call from any number of processes at once, and refuses a database of a newer Belay.
	Migrate(ctx context.Context) (from, to int, err error)
	// SchemaVersion returns the version of Belay's tables; 0 if there are none.
	SchemaVersion(ctx context.Context) (int, error)

	Close()
}

// Registry is the control database's list of tenants and changes.
type Registry interface {
	// PutTenant adds a tenant or, by name, updates its target, labels and disabled mark; the id of a tenant that is there
	// stays. It returns what is stored. Errors: ErrTargetTaken.
	PutTenant(ctx context.Context, t tenant.Tenant) (tenant.Tenant, error)
	// Tenant returns the tenant with this name. Errors: ErrNoTenant.
	Tenant(ctx context.Context, name string) (tenant.Tenant, error)
	// Tenants lists tenants whose name sorts after a name, by name (byte order), at most limit.
	Tenants(ctx context.Context, after string, limit int) ([]tenant.Tenant, error)
	// DropTenant marks a tenant removed and frees its name. It is idempotent.
	DropTenant(ctx context.Context, id tenant.ID) error
	// PutChange stores a change by digest. It is idempotent.
	PutChange(ctx context.Context, c *plan.Change) error
	// ChangeByID returns the change last stored under this id. Errors: engine.ErrChangeUnknown.
	ChangeByID(ctx context.Context, id string) (*plan.Change, error)
}

var (
	// ErrNoTenant is returned when no tenant has the name asked for.
	ErrNoTenant = errors.New("no such tenant")
	// ErrTargetTaken is returned when another tenant is registered with the same target.
	ErrTargetTaken = errors.New("another tenant has this target")
	// ErrNoDatabase is returned when the database (or SQLite file) does not exist.
	ErrNoDatabase = errors.New("no such database")
	// ErrNewerSchema is wrapped when Belay's tables were made by a newer Belay; the message names both versions.
	ErrNewerSchema = engine.ErrNewerSchema
)
