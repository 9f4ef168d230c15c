package postgres

import (
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/belayhq/belay/internal/postgrestest"
	"github.com/belayhq/belay/plan"
	"github.com/belayhq/belay/sitelock"
	"github.com/belayhq/belay/storage"
	"github.com/belayhq/belay/tenant"
)

// tenThousandSQL fills the tables, which nobody has analysed.
const tenThousandSQL = `
ALTER TABLE belay.site_lock SET (autovacuum_enabled = off);
ALTER TABLE belay.plan SET (autovacuum_enabled = off);
ALTER TABLE belay.journal SET (autovacuum_enabled = off);
INSERT INTO belay.site_lock (tenant_id, scope, fence, holder)
    SELECT gen_random_uuid(), n::text, 1, gen_random_uuid() FROM generate_series(1, 10000) n;
INSERT INTO belay.plan (tenant_id, plan_id, change_id, digest, status, outcome, applied_seq, cycle, steps_total, format, created_at, updated_at)
    SELECT l.tenant_id, gen_random_uuid(), 'change-' || n, 'sha256:' || n, 'applied', 'applied', n, 1, 2, 1, 0, 0
    FROM belay.site_lock l, generate_series(1, 3) n;
INSERT INTO belay.journal (tenant_id, plan_id, ordinal, step_id, state, fence, cycle, updated_at)
    SELECT p.tenant_id, p.plan_id, n, n::text, 'done', 1, 1, 0 FROM belay.plan p, generate_series(0, 1) n`

// No statement's cost may grow with the number of tenants.
func TestNoStatementReadsAWholeTableOfTenThousandTenants(t *testing.T) {
	t.Parallel()
	db := openForTest(t)
	if _, _, err := db.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	var held []sitelock.Held
	var ids []string
	err := db.write(t.Context(), func(tx *transaction) error {
		if err := tx.script(t.Context(), tenThousandSQL); err != nil {
			return err
		}
		tx.ask(`SELECT tenant_id::text, holder::text, fence FROM belay.site_lock LIMIT 1000`, func(rows pgx.Rows) error {
			for rows.Next() {
				var h sitelock.Held
				if err := rows.Scan(&h.Tenant, &h.Holder, &h.Fence); err != nil {
					return err
				}
				held, ids = append(held, h), append(ids, string(h.Tenant))
			}
			return nil
		})
		return tx.commit(t.Context())
	})
	if err != nil {
		t.Fatal(err)
	}
	one := held[0]
	for name, st := range map[string]struct {
		sql     string
		args    []any
		indexes bool // whether the statement runs behind indexesSQL
	}{
		"surveyLocksSQL":    {surveyLocksSQL, []any{ids}, true},
		"surveyPlansSQL":    {surveyPlansSQL, []any{ids, "change-2"}, true},
		"surveyJournalsSQL": {surveyJournalsSQL, []any{ids, ""}, true},
		"renewLocksSQL":     {renewLocksSQL, append(heldArrays(held), 60000), true},
		"stillHeldSQL":      {stillHeldSQL, heldArrays(held), true},
		"takeLockSQL":       {takeLockSQL, []any{one.Tenant, "s", one.Holder, "", 0, 0, "apply", "", "change-2", nil, 1000, nil, 0, plan.Format}, false},
		"recoverSQL":        {recoverSQL, []any{one.Tenant, one.Holder, plan.Format, plan.MaxAttempts}, false},
		"claimApplySQL":     {claimApplySQL, []any{one.Tenant, one.Holder, "change-9", plan.NewID(), "d", 1, 1, false, false}, false},
		"claimRollbackSQL":  {claimRollbackSQL, []any{one.Tenant, one.Holder, "change-2", "d", false, plan.Format}, false},
		"claimedJournalSQL": {claimedJournalSQL, []any{one.Tenant, one.Holder}, false},
		"plansSQL":          {plansSQL, []any{one.Tenant}, false},
		"journalsSQL":       {journalsSQL, []any{one.Tenant}, false},
		"eventsSQL":         {eventsSQL, []any{one.Tenant, 10}, false},
		"stateSQL":          {stateSQL, []any{one.Tenant}, false},
	} {
		lines := explain(t, db, st.sql, st.args, st.indexes)
		for _, bad := range []string{"Seq Scan on site_lock", "Seq Scan on plan", "Seq Scan on journal", "Seq Scan on event"} {
			if strings.Contains(lines, bad) {
				t.Errorf("%s: %s\n%s", name, bad, lines)
			}
		}
		all := strings.Split(lines, "\n")
		for i, line := range all {
			if strings.Contains(line, "Index Scan") || strings.Contains(line, "Index Only Scan") {
				if !strings.Contains(all[i+1], "Index Cond") {
					t.Errorf("%s reads a whole index:\n%s", name, lines)
				}
			}
		}
	}
}

func explain(t *testing.T, db *Store, sql string, args []any, indexes bool) string {
	t.Helper()
	var lines strings.Builder
	err := db.write(t.Context(), func(tx *transaction) error {
		if indexes {
			tx.own(indexesSQL)
		}
		tx.add(statement{sql: "EXPLAIN " + sql, args: args, rows: func(rows pgx.Rows) error {
			for rows.Next() {
				fmt.Fprintf(&lines, "%s\n", rows.RawValues()[0])
			}
			return nil
		}})
		return tx.commit(t.Context())
	})
	if err != nil {
		t.Fatalf("explain %s: %v", sql, err)
	}
	return lines.String()
}

func openForTest(t *testing.T) *Store {
	t.Helper()
	target, err := tenant.ParseDatabase(postgrestest.URL(t), "/")
	if err != nil {
		t.Fatal(err)
	}
	db, err := Driver().Open(t.Context(), target, storage.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(db.Close)
	return db.(*Store)
}
