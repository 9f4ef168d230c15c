package integration

import (
	"context"
	"net/url"
	"strconv"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

const (
	manyTenants = 10_000
	// transactionsPerThousand is more than the survey of a thousand tenants takes, and far less than one for each of them.
	transactionsPerThousand = 20
	// noopMax bounds what has nothing to do, on a slow machine, too.
	noopMax = 10 * time.Second
)

// A change that ten thousand tenants have is found out in a few seconds, with a number of transactions that grows with the
// thousands and not with the tenants. G10
func TestAnApplyThatTenThousandTenantsHaveCostsAFewQueriesForEachThousand(t *testing.T) {
	t.Parallel()
	f := newCLIFleet(t, postgresSchemas)
	f.must(f.apply()...)
	multiply(f.tenants[0], manyTenants-cliFleetSize)

	before := transactions(t, f.tenants[0].url)
	begun := time.Now()
	out := f.must(f.apply()...)
	took := time.Since(begun)
	spent := transactions(t, f.tenants[0].url) - before

	contains(t, "output", out, strconv.Itoa(manyTenants)+" of "+strconv.Itoa(manyTenants)+" tenants selected")
	contains(t, "output", out, "nothing to do")
	if took > noopMax {
		t.Errorf("it took %v", took)
	}
	if most := int64(manyTenants / 1000 * transactionsPerThousand); spent > most {
		t.Errorf("it took %d transactions, more than %d", spent, most)
	}
}

// multiply makes so many copies of tenant-1 and of all that Belay knows of it.
func multiply(w *world, copies int) {
	w.t.Helper()
	n := strconv.Itoa(copies)
	const mine = `tenant_id = (SELECT tenant_id FROM belay.tenant WHERE name = 'tenant-1')`
	const plan = `, 'plan_id', md5(t.tenant_id::text)::uuid`
	others := func(table, more string) string {
		return `INSERT INTO belay.` + table + ` SELECT (jsonb_populate_record(x, jsonb_build_object('tenant_id', t.tenant_id` + more + `))).*
			FROM belay.` + table + ` x, belay.tenant t WHERE x.` + mine + ` AND t.name LIKE 'copy-%'`
	}
	w.exec(
		`DO $$ BEGIN FOR i IN 1..`+n+` LOOP EXECUTE 'CREATE SCHEMA copy_' || i; END LOOP; END $$`,
		`INSERT INTO belay.tenant SELECT (jsonb_populate_record(t, jsonb_build_object('tenant_id', gen_random_uuid(), 'name', 'copy-' || i,
			'target', jsonb_set(t.target, '{scope}', to_jsonb('copy_' || i))))).*
			FROM belay.tenant t, generate_series(1, `+n+`) i WHERE t.name = 'tenant-1'`,
		others("site_lock", `, 'scope', t.target ->> 'scope'`), others("plan", plan), others("journal", plan),
	)
}

// transactions is how many the server has committed in a database, when nobody is connected to it any more.
func transactions(t *testing.T, database string) (committed int64) {
	t.Helper()
	elsewhere, err := url.Parse(database)
	check(t, err)
	name := elsewhere.Path[1:]
	elsewhere.Path = "/postgres"
	ctx, cancel := context.WithTimeout(t.Context(), hang)
	defer cancel()
	conn, err := pgx.Connect(ctx, elsewhere.String())
	check(t, err)
	defer conn.Close(context.WithoutCancel(ctx))
	// A session's numbers arrive with its end, which its client does not wait for.
	for left := 1; left > 0; {
		check(t, conn.QueryRow(ctx, `SELECT count(*) FROM pg_stat_activity, pg_sleep(0.01) WHERE datname = $1`, name).Scan(&left))
	}
	check(t, conn.QueryRow(ctx, `SELECT xact_commit FROM pg_stat_database WHERE datname = $1`, name).Scan(&committed))
	return committed
}
