package integration

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/belayhq/belay/engine"
	"github.com/belayhq/belay/internal/postgrestest"
	"github.com/belayhq/belay/plan"
	"github.com/belayhq/belay/sitelock"
)

// mistreated is the cluster to which a whole server's faults are done.
var mistreated = sync.OnceValues(func() (*postgrestest.Server, error) { return postgrestest.Own(nil, "max_connections=40") })

// What befalls a whole server heals without a person, however many tenants are under way. The faults come one after the other,
// because each is everybody's. G2, G3, G4, G7
func TestAServersFaultsHealByThemselves(t *testing.T) {
	t.Parallel()
	server, err := mistreated()
	check(t, err)
	for _, fault := range []struct {
		sentence string
		run      func(t *testing.T, server *postgrestest.Server)
	}{
		{"a fast restart", func(t *testing.T, s *postgrestest.Server) { outlived(t, s, func() { s.Restart(t, "fast") }) }},
		{"an immediate restart", func(t *testing.T, s *postgrestest.Server) { outlived(t, s, func() { s.Restart(t, "immediate") }) }},
		{"a backend that crashes takes all others with it", crashOfABackend},
		{"a server that is gone for longer than the leases", goneForLong},
		{"a server that crashes while dead holders' plans are recovered", crashDuringRecovery},
		{"backends are terminated at random", terminations},
		{"a stopped backend", stoppedBackend},
		{"a stopped backend of the renewals", stoppedRenewal},
		{"no connection slot is left", noSlots},
		{"the server turns read-only", readOnlyForAWhile},
		{"a standby is read, and not written to", standby},
		{"a commit that hangs is ended by the server", hangingCommitEnded},
		{"a commit that hangs for too long", hangingCommitGivenUp},
	} {
		t.Run(fault.sentence, func(t *testing.T) { fault.run(t, server) })
	}
}

// gate stops those who come to it until it is opened.
type gate struct {
	t       *testing.T
	arrived chan none
	opened  chan none
	open    func()
}

func newGate(t *testing.T) *gate {
	g := &gate{t: t, arrived: make(chan none, 1000), opened: make(chan none)}
	g.open = sync.OnceFunc(func() { close(g.opened) })
	t.Cleanup(g.open)
	return g
}

func (g *gate) pass(ctx context.Context) error {
	g.arrived <- none{}
	select {
	case <-g.opened:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// wait waits until so many have come.
func (g *gate) wait(n int) {
	g.t.Helper()
	for range n {
		receive(g.t, "an arrival", g.arrived)
	}
}

// gatedChange has a step, an action outside the database and one inside that stop at gates, and another step.
func gatedChange(t *testing.T) (c *plan.Change, actions *engine.Actions, between, within *gate) {
	between, within = newGate(t), newGate(t)
	actions = inside(func(ctx context.Context, _ engine.ActionCall[none]) error { return within.pass(ctx) })
	engine.RegisterExternal(actions, "outside", engine.External[none]{
		FencesChecked: true,
		Do:            func(ctx context.Context, _ engine.ActionCall[none]) error { return between.pass(ctx) },
	})
	c = newChange("change", "a - - b")
	c.Steps[1] = actionStep("o", "outside")
	c.Steps[1].Undo = &plan.NoUndo{None: "nothing happens"}
	c.Steps[2] = insideStep()
	return oneByOne(c), actions, between, within
}

// appliedOnce demands that every tenant has every step once, and that nothing is under way any more.
func (f *fleet) appliedOnce() {
	f.t.Helper()
	for i, w := range f.worlds {
		equal(f.t, "ledger of "+f.tenants[i].Name, sorted(w.query("SELECT step FROM ledger")), "a\nb")
	}
	equal(f.t, "plans", f.worlds[0].query("SELECT status, outcome, count(*)::integer FROM belay.plan GROUP BY 1, 2"),
		fmt.Sprintf("applied|applied|%d", len(f.worlds)))
	equal(f.t, "held locks", f.worlds[0].query("SELECT count(*) FROM belay.site_lock WHERE holder IS NOT NULL"), "0")
}

// outlived has a fleet under way, some in the middle of a transaction and some between two, when something breaks the
// server. The process goes on: each tenant under way is applied, and so are those that come after.
func outlived(t *testing.T, server *postgrestest.Server, breaks func()) {
	t.Helper()
	const workers = 6
	c, actions, between, within := gatedChange(t)
	f := newFleet(newWorldAt(t, server.URL(t)), 18, engine.Config{Actions: actions, Lease: 20 * time.Second, ActionTimeout: hang})
	var got results
	pool := engine.PoolOptions{Workers: workers}
	wait := later(t, func() error {
		return f.engine.ApplyAll(t.Context(), f.all(), c, engine.ApplyOptions{LockTimeout: hang}, pool, got.add)
	})
	between.wait(workers)
	between.open()
	within.wait(workers / 2)
	breaks()
	within.open()
	check(t, wait())
	f.tally(&got, map[engine.Verdict]int{engine.VerdictApplied: 18})
	f.appliedOnce()
}

// crashOfABackend gives 57P02 to whoever is connected, and 57P03 to whoever comes while the server recovers.
func crashOfABackend(t *testing.T, server *postgrestest.Server) {
	outlived(t, server, func() { crash(t, server) })
}

// crash kills a backend, so that the server ends all others and recovers.
func crash(t *testing.T, server *postgrestest.Server) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), server.SocketURL("postgres"))
	check(t, err)
	check(t, syscall.Kill(int(conn.PgConn().PID()), syscall.SIGKILL))
	_ = conn.Close(t.Context())
	up(t, server)
}

// up waits until the server takes connections.
func up(t *testing.T, server *postgrestest.Server) {
	t.Helper()
	eventually(t, "the server is up", func() bool {
		conn, err := pgx.Connect(t.Context(), server.SocketURL("postgres"))
		if err == nil {
			_ = conn.Close(t.Context())
		}
		return err == nil
	})
}

// eventually waits for something that nobody tells of.
func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	deadline := time.After(hang)
	for tick := time.Tick(20 * time.Millisecond); !is(); {
		select {
		case <-tick:
		case <-deadline:
			t.Fatalf("never: %s", what)
		}
	}
}

// goneForLong is a server that comes back after everybody has given up: each tenant's result says that it is not known or
// partial, and the next apply finishes all of them.
func goneForLong(t *testing.T, server *postgrestest.Server) {
	c, actions, between, within := gatedChange(t)
	f := newFleet(newWorldAt(t, server.URL(t)), 6, engine.Config{Actions: actions, Lease: time.Second, ActionTimeout: hang})
	var got results
	wait := later(t, func() error {
		return f.engine.ApplyAll(t.Context(), f.all(), c, engine.ApplyOptions{}, engine.PoolOptions{Workers: 3}, got.add)
	})
	between.wait(3)
	check(t, server.Stop(t.Context(), "immediate"))
	between.open()
	within.open()
	stopped := wait()
	check(t, server.Start(t.Context()))
	check(t, stopped)
	if n := got.count(engine.VerdictApplied); n > 0 {
		t.Errorf("%d tenants were applied without a server", n)
	}
	for name, all := range got.byTenant {
		if all[0].Err == nil {
			t.Errorf("%s: %s without an error", name, all[0].Verdict)
		}
	}
	f.tally(f.applyAll(c, engine.ApplyOptions{LockTimeout: hang}, engine.PoolOptions{}), map[engine.Verdict]int{engine.VerdictApplied: 6})
	f.appliedOnce()
}

// crashDuringRecovery befalls those who heal what dead holders left in flight: no plan is left behind, and no step is done twice.
func crashDuringRecovery(t *testing.T, server *postgrestest.Server) {
	const tenants = 24
	claimed := make(chan none, 10*tenants)
	f := newFleet(newWorldAt(t, server.URL(t)), tenants, engine.Config{Observe: func(p engine.Progress) {
		if p.Kind == engine.KindClaimed {
			claimed <- none{}
		}
	}})
	c, directory := oneByOne(newChange("change", "a b")), newDirectory(t)
	for i, one := range f.tenants {
		abandon(t, directory, one, c, sitelock.Process{Host: "web", PID: 1}, i%2)
		f.worlds[i].expire()
	}
	var got results
	wait := later(t, func() error {
		return f.engine.ApplyAll(t.Context(), f.all(), c, engine.ApplyOptions{LockTimeout: hang}, engine.PoolOptions{Workers: 4}, got.add)
	})
	for range tenants / 4 {
		receive(t, "a claim", claimed)
	}
	crash(t, server)
	check(t, wait())
	f.tally(&got, map[engine.Verdict]int{engine.VerdictApplied: tenants})
	f.appliedOnce()
}

// terminations end sessions by chance, also that of the renewals (57P01).
func terminations(t *testing.T, server *postgrestest.Server) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	w := newWorldAt(t, server.URL(t))
	var mu sync.Mutex
	chance, ended := rand.New(rand.NewPCG(seed, 0)), 0
	f := newFleet(w, 60, engine.Config{Observe: func(p engine.Progress) {
		mu.Lock()
		defer mu.Unlock()
		if p.Kind == engine.KindStepDone && chance.IntN(5) == 0 {
			ended++
			w.exec(`SELECT pg_terminate_backend(pid) FROM pg_stat_activity
				WHERE application_name LIKE 'belay%' AND datname = current_database() ORDER BY random() LIMIT 1`)
		}
	}})
	f.tally(f.applyAll(oneByOne(newChange("change", "a b")), engine.ApplyOptions{}, engine.PoolOptions{}),
		map[engine.Verdict]int{engine.VerdictApplied: 60})
	f.appliedOnce()
	if ended < 10 {
		t.Errorf("only %d sessions were ended", ended)
	}
}

// betweenSteps is an apply that has been brought to a stop between two transactions, on a connection that has just been used.
func betweenSteps(t *testing.T, server *postgrestest.Server, config engine.Config) (l *lab, between *gate, wait func() engine.Result) {
	t.Helper()
	c, actions, between, within := gatedChange(t)
	within.open()
	config.Actions = actions
	l = newLab(newWorldAt(t, server.URL(t)), config)
	wait = later(t, func() engine.Result { return l.apply(c) })
	between.wait(1)
	return l, between, wait
}

// stop stops the server's processes for the connections of an application to the world's database. They go on with resume,
// which waits until they have ended, or at the end of the test.
func (w *world) stop(application string) (resume func()) {
	w.t.Helper()
	var pids []int
	for line := range strings.Lines(w.query("SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND application_name = '" + application + "'")) {
		pid, err := strconv.Atoi(strings.TrimSpace(line))
		check(w.t, err)
		pids = append(pids, pid)
	}
	if len(pids) == 0 {
		w.t.Fatalf("no backend of %s", application)
	}
	for _, pid := range pids {
		check(w.t, syscall.Kill(pid, syscall.SIGSTOP))
	}
	goOn := func() {
		for _, pid := range pids {
			_ = syscall.Kill(pid, syscall.SIGCONT) // it may have ended
		}
	}
	w.t.Cleanup(goOn)
	return func() {
		goOn()
		eventually(w.t, "the stopped backends are gone", func() bool {
			return !slices.ContainsFunc(pids, func(pid int) bool { return syscall.Kill(pid, 0) == nil })
		})
	}
}

// stoppedBackend never answers. The checkpoint sent to it is given up, a new connection takes the lock anew and goes on; what
// was sent arrives when the backend goes on, and writes nothing. G1
func stoppedBackend(t *testing.T, server *postgrestest.Server) {
	l, between, wait := betweenSteps(t, server, engine.Config{StepTimeout: 200 * time.Millisecond, ActionTimeout: 2 * time.Second, Lease: 5 * time.Second})
	resume := l.stop("belay")
	between.open()
	r := wait()
	if r.Verdict != engine.VerdictApplied {
		t.Fatalf("%s: %v", r.Verdict, r.Err)
	}
	look := func() string {
		return l.dump() + l.query("SELECT fence, holder FROM belay.site_lock") + l.query("SELECT step_id, state, fence, attempt FROM belay.journal ORDER BY 1")
	}
	before := look()
	resume()
	equal(t, "what is there after the stopped backend went on", look(), before)
	l.holds("a b")
}

// stoppedRenewal is the backend that renews: each attempt has a deadline, and the next one a new connection.
func stoppedRenewal(t *testing.T, server *postgrestest.Server) {
	l, between, wait := betweenSteps(t, server, engine.Config{Lease: 2 * time.Second})
	fence := l.query("SELECT fence FROM belay.site_lock")
	resume := l.stop("belay renewal")
	until := l.query("SELECT expires_at + 4000 FROM belay.site_lock")
	eventually(t, "two leases of renewals by another connection", func() bool {
		return l.query("SELECT expires_at > "+until+" FROM belay.site_lock") == "true"
	})
	between.open()
	if r := wait(); r.Verdict != engine.VerdictApplied {
		t.Fatalf("%s: %v", r.Verdict, r.Err)
	}
	equal(t, "fence", l.query("SELECT fence FROM belay.site_lock"), fence)
	resume()
	l.holds("a b")
}

// noSlots is a server that takes no further connection (53300). Those who are there already go on, renewals above all; who
// comes is told, and comes again. G2
func noSlots(t *testing.T, server *postgrestest.Server) {
	l, between, wait := betweenSteps(t, server, engine.Config{Lease: 2 * time.Second})
	other := newEngine(t, newDirectory(t), engine.Config{})
	var fillers []*pgx.Conn
	empty := sync.OnceFunc(func() {
		for _, conn := range fillers {
			_ = conn.Close(context.Background())
		}
	})
	t.Cleanup(empty)
	for {
		conn, err := pgx.Connect(t.Context(), l.url)
		if server, ok := errors.AsType[*pgconn.PgError](err); ok && server.Code == "53300" {
			break
		}
		check(t, err)
		fillers = append(fillers, conn)
	}
	ask := func(sql string) (n int64) {
		check(t, fillers[0].QueryRow(t.Context(), sql).Scan(&n))
		return n
	}
	until := ask("SELECT expires_at FROM belay.site_lock") + 4000
	eventually(t, "two leases of renewals", func() bool { return ask("SELECT expires_at FROM belay.site_lock") > until })
	late, err := other.Apply(t.Context(), l.tenant, newChange("late", "x"), engine.ApplyOptions{})
	if late.Verdict != engine.VerdictFailed || err == nil {
		t.Fatalf("%s: %v", late.Verdict, err)
	}
	contains(t, "error", err.Error(), "53300")
	between.open()
	if r := wait(); r.Verdict != engine.VerdictApplied {
		t.Fatalf("%s: %v", r.Verdict, r.Err)
	}
	empty()
	eventually(t, "a slot", func() bool {
		late, err = other.Apply(t.Context(), l.tenant, newChange("late", "x"), engine.ApplyOptions{})
		return late.Verdict == engine.VerdictApplied
	})
	l.holds("a b x")
}

// set changes a setting of the whole server until the test ends, or reset is called.
func set(t *testing.T, server *postgrestest.Server, name, value string) (reset func()) {
	t.Helper()
	run := func(sql string) {
		ctx := context.Background() // also behind the end of the test
		conn, err := pgx.Connect(ctx, server.SocketURL("postgres"))
		check(t, err)
		defer conn.Close(ctx)
		for _, statement := range []string{sql, "SELECT pg_reload_conf()"} {
			_, err = conn.Exec(ctx, statement)
			check(t, err)
		}
		eventually(t, "the setting counts", func() bool {
			var got string
			check(t, conn.QueryRow(ctx, "SHOW "+name).Scan(&got))
			return (got == value) == strings.Contains(sql, " SET ")
		})
	}
	run("ALTER SYSTEM SET " + name + " = '" + value + "'")
	reset = sync.OnceFunc(func() { run("ALTER SYSTEM RESET " + name) })
	t.Cleanup(reset)
	return reset
}

// readOnlyForAWhile is what a failover looks like to those who write (25006): they ask again, not often, and go on when they
// are let.
func readOnlyForAWhile(t *testing.T, server *postgrestest.Server) {
	l, between, wait := betweenSteps(t, server, engine.Config{Lease: 10 * time.Second})
	refused := refusals(t, server)
	reset := set(t, server, "default_transaction_read_only", "on")
	between.open()
	eventually(t, "the server has refused to write", func() bool { return refusals(t, server) > refused+2 })
	reset()
	if r := wait(); r.Verdict != engine.VerdictApplied {
		t.Fatalf("%s: %v", r.Verdict, r.Err)
	}
	l.holds("a b")
}

// standby is a server that can only be read: it tells what is applied, and refuses to lock anything.
func standby(t *testing.T, server *postgrestest.Server) {
	l := newLab(newWorldAt(t, server.URL(t)), engine.Config{})
	l.came(l.apply(newChange("change", "a")), engine.VerdictApplied, "do:a")
	copied, err := server.Standby()
	check(t, err)
	t.Cleanup(func() { check(t, copied.Stop(context.Background(), "immediate")) })
	other := *l.world
	other.url = copied.SocketURL(l.query("SELECT current_database()"))
	other.target = withSchema(other.url, other.scope)
	e := newEngine(t, newDirectory(t), engine.Config{})
	eventually(t, "the standby has the plan", func() bool {
		r, _ := e.Apply(t.Context(), other.tenant("acme"), newChange("change", "a"), engine.ApplyOptions{})
		return r.Verdict == engine.VerdictAlreadyApplied
	})
	r, err := e.Apply(t.Context(), other.tenant("acme"), newChange("late", "x"), engine.ApplyOptions{})
	if r.Verdict != engine.VerdictFailed || err == nil {
		t.Fatalf("%s: %v", r.Verdict, err)
	}
	contains(t, "error", err.Error(), "server is read-only")
	l.holds("a")
}

// refusals counts what the server's log has of statements that a read-only transaction refused.
func refusals(t *testing.T, server *postgrestest.Server) int {
	t.Helper()
	log, err := os.ReadFile(server.Log())
	check(t, err)
	return strings.Count(string(log), "in a read-only transaction")
}

// hangingCommit waits for a standby that does not exist. It returns when a backend waits for it.
func hangingCommit(t *testing.T, l *lab, server *postgrestest.Server, open func()) (reset func()) {
	t.Helper()
	reset = set(t, server, "synchronous_standby_names", "ghost")
	open()
	eventually(t, "a commit hangs", func() bool {
		return l.query("SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep' AND application_name = 'belay'") != "0"
	})
	return reset
}

// hangingCommitEnded is in place, though the client hears that its session was ended. G7
func hangingCommitEnded(t *testing.T, server *postgrestest.Server) {
	l, between, wait := betweenSteps(t, server, engine.Config{Lease: 20 * time.Second})
	reset := hangingCommit(t, l, server, between.open)
	l.exec(`SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep' AND application_name = 'belay'`)
	reset()
	if r := wait(); r.Verdict != engine.VerdictApplied {
		t.Fatalf("%s: %v", r.Verdict, r.Err)
	}
	l.holds("a b")
	l.rests("change", "applied applied 4/4")
}

// hangingCommitGivenUp ends the operation, not knowing, and does not keep the process; the next apply looks. G7
func hangingCommitGivenUp(t *testing.T, server *postgrestest.Server) {
	l, between, wait := betweenSteps(t, server, engine.Config{Lease: time.Second, StepTimeout: 200 * time.Millisecond, ActionTimeout: 2 * time.Second})
	reset := hangingCommit(t, l, server, between.open)
	r := wait()
	if r.Verdict == engine.VerdictApplied || r.Err == nil {
		t.Fatalf("%s: %v", r.Verdict, r.Err)
	}
	reset()
	l.calls.take()
	c, _, _, _ := gatedChange(t)
	again := l.applyWith(c, engine.ApplyOptions{LockTimeout: hang})
	if again.Verdict != engine.VerdictApplied {
		t.Fatalf("%s: %v", again.Verdict, again.Err)
	}
	l.holds("a b")
}
