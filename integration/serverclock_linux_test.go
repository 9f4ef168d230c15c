package integration

import (
	"errors"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/belayhq/belay/engine"
	"github.com/belayhq/belay/internal/failpoint"
	"github.com/belayhq/belay/internal/hosttool"
	"github.com/belayhq/belay/internal/postgrestest"
	"github.com/belayhq/belay/plan"
	"github.com/belayhq/belay/sitelock"
)

// preloaded is a cluster whose clock and disk are what two files say.
type preloaded struct {
	*postgrestest.Server
	clock, diskFull string
}

var sharedPreloaded = sync.OnceValues(func() (preloaded, error) {
	p := preloaded{clock: filepath.Join(binaries, "server.clock"), diskFull: filepath.Join(binaries, "server.disk-full")}
	library, err := fullDisk()
	// The server, which is another user, reads these files.
	if err := errors.Join(err, os.Chmod(binaries, 0o755), os.WriteFile(p.clock, []byte("+0s\n"), 0o644)); err != nil {
		return p, err
	}
	p.Server, err = postgrestest.Own([]string{
		"LD_PRELOAD=" + library + ":" + faketime, "DISK_FULL=" + p.diskFull,
		"FAKETIME_TIMESTAMP_FILE=" + p.clock, "FAKETIME_NO_CACHE=1", "FAKETIME_DONT_FAKE_MONOTONIC=1",
	})
	return p, err
})

// faketime is where the library is; $LIB is the loader's word for the directory of the machine's kind.
const faketime = "/usr/$LIB/faketime/libfaketime.so.1"

// fullDisk builds a library under which a table cannot grow while a file is there: the server says 53100, as on a full disk.
var fullDisk = sync.OnceValues(func() (string, error) {
	const text = `#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>
static int full(int fd) {
	char link[64], path[4096];
	if (access(getenv("DISK_FULL"), F_OK)) return 0;
	snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
	ssize_t n = readlink(link, path, sizeof path - 1);
	if (n < 0) return 0;
	path[n] = 0;
	return strstr(path, "/base/") != NULL;
}
ssize_t pwrite(int fd, const void *from, size_t n, off_t at) {
	if (full(fd)) { errno = ENOSPC; return -1; }
	return ((ssize_t (*)(int, const void *, size_t, off_t))dlsym(RTLD_NEXT, "pwrite"))(fd, from, n, at);
}
ssize_t pwritev(int fd, const struct iovec *from, int n, off_t at) {
	if (full(fd)) { errno = ENOSPC; return -1; }
	return ((ssize_t (*)(int, const struct iovec *, int, off_t))dlsym(RTLD_NEXT, "pwritev"))(fd, from, n, at);
}
int posix_fallocate(int fd, off_t at, off_t n) {
	if (full(fd)) return ENOSPC;
	return ((int (*)(int, off_t, off_t))dlsym(RTLD_NEXT, "posix_fallocate"))(fd, at, n);
}
`
	source, library := filepath.Join(binaries, "disk.c"), filepath.Join(binaries, "disk.so")
	if err := os.WriteFile(source, []byte(text), 0o600); err != nil {
		return "", err
	}
	return library, run("cc", "-shared", "-fPIC", "-o", library, source, "-ldl")
})

// jumps sets the server's clock, running as it is, so many seconds off.
func (p preloaded) jumps(t *testing.T, seconds string) {
	t.Helper()
	check(t, os.WriteFile(p.clock, []byte(seconds+"s\n"), 0o600))
}

// The clock of a server jumps while it works, and its disk is full for a while. G1, G2, G9, G10
func TestAServersClockAndDiskHurtNobody(t *testing.T) {
	t.Parallel()
	hosttool.File(t, "libfaketime", "/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1", "/usr/lib/aarch64-linux-gnu/faketime/libfaketime.so.1")
	p, err := sharedPreloaded()
	check(t, err)
	for _, fault := range []struct {
		sentence string
		run      func(t *testing.T, p preloaded)
	}{
		{"a clock that jumps ahead lets others take over, and nobody writes who was taken over", clockAhead},
		{"a clock that jumps back costs a living holder nothing", clockBackUnderALivingHolder},
		{"a clock that jumps back does not keep a dead holder's tenant locked", clockBackBehindADeadHolder},
		{"a full disk fails a step and nothing else", fullDiskForAStep},
		{"a disk that stays full leaves a plan that the next apply recovers", fullDiskForLong},
	} {
		t.Run(fault.sentence, func(t *testing.T) {
			t.Cleanup(func() { p.jumps(t, "+0") })
			fault.run(t, p)
		})
	}
}

// clockAhead ends the leases of a whole fleet at one moment. The others recover and finish every tenant; of what their former
// holders go on to do, nothing takes effect. G1, G9
func clockAhead(t *testing.T, p preloaded) {
	const tenants = 12
	c, actions, between, within := gatedChange(t)
	within.open()
	// No renewal of these leases falls into the test.
	f := newFleet(newWorldAt(t, p.URL(t)), tenants, engine.Config{Actions: actions, Lease: 280 * time.Second})
	var former results
	wait := later(t, func() error {
		return f.engine.ApplyAll(t.Context(), f.all(), c, engine.ApplyOptions{}, engine.PoolOptions{Workers: tenants}, former.add)
	})
	between.wait(tenants)
	p.jumps(t, "+300")
	next := *f
	_, open, opened, openToo := gatedChange(t)
	opened.open()
	openToo.open()
	next.engine = newEngine(t, newDirectory(t), engine.Config{Actions: open})
	next.tally(next.applyAll(c, engine.ApplyOptions{}, engine.PoolOptions{}), map[engine.Verdict]int{engine.VerdictApplied: tenants})
	for _, all := range former.byTenant {
		t.Fatalf("ended before it was let: %s", all[0].Verdict)
	}
	fences := f.worlds[0].query("SELECT tenant_id, fence FROM belay.site_lock ORDER BY 1")
	between.open()
	check(t, wait())
	for name, all := range former.byTenant {
		if _, lost := errors.AsType[*sitelock.LockLostError](all[0].Err); !lost {
			t.Errorf("%s did not notice: %s, %v", name, all[0].Verdict, all[0].Err)
		}
	}
	equal(t, "fences", f.worlds[0].query("SELECT tenant_id, fence FROM belay.site_lock ORDER BY 1"), fences)
	f.appliedOnce()
}

// clockBackUnderALivingHolder leaves the row an hour ahead, until the next renewal writes it anew. G9
func clockBackUnderALivingHolder(t *testing.T, p preloaded) {
	l, between, wait := betweenSteps(t, p.Server, engine.Config{Lease: 3 * time.Second})
	fence := l.query("SELECT fence FROM belay.site_lock")
	p.jumps(t, "-3600")
	eventually(t, "a renewal by the new clock", func() bool {
		return l.query("SELECT expires_at <= belay.now_ms() + 3000 FROM belay.site_lock") == "true"
	})
	other := newEngine(t, newDirectory(t), engine.Config{})
	if r, _ := other.Apply(t.Context(), l.tenant, newChange("late", "x"), engine.ApplyOptions{}); r.Verdict != engine.VerdictBusy {
		t.Errorf("a live lease was not respected: %s, %v", r.Verdict, r.Err)
	}
	between.open()
	if r := wait(); r.Verdict != engine.VerdictApplied {
		t.Fatalf("%s: %v", r.Verdict, r.Err)
	}
	equal(t, "fence", l.query("SELECT fence FROM belay.site_lock"), fence)
	l.holds("a b")
}

// clockBackBehindADeadHolder leaves a row that nobody writes anew. Further ahead than any lease may be, it counts as lapsed;
// an operator's hold does not. G2, G9
func clockBackBehindADeadHolder(t *testing.T, p preloaded) {
	s := newSite(newWorldAt(t, p.URL(t)), "step")
	dead := startChild(t, failpoint.BeforeCheckpoint+"#2", s.args("apply")...)
	if !dead.reached() {
		t.Fatal("never passed")
	}
	dead.kill()
	held := newWorldAt(t, p.URL(t))
	operator := newEngine(t, newDirectory(t), engine.Config{})
	_, err := operator.Hold(t.Context(), held.tenant("held"), 2*time.Hour, "somebody looks")
	check(t, err)
	p.jumps(t, "-3600")
	if r := startChild(t, "", s.args("apply")...).wait(); r.Verdict != "applied" || r.Recovered != 1 {
		t.Fatalf("behind a dead holder: %+v", r)
	}
	s.appliedOnce()
	if r, _ := operator.Apply(t.Context(), held.tenant("held"), newChange("change", "x"), engine.ApplyOptions{}); r.Verdict != engine.VerdictBusy {
		t.Errorf("a hold ended early: %s, %v", r.Verdict, r.Err)
	}
}

// growing is a change whose step b needs room that a table does not have.
func growing() *plan.Change {
	c := oneByOne(newChange("change", "a b c"))
	c.Steps[1] = sqlStep("b", "INSERT INTO ledger SELECT 'b' || repeat('x', 1000) FROM generate_series(1, 1000)", "DELETE FROM ledger WHERE step LIKE 'b%'")
	return c
}

// fills has the disk full behind step a; room makes room again.
func (p preloaded) fills(t *testing.T, watch func(engine.Progress)) (l *lab, room func()) {
	room = func() { _ = os.Remove(p.diskFull) }
	t.Cleanup(room)
	return newLab(newWorldAt(t, p.URL(t)), engine.Config{Observe: func(e engine.Progress) {
		watch(e)
		if e.Kind == engine.KindStepDone && e.Step == "a" {
			check(t, os.WriteFile(p.diskFull, nil, 0o600))
		}
	}}), room
}

// fullDiskForAStep is a table that cannot grow (53100): its step fails and leaves nothing, the plan says so, the lock is free,
// and the same apply again finishes. G3
func fullDiskForAStep(t *testing.T, p preloaded) {
	l, _ := p.fills(t, func(e engine.Progress) {
		if e.Kind == engine.KindStepFailed {
			check(t, os.Remove(p.diskFull))
		}
	})
	r := l.apply(growing())
	l.came(r, engine.VerdictPartial, "do:a fail:b")
	contains(t, "error", r.Err.Error(), "53100")
	l.rests("change", "pending failed 1/3 partial")
	l.holds("a")
	l.came(l.apply(growing()), engine.VerdictApplied, "do:b do:c")
	equal(t, "rows", l.query("SELECT count(*) FROM ledger"), "1002")
}

// fullDiskForLong has no room for what Belay itself writes: the plan stays in flight until there is. G2, G3
func fullDiskForLong(t *testing.T, p preloaded) {
	l, room := p.fills(t, func(engine.Progress) {})
	r := l.apply(growing())
	l.came(r, engine.VerdictPartial, "do:a fail:b")
	contains(t, "error", r.Err.Error(), "53100")
	room()
	l.holds("a")
	if r := l.applyWith(growing(), engine.ApplyOptions{LockTimeout: hang}); r.Verdict != engine.VerdictApplied {
		t.Fatalf("%s: %v", r.Verdict, r.Err)
	}
	equal(t, "rows", l.query("SELECT count(*) FROM ledger"), "1002")
	l.rests("change", "applied applied 3/3")
}
