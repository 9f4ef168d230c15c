package postgres

import (
	"testing"

	"github.com/belayhq/belay/engine"
	"github.com/belayhq/belay/plan"
)

// G7: a step cannot make its commit less durable.
func TestACommitIsDurableWhateverAStepSets(t *testing.T) {
	t.Parallel()
	db := openForTest(t)
	if _, _, err := db.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := db.Create(t.Context(), "one"); err != nil {
		t.Fatal(err)
	}
	for _, rowsOnly := range []bool{true, false} { // either takes another way out of the tenant's scope
		before, after := "", ""
		err := db.write(t.Context(), func(tx *transaction) error {
			const setting = `SELECT pg_catalog.current_setting('synchronous_commit')`
			off := plan.Statement{SQL: `SELECT set_config('synchronous_commit', 'off', true)`, RowsOnly: rowsOnly}
			group := engine.Group{Scope: "one", Steps: []engine.GroupStep{{State: plan.StepDone, Statements: []plan.Statement{off}}}}
			tx.one(setting, nil, &before)
			tx.own(`SELECT pg_catalog.set_config('search_path', $1::text, true)`, tenantPath("one"))
			if err := tx.steps(t.Context(), group); err != nil {
				return err
			}
			tx.one(setting, nil, &after)
			return tx.commit(t.Context())
		})
		if err != nil || before != "on" || after != "on" {
			t.Errorf("rows only %t: synchronous_commit is %q before the step and %q behind it, error %v", rowsOnly, before, after, err)
		}
	}
}
