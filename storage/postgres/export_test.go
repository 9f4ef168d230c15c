package postgres

import (
	"context"

	"github.com/belayhq/belay/migrations"
)

// MigrateTo is Migrate with migrations of a test's own.
func (s *Store) MigrateTo(ctx context.Context, all []migrations.Migration) (from, to int, err error) {
	return s.migrate(ctx, all)
}
