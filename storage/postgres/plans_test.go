package postgres_test

import (
	"context"
	"testing"

	"github.com/belayhq/belay/engine"
	"github.com/belayhq/belay/internal/postgrestest"
)

// The server plans a statement anew for its values five times, then again only if that looks cheaper than the plan it keeps.
// Arrays of other lengths must not look so.
func TestTheServerKeepsOnePlanForEachOfBelaysStatements(t *testing.T) {
	t.Parallel()
	url := postgrestest.URL(t)
	db := openWith(t, url, 1)
	held, group := begin(t, db, newSite(t, url), applyOf(40))
	add := func(ordinal int, isNew bool, action func(context.Context, engine.Tx) ([]byte, error)) {
		s := step(ordinal, `SELECT 1`)
		s.New, s.Action = isNew, action
		group.Steps = []engine.GroupStep{s}
		if err := db.Checkpoint(t.Context(), held, group); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 30 { // short ones first: next to them the plan for any length looks dear
		add(i, i%2 == 0, nil)
	}
	add(30, true, func(ctx context.Context, tx engine.Tx) ([]byte, error) {
		return nil, tx.Query(ctx, `SELECT statement, custom_plans FROM pg_prepared_statements
			WHERE statement LIKE '%belay.%' AND custom_plans > 5`, nil, func(scan func(...any) error) error {
			var statement string
			var plans int
			if err := scan(&statement, &plans); err != nil {
				return err
			}
			t.Errorf("planned %d times: %s", plans, statement)
			return nil
		})
	})
}
