package main

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/belayhq/belay/internal/render"
	"github.com/belayhq/belay/tenant"
)

func TestConnectionsFollowTheWorkersAndTheDatabases(t *testing.T) {
	t.Parallel()
	fleet := func(databases, tenantsEach int) spread {
		s := spread{}
		for i := range databases {
			for range tenantsEach {
				s.add(tenant.Target{Dialect: tenant.Postgres, Database: fmt.Sprint(i)})
			}
		}
		return s
	}
	for _, c := range []struct {
		name                string
		limit, workers      int
		tenants             spread
		perDatabase, atOnce int // at once: databases
	}{
		{"one tenant after the other", 200, 1, nil, 2, 13},
		{"schemas of one database", 200, 64, fleet(1, 1000), 64, 1},
		{"schemas of one database, within a limit", 30, 64, fleet(1, 1000), 26, 1},
		{"a database each", 200, 64, fleet(1000, 1), 2, 65},
		{"a database each, within a limit", 100, 64, fleet(1000, 1), 2, 32},
		{"a few tenants", 200, 64, fleet(3, 1), 2, 3},
		{"four databases of schemas", 200, 64, fleet(4, 1000), 48, 4},
		{"the smallest limit", minMaxConnections, 8, fleet(1000, 1), 2, 2},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			got := connectionsFor(c.limit, c.workers, c.tenants)
			share := got.PerDatabase + renewalConnections
			if got.PerDatabase != c.perDatabase || got.Connections/share < c.atOnce {
				t.Errorf("%+v, want %d for each of %d databases", got, c.perDatabase, c.atOnce)
			}
			if most := min(got.Connections, max(1, len(c.tenants))*share) + controlConnections + renewalConnections; c.tenants != nil && most > c.limit {
				t.Errorf("%+v opens up to %d connections, the limit is %d", got, most, c.limit)
			}
		})
	}
}

func TestAsManyFilesAreOpenAsThereAreWorkers(t *testing.T) {
	t.Parallel()
	const workers = 24
	names := make([]string, workers)
	for i := range names {
		names[i] = fmt.Sprintf("t%02d", i)
	}
	w := fleet(t, names...)
	path := w.endless()
	w.signals = make(chan os.Signal, 2)
	reader, stdout := io.Pipe()
	code := make(chan int, 1)
	var stderr syncBuffer
	go func() {
		code <- w.runWith(stdout, &stderr, "apply", path, "--all", "-y", "-o", "jsonl", "-p", fmt.Sprint(workers))
		stdout.Close()
	}()
	claimed := make(chan int, 1)
	go func() {
		n := 0
		for lines := bufio.NewScanner(reader); lines.Scan(); {
			if strings.Contains(lines.Text(), `"kind":"claimed"`) {
				if n++; n == workers {
					claimed <- n // all at once: none of them ends by itself
				}
			}
		}
	}()
	select {
	case <-claimed:
	case <-time.After(time.Minute):
		t.Errorf("not all of %d tenants were worked on at once", workers)
	}
	w.signals <- syscall.SIGINT
	w.signals <- syscall.SIGINT
	if got := within(t, code); got != exitInterrupt {
		t.Errorf("exit code %d\n%s", got, stderr.String())
	}
}

func TestSchemasOfOnePostgreSQLAreWorkedOnAtOnce(t *testing.T) {
	t.Parallel()
	const workers = 20
	names := make([]string, workers)
	for i := range names {
		names[i] = fmt.Sprintf("t%02d", i)
	}
	w := schemas(t, names...)
	w.ok("apply", w.customers("stop"), "--all", "-y", "-p", "4")
	path := w.change("0002-more", map[string]string{
		"change.yaml": "version: 1\nid: 0002-more\nsteps:\n  - id: more\n    sql: { up: up.sql }\n    undo: { none: nobody minds }\n",
		"up.sql":      "UPDATE customer SET name = name;",
	})

	// Somebody else has every tenant's table, so that each step waits on a connection of its own.
	conn, err := pgx.Connect(t.Context(), w.url)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	tx, err := conn.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		if _, err := tx.Exec(t.Context(), "LOCK TABLE "+name+".customer"); err != nil {
			t.Fatal(err)
		}
	}
	done := make(chan result, 1)
	go func() { done <- w.run("apply", path, "--all", "-y", "-p", fmt.Sprint(workers)) }()
	var most int
	const countWaiting = `SELECT count(DISTINCT pid) FROM pg_locks, pg_sleep(0.05) WHERE NOT granted AND relation IS NOT NULL
AND database = (SELECT oid FROM pg_database WHERE datname = current_database())`
	for deadline := time.Now().Add(8 * time.Second); most < workers && time.Now().Before(deadline); {
		var n int
		if err := tx.QueryRow(t.Context(), countWaiting).Scan(&n); err != nil {
			t.Fatal(err)
		}
		most = max(most, n)
	}
	if most < workers {
		t.Errorf("at most %d of %d tenants were worked on at once", most, workers)
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if r := within(t, done); r.code != exitDone {
		t.Errorf("exit code %d\n%s", r.code, r.stderr)
	}
	if sum := decode[render.Status](t, w.ok("status", "-o", "json").stdout).Summary; sum.Applied != 2*workers {
		t.Errorf("%+v", sum)
	}
}

// within receives from a channel, or fails the test.
func within[T any](t *testing.T, from <-chan T) T {
	t.Helper()
	select {
	case v := <-from:
		return v
	case <-time.After(time.Minute):
		t.Fatal("nothing came within a minute")
	}
	panic("not reached")
}
