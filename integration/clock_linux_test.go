package integration

import (
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"

	"github.com/belayhq/belay/internal/failpoint"
	"github.com/belayhq/belay/tenant"
)

// SQLite has the clock of each process's own machine. One that is an hour ahead of the holder's, or whose holder is an hour
// behind, takes over from the living at once; the former holder then writes nothing more, and every step happens once. G9
func TestAWrongClockOnSQLiteTakesOverEarlyAndTheFormerHolderWritesNothing(t *testing.T) {
	t.Parallel()
	for name, seconds := range map[string]struct{ holder, next string }{
		"the next is ahead":    {"0", "3600"},
		"the holder is behind": {"-3600", "0"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSite(newWorld(t, tenant.SQLite), "step")
			holder := startOutOfTime(t, seconds.holder, failpoint.BeforeCheckpoint+"#2", s.args("apply")...)
			if !holder.reached() {
				t.Fatal("never passed")
			}
			next := startOutOfTime(t, seconds.next, "", s.args("apply")...).wait()
			equal(t, "verdict", next.Verdict, "applied")
			after := s.dump()
			holder.order("go")
			if r := holder.wait(); !r.Lost {
				t.Fatalf("the former holder did not notice: %+v", r)
			}
			equal(t, "data after the former holder went on", s.dump(), after)
			s.appliedOnce()
		})
	}
}

// A clock that is behind waits, and takes nothing from the living. G9
func TestAClockThatIsBehindOnSQLiteOnlyWaits(t *testing.T) {
	t.Parallel()
	s := newSite(newWorld(t, tenant.SQLite), "step")
	holder := startChild(t, failpoint.BeforeCheckpoint+"#2", s.args("apply")...)
	if !holder.reached() {
		t.Fatal("never passed")
	}
	if r := startOutOfTime(t, "-600", "", s.args("apply")...).wait(); !r.Busy {
		t.Fatalf("a live lease was taken: %+v", r)
	}
	holder.order("go")
	equal(t, "verdict", holder.wait().Verdict, "applied")
	s.appliedOnce()
}

// startOutOfTime starts testchild with a SQLite whose clock is some seconds off.
func startOutOfTime(t *testing.T, seconds, point string, args ...string) *child {
	t.Helper()
	path, err := testchild()
	check(t, err)
	library, err := wrongClock()
	check(t, err)
	cmd := exec.Command(path, args...)
	cmd.Env = append(os.Environ(), "LD_PRELOAD="+library, "CLOCK_AHEAD="+seconds)
	return start(t, point, cmd)
}

// wrongClock builds a library that comes before C's own, from which SQLite has its time.
var wrongClock = sync.OnceValues(func() (string, error) {
	const text = `#include <stdlib.h>
#include <sys/time.h>
#include <time.h>
int gettimeofday(struct timeval *restrict now, void *restrict zone) {
	struct timespec t;
	(void)zone;
	if (clock_gettime(CLOCK_REALTIME, &t)) return -1;
	now->tv_sec = t.tv_sec + atol(getenv("CLOCK_AHEAD"));
	now->tv_usec = t.tv_nsec / 1000;
	return 0;
}
`
	source, library := filepath.Join(binaries, "clock.c"), filepath.Join(binaries, "clock.so")
	if err := os.WriteFile(source, []byte(text), 0o600); err != nil {
		return "", err
	}
	return library, run("cc", "-shared", "-fPIC", "-o", library, source)
})
