// Package tenant holds what Belay knows about a tenant before it opens anything: who it is, where its data live and
// how people select it. It is metadata only; no package here talks to a database.
package tenant

import (
	"fmt"

	"github.com/google/uuid"
)

// ID identifies a tenant for ever: a UUID in canonical lower-case text. Names are for people and may change; locks,
// plans and before-images are keyed by ID, so that a tenant created again under an old name has none of its history.
type ID string

// NewID returns a fresh random ID.
func NewID() ID { return ID(uuid.NewString()) }

// ParseID returns the canonical form of a UUID.
func ParseID(s string) (ID, error) {
	u, err := uuid.Parse(s)
	if err != nil {
		return "", fmt.Errorf("tenant id %q is not a UUID", s)
	}
	return ID(u.String()), nil
}

// Tenant is a customer with data of its own. "Site" is the same thing seen as the unit of locking.
type Tenant struct {
	ID     ID
	Name   string
	Target Target
	Labels map[string]string
	// Disabled tenants are left out of every selection that does not name them.
	Disabled bool
}

// Dialect names a kind of database.
type Dialect string

// The databases Belay runs on.
const (
	Postgres Dialect = "postgres"
	SQLite   Dialect = "sqlite"
)

// Target is where a tenant's data live: a database and a scope in it.
type Target struct {
	Dialect Dialect
	// Database is the connection URL without Belay's own parameters (PostgreSQL), or the absolute path of the file
	// (SQLite). Tenants with equal Dialect and Database share connections.
	Database string
	// Scope is the tenant's schema (PostgreSQL). It is empty on SQLite, where the whole file is the scope.
	Scope string
	// PasswordEnv names the environment variable that holds the password, if any (PostgreSQL).
	PasswordEnv string
}
