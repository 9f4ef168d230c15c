package integration

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/belayhq/belay/engine"
	"github.com/belayhq/belay/tenant"
)

// application is a session of the tenant's own program, in its scope.
func (w *world) application() *pgx.Conn {
	w.t.Helper()
	conn, err := pgx.Connect(w.t.Context(), w.url)
	check(w.t, err)
	w.t.Cleanup(func() { _ = conn.Close(context.Background()) })
	_, err = conn.Exec(w.t.Context(), "SET search_path = "+pgx.Identifier{w.scope}.Sanitize())
	check(w.t, err)
	return conn
}

// A step and the tenant's application lock the same rows in opposite order (40P01): the step is repeated once the application
// has what it wanted, and happens once. G4
func TestADeadlockWithTheApplicationIsRepeated(t *testing.T) {
	t.Parallel()
	l := newLab(newWorld(t, tenant.Postgres), engine.Config{})
	l.exec("CREATE TABLE n (id integer PRIMARY KEY, v integer)", "INSERT INTO n VALUES (1, 0), (2, 0)",
		`DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET deadlock_timeout = ''50ms''', current_database()); END $$`)
	app := l.application()
	// The step waits first, and so is the one to look for a deadlock first.
	_, err := app.Exec(t.Context(), "SET deadlock_timeout = '1min'; BEGIN; UPDATE n SET v = v + 10 WHERE id = 2")
	check(t, err)
	c := newChange("change", "a")
	c.Steps[0] = sqlStep("a", "UPDATE n SET v = v + 1 WHERE id = 1;\nUPDATE n SET v = v + 1 WHERE id = 2", "SELECT 1")
	wait := later(t, func() engine.Result { return l.apply(c) })
	eventually(t, "the step waits for the application", func() bool {
		return l.query("SELECT count(*) FROM pg_stat_activity WHERE application_name = 'belay' AND wait_event_type = 'Lock'") != "0"
	})
	_, err = app.Exec(t.Context(), "UPDATE n SET v = v + 10 WHERE id = 1; COMMIT")
	check(t, err)
	l.came(wait(), engine.VerdictApplied, "do:a")
	equal(t, "rows", l.query("SELECT v FROM n ORDER BY id"), "11\n11")
}

// A serialization failure is repeated four times at most (40001); the sequence, which no rollback takes back, counts. G10
func TestASerializationFailureIsRepeatedWithinBounds(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		until, calls string
		verdict      engine.Verdict
	}{
		"it passes":       {"3", "3", engine.VerdictApplied},
		"it never passes": {"1000", "4", engine.VerdictFailed},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := newLab(newWorld(t, tenant.Postgres), engine.Config{})
			l.exec("CREATE SEQUENCE calls", `CREATE FUNCTION busy() RETURNS integer LANGUAGE plpgsql AS $$ BEGIN
				IF nextval('calls') < `+test.until+` THEN RAISE SQLSTATE '40001'; END IF; RETURN 1; END $$`)
			c := newChange("change", "a")
			c.Steps[0] = sqlStep("a", "INSERT INTO ledger SELECT 'a' WHERE busy() = 1", "DELETE FROM ledger")
			if r := l.apply(c); r.Verdict != test.verdict {
				t.Fatalf("%s: %v", r.Verdict, r.Err)
			}
			equal(t, "calls", l.query("SELECT last_value FROM calls"), test.calls)
		})
	}
}

// What the application or an administrator does to one statement fails its step, and the same apply again passes: a table
// locked for too long (55P03), a statement that is cancelled (57014). G3
func TestAStepThatCannotHaveItsTableFailsAndPassesLater(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		wait time.Duration
		text string
	}{
		"locked for too long": {200 * time.Millisecond, "lock timeout"},
		"cancelled":           {hang, "(a.up.sql:1): cancelled by an administrator"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := newLab(newWorld(t, tenant.Postgres), engine.Config{LockWait: test.wait})
			app := l.application()
			_, err := app.Exec(t.Context(), "BEGIN; LOCK TABLE ledger")
			check(t, err)
			wait := later(t, func() engine.Result { return l.apply(newChange("change", "a")) })
			if test.wait == hang {
				eventually(t, "the statement is cancelled", func() bool {
					return l.query(`SELECT count(pg_cancel_backend(pid)) FROM pg_stat_activity
						WHERE application_name = 'belay' AND wait_event_type = 'Lock' AND datname = current_database()`) != "0"
				})
			}
			r := wait()
			l.came(r, engine.VerdictFailed, "fail:a")
			contains(t, "error", r.Err.Error(), test.text)
			l.rests("change", "pending failed 0/1")
			_, err = app.Exec(t.Context(), "ROLLBACK")
			check(t, err)
			l.came(l.apply(newChange("change", "a")), engine.VerdictApplied, "do:a")
		})
	}
}

// Whoever waits for a tenant's lock holds nothing meanwhile that an index made concurrently would wait for.
func TestAWaitingAcquireDoesNotHoldUpAnIndexMadeConcurrently(t *testing.T) {
	t.Parallel()
	c, actions, between, within := gatedChange(t)
	within.open()
	waiting := make(chan none, 10)
	l := newLab(newWorld(t, tenant.Postgres), engine.Config{Actions: actions})
	holder := later(t, func() engine.Result { return l.apply(c) })
	between.wait(1)
	other := newEngine(t, newDirectory(t), engine.Config{Observe: func(p engine.Progress) {
		if p.Kind == engine.KindWaiting {
			waiting <- none{}
		}
	}})
	waiter := later(t, func() engine.Result {
		r, _ := other.Apply(t.Context(), l.tenant, newChange("other", "x"), engine.ApplyOptions{LockTimeout: hang})
		return r
	})
	receive(t, "the waiter", waiting)
	l.exec("CREATE INDEX CONCURRENTLY ledger_step ON ledger (step)")
	between.open()
	for _, r := range []engine.Result{holder(), waiter()} {
		if r.Verdict != engine.VerdictApplied {
			t.Fatalf("%s: %v", r.Verdict, r.Err)
		}
	}
	l.holds("a b x")
}

// A database that is set read-only stays so (25006): the error says it, nothing is touched, nobody insists. The command line
// ends with the code for tenants that failed and are clean.
func TestAReadOnlyDatabaseIsLeftAsItIs(t *testing.T) {
	t.Parallel()
	f := newCLIFleet(t, postgresDatabases)
	f.tenants[0].exec(`DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET default_transaction_read_only = on', current_database()); END $$`)
	code, _, stderr := f.runs("apply", f.change, "--all", "-y")
	if code != 3 {
		t.Fatalf("exit code %d\n%s", code, stderr)
	}
	contains(t, "standard error", stderr, "server is read-only")
	equal(t, "dump", f.tenants[0].dump(), f.before[0])
	admin := f.tenants[0].application()
	_, err := admin.Exec(t.Context(), "SET default_transaction_read_only = off")
	check(t, err)
	_, err = admin.Exec(t.Context(), `DO $$ BEGIN EXECUTE format('ALTER DATABASE %I RESET default_transaction_read_only', current_database()); END $$`)
	check(t, err)
	f.must("apply", f.change, "--all", "-y")
}
