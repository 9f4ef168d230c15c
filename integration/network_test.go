package integration

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/belayhq/belay/engine"
	"github.com/belayhq/belay/internal/pgproxy"
	"github.com/belayhq/belay/internal/postgrestest"
	"github.com/belayhq/belay/plan"
	"github.com/belayhq/belay/sitelock"
	"github.com/belayhq/belay/storage"
	"github.com/belayhq/belay/storage/postgres"
)

// newNetworkLab is a lab whose engine reaches PostgreSQL by a network that can fail.
func newNetworkLab(t *testing.T, config engine.Config) *lab {
	t.Helper()
	l := newLab(newWorldBehindANetwork(t, postgrestest.URL(t)), config)
	migrate(t, l.tenant)
	return l
}

// atEachCommit has the connection die at each commit of an operation in turn, until there is none left: before the server has
// it, so that nothing of it is in place, and behind it, so that all is. The client cannot tell which. Each time the operation
// is tried on a new tenant, and arms the network when it begins.
func atEachCommit(t *testing.T, operate func(l *lab, arm func())) {
	t.Helper()
	w := newWorldBehindANetwork(t, postgrestest.URL(t))
	migrate(t, w.tenant("acme"))
	for _, do := range []pgproxy.Do{pgproxy.CutBefore, pgproxy.CutAfter} {
		nth := 0
		for happened := true; happened && !t.Failed(); {
			nth++
			t.Run(fmt.Sprintf("%s commit %d", do, nth), func(t *testing.T) {
				x := &resource{value: "old"}
				l := newLab(w.ofTest(t).renewed(), engine.Config{Lease: 5 * time.Second, Actions: only(x.external())})
				var f *pgproxy.Fault
				operate(l, func() { f = w.network.Plan(pgproxy.Order{Class: pgproxy.Steps, Do: do, Nth: nth}) })
				happened = f.Cancel()
			})
		}
		if nth == 1 {
			t.Errorf("nothing was committed: %s", do)
		}
	}
}

// The connection dies at a COMMIT, also where it is the end of a pipeline: no run redoes what is in place or passes over what
// is not, and no work that is finished is lost. G4, G7
func TestACommitAtWhichTheConnectionDiesIsSettledInBothTruths(t *testing.T) {
	t.Parallel()
	change := oneByOne(outsideChange("b c"))
	t.Run("apply", func(t *testing.T) {
		t.Parallel()
		atEachCommit(t, func(l *lab, arm func()) {
			arm()
			if r := l.apply(change); r.Verdict != engine.VerdictApplied {
				l.t.Fatalf("%s: %v", r.Verdict, r.Err)
			}
			l.rests("change", "applied applied 4/4")
			l.holds("a b c")
		})
	})
	t.Run("rollback", func(t *testing.T) {
		t.Parallel()
		atEachCommit(t, func(l *lab, arm func()) {
			l.came(l.apply(change), engine.VerdictApplied, "do:a do:x do:b do:c")
			arm()
			if r := l.rollback("change"); r.Verdict != engine.VerdictRolledBack {
				l.t.Fatalf("%s: %v", r.Verdict, r.Err)
			}
			l.rests("change", "pending rolled_back 0/4")
			l.holds("")
		})
	})
	// Whether its status was written or not, a plan that was given up is partial to the next, and nobody waits for its lock.
	t.Run("giving up", func(t *testing.T) {
		t.Parallel()
		atEachCommit(t, func(l *lab, arm func()) {
			arm()
			if r := l.apply(oneByOne(newChange("change", "a b c:fail"))); r.Verdict != engine.VerdictPartial {
				l.t.Fatalf("%s: %v", r.Verdict, r.Err)
			}
			r := l.rollbackWith("change", engine.RollbackOptions{LockTimeout: hang})
			if r.Verdict != engine.VerdictRolledBack {
				l.t.Fatalf("%s: %v", r.Verdict, r.Err)
			}
			l.rests("change", "pending rolled_back 0/3")
			l.holds("")
		})
	})
	// A release that was not heard of has happened or has not, and the operator can ask again.
	t.Run("release", func(t *testing.T) {
		t.Parallel()
		atEachCommit(t, func(l *lab, arm func()) {
			_, err := l.engine.Hold(l.t.Context(), l.tenant, hang, "somebody looks")
			check(l.t, err)
			arm()
			if err := l.engine.ReleaseHold(l.t.Context(), l.tenant); err != nil {
				again := l.engine.ReleaseHold(l.t.Context(), l.tenant)
				if again != nil && !errors.Is(again, sitelock.ErrNotHeld) {
					l.t.Fatal(again)
				}
			}
			if r := l.apply(change); r.Verdict != engine.VerdictApplied {
				l.t.Fatalf("%s: %v", r.Verdict, r.Err)
			}
		})
	})
}

// duringACall is an apply whose call outside the database goes on until it is let, while its lock is renewed. ended is closed
// when its context ends.
func duringACall(t *testing.T, lease time.Duration) (l *lab, g *gate, ended chan none, wait func() engine.Result) {
	t.Helper()
	g, ended = newGate(t), make(chan none)
	x := &resource{value: "old"}
	x.before = func(ctx context.Context, _ plan.Direction) error {
		context.AfterFunc(ctx, func() { close(ended) })
		return g.pass(ctx)
	}
	l = newNetworkLab(t, engine.Config{Lease: lease, Actions: only(x.external())})
	wait = later(t, func() engine.Result { return l.apply(outsideChange("b")) })
	g.wait(1)
	return l, g, ended, wait
}

// renewedAgain waits until the lock's lease is longer than it is now.
func (l *lab) renewedAgain() {
	l.t.Helper()
	expiry := func() string { return l.query("SELECT expires_at FROM belay.site_lock") }
	before := expiry()
	eventually(l.t, "the lease is renewed", func() bool { return expiry() != before })
}

// stillApplied demands that a run ends well under the lock that it had all the time.
func (l *lab) stillApplied(wait func() engine.Result) {
	l.t.Helper()
	if r := wait(); r.Verdict != engine.VerdictApplied {
		l.t.Fatalf("%s: %v", r.Verdict, r.Err)
	}
	equal(l.t, "fence", l.query("SELECT fence FROM belay.site_lock"), "1")
	l.holds("a b")
}

// G1
func TestARenewalWhoseAnswerIsLostIsNoLoss(t *testing.T) {
	t.Parallel()
	for _, do := range []pgproxy.Do{pgproxy.CutBefore, pgproxy.CutAfter, pgproxy.Swallow} {
		t.Run(string(do), func(t *testing.T) {
			t.Parallel()
			l, g, _, wait := duringACall(t, 4*time.Second)
			f := l.network.Plan(pgproxy.Order{Class: pgproxy.Renewals, Do: do})
			receive(t, "the fault", f.Happened())
			l.renewedAgain()
			g.open()
			l.stillApplied(wait)
		})
	}
}

// A renewal that hangs is given up when the next is due, which has a new connection.
func TestRenewalsOutliveANetworkThatIsSilentForAWhile(t *testing.T) {
	t.Parallel()
	l, g, _, wait := duringACall(t, 8*time.Second)
	for _, d := range []pgproxy.Direction{pgproxy.ToServer, pgproxy.ToClient} {
		l.network.BlackHole(pgproxy.Renewals, d)
	}
	receive(t, "a renewal that hangs", l.network.Lost(pgproxy.Renewals))
	for _, d := range []pgproxy.Direction{pgproxy.ToServer, pgproxy.ToClient} {
		l.network.Pass(pgproxy.Renewals, d)
	}
	l.renewedAgain()
	g.open()
	l.stillApplied(wait)
}

// A holder that the network has left alone stops while its lease still keeps others out. G1
func TestAHolderWithoutANetworkStopsBeforeItsLeaseEnds(t *testing.T) {
	t.Parallel()
	l, _, ended, wait := duringACall(t, 2*time.Second)
	for _, c := range []pgproxy.Class{pgproxy.Steps, pgproxy.Renewals} {
		for _, d := range []pgproxy.Direction{pgproxy.ToServer, pgproxy.ToClient} {
			l.network.BlackHole(c, d)
		}
	}
	receive(t, "the call's end", ended)
	l.leaseLives()
	if _, lost := errors.AsType[*sitelock.LockLostError](wait().Err); !lost {
		t.Error("the run did not notice")
	}
	// Or the engine's end would wait long for each connection.
	for _, c := range []pgproxy.Class{pgproxy.Steps, pgproxy.Renewals} {
		l.network.Pass(c, pgproxy.ToServer)
		l.network.Pass(c, pgproxy.ToClient)
		l.network.Cut(c)
	}
}

// leaseLives demands that nobody can take the lock yet.
func (l *lab) leaseLives() {
	l.t.Helper()
	equal(l.t, "the lease lives", l.query("SELECT expires_at >= belay.now_ms() FROM belay.site_lock"), "true")
}

// An answer that is on its way for half a lease does not prolong anybody's trust: it counts from the sending. G1
func TestTrustIsNotProlongedByASlowNetwork(t *testing.T) {
	t.Parallel()
	l := newNetworkLab(t, engine.Config{})
	locker, err := sitelock.NewLocker(sitelock.Config{})
	check(t, err)
	check(t, locker.Start(t.Context()))
	t.Cleanup(locker.Stop)
	const lease = 4 * time.Second
	request := sitelock.Request{Tenant: l.tenant.ID, Scope: l.scope, Operation: sitelock.OpApply, Lease: lease}
	store := l.store()
	warm, _, err := locker.Acquire(t.Context(), store, request, 0) // so that the next is one round trip
	check(t, err)
	check(t, warm.Release(t.Context()))
	l.network.Delay(pgproxy.Steps, pgproxy.ToClient, lease/2)
	lock, _, err := locker.Acquire(t.Context(), store, request, 0)
	check(t, err)
	l.network.BlackHole(pgproxy.Renewals, pgproxy.ToServer)
	l.network.Pass(pgproxy.Steps, pgproxy.ToClient)
	receive(t, "the end of trust", lock.Context().Done())
	l.leaseLives()
}

// A step that has the only connection of a pool keeps no renewal waiting.
func TestALongStepOnTheOnlyConnectionIsRenewedBeside(t *testing.T) {
	t.Parallel()
	l := newNetworkLab(t, engine.Config{})
	const lease = 2 * time.Second
	directory, err := storage.NewDirectory(storage.DirectoryConfig{Connections: 2, PerDatabase: 1}, postgres.Driver())
	check(t, err)
	t.Cleanup(directory.Close)
	l.engine = newEngine(t, directory, engine.Config{Lease: lease, LockWait: hang})
	inTheWay, err := pgx.Connect(t.Context(), l.url)
	check(t, err)
	defer inTheWay.Close(t.Context())
	_, err = inTheWay.Exec(t.Context(), "BEGIN; LOCK TABLE site.ledger")
	check(t, err)
	wait := later(t, func() engine.Result { return l.apply(newChange("change", "a b")) })
	eventually(t, "the lock is taken", func() bool { return l.query("SELECT count(*) FROM belay.site_lock WHERE holder IS NOT NULL") == "1" })
	expiry := func() (at int64) {
		check(t, inTheWay.QueryRow(t.Context(), "SELECT expires_at FROM belay.site_lock").Scan(&at))
		return at
	}
	twice := expiry() + 2*lease.Milliseconds()
	eventually(t, "two leases of renewals", func() bool { return expiry() > twice })
	_, err = inTheWay.Exec(t.Context(), "COMMIT")
	check(t, err)
	l.stillApplied(wait)
}
