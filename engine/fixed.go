package engine

import (
	"context"
	"errors"

	"github.com/belayhq/belay/tenant"
)

// Fixed returns a Directory for tenants that all live in one database, which the embedding program opened and closes. Of
// a tenant's Target only the Scope plays a part.
func Fixed(store Store) Directory { return fixed{store} }

type fixed struct{ store Store }

func (f fixed) Open(context.Context, tenant.Tenant) (Store, func(), error) {
	if f.store == nil {
		return nil, nil, errors.New("no store is given")
	}
	return f.store, func() {}, nil
}
