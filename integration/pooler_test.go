package integration

import (
	"os"
	"sync"
	"testing"

	"github.com/belayhq/belay/internal/hosttool"
	"github.com/belayhq/belay/internal/postgrestest"
	"github.com/belayhq/belay/tenant"
)

// poolerEnv has the tests of this package reach PostgreSQL through PgBouncer, and leaves SQLite out: see make test-pooler.
const poolerEnv = "BELAY_TEST_POOLER"

func pooled() bool { return os.Getenv(poolerEnv) != "" }

// dialects are the databases that tests run on.
func dialects() []tenant.Dialect {
	if pooled() {
		return []tenant.Dialect{tenant.Postgres}
	}
	return []tenant.Dialect{tenant.Postgres, tenant.SQLite}
}

// pooler is a PgBouncer and the cluster behind it.
type pooler struct {
	*postgrestest.Pooler
	server *postgrestest.Server
}

var sharedPooler = sync.OnceValues(func() (pooler, error) {
	server, err := postgrestest.Own(nil)
	if err != nil {
		return pooler{}, err
	}
	p, err := postgrestest.NewPooler("pgbouncer", server)
	return pooler{p, server}, err
})

// newWorldBehindAPooler is a tenant that Belay reaches through PgBouncer in transaction mode, and the test itself directly.
func newWorldBehindAPooler(t *testing.T) *world {
	t.Helper()
	hosttool.Path(t, "pgbouncer", "pgbouncer")
	p, err := sharedPooler()
	check(t, err)
	w := newWorldAt(t, p.server.URL(t))
	through, err := p.URL(w.url)
	check(t, err)
	w.target = withSchema(through, w.scope)
	return w
}
