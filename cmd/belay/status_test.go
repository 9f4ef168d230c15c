package main

import (
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/belayhq/belay/internal/render"
)

func TestStatusTellsWhoLagsBehindADirectory(t *testing.T) {
	t.Parallel()
	onBoth(t, []string{"acme", "bolt", "crate"}, func(t *testing.T, w *world) {
		w.customers("stop")
		w.ok("apply", "changes", "-t", "acme,bolt", "-y")
		w.orders()
		w.ok("apply", "changes", "-t", "acme", "-y")
		r := w.ok("status", "--behind", "changes")
		contains(t, r.stdout, "behind:  2 tenants", "bolt    idle  1       0002-orders", "crate   idle  2       0001-customer, 0002-orders")
		lacks(t, r.stdout, "acme")
		status := decode[render.Status](t, w.ok("status", "--behind", "changes", "-o", "json").stdout)
		if n := status.Summary.Behind; n == nil || *n != 2 {
			t.Errorf("behind: %v", n)
		}
		for i, want := range []string{"", "0002-orders", "0001-customer 0002-orders"} {
			if got := strings.Join(status.Tenants[i].Behind, " "); got != want || status.Tenants[i].Behind == nil {
				t.Errorf("%s lacks %q, want %q", status.Tenants[i].Tenant, got, want)
			}
		}
		lacks(t, w.ok("status", "-o", "json").stdout, "behind")

		// What the one command lists, the other takes.
		w.stdin = w.ok("status", "--behind", "changes", "-o", "name").stdout
		if w.stdin != "bolt\ncrate\n" {
			t.Errorf("names: %q", w.stdin)
		}
		contains(t, w.ok("apply", "changes", "--tenants-from", "-", "-y").stdout, "2 applied")
		if names := w.ok("status", "--behind", "changes", "-o", "name").stdout; names != "" {
			t.Errorf("still behind: %q", names)
		}
	})
}

func TestAHalfAppliedAndAHalfUndoneChangeAreLacking(t *testing.T) {
	t.Parallel()
	w := fleet(t, "acme", "bolt")
	w.write(w.customers("stop")+"/table.down.sql", "DROP TABLE missing;\n")
	w.ok("apply", "changes", "-t", "bolt", "-y")
	w.want(exitPerson, "rollback", "0001-customer", "-t", "bolt", "-y")
	w.want(exitPerson, "apply", w.broken("stop"), "-t", "acme", "-y")
	if names := w.ok("status", "--behind", "changes", "-o", "name").stdout; names != "acme\nbolt\n" {
		t.Errorf("behind: %q", names)
	}
}

func TestNamesAreOneALine(t *testing.T) {
	t.Parallel()
	w := fleet(t, "acme", "bolt")
	for _, args := range []string{"tenant list", "tenant show acme bolt", "status -v"} {
		if names := w.ok(append(strings.Fields(args), "-o", "name")...).stdout; names != "acme\nbolt\n" {
			t.Errorf("%s: %q", args, names)
		}
	}
	contains(t, w.want(exitUsage, "apply", "x", "--all", "-o", "name").stderr, "the names of tenants, one a line")
	w.env["BELAY_OUTPUT"] = "name"
	w.want(exitUsage, "history")
}

// stopped is standard output that stops the program once a text has been written there so many times.
type stopped struct {
	syncBuffer
	text  string
	times int
	stop  func()
}

func (s *stopped) Write(p []byte) (int, error) {
	n, err := s.syncBuffer.Write(p)
	if strings.Count(s.String(), s.text) == s.times {
		s.stop()
	}
	return n, err
}

func TestAWatchShowsWhatChangesUntilItIsStopped(t *testing.T) {
	t.Parallel()
	for name, terminal := range map[string]bool{"file": false, "terminal": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := fleet(t, "acme")
			path := w.customers("stop")
			w.terminal = terminal
			w.signals = make(chan os.Signal, 1)
			out := &stopped{text: "plans:   1 applied", times: 2, stop: func() { w.signals <- syscall.SIGINT }}
			first := &stopped{text: "plans:   1 tenant without one", times: 1, stop: func() {
				other := *w
				other.signals = nil
				other.ok("apply", path, "--all", "-y")
			}}
			var stderr syncBuffer
			code := w.runWith(both{out, first}, &stderr, "status", "-w", "--every", "1ms")
			if code != exitInterrupt {
				t.Errorf("exit code %d: %s", code, stderr.String())
			}
			if cleared := strings.Contains(out.String(), "\x1b["); cleared != terminal {
				t.Errorf("on a terminal: %v, cleared: %v", terminal, cleared)
			}
		})
	}
	w := fleet(t, "acme")
	w.want(exitUsage, "status", "-w", "-o", "json")
	w.want(exitUsage, "status", "-w", "--every", "0s")
	w.want(exitUsage, "status", "--behind", "")
}

// both writes to two.
type both [2]*stopped

func (b both) Write(p []byte) (int, error) {
	if n, err := b[0].Write(p); err != nil {
		return n, err
	}
	return b[1].Write(p)
}

func TestAShellIsOfferedTenantsAndChanges(t *testing.T) {
	t.Parallel()
	w := fleet(t, "acme", "bolt", "bunker")
	w.customers("stop")
	w.orders()
	for args, want := range map[string]string{
		"apply changes -t b":         "bolt bunker",
		"tenant show a":              "acme",
		"resolve bo":                 "bolt",
		"apply changes/":             "changes/0001-customer changes/0002-orders",
		"change validate changes/00": "changes/0001-customer changes/0002-orders",
		"status --behind ch":         "changes",
		"status -o j":                "table json jsonl name", // which of them begin so, the shell sees
		"lock sh":                    "show",
	} {
		out := w.ok(append([]string{"__completeNoDesc"}, strings.Fields(args)...)...).stdout
		if offered, _, _ := strings.Cut(out, "\n:"); strings.Join(strings.Fields(offered), " ") != want {
			t.Errorf("%s: offered %q, want %q", args, offered, want)
		}
	}
	nowhere := newWorld(t)
	if out := nowhere.ok("__completeNoDesc", "status", "-t", "a").stdout; !strings.HasPrefix(out, ":4") {
		t.Errorf("without a control database: %q", out)
	}
	for _, shell := range []string{"bash", "zsh", "fish", "powershell"} {
		contains(t, w.ok("completion", shell).stdout, "belay")
	}
}
