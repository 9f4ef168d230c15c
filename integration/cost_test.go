package integration

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/belayhq/belay/engine"
	"github.com/belayhq/belay/plan"
	"github.com/belayhq/belay/sitelock"
	"github.com/belayhq/belay/storage"
	"github.com/belayhq/belay/storage/postgres"
	"github.com/belayhq/belay/storage/sqlite"
	"github.com/belayhq/belay/tenant"
)

// traffic counts what goes over connections to PostgreSQL.
type traffic struct{ trips, commits atomic.Int64 }

// counted is what was sent since an earlier look.
type counted struct{ trips, commits int64 }

func (c *traffic) since(was counted) counted {
	return counted{c.trips.Load() - was.trips, c.commits.Load() - was.commits}
}

// wire is a connection that counts. A round trip is a read that follows a write; a commit is one that the server has
// answered.
type wire struct {
	net.Conn
	traffic *traffic
	wrote   atomic.Bool
	tail    []byte // of what was read last, because an answer may come in two pieces
}

func (w *wire) Write(b []byte) (int, error) {
	w.wrote.Store(true)
	return w.Conn.Write(b)
}

func (w *wire) Read(b []byte) (int, error) {
	n, err := w.Conn.Read(b)
	if n > 0 && w.wrote.Swap(false) {
		w.traffic.trips.Add(1)
	}
	answer := []byte("COMMIT\x00")
	text := append(w.tail, b[:n]...)
	w.traffic.commits.Add(int64(bytes.Count(text, answer)))
	w.tail = bytes.Clone(text[max(0, len(text)-len(answer)+1):])
	return n, err
}

// overCountedConnections opens the world's database through a pool of the test's own, of one connection.
func overCountedConnections(t *testing.T, w *world) (*postgres.Store, *traffic) {
	t.Helper()
	config, err := pgxpool.ParseConfig(w.url)
	check(t, err)
	config.MaxConns = 1
	seen := &traffic{}
	dial := config.ConnConfig.DialFunc
	config.ConnConfig.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := dial(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		return &wire{Conn: conn, traffic: seen}, nil
	}
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	check(t, err)
	t.Cleanup(pool.Close)
	store, err := postgres.New(t.Context(), pool, storage.Options{})
	check(t, err)
	t.Cleanup(store.Close)
	return store, seen
}

// rowSteps is a change of so many steps that write a row each.
func rowSteps(id string, n int) *plan.Change {
	var steps strings.Builder
	for i := range n {
		fmt.Fprintf(&steps, "%s-%d ", id, i)
	}
	return newChange(id, steps.String())
}

// A plan of small steps costs two commits, and as many round trips however many steps it has.
func TestAPlanOnPostgresCostsTwoCommitsAndAConstantNumberOfRoundTrips(t *testing.T) {
	t.Parallel()
	w := newWorld(t, tenant.Postgres)
	w.exec("CREATE TABLE ledger (step text NOT NULL)")
	store, seen := overCountedConnections(t, w)
	e := newEngine(t, engine.Fixed(store), engine.Config{Lease: time.Hour})
	cost := func(operate func() (engine.Result, error)) counted {
		t.Helper()
		before := seen.since(counted{})
		_, err := operate()
		check(t, err)
		return seen.since(before)
	}
	apply := func(c *plan.Change) counted {
		t.Helper()
		return cost(func() (engine.Result, error) { return e.Apply(t.Context(), w.tenant("acme"), c, engine.ApplyOptions{}) })
	}
	rollback := func(c *plan.Change) counted {
		t.Helper()
		return cost(func() (engine.Result, error) {
			return e.Rollback(t.Context(), w.tenant("acme"), c.ID, engine.RollbackOptions{})
		})
	}
	ten, forty := rowSteps("ten", 10), rowSteps("forty", 40)
	apply(rowSteps("first", 2)) // makes the tables and prepares the statements
	rollback(rowSteps("first", 2))
	for _, c := range []*plan.Change{ten, forty} {
		// The third of both is the look at the tenant before its lock is asked for, in a transaction that only reads; the fourth
		// stores the change's text, for the first of all tenants.
		if got := apply(c); got.trips != 4 || got.commits != 4 {
			t.Errorf("apply of %d steps: %+v", len(c.Steps), got)
		}
	}
	equal(t, "rows", w.query("SELECT count(*) FROM ledger"), "50")
	// All that is left of the two plans, and their effects, was written by two transactions each.
	equal(t, "transactions that wrote", w.query(`SELECT count(DISTINCT x) FROM (
		SELECT xmin::text AS x FROM belay.event WHERE change_id IN ('ten', 'forty')
		UNION SELECT p.xmin::text FROM belay.plan p WHERE change_id IN ('ten', 'forty')
		UNION SELECT j.xmin::text FROM belay.journal j JOIN belay.plan p USING (tenant_id, plan_id) WHERE change_id IN ('ten', 'forty')
		UNION SELECT xmin::text FROM ledger) written`), "4")
	for _, c := range []*plan.Change{forty, ten} {
		if got := rollback(c); got.trips != 3 || got.commits != 3 {
			t.Errorf("rollback of %d steps: %+v", len(c.Steps), got)
		}
	}
	equal(t, "rows", w.query("SELECT count(*) FROM ledger"), "0")
}

// commitsIn counts the commits in a SQLite file's log: the last frame of each carries the size of the database.
func commitsIn(t *testing.T, path string) int {
	t.Helper()
	log, err := os.ReadFile(path + "-wal")
	check(t, err)
	const header, frame = 32, 24
	page := int(binary.BigEndian.Uint32(log[8:]))
	salt := log[16:24]
	n := 0
	for at := header; at+frame+page <= len(log); at += frame + page {
		if !bytes.Equal(log[at+8:at+16], salt) {
			break // left over from before the log began anew
		}
		if binary.BigEndian.Uint32(log[at+4:]) != 0 {
			n++
		}
	}
	return n
}

// The same on SQLite, where there are no round trips to count.
func TestAPlanOnSQLiteCostsTwoCommits(t *testing.T) {
	t.Parallel()
	l := newLab(newWorld(t, tenant.SQLite), engine.Config{Lease: time.Hour})
	l.store() // stays open, so that the log does
	first := rowSteps("first", 2)
	if r := l.apply(first); r.Err != nil {
		t.Fatal(r.Err)
	}
	for _, n := range []int{10, 40} {
		c := rowSteps(fmt.Sprintf("change-%d", n), n)
		before := commitsIn(t, l.path)
		if r := l.apply(c); r.Err != nil {
			t.Fatal(r.Err)
		}
		if got := commitsIn(t, l.path) - before; got != 2 {
			t.Errorf("apply of %d steps: %d commits", n, got)
		}
		before = commitsIn(t, l.path)
		if r := l.rollback(c.ID); r.Err != nil {
			t.Fatal(r.Err)
		}
		if got := commitsIn(t, l.path) - before; got != 2 {
			t.Errorf("rollback of %d steps: %d commits", n, got)
		}
	}
}

// What is applied already is found without a lock, in a number of queries that grows with the thousands of tenants alone.
func TestNothingToDoOverThousandsOfTenantsCostsAConstantNumberOfQueries(t *testing.T) {
	t.Parallel()
	w := newWorld(t, tenant.Postgres)
	w.exec("CREATE TABLE ledger (step text NOT NULL)")
	store, seen := overCountedConnections(t, w)
	e := newEngine(t, engine.Fixed(store), engine.Config{Lease: time.Hour})
	c := rowSteps("change", 4)
	_, err := e.Apply(t.Context(), w.tenant("acme"), c, engine.ApplyOptions{})
	check(t, err)
	w.exec("INSERT INTO belay.site_lock (tenant_id, scope, fence) SELECT gen_random_uuid(), 'copy_' || i, 1 FROM generate_series(1, 1999) i")
	copyRows(w, "plan", "gen_random_uuid()")
	copyRows(w, "journal", "(SELECT p.plan_id FROM belay.plan p WHERE p.tenant_id = l.tenant_id)")
	var tenants []tenant.Tenant
	for id := range strings.SplitSeq(w.query("SELECT tenant_id FROM belay.site_lock"), "\n") {
		one := w.tenant(id)
		one.ID = tenant.ID(id)
		tenants = append(tenants, one)
	}
	cost := func(tenants []tenant.Tenant) int64 {
		t.Helper()
		before := seen.since(counted{})
		var got results
		check(t, e.ApplyAll(t.Context(), each(tenants), c, engine.ApplyOptions{}, engine.PoolOptions{}, got.add))
		if n := got.count(engine.VerdictAlreadyApplied); n != len(tenants) {
			t.Fatalf("%d of %d tenants already applied", n, len(tenants))
		}
		return seen.since(before).trips
	}
	cost(tenants[:1]) // prepares the statement
	ten, thousand, two := cost(tenants[:10]), cost(tenants[:1000]), cost(tenants)
	if ten != thousand || two != 2*thousand || thousand > 2 {
		t.Errorf("round trips: %d for 10 tenants, %d for 1000, %d for 2000", ten, thousand, two)
	}
}

// copyRows gives every tenant that has none the rows that the first one has in a table, with the plan's id anew.
func copyRows(w *world, table, planID string) {
	w.t.Helper()
	columns := strings.Fields(w.query(`SELECT quote_ident(attname) FROM pg_attribute WHERE attrelid = 'belay.` + table + `'::regclass
		AND attnum > 0 AND NOT attisdropped AND attname NOT IN ('tenant_id', 'plan_id')`))
	w.exec("INSERT INTO belay." + table + " (tenant_id, plan_id, " + strings.Join(columns, ", ") + ") SELECT l.tenant_id, " + planID +
		", m." + strings.Join(columns, ", m.") + " FROM belay.site_lock l, belay." + table + " m WHERE m.tenant_id = '" + string(w.id) +
		"' AND l.tenant_id <> m.tenant_id")
}

// A thousand locks are renewed by one statement, as one is.
func TestAThousandLocksAreRenewedByOneStatement(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, w *world) {
		var store storage.Database
		var cost func() int64
		if w.dialect == tenant.Postgres {
			counting, seen := overCountedConnections(t, w)
			store, cost = counting, seen.trips.Load
		} else {
			opened, err := sqlite.Driver().Open(t.Context(), w.tenant("acme").Target, storage.Options{})
			check(t, err)
			t.Cleanup(opened.Close)
			store, cost = opened, func() int64 { return int64(commitsIn(t, w.path)) }
		}
		_, _, err := store.Migrate(t.Context())
		check(t, err)
		held := holdThousand(t, w)
		lease := 30 * time.Minute
		renew := func(some []sitelock.Held) int64 {
			t.Helper()
			lease += time.Second // SQLite writes nothing if, within a millisecond, a row stays the same
			before := cost()
			lost, err := store.Renew(t.Context(), some, lease)
			check(t, err)
			if len(lost) > 0 {
				t.Fatalf("%d locks lost", len(lost))
			}
			return cost() - before
		}
		renew(held[:1]) // connects and prepares
		one, thousand := renew(held[:1]), renew(held)
		most := int64(1)
		if w.dialect == tenant.Postgres {
			most = 3 // so large a message travels alone: what goes before it, the one statement, COMMIT
		}
		if one != 1 || thousand > most {
			t.Errorf("renewing one lock costs %d, a thousand %d", one, thousand)
		}
		renewed := w.query("SELECT count(*) FROM " + w.table("site_lock") + " WHERE expires_at > 4000000000000")
		equal(t, "left as they were", renewed, "0")
	})
}

// holdThousand makes a thousand live locks, as rows that expire in the far future.
func holdThousand(t *testing.T, w *world) []sitelock.Held {
	t.Helper()
	held := make([]sitelock.Held, 1000)
	rows := make([]string, len(held))
	for i := range held {
		held[i] = sitelock.Held{Tenant: tenant.NewID(), Holder: sitelock.NewHolderID(), Fence: sitelock.Fence(i + 1)}
		rows[i] = fmt.Sprintf("('%s', 'scope_%d', %d, '%s', 'apply', 5000000000000)", held[i].Tenant, i, held[i].Fence, held[i].Holder)
	}
	w.exec("INSERT INTO " + w.table("site_lock") + " (tenant_id, scope, fence, holder, operation, expires_at) VALUES " + strings.Join(rows, ", "))
	return held
}
