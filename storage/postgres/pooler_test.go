package postgres_test

import (
	"sync"
	"sync/atomic"
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

// Behind a pooler in transaction mode every transaction may run in another session, and prepared statements are lost. There are
// two poolers: of two processes that work on a tenant each comes by one of its own. G1
func TestPostgresBehindAPoolerKeepsTheContract(t *testing.T) {
	t.Parallel()
	var poolers [2]*postgrestest.Pooler
	for i := range poolers {
		pooler, err := postgrestest.NewPooler(hosttool.Path(t, "pgbouncer", "pgbouncer"), ownServer(t))
		if err != nil {
			t.Fatal(err)
		}
		poolers[i] = pooler
	}
	storagetest.Run(t, func(t *testing.T) storagetest.Harness {
		url := ownServer(t).URL(t)
		var opened atomic.Uint64
		h := harness(t, url)
		h.Open = func(t *testing.T) storage.Database {
			pooled, err := poolers[opened.Add(1)%2].URL(url)
			if err != nil {
				t.Fatal(err)
			}
			return open(t, pooled)
		}
		return h
	})
}
