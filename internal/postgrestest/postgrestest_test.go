package postgrestest_test

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/belayhq/belay/internal/postgrestest"
)

// asChild has the test binary start a cluster, print its directory and wait to be killed.
const asChild = "BELAY_POSTGRESTEST_CHILD"

func TestADatabaseIsFreshAndReachableBothWays(t *testing.T) {
	t.Parallel()
	for _, url := range []string{postgrestest.URL(t), postgrestest.LoopbackURL(t)} {
		conn, err := pgx.Connect(t.Context(), url)
		if err != nil {
			t.Fatal(err)
		}
		var tables int
		if err := conn.QueryRow(t.Context(), `SELECT count(*) FROM pg_tables WHERE schemaname = 'public'`).Scan(&tables); err != nil || tables != 0 {
			t.Errorf("a fresh database has %d tables (%v)", tables, err)
		}
		if _, err := conn.Exec(t.Context(), `CREATE TABLE public.mine (n integer)`); err != nil {
			t.Error(err)
		}
		if err := conn.Close(t.Context()); err != nil {
			t.Error(err)
		}
	}
}

func TestAKilledTestProcessLeavesNothing(t *testing.T) {
	if os.Getenv(asChild) != "" {
		fmt.Println("socket", postgrestest.Cluster(t).Socket())
		select {}
	}
	if os.Getenv(postgrestest.Env) != "" {
		return // the server is not ours, and outlives us rightly
	}
	cmd := exec.Command(os.Args[0], "-test.run=^TestAKilledTestProcessLeavesNothing$")
	cmd.Env = append(os.Environ(), asChild+"=1")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var socket string
	for lines := bufio.NewScanner(out); socket == "" && lines.Scan(); {
		socket, _ = strings.CutPrefix(lines.Text(), "socket ")
	}
	if _, err := os.Stat(socket); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // killed, as asked
	deadline := time.After(20 * time.Second)
	for tick := time.Tick(20 * time.Millisecond); ; {
		if _, err := os.Stat(filepath.Dir(socket)); errors.Is(err, fs.ErrNotExist) {
			return
		}
		select {
		case <-tick:
		case <-deadline:
			t.Fatalf("%s is still there", filepath.Dir(socket))
		}
	}
}
