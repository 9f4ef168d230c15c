package postgres

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/belayhq/belay/plan"
	"github.com/belayhq/belay/storage"
	"github.com/belayhq/belay/tenant"
)

// target is how a tenant's target is stored.
type target struct {
	Dialect     tenant.Dialect `json:"dialect"`
	Database    string         `json:"database"`
	Scope       string         `json:"scope"`
	PasswordEnv string         `json:"password_env,omitempty"`
}

// tenantColumns are those of a tenant t, in the order of readTenants.
const tenantColumns = `t.tenant_id::text, t.name, t.target::text, t.labels::text, t.disabled`

// putTenantSQL keeps the id of a tenant that is there: its locks and plans are under it.
const putTenantSQL = `
INSERT INTO belay.tenant AS t (tenant_id, name, target, labels, disabled, created_at)
VALUES ($1::uuid, $2::text, $3::jsonb, $4::jsonb, $5::boolean, belay.now_ms())
ON CONFLICT (name COLLATE "C") WHERE removed_at IS NULL DO UPDATE SET
    target = EXCLUDED.target, labels = EXCLUDED.labels, disabled = EXCLUDED.disabled
RETURNING ` + tenantColumns

// PutTenant implements [storage.Registry].
func (s *Store) PutTenant(ctx context.Context, t tenant.Tenant) (tenant.Tenant, error) {
	if err := s.ensureTables(ctx); err != nil {
		return tenant.Tenant{}, err
	}
	labels := t.Labels
	if labels == nil {
		labels = map[string]string{}
	}
	text, err := json.Marshal(labels)
	if err != nil {
		return tenant.Tenant{}, fmt.Errorf("encode labels of %s: %w", t.Name, err)
	}
	where, err := json.Marshal(target(t.Target))
	if err != nil {
		return tenant.Tenant{}, fmt.Errorf("encode target of %s: %w", t.Name, err)
	}
	var stored []tenant.Tenant
	put := func() error {
		return s.write(ctx, func(tx *transaction) error {
			stored = nil
			tx.ask(putTenantSQL, func(rows pgx.Rows) error { return readTenants(rows, &stored) },
				t.ID, t.Name, string(where), string(text), t.Disabled)
			return tx.commit(ctx)
		})
	}
	err = put()
	if isTargetTaken(err) {
		err = put() // it may be this very tenant, put by another process at the same moment
	}
	switch {
	case isTargetTaken(err):
		err = storage.ErrTargetTaken
	case err != nil:
		err = lockError(err)
	}
	if err != nil {
		return tenant.Tenant{}, fmt.Errorf("put tenant %s: %w", t.Name, err)
	}
	return stored[0], nil
}

func isTargetTaken(err error) bool {
	server, ok := errors.AsType[*Error](err)
	return ok && server.Code == codeUniqueViolation && server.Constraint == "tenant_target_key"
}

const tenantSQL = `SELECT ` + tenantColumns + ` FROM belay.tenant t WHERE t.name COLLATE "C" = $1::text AND t.removed_at IS NULL`

// Tenant implements [storage.Registry].
func (s *Store) Tenant(ctx context.Context, name string) (tenant.Tenant, error) {
	tenants, err := s.tenants(ctx, tenantSQL, name)
	if err == nil && len(tenants) == 0 {
		err = storage.ErrNoTenant
	}
	if err != nil {
		return tenant.Tenant{}, fmt.Errorf("tenant %s: %w", name, err)
	}
	return tenants[0], nil
}

const tenantsSQL = `
SELECT ` + tenantColumns + ` FROM belay.tenant t
WHERE t.name COLLATE "C" > $1::text AND t.removed_at IS NULL
ORDER BY t.name COLLATE "C" LIMIT $2::integer`

// Tenants implements [storage.Registry].
func (s *Store) Tenants(ctx context.Context, after string, limit int) ([]tenant.Tenant, error) {
	tenants, err := s.tenants(ctx, tenantsSQL, after, max(0, limit))
	if err != nil {
		return nil, fmt.Errorf("list tenants: %w", err)
	}
	return tenants, nil
}

func (s *Store) tenants(ctx context.Context, sql string, args ...any) ([]tenant.Tenant, error) {
	var tenants []tenant.Tenant
	err := s.read(ctx, func(tx *transaction) error {
		tenants = nil
		tx.ask(sql, func(rows pgx.Rows) error { return readTenants(rows, &tenants) }, args...)
		return tx.commit(ctx)
	})
	return tenants, err
}

func readTenants(rows pgx.Rows, tenants *[]tenant.Tenant) error {
	for rows.Next() {
		var t tenant.Tenant
		var where, labels string
		if err := rows.Scan(&t.ID, &t.Name, &where, &labels, &t.Disabled); err != nil {
			return err
		}
		var to target
		if err := json.Unmarshal([]byte(where), &to); err != nil {
			return fmt.Errorf("tenant %s: decode target: %w", t.Name, err)
		}
		t.Target = tenant.Target(to)
		if err := json.Unmarshal([]byte(labels), &t.Labels); err != nil {
			return fmt.Errorf("tenant %s: decode labels: %w", t.Name, err)
		}
		if len(t.Labels) == 0 {
			t.Labels = nil
		}
		*tenants = append(*tenants, t)
	}
	return nil
}

const removeTenantSQL = `
UPDATE belay.tenant SET removed_at = belay.now_ms() WHERE tenant_id = $1::uuid AND removed_at IS NULL`

// DropTenant implements [storage.Registry].
func (s *Store) DropTenant(ctx context.Context, id tenant.ID) error {
	if err := s.ensureTables(ctx); err != nil {
		return err
	}
	err := s.write(ctx, func(tx *transaction) error {
		tx.own(removeTenantSQL, id)
		return tx.commit(ctx)
	})
	if err != nil {
		return fmt.Errorf("drop tenant: %w", lockError(err))
	}
	return nil
}

// nextChangeTime is later than that of every other change with the id $2, so that the last one stored can be told.
const nextChangeTime = `GREATEST(belay.now_ms(),
    (SELECT COALESCE(max(n.created_at), 0) + 1 FROM belay.change n WHERE n.change_id = $2::text))`

// putChangeSQL makes a change the one last stored under its id, also when it was stored before.
const putChangeSQL = `
INSERT INTO belay.change (digest, change_id, body, created_at) VALUES ($1::text, $2::text, $3::bytea, ` + nextChangeTime + `)
ON CONFLICT (digest) DO UPDATE SET created_at = EXCLUDED.created_at`

// PutChange implements [storage.Registry].
func (s *Store) PutChange(ctx context.Context, c *plan.Change) error {
	if err := s.ensureTables(ctx); err != nil {
		return err
	}
	err := s.write(ctx, func(tx *transaction) error {
		tx.own(putChangeSQL, c.Digest(), c.ID, c.Encode())
		return tx.commit(ctx)
	})
	if err != nil {
		return fmt.Errorf("put change %s: %w", c.ID, lockError(err))
	}
	return nil
}

const changeByIDSQL = `
SELECT digest, body FROM belay.change WHERE change_id = $1::text ORDER BY created_at DESC LIMIT 1`

// ChangeByID implements [storage.Registry].
func (s *Store) ChangeByID(ctx context.Context, id string) (*plan.Change, error) {
	change, err := s.change(ctx, changeByIDSQL, id)
	if err != nil {
		return nil, fmt.Errorf("read change %s: %w", id, err)
	}
	return change, nil
}
