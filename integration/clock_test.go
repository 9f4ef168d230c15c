package integration

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/belayhq/belay/internal/failpoint"
	"github.com/belayhq/belay/tenant"
)

// Processes whose clocks are an hour off hold and take over as any other on PostgreSQL: a lease that is live is not theirs to
// take, however late they think it is, and one that has lapsed is, however early. G9
func TestAClientsClockPlaysNoPart(t *testing.T) {
	t.Parallel()
	for _, skew := range []string{"3600", "-3600"} {
		t.Run(skew+"s", func(t *testing.T) {
			t.Parallel()
			s := newSite(newWorld(t, tenant.Postgres), "step")
			holder := startSkewed(t, "0", failpoint.BeforeCheckpoint+"#2", s.args("apply")...)
			if !holder.reached() {
				t.Fatal("never passed")
			}
			if r := startSkewed(t, skew, "", s.args("apply")...).wait(); !r.Busy {
				t.Fatalf("a live lease was taken: %+v", r)
			}
			holder.kill()
			s.expire()
			r := startSkewed(t, skew, failpoint.AfterCheckpoint+"#2", s.args("apply")...)
			if !r.reached() {
				t.Fatal("never passed")
			}
			if other := startChild(t, "", s.args("apply")...).wait(); !other.Busy {
				t.Fatalf("the lease of a process with another clock was taken: %+v", other)
			}
			r.order("go")
			equal(t, "verdict", r.wait().Verdict, "applied")
			s.appliedOnce()
		})
	}
}

// Nor does the time zone of a client, or the one that the database's sessions get. G9
func TestTimeZonesPlayNoPart(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, w *world) {
		if w.dialect == tenant.Postgres {
			w.exec("DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET timezone = ''Asia/Kathmandu''', current_database()); END $$")
		}
		s := newSite(w, "step")
		in := func(zone, point string) *child {
			path, err := testchild()
			check(t, err)
			cmd := exec.Command(path, s.args("apply")...)
			cmd.Env = append(os.Environ(), "TZ="+zone)
			return start(t, point, cmd)
		}
		holder := in("Pacific/Kiritimati", failpoint.BeforeCheckpoint+"#2")
		if !holder.reached() {
			t.Fatal("never passed")
		}
		if r := in("Pacific/Pago_Pago", "").wait(); !r.Busy {
			t.Fatalf("a live lease was taken: %+v", r)
		}
		holder.kill()
		s.expire()
		if r := in("Pacific/Pago_Pago", "").wait(); r.Verdict != "applied" || r.Recovered != 1 {
			t.Fatalf("a lapsed lease was not taken: %+v", r)
		}
		s.appliedOnce()
	})
}

// startSkewed starts testchild with a wall clock that is some seconds off.
func startSkewed(t *testing.T, seconds, point string, args ...string) *child {
	t.Helper()
	path, err := skewed[seconds]()
	check(t, err)
	return start(t, point, exec.Command(path, args...))
}

var skewed = map[string]func() (string, error){
	"0":     func() (string, error) { return testchild() },
	"3600":  sync.OnceValues(func() (string, error) { return buildSkewed("3600") }),
	"-3600": sync.OnceValues(func() (string, error) { return buildSkewed("-3600") }),
}

// buildSkewed builds testchild with a standard library whose time.Now is off. No preloaded library can do that: Go asks the
// kernel itself.
func buildSkewed(seconds string) (string, error) {
	root, err := exec.Command("go", "env", "GOROOT").Output()
	if err != nil {
		return "", err
	}
	original := filepath.Join(strings.TrimSpace(string(root)), "src", "time", "time.go")
	source, err := os.ReadFile(original)
	if err != nil {
		return "", err
	}
	const reading = "sec, nsec, mono := runtimeNow()\n"
	if strings.Count(string(source), reading+"\tif mono == 0 {") != 1 {
		return "", fmt.Errorf("%s: time.Now has another form", original)
	}
	patched := strings.Replace(string(source), reading+"\tif mono == 0 {", reading+"\tsec += "+seconds+"\n\tif mono == 0 {", 1)
	file := filepath.Join(binaries, "time"+seconds+".go")
	if err := os.WriteFile(file, []byte(patched), 0o600); err != nil {
		return "", err
	}
	overlay, err := json.Marshal(map[string]map[string]string{"Replace": {original: file}})
	if err != nil {
		return "", err
	}
	list := filepath.Join(binaries, "overlay"+seconds+".json")
	if err := os.WriteFile(list, overlay, 0o600); err != nil {
		return "", err
	}
	return build("testchild"+seconds, "./testchild", "-overlay", list)
}
