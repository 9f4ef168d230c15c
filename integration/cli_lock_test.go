package integration

import (
	"context"
	"database/sql"
	"fmt"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/belayhq/belay/internal/failpoint"
	"github.com/belayhq/belay/tenant"
)

// A process that is stopped, taken over and continued ends with an exit code of its own, says that it lost the lock, and has
// changed nothing. G1
func TestAProcessThatLostItsLockSaysSoAndFails(t *testing.T) {
	t.Parallel()
	onBothFleets(t, func(t *testing.T, f *cliFleet) {
		one := []string{"apply", f.change, "-t", "tenant-1", "-y"}
		stalled := f.belay(failpoint.BeforeCheckpoint+"#2", one...)
		if !stalled.reached() {
			t.Fatal("never passed")
		}
		stalled.signal(syscall.SIGSTOP)
		f.expire()
		contains(t, "the process that takes over", f.must(one...), "tenant-1: recovered 0001-locale")
		after := f.tenants[0].dump()
		stalled.signal(syscall.SIGCONT)
		stalled.order("go")
		equal(t, "exit", fmt.Sprint(stalled.ended()), "4")
		contains(t, "message", stalled.stderr.String(), "lock lost")
		contains(t, "message", stalled.stderr.String(), "belay status")
		equal(t, "data after it woke up", f.tenants[0].dump(), after)
	})
}

// A lock that has lapsed but cannot be taken yet, because a transaction of its holder is still open in the database, is busy:
// the message says whose it is, that its lease has lapsed and that trying again is right.
func TestALapsedLockThatCannotBeTakenYetIsBusy(t *testing.T) {
	t.Parallel()
	onBothFleets(t, func(t *testing.T, f *cliFleet) {
		one := []string{"apply", f.change, "-t", "tenant-1", "-y"}
		dead := f.belay(failpoint.AfterCheckpoint, one...)
		if !dead.reached() {
			t.Fatal("never passed")
		}
		dead.kill()
		f.expire()
		commit := f.tenants[0].keepLockRow()
		out := f.exits(5, append(one, "--lock-timeout", "0")...)
		holder := fmt.Sprintf("(pid %d, lapsed)", dead.cmd.Process.Pid)
		for _, part := range []string{"tenant-1: locked by apply of 0001-locale", holder, "the database is busy, try again", "belay lock show tenant-1"} {
			contains(t, "busy message", out, part)
		}
		show := f.must("lock", "show", "tenant-1")
		for _, part := range []string{"apply of 0001-locale", fmt.Sprintf("(pid %d)", dead.cmd.Process.Pid), "lapsed at"} {
			contains(t, "belay lock show", show, part)
		}
		commit()
		f.must(one...)
		equal(t, "counter", f.tenants[0].query("SELECT n FROM counter"), "1")
	})
}

// keepLockRow opens a transaction that keeps everyone from the tenant's lock row, as one that an open checkpoint left behind
// does, and returns what ends it.
func (w *world) keepLockRow() (commit func()) {
	w.t.Helper()
	ctx := context.Background()
	if w.dialect == tenant.Postgres {
		conn, err := pgx.Connect(ctx, w.url)
		check(w.t, err)
		_, err = conn.Exec(ctx, "BEGIN; SELECT FROM belay.site_lock FOR KEY SHARE")
		check(w.t, err)
		return func() { check(w.t, conn.Close(ctx)) }
	}
	db, err := sql.Open("sqlite3", "file:"+w.path+"?_busy_timeout=10000&_txlock=immediate")
	check(w.t, err)
	tx, err := db.BeginTx(ctx, nil)
	check(w.t, err)
	return func() {
		check(w.t, tx.Rollback())
		check(w.t, db.Close())
	}
}
