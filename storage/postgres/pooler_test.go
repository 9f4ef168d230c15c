package postgres_test

import (
	"sync"
	"testing"

	"github.com/belayhq/belay/internal/hosttool"
	"github.com/belayhq/belay/internal/postgrestest"
	"github.com/belayhq/belay/storage"
	"github.com/belayhq/belay/storage/storagetest"
)

// own is a cluster beside the shared one, for tests that crash it or put a pooler before it.
var own = sync.OnceValues(func() (*postgrestest.Server, error) { return postgrestest.Own(nil) })

func ownServer(t *testing.T) *postgrestest.Server {
	t.Helper()
	server, err := own()
	if err != nil {
		t.Fatal(err)
	}
	return server
}

// Behind a pooler in transaction mode every transaction may run in another session, and prepared statements are lost.
func TestPostgresBehindAPoolerKeepsTheContract(t *testing.T) {
	t.Parallel()
	pooler, err := postgrestest.NewPooler(hosttool.Path(t, "pgbouncer", "pgbouncer"), ownServer(t))
	if err != nil {
		t.Fatal(err)
	}
	storagetest.Run(t, func(t *testing.T) storagetest.Harness {
		url := ownServer(t).URL(t)
		pooled, err := pooler.URL(url)
		if err != nil {
			t.Fatal(err)
		}
		h := harness(t, url)
		h.Open = func(t *testing.T) storage.Database { return open(t, pooled) }
		return h
	})
}
