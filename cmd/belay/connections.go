package main

import (
	"github.com/belayhq/belay/storage"
	"github.com/belayhq/belay/tenant"
)

const (
	// controlConnections are for work on the control database; it has renewalConnections beside them.
	controlConnections = 2
	// renewalConnections is what a PostgreSQL database uses beside those for work.
	renewalConnections = 1
	// minPerDatabase lets a database be read while it is written.
	minPerDatabase = 2
	// idleConnections is a cap that is always allowed, if there is room, so that databases can stay open between two uses.
	idleConnections = 40
)

// spread is how the tenants of a selection are spread over databases.
type spread map[database]int

// database names one database, whatever scope in it a target means.
type database struct {
	dialect tenant.Dialect
	name    string
}

func (s spread) add(t tenant.Target) { s[database{t.Dialect, t.Database}]++ }

// widest is the number of tenants in the database that has most of them.
func (s spread) widest() int {
	most := 0
	for _, n := range s {
		most = max(most, n)
	}
	return most
}

// connectionsFor bounds the connections to tenants' databases so that all workers find one, as far as limit allows: it
// bounds them together with those to the control database.
func connectionsFor(limit, workers int, tenants spread) storage.DirectoryConfig {
	room := limit - controlConnections - renewalConnections
	// One more than there are workers: the next tenants are looked at while all workers are busy.
	open := max(1, min(workers+1, len(tenants)))
	perDatabase := max(minPerDatabase, min(workers, tenants.widest(), room/open-renewalConnections))
	share := perDatabase + renewalConnections
	c := storage.DirectoryConfig{PerDatabase: perDatabase, Connections: min(room, max(open*share, idleConnections))}
	if len(tenants) == 1 {
		// A directory lets no database take more than half of its cap, to have room for a second one. There is none.
		c.Connections = 2 * share
	}
	return c
}
