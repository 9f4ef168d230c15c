package sqlite

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/belayhq/belay/sitelock"
	"github.com/belayhq/belay/storage"
	"github.com/belayhq/belay/tenant"
)

var crowded = flag.Duration("crowded", 3*time.Second, "how long many processes write to one file at once")

const (
	crowdProcesses = 4
	crowdCallers   = 16 // in each process
)

// childOf is the test once more, in a process of its own, where isChild says so.
func childOf(t *testing.T, env ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+t.Name()+"$", "-test.timeout="+(*crowded+2*time.Minute).String(), "-crowded="+crowded.String())
	cmd.Env = append(os.Environ(), append(env, "BELAY_TEST_CHILD=1")...)
	return cmd
}

func isChild() bool { return os.Getenv("BELAY_TEST_CHILD") != "" }

// However many write to one file at once, in however many processes, each gets its turn: nobody is told that the database is
// busy. G1, G7
func TestManyProcessesThatWriteToOneFileAllGetTheirTurn(t *testing.T) {
	if isChild() {
		crowd(t, os.Getenv("CROWD_FILE"), os.Getenv("CROWD_NAME"))
		return
	}
	t.Parallel()
	d := newDatabase(t)
	d.exec(t, "CREATE TABLE item (owner TEXT NOT NULL)")
	var all sync.WaitGroup
	var terms atomic.Int64
	for n := range crowdProcesses {
		cmd := childOf(t, "CROWD_FILE="+d.path, fmt.Sprint("CROWD_NAME=", n))
		all.Go(func() {
			var out bytes.Buffer
			cmd.Stdout, cmd.Stderr = &out, &out
			err := cmd.Run()
			_, after, found := strings.Cut(out.String(), "terms: ")
			count, convErr := strconv.Atoi(strings.TrimSpace(strings.Split(after, "\n")[0]))
			if err != nil || !found || convErr != nil {
				t.Errorf("process %d: %v\n%s", n, err, out.String())
			}
			terms.Add(int64(count))
		})
	}
	all.Wait()
	t.Logf("%d terms in %s", terms.Load(), *crowded)
	for query, want := range map[string]string{
		"PRAGMA integrity_check":                                        "ok",
		"SELECT count(*) FROM item":                                     fmt.Sprint(terms.Load()),
		"SELECT sum(fence) FROM belay_site_lock":                        fmt.Sprint(terms.Load()),
		"SELECT count(*) FROM belay_plan WHERE status <> 'applied'":     "0",
		"SELECT count(*) FROM belay_site_lock WHERE holder IS NOT NULL": "0",
	} {
		if got := d.query(t, query); got != want {
			t.Errorf("%s: %s, want %s", query, got, want)
		}
	}
}

// crowd is what each of the processes does: callers with a tenant each, term after term, beside reads and leases.
func crowd(t *testing.T, path, name string) {
	s, err := Open(t.Context(), path, storage.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	ctx, cancel := context.WithTimeout(t.Context(), *crowded)
	defer cancel()
	var all sync.WaitGroup
	var terms atomic.Int64
	for n := range crowdCallers {
		all.Go(func() {
			id := tenant.NewID()
			for k := 0; ctx.Err() == nil; k++ {
				if err := crowdTerm(t.Context(), s, id, fmt.Sprintf("%s/%d", name, n), k); err != nil {
					t.Errorf("caller %d: %v", n, err)
					return
				}
				terms.Add(1)
			}
		})
	}
	all.Wait()
	fmt.Println("terms:", terms.Load())
}

func crowdTerm(ctx context.Context, s *Store, id tenant.ID, scope string, k int) error {
	req := request(id)
	req.Scope, req.Claim = scope, apply(change(fmt.Sprintf("%06d", k), 1))
	grant, err := s.Acquire(ctx, req)
	if err != nil {
		return fmt.Errorf("acquire: %w", err)
	}
	if grant.Claimed == nil {
		return errors.New("the claim was refused")
	}
	if lost, err := s.Renew(ctx, []sitelock.Held{grant.Held}, time.Minute); err != nil || len(lost) > 0 {
		return fmt.Errorf("renew: %v, %w", lost, err)
	}
	if _, err := s.State(ctx, id); err != nil {
		return fmt.Errorf("state: %w", err)
	}
	if _, _, err := s.AcquireLease(ctx, "lease of "+scope, req.Holder, req.Process, time.Minute); err != nil {
		return fmt.Errorf("lease: %w", err)
	}
	return s.Checkpoint(ctx, grant.Held, finish(grant, sqlStep(0, "INSERT INTO item VALUES ('"+scope+"')")))
}
