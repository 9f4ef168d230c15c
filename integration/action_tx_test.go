package integration

import (
	"context"
	"testing"
	"time"

	"github.com/belayhq/belay/engine"
	"github.com/belayhq/belay/storage"
	"github.com/belayhq/belay/storage/postgres"
	"github.com/belayhq/belay/tenant"
)

// An action may write for each row it reads, or be told that it may not: it never hangs.
func TestAnActionThatWritesWhileItReadsDoesNotHang(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, w *world) {
		actions := engine.NewActions()
		engine.Register(actions, "nested", engine.Transactional[none]{
			Do: func(ctx context.Context, tx engine.Tx, _ engine.ActionCall[none]) ([]byte, error) {
				return nil, tx.Query(ctx, "SELECT step FROM ledger WHERE step = 'a'", nil, func(scan func(...any) error) error {
					var step string
					if err := scan(&step); err != nil {
						return err
					}
					_, err := tx.Exec(ctx, "INSERT INTO ledger VALUES ('nested')")
					return err
				})
			},
			Undo: func(ctx context.Context, tx engine.Tx, _ engine.ActionCall[none]) error {
				_, err := tx.Exec(ctx, "DELETE FROM ledger WHERE step = 'nested'")
				return err
			},
		})
		l := newLab(w, engine.Config{Actions: actions, ActionTimeout: time.Second})
		c := newChange("change", "a")
		c.Steps = append(c.Steps, actionStep("x", "nested"))
		r := later(t, func() engine.Result { return l.apply(c) })()
		if r.Verdict == engine.VerdictApplied {
			l.holds("a nested")
		} else {
			l.rests("change", "pending failed 1/2 partial")
			l.holds("a")
		}
		r = later(t, func() engine.Result { return l.rollback("change") })()
		if r.Verdict != engine.VerdictRolledBack {
			t.Fatal(r.Err)
		}
		l.holds("")
	})
}

// An action that was left behind with the native transaction in its hands writes into no later checkpoint, least of all
// another tenant's. G1, G9
func TestAnUnwrappedTransactionDoesNotOutliveItsCheckpoint(t *testing.T) {
	t.Parallel()
	w := newWorld(t, tenant.Postgres)
	goOn, late := make(chan none), make(chan error, 9)
	inside, leave := make(chan none, 9), make(chan none)
	undo := func(context.Context, engine.Tx, engine.ActionCall[none]) error { return nil }
	actions := engine.NewActions()
	engine.Register(actions, "deaf", engine.Transactional[none]{
		Do: func(_ context.Context, tx engine.Tx, _ engine.ActionCall[none]) ([]byte, error) {
			native := postgres.Unwrap(tx)
			<-goOn
			_, err := native.Exec(context.Background(), "INSERT INTO ledger VALUES ('late')")
			late <- err
			return nil, nil
		},
		Undo: undo,
	})
	engine.Register(actions, "slow", engine.Transactional[none]{
		Do: func(ctx context.Context, tx engine.Tx, _ engine.ActionCall[none]) ([]byte, error) {
			inside <- none{}
			<-leave
			_, err := tx.Exec(ctx, "SELECT 1")
			return nil, err
		},
		Undo: undo,
	})
	l := newLab(w, engine.Config{})
	directory, err := storage.NewDirectory(storage.DirectoryConfig{PerDatabase: 1}, postgres.Driver())
	check(t, err)
	t.Cleanup(directory.Close)
	l.engine = newEngine(t, directory, engine.Config{Actions: actions, ActionTimeout: hang})
	n := w.neighbour(t)
	n.exec("CREATE TABLE ledger (step text NOT NULL)")

	deaf := newChange("change", "a")
	deaf.Steps[0] = actionStep("x", "deaf")
	deaf.Steps[0].Timeout = 100 * time.Millisecond
	if r := later(t, func() engine.Result { return l.apply(deaf) })(); r.Verdict != engine.VerdictFailed {
		t.Fatalf("%s: %v", r.Verdict, r.Err)
	}
	beside := newChange("other", "z")
	beside.Steps = append(beside.Steps, actionStep("y", "slow"))
	wait := later(t, func() engine.Result {
		r, _ := l.engine.Apply(t.Context(), n.tenant("beta"), beside, engine.ApplyOptions{})
		return r
	})
	receive(t, "the next tenant's action", inside)
	close(goOn)
	if err := receive(t, "the late write", late); err == nil {
		t.Error("the late write succeeded")
	}
	close(leave)
	if r := wait(); r.Verdict != engine.VerdictApplied {
		t.Fatalf("%s: %v", r.Verdict, r.Err)
	}
	equal(t, "ledger", w.query("SELECT step FROM ledger"), "")
	equal(t, "ledger of the other tenant", n.query("SELECT step FROM ledger"), "z")
}
