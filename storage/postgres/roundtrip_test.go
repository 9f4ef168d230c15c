package postgres_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/belayhq/belay/engine"
	"github.com/belayhq/belay/internal/postgrestest"
	"github.com/belayhq/belay/plan"
	"github.com/belayhq/belay/sitelock"
	"github.com/belayhq/belay/storage"
	"github.com/belayhq/belay/storage/postgres"
	"github.com/belayhq/belay/tenant"
)

// wire counts round trips and statements over all connections that are dialled through it, and can cut them.
type wire struct {
	trips, statements atomic.Int64
	// cut, if set, closes a connection right after its next write, so that the answer is lost.
	cut atomic.Bool
}

type wireConn struct {
	net.Conn
	wire     *wire
	answered atomic.Bool
	rest     []byte // what was written of a message that is not complete
	begun    bool   // the start-up message, which has no type, was written
}

func (w *wire) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	conn, err := new(net.Dialer).DialContext(ctx, network, addr)
	return &wireConn{Conn: conn, wire: w}, err
}

// Write begins a round trip if something was read since the last one began.
func (c *wireConn) Write(p []byte) (int, error) {
	if c.answered.Swap(false) {
		c.wire.trips.Add(1)
	}
	c.count(p)
	n, err := c.Conn.Write(p)
	if c.wire.cut.CompareAndSwap(true, false) {
		_ = c.Conn.(*net.UnixConn).CloseRead()
	}
	return n, err
}

// count counts the messages that have a statement carried out.
func (c *wireConn) count(p []byte) {
	c.rest = append(c.rest, p...)
	for {
		head := 1
		if !c.begun {
			head = 0
		}
		if len(c.rest) < head+4 {
			return
		}
		size := head + int(binary.BigEndian.Uint32(c.rest[head:]))
		if len(c.rest) < size {
			return
		}
		if c.begun && c.rest[0] == 'E' {
			c.wire.statements.Add(1)
		}
		c.rest, c.begun = c.rest[size:], true
	}
}

func (c *wireConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if n > 0 {
		c.answered.Store(true)
	}
	return n, err
}

// embedded opens a database on an embedding program's own pool, with pgx's own defaults.
func embedded(t *testing.T, url string, configure func(cfg *pgxpool.Config)) (*postgres.Store, *pgxpool.Pool) {
	t.Helper()
	cfg, err := pgxpool.ParseConfig(url)
	if err != nil {
		t.Fatal(err)
	}
	cfg.ShouldPing = func(context.Context, pgxpool.ShouldPingParams) bool { return false }
	configure(cfg)
	pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	db, err := postgres.New(t.Context(), pool, storage.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(db.Close)
	return db, pool
}

// request asks for the lock of a tenant whose scope is named like it.
func request(id tenant.ID, claim *sitelock.Claim) sitelock.Request {
	return sitelock.Request{
		Tenant: id, Scope: string(id), Holder: sitelock.NewHolderID(), Process: sitelock.Process{Host: "here", PID: 1},
		Operation: sitelock.OpApply, Lease: time.Minute, Claim: claim,
	}
}

func applyOf(steps int) *sitelock.Claim {
	c := &plan.Change{Version: 1, ID: "0001-first", OnFailure: plan.StopOnFailure, Checkpoint: plan.CheckpointAuto}
	for i := range steps {
		c.Steps = append(c.Steps, plan.Step{ID: strconv.Itoa(i), Kind: plan.SQL, Up: &plan.Script{Default: &plan.Source{File: "up.sql", Text: "SELECT 1"}}})
	}
	return &sitelock.Claim{Direction: plan.Up, Change: c.ID, Digest: c.Digest(), Body: c, NewPlan: plan.NewID()}
}

// step is a step of the given statements.
func step(ordinal int, sql ...string) engine.GroupStep {
	s := engine.GroupStep{Ordinal: ordinal, ID: strconv.Itoa(ordinal), State: plan.StepDone, Timeout: 20 * time.Second}
	for i, text := range sql {
		s.Statements = append(s.Statements, plan.Statement{SQL: text, File: "up.sql", Line: i + 1, RowsOnly: true})
	}
	return s
}

// newSite makes a schema with a table t for a new tenant.
func newSite(t *testing.T, url string) tenant.ID {
	t.Helper()
	id := tenant.NewID()
	execute(t, url, "", fmt.Sprintf(`CREATE SCHEMA "%[1]s"; CREATE TABLE "%[1]s".t (n integer PRIMARY KEY)`, id))
	return id
}

// begin acquires the tenant's lock with a claim that must succeed, and returns an empty group for the plan.
func begin(t *testing.T, db *postgres.Store, id tenant.ID, claim *sitelock.Claim) (sitelock.Held, engine.Group) {
	t.Helper()
	grant, err := db.Acquire(t.Context(), request(id, claim))
	if err != nil || grant.Claimed == nil {
		t.Fatalf("acquire: %+v, %v", grant, err)
	}
	return grant.Held, engine.Group{Plan: grant.Claimed.Plan.ID, Scope: string(id), Direction: plan.Up, Cycle: grant.Claimed.Plan.Cycle}
}

// wholePlan applies a change of ten steps in two transactions and frees the lock.
func wholePlan(t *testing.T, db *postgres.Store, id tenant.ID) {
	t.Helper()
	held, group := begin(t, db, id, applyOf(10))
	for i := range 10 {
		group.Steps = append(group.Steps, step(i, fmt.Sprintf("INSERT INTO t VALUES (%d)", i)))
	}
	group.Move = &engine.Move{Event: plan.EventSucceed, From: plan.Applying, To: plan.Applied, Outcome: plan.OutcomeApplied}
	group.Release = true
	if err := db.Checkpoint(t.Context(), held, group); err != nil {
		t.Fatal(err)
	}
}

// It is not parallel, because transactions are counted over all databases of the server.
func TestAWholePlanIsTwoTransactionsAndTwoRoundTrips(t *testing.T) {
	url := postgrestest.URL(t)
	var w wire
	db, pool := embedded(t, url, func(cfg *pgxpool.Config) {
		cfg.MaxConns = 1
		cfg.ConnConfig.DialFunc = w.dial
	})
	wholePlan(t, db, newSite(t, url)) // makes the tables
	transactions := func() (n int) {
		if err := pool.QueryRow(t.Context(), `SELECT pg_current_xact_id()::text::bigint`).Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	site := newSite(t, url)
	before := transactions()
	trips, statements := w.trips.Load(), w.statements.Load()
	wholePlan(t, db, site)
	if got := w.trips.Load() - trips; got != 2 {
		t.Errorf("%d round trips, want 2", got)
	}
	// Acquire: begin, settings, take, new, recover, claim, journal, commit. Checkpoint: begin, enter, ten steps, constraints,
	// out, leave, journal, move, release, commit.
	if got := w.statements.Load() - statements; got != 8+19 {
		t.Errorf("%d statements, want %d", got, 8+19)
	}
	if got := transactions() - before - 1; got != 2 {
		t.Errorf("%d transactions, want 2", got)
	}
	if got := scalar(t, url, string(site), `SELECT count(*) FROM t`); got != "10" {
		t.Errorf("%s rows, want 10", got)
	}
}

// It is not parallel, because allocations of all goroutines count.
func TestAWholePlanAllocatesLittle(t *testing.T) {
	url := postgrestest.URL(t)
	db, _ := embedded(t, url, func(cfg *pgxpool.Config) { cfg.MaxConns = 1 })
	const runs = 20
	var sites []tenant.ID
	for range runs + 2 {
		sites = append(sites, newSite(t, url))
	}
	wholePlan(t, db, sites[0]) // makes the tables
	next := 0
	if got := testing.AllocsPerRun(runs, func() { next++; wholePlan(t, db, sites[next]) }); got > 550 {
		t.Errorf("%.0f allocations, want 550 at most", got)
	}
}

func TestAThousandLocksAreRenewedInAFewRoundTrips(t *testing.T) {
	t.Parallel()
	url := postgrestest.URL(t)
	var w wire
	db, _ := embedded(t, url, func(cfg *pgxpool.Config) { cfg.ConnConfig.DialFunc = w.dial })
	if _, _, err := db.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	execute(t, url, "", `INSERT INTO belay.site_lock (tenant_id, scope, fence, holder)
		SELECT gen_random_uuid(), n::text, n, gen_random_uuid() FROM generate_series(1, 1000) n`)
	conn := session(t, url, "")
	rows, err := conn.Query(t.Context(), `SELECT tenant_id::text, holder::text, fence FROM belay.site_lock`)
	if err != nil {
		t.Fatal(err)
	}
	var held []sitelock.Held
	for rows.Next() {
		var h sitelock.Held
		if err := rows.Scan(&h.Tenant, &h.Holder, &h.Fence); err != nil {
			t.Fatal(err)
		}
		held = append(held, h)
	}
	renew := func() {
		if lost, err := db.Renew(t.Context(), held, time.Minute); err != nil || len(lost) != 0 {
			t.Fatalf("%d lost, %v", len(lost), err)
		}
	}
	renew() // connects
	trips := w.trips.Load()
	renew()
	// A large message waits for no other, and none for it: before it, itself, COMMIT.
	if got := w.trips.Load() - trips; got > 3 {
		t.Errorf("%d round trips, want 3 at most", got)
	}
	if got := scalar(t, url, "", `SELECT count(*) FROM belay.site_lock WHERE expires_at > belay.now_ms() + 30000`); got != "1000" {
		t.Errorf("%s locks were renewed, want 1000", got)
	}
}
