package storage

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"github.com/rs/zerolog"
	"golang.org/x/sync/semaphore"

	"github.com/belayhq/belay/engine"
	"github.com/belayhq/belay/internal/logkey"
	"github.com/belayhq/belay/tenant"
)

const (
	defaultConnections = 40
	defaultPerDatabase = 8

	// minConnections lets one database of any kind be open.
	minConnections = 2
	// sqliteConnections are one to write and one to read: a file is one tenant, and one process works on it at a time.
	sqliteConnections = 2
)

// ErrDirectoryClosed is returned by a Directory after its Close.
var ErrDirectoryClosed = errors.New("directory is closed")

// DirectoryConfig bounds the connections of a process. The zero value is a working configuration.
type DirectoryConfig struct {
	// Connections is the cap over all databases together, those for renewals included. Default 40, at least 2.
	Connections int
	// PerDatabase is how many one PostgreSQL database may use beside the one for renewals. Default 8. It is lowered
	// where Connections allows no more. SQLite files use two.
	PerDatabase int
	Log         zerolog.Logger
}

func (c DirectoryConfig) withDefaults() DirectoryConfig {
	if c.Connections == 0 {
		c.Connections = defaultConnections
	}
	if c.PerDatabase == 0 {
		c.PerDatabase = defaultPerDatabase
	}
	return c
}

// validate returns all problems joined.
func (c DirectoryConfig) validate() error {
	var problems []error
	if c.Connections < minConnections {
		problems = append(problems, fmt.Errorf("config.Connections is %d, want at least %d", c.Connections, minConnections))
	}
	if c.PerDatabase < 1 {
		problems = append(problems, fmt.Errorf("config.PerDatabase is %d, want at least 1", c.PerDatabase))
	}
	return errors.Join(problems...)
}

// Directory opens the databases of tenants within one cap on connections. Tenants of one database share it. A database
// that nobody uses stays open for the next who asks, until another needs its place; the longest unused goes first. It is
// safe for concurrent use.
type Directory struct {
	cfg     DirectoryConfig
	drivers map[tenant.Dialect]Driver
	// room holds the connections that may still be opened. A database takes its share before it is opened and gives it
	// back after it is closed.
	room *semaphore.Weighted
	// life ends with Close, so that nobody waits for room in a closed directory.
	life   context.Context
	finish context.CancelFunc

	mu      sync.Mutex
	entries []*entry // all that are open or being opened; few, because the cap bounds them
	idle    []*entry // those without users, the longest unused first; empty while anybody waits for room
	waiting int      // callers that wait for room
	taken   int64    // connections taken from room
	closed  bool
}

var _ engine.Directory = (*Directory)(nil)

// entry is one database, from the moment that somebody asks for it.
type entry struct {
	target tenant.Target
	file   os.FileInfo // of a SQLite file that exists
	share  int64
	users  int // callers that hold it or wait for it to be opened; guarded by Directory.mu

	// The rest is written once, before opened is closed.
	opened    chan struct{}
	db        Database
	err       error
	cancelled bool // whoever opened it gave up; the error is that caller's own
}

// DirectoryStats is what a directory has open.
type DirectoryStats struct {
	Databases int // open or being opened
	Idle      int // of these, without a user
	// Connections is the sum of what these databases may use; it never exceeds the cap.
	Connections int
	Waiting     int // callers that wait until another database can be closed
}

// NewDirectory returns a directory over the kinds of database that the drivers open. It opens nothing by itself. The
// error joins everything that is wrong with the arguments.
func NewDirectory(cfg DirectoryConfig, drivers ...Driver) (*Directory, error) {
	cfg = cfg.withDefaults()
	problems := []error{cfg.validate()}
	if len(drivers) == 0 {
		problems = append(problems, errors.New("no driver is given"))
	}
	byDialect := make(map[tenant.Dialect]Driver, len(drivers))
	for _, driver := range drivers {
		if _, twice := byDialect[driver.Dialect()]; twice {
			problems = append(problems, fmt.Errorf("two drivers for %s are given", driver.Dialect()))
		}
		byDialect[driver.Dialect()] = driver
	}
	if err := errors.Join(problems...); err != nil {
		return nil, fmt.Errorf("directory: %w", err)
	}
	life, finish := context.WithCancel(context.Background())
	return &Directory{
		cfg:     cfg,
		drivers: byDialect,
		room:    semaphore.NewWeighted(int64(cfg.Connections)),
		life:    life,
		finish:  finish,
	}, nil
}

// Open returns the database of a tenant's target as the engine sees it; see [Directory.OpenDatabase].
func (d *Directory) Open(ctx context.Context, t tenant.Tenant) (engine.Store, func(), error) {
	db, release, err := d.OpenDatabase(ctx, t.Target)
	if err != nil {
		return nil, nil, err
	}
	return db, release, nil
}

// OpenDatabase returns the database of a target; the target's scope plays no part, and of several targets in one
// database the first one's PasswordEnv counts. While all connections are taken by databases in use, it waits until one
// is released or ctx ends, so a caller that holds one database and asks for another needs a deadline.
//
// Release may be called more than once; nothing may use the database after the first. Errors: ErrDirectoryClosed,
// ctx's, or those of the driver.
func (d *Directory) OpenDatabase(ctx context.Context, target tenant.Target) (db Database, release func(), err error) {
	driver, ok := d.drivers[target.Dialect]
	if !ok {
		return nil, nil, fmt.Errorf("directory: no driver for %q databases", target.Dialect)
	}
	target, file := locate(target)
	for {
		e, first, err := d.join(target, file)
		if err != nil {
			return nil, nil, err
		}
		if first {
			d.open(ctx, e, driver)
		}
		if err := e.wait(ctx); err != nil {
			d.leave(e)
			return nil, nil, err
		}
		switch {
		case e.err == nil:
			return e.db, sync.OnceFunc(func() { d.leave(e) }), nil
		case first || !e.cancelled:
			return nil, nil, e.err
		}
		// The caller that opened it was cancelled, which says nothing about the database: ask again.
	}
}

// Stats returns what is open now.
func (d *Directory) Stats() DirectoryStats {
	d.mu.Lock()
	defer d.mu.Unlock()
	return DirectoryStats{
		Databases:   len(d.entries),
		Idle:        len(d.idle),
		Connections: int(d.taken),
		Waiting:     d.waiting,
	}
}

// Close closes every database that is not in use; one in use is closed when its last user releases it. Callers that wait
// get ErrDirectoryClosed. It is idempotent.
func (d *Directory) Close() {
	d.mu.Lock()
	d.closed = true
	idle := d.idle
	d.idle = nil
	for _, e := range idle {
		d.forget(e)
	}
	d.mu.Unlock()
	d.finish()
	for _, e := range idle {
		d.shut(e)
	}
}

// join makes the caller a user of the target's entry, and reports whether it is the first and so must open it.
func (d *Directory) join(target tenant.Target, file os.FileInfo) (e *entry, first bool, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return nil, false, ErrDirectoryClosed
	}
	i := slices.IndexFunc(d.entries, func(e *entry) bool { return e.serves(target, file) })
	if i >= 0 {
		e = d.entries[i]
		if e.users == 0 {
			d.idle = slices.DeleteFunc(d.idle, func(other *entry) bool { return other == e })
		}
		e.users++
		return e, false, nil
	}
	e = &entry{target: target, file: file, users: 1, opened: make(chan struct{})}
	d.entries = append(d.entries, e)
	return e, true, nil
}

// leave ends one use of an entry. Without another the database becomes idle, or is closed if its place is wanted.
func (d *Directory) leave(e *entry) {
	d.mu.Lock()
	e.users--
	if e.users > 0 || !slices.Contains(d.entries, e) {
		d.mu.Unlock()
		return
	}
	if d.waiting == 0 && !d.closed {
		d.idle = append(d.idle, e)
		d.mu.Unlock()
		return
	}
	d.forget(e)
	d.mu.Unlock()
	d.shut(e)
}

// open opens an entry in the goroutine and with the context of its first user. All others wait for opened to be closed.
func (d *Directory) open(ctx context.Context, e *entry, driver Driver) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(d.life, func() { cancel(ErrDirectoryClosed) })()

	var db Database
	err := errors.New("directory: driver panicked") // unless it is overwritten
	defer func() {
		e.db, e.err, e.cancelled = db, err, ctx.Err() != nil
		if err != nil {
			d.drop(e)
		}
		close(e.opened)
	}()
	connections, share := d.share(e.target.Dialect)
	if refused := d.reserve(ctx, e, share); refused != nil {
		err = refused
		return
	}
	db, err = driver.Open(ctx, e.target, Options{Connections: connections, Log: d.cfg.Log})
	if err != nil && errors.Is(context.Cause(ctx), ErrDirectoryClosed) {
		err = ErrDirectoryClosed // rather than what the driver makes of a cancelled context
	}
}

// reserve takes an entry's share of the room, closing idle databases as long as there is too little.
func (d *Directory) reserve(ctx context.Context, e *entry, share int64) error {
	for {
		d.mu.Lock()
		if d.room.TryAcquire(share) {
			d.take(e, share)
			d.mu.Unlock()
			return nil
		}
		if len(d.idle) == 0 {
			break
		}
		oldest := d.idle[0]
		d.idle = slices.Delete(d.idle, 0, 1)
		d.forget(oldest)
		d.mu.Unlock()
		d.shut(oldest)
	}
	// From here on whoever releases a database closes it.
	d.waiting++
	d.mu.Unlock()
	err := d.room.Acquire(ctx, share)
	d.mu.Lock()
	defer d.mu.Unlock()
	d.waiting--
	if err != nil {
		return fmt.Errorf("wait for connections, all %d are in use: %w", d.cfg.Connections, context.Cause(ctx))
	}
	d.take(e, share)
	return nil
}

// take notes what an entry has of the room. The caller has locked mu.
func (d *Directory) take(e *entry, share int64) {
	e.share = share
	d.taken += share
}

// forget makes an entry unknown, so that it gets no more users. The caller has locked mu.
func (d *Directory) forget(e *entry) {
	d.entries = slices.DeleteFunc(d.entries, func(other *entry) bool { return other == e })
}

// drop forgets an entry that could not be opened.
func (d *Directory) drop(e *entry) {
	d.mu.Lock()
	d.forget(e)
	d.mu.Unlock()
	d.giveBack(e)
}

// shut closes the database of a forgotten entry. It does not hold mu, because closing may take a round trip.
func (d *Directory) shut(e *entry) {
	e.db.Close()
	d.giveBack(e)
	d.cfg.Log.Debug().Stringer(logkey.Target, e.target).Msg("database closed")
}

// giveBack comes after the connections are closed, else there would be more than the cap for a moment.
func (d *Directory) giveBack(e *entry) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.taken -= e.share
	d.room.Release(e.share)
	e.share = 0
}

// share is how many connections a database is opened with, and how many it takes of the room.
func (d *Directory) share(dialect tenant.Dialect) (connections int, share int64) {
	if dialect == tenant.SQLite {
		return sqliteConnections, sqliteConnections // renewals use the one that writes
	}
	connections = min(d.cfg.PerDatabase, d.cfg.Connections-RenewalConnections)
	return connections, int64(connections + RenewalConnections)
}

// wait returns nil as soon as the entry is opened or failed to, also if ctx has ended by then.
func (e *entry) wait(ctx context.Context) error {
	select {
	case <-e.opened:
		return nil
	default:
	}
	select {
	case <-e.opened:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// serves reports whether an entry is the database of a located target. Two names of one SQLite file are one database,
// because its locks and its log would otherwise not know of each other; a file that has replaced another under the same
// name is a second one.
func (e *entry) serves(target tenant.Target, file os.FileInfo) bool {
	if e.target.Dialect != target.Dialect {
		return false
	}
	if e.file != nil && file != nil {
		return os.SameFile(e.file, file)
	}
	return e.target.Database == target.Database
}

// locate resolves the links in a SQLite path and looks the file up. A file that is not there, or cannot be looked at, is
// left for the driver to judge.
func locate(target tenant.Target) (tenant.Target, os.FileInfo) {
	if target.Dialect != tenant.SQLite {
		return target, nil
	}
	path, err := filepath.EvalSymlinks(target.Database)
	if err != nil {
		// The file may be about to be made, in a folder that is itself behind a link.
		if folder, err := filepath.EvalSymlinks(filepath.Dir(target.Database)); err == nil {
			target.Database = filepath.Join(folder, filepath.Base(target.Database))
		}
		return target, nil
	}
	target.Database = path
	file, err := os.Stat(path)
	if err != nil {
		return target, nil
	}
	return target, file
}
