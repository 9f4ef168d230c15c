package integration

import (
	"testing"

	"github.com/belayhq/belay/integration/checker"
	"github.com/belayhq/belay/integration/testchild/fake"
	"github.com/belayhq/belay/storage"
	"github.com/belayhq/belay/storage/postgres"
	"github.com/belayhq/belay/storage/sqlite"
	"github.com/belayhq/belay/tenant"
)

// watched makes Belay's tables, and has a witness write down all that is committed to them.
func (w *world) watched() *world {
	w.t.Helper()
	if w.witness != nil {
		return w
	}
	migrate(w.t, w.tenant("acme"))
	where := w.url
	if w.dialect == tenant.SQLite {
		where = w.path
	}
	witness, err := checker.Open(w.dialect, where)
	check(w.t, err)
	w.t.Cleanup(func() { check(w.t, witness.Close()) })
	check(w.t, witness.Watch(w.t.Context()))
	w.witness = witness
	return w
}

func migrate(t *testing.T, of tenant.Tenant) {
	t.Helper()
	driver := map[tenant.Dialect]storage.Driver{tenant.Postgres: postgres.Driver(), tenant.SQLite: sqlite.Driver()}[of.Target.Dialect]
	db, err := driver.Open(t.Context(), of.Target, storage.Options{Connections: 2})
	check(t, err)
	defer db.Close()
	_, _, err = db.Migrate(t.Context())
	check(t, err)
}

// evidence is all that there is to know about what happened to the site.
func (s *site) evidence() checker.Evidence {
	s.t.Helper()
	e, err := s.witness.Read(s.t.Context())
	check(s.t, err)
	e.Calls, err = fake.Calls(s.outside)
	check(s.t, err)
	e.Data = map[tenant.ID]checker.Data{s.id: {Before: s.before, Now: s.dump()}}
	return e
}

// sound demands that everything that happened to a site under watch was as it must be.
func (s *site) sound() {
	s.t.Helper()
	if s.witness == nil {
		return
	}
	for _, v := range checker.Check(s.evidence()) {
		s.t.Error(v)
	}
}
