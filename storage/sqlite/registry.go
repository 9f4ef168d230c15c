package sqlite

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/belayhq/belay/engine"
	"github.com/belayhq/belay/plan"
	"github.com/belayhq/belay/storage"
	"github.com/belayhq/belay/tenant"
)

// target is a tenant.Target as the registry keeps it. A unique index is on the first three fields.
type target struct {
	Dialect     tenant.Dialect `json:"dialect"`
	Database    string         `json:"database"`
	Scope       string         `json:"scope"`
	PasswordEnv string         `json:"password_env,omitempty"`
}

const tenantColumns = `tenant_id, name, target, labels, disabled`

func scanTenant(scan func(...any) error) (tenant.Tenant, error) {
	var t tenant.Tenant
	var where, labels string
	if err := scan(&t.ID, &t.Name, &where, &labels, &t.Disabled); err != nil {
		return t, err
	}
	var to target
	if err := json.Unmarshal([]byte(where), &to); err != nil {
		return t, fmt.Errorf("target of tenant %s: %w", t.Name, err)
	}
	t.Target = tenant.Target(to)
	if err := json.Unmarshal([]byte(labels), &t.Labels); err != nil {
		return t, fmt.Errorf("labels of tenant %s: %w", t.Name, err)
	}
	if len(t.Labels) == 0 {
		t.Labels = nil
	}
	return t, nil
}

const putTenantSQL = `
INSERT INTO belay_tenant (tenant_id, name, target, labels, disabled, created_at) VALUES (?, ?, ?, ?, ?, ` + now + `)
ON CONFLICT (name) WHERE removed_at IS NULL DO UPDATE SET target = excluded.target, labels = excluded.labels, disabled = excluded.disabled
RETURNING ` + tenantColumns

// PutTenant adds a tenant, or updates the one of this name.
func (s *Store) PutTenant(ctx context.Context, t tenant.Tenant) (tenant.Tenant, error) {
	if err := s.ensureTables(ctx); err != nil {
		return tenant.Tenant{}, fmt.Errorf("put tenant %s: %w", t.Name, err)
	}
	labels := t.Labels
	if labels == nil {
		labels = map[string]string{}
	}
	var stored tenant.Tenant
	err := s.write(ctx, func(ctx context.Context, tx *transaction) error {
		var err error
		stored, err = scanTenant(tx.row(ctx, putTenantSQL, t.ID, t.Name, encode(target(t.Target)), encode(labels), t.Disabled).Scan)
		if err = translate(err); duplicate(err) {
			return storage.ErrTargetTaken
		}
		return err
	})
	if err != nil {
		return tenant.Tenant{}, fmt.Errorf("put tenant %s: %w", t.Name, err)
	}
	return stored, nil
}

const tenantSQL = `SELECT ` + tenantColumns + ` FROM belay_tenant WHERE name = ? AND removed_at IS NULL`

// Tenant returns the tenant with this name.
func (s *Store) Tenant(ctx context.Context, name string) (tenant.Tenant, error) {
	var t tenant.Tenant
	err := s.read(ctx, func(ctx context.Context, tx session) (err error) {
		t, err = scanTenant(tx.row(ctx, tenantSQL, name).Scan)
		return found(err, storage.ErrNoTenant)
	})
	if err == nil && t.ID == "" {
		err = storage.ErrNoTenant
	}
	if err != nil {
		return tenant.Tenant{}, fmt.Errorf("read tenant %s: %w", name, err)
	}
	return t, nil
}

const tenantsSQL = `
SELECT ` + tenantColumns + ` FROM belay_tenant WHERE name > ? AND removed_at IS NULL ORDER BY name LIMIT ?`

// Tenants lists tenants by name.
func (s *Store) Tenants(ctx context.Context, after string, limit int) ([]tenant.Tenant, error) {
	var tenants []tenant.Tenant
	err := s.read(ctx, func(ctx context.Context, tx session) error {
		rows, err := tx.query(ctx, tenantsSQL, after, max(0, limit))
		if err != nil {
			return err
		}
		for rows.Next() {
			t, err := scanTenant(rows.Scan)
			if err != nil {
				return err
			}
			tenants = append(tenants, t)
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("list tenants: %w", err)
	}
	return tenants, nil
}

const removeTenantSQL = `UPDATE belay_tenant SET removed_at = ` + now + ` WHERE tenant_id = ? AND removed_at IS NULL`

// DropTenant marks a tenant removed and frees its name and target.
func (s *Store) DropTenant(ctx context.Context, id tenant.ID) error {
	if err := s.ensureTables(ctx); err != nil {
		return fmt.Errorf("drop tenant: %w", err)
	}
	err := s.write(ctx, func(ctx context.Context, t *transaction) error {
		_, err := t.exec(ctx, removeTenantSQL, id)
		return err
	})
	if err != nil {
		return fmt.Errorf("drop tenant: %w", err)
	}
	return nil
}

const putChangeSQL = `
INSERT INTO belay_change (digest, change_id, body, created_at) VALUES (?1, ?2, ?3, ` + nextChangeTime + `)
ON CONFLICT (digest) DO UPDATE SET created_at = excluded.created_at`

// PutChange stores a change, and makes it the last one stored under its id.
func (s *Store) PutChange(ctx context.Context, c *plan.Change) error {
	if err := s.ensureTables(ctx); err != nil {
		return fmt.Errorf("put change %s: %w", c.ID, err)
	}
	err := s.write(ctx, func(ctx context.Context, t *transaction) error {
		_, err := t.exec(ctx, putChangeSQL, c.Digest(), c.ID, c.Encode())
		return err
	})
	if err != nil {
		return fmt.Errorf("put change %s: %w", c.ID, err)
	}
	return nil
}

const changeByIDSQL = `SELECT digest FROM belay_change WHERE change_id = ? ORDER BY created_at DESC LIMIT 1`

// ChangeByID returns the change last stored under this id.
func (s *Store) ChangeByID(ctx context.Context, id string) (*plan.Change, error) {
	var digest plan.Digest
	err := s.read(ctx, func(ctx context.Context, tx session) error {
		err := tx.row(ctx, changeByIDSQL, id).Scan(&digest)
		if errors.Is(err, sql.ErrNoRows) {
			return nil
		}
		return err
	})
	if err == nil && digest == "" {
		err = engine.ErrChangeUnknown
	}
	if err != nil {
		return nil, fmt.Errorf("read change %s: %w", id, err)
	}
	return s.Change(ctx, digest)
}
