package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/mattn/go-sqlite3"
	"golang.org/x/sync/semaphore"

	"github.com/belayhq/belay/plan"
	"github.com/belayhq/belay/storage"

	// Its error comes before all others where cgo is off.
	_ "github.com/belayhq/belay/storage/sqlite/internal/needcgo"
	"github.com/belayhq/belay/tenant"
)

const (
	defaultConnections = 8
	// busyTimeout is how long SQLite itself waits for another process's transaction. It naps longer and longer, and so would
	// starve beside a process that writes without a pause: most of the waiting is done in patiently.
	busyTimeout = 10 * time.Millisecond
	// minVersion is 3.51.3, the first release without the bug that let a WAL reset lose a commit.
	minVersion = 3_051_003
)

// Driver opens SQLite files as [storage.Database].
func Driver() storage.Driver { return driver{} }

type driver struct{}

func (driver) Dialect() tenant.Dialect { return tenant.SQLite }

func (driver) Open(ctx context.Context, target tenant.Target, opts storage.Options) (storage.Database, error) {
	s, err := Open(ctx, target.Database, opts)
	if err != nil {
		return nil, err
	}
	return s, nil
}

// Create makes the file of a target, as the function [Create] does.
func (driver) Create(ctx context.Context, target tenant.Target) error {
	return Create(ctx, target.Database)
}

// Store is one SQLite file. It is safe for concurrent use, also beside other processes.
type Store struct {
	// writer has one connection, which belongs to whoever has the turn. Reads of Belay's tables take the turn if it is free;
	// so most files are opened once.
	writer *sql.DB
	turn   *semaphore.Weighted
	// reader opens connections as reads find the turn taken.
	reader *sql.DB

	// migrated is set once Belay's tables are known to be there, in this binary's version.
	migrated  atomic.Bool
	migrating sync.Mutex
	// stored remembers changes that this database has, by digest: only what was committed.
	stored sync.Map
}

var _ storage.Database = (*Store)(nil)

// Open opens an existing file. Errors: storage.ErrNoDatabase; a file that is no database, on a network file system, or
// read by a SQLite that is too old is refused.
func Open(ctx context.Context, path string, opts storage.Options) (*Store, error) {
	s, err := open(ctx, path, opts)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", path, err)
	}
	return s, nil
}

func open(ctx context.Context, path string, opts storage.Options) (*Store, error) {
	file, err := locate(path)
	if err != nil {
		return nil, err
	}
	connections := opts.Connections
	if connections == 0 {
		connections = defaultConnections
	}
	s := &Store{
		writer: sql.OpenDB(&connector{file: file, dsn: dsn(file.path, "rw", writing)}),
		turn:   semaphore.NewWeighted(1),
		reader: sql.OpenDB(&connector{file: file, dsn: dsn(file.path, "rw", reading)}),
	}
	s.writer.SetMaxOpenConns(1)
	s.reader.SetMaxOpenConns(max(1, connections-1))
	// An idle connection keeps its file open, and thereby the identity of the file taken.
	s.reader.SetMaxIdleConns(max(1, connections-1))
	if _, err := s.schemaVersion(ctx); err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

// Close closes the connections that are idle, and each of the others when its call returns. It waits for none.
func (s *Store) Close() {
	// An error here is of a checkpoint of the WAL, which the next process to open the file repeats.
	_ = s.reader.Close()
	_ = s.writer.Close()
}

// Dialect is SQLite.
func (s *Store) Dialect() tenant.Dialect { return tenant.SQLite }

// Create makes the file, empty and in WAL mode, in a folder that exists. It does nothing to a file that is there.
func Create(ctx context.Context, path string) error {
	path, err := filepath.Abs(path)
	if err != nil {
		return fmt.Errorf("create database: %w", err)
	}
	if _, err := os.Stat(filepath.Dir(path)); err != nil {
		return fmt.Errorf("create %s: %w", path, noDatabase(err))
	}
	if err := checkFilesystem(path); err != nil {
		return fmt.Errorf("create %s: %w", path, err)
	}
	db := sql.OpenDB(&connector{file: &file{path: path}, dsn: dsn(path, "rwc", writing)})
	defer db.Close()
	connection, err := db.Conn(ctx)
	if err != nil {
		return fmt.Errorf("create %s: %w", path, translate(err))
	}
	defer connection.Close()
	err = connection.Raw(func(native any) error { return native.(*conn).demandWAL(ctx) })
	if err != nil {
		return fmt.Errorf("create %s: %w", path, translate(err))
	}
	return nil
}

// Create does nothing: the file, which is the scope, was there when the store was opened.
func (s *Store) Create(context.Context, string) error { return nil }

// locate checks a path without opening the file.
func locate(path string) (*file, error) {
	if err := checkVersion(sqliteVersion()); err != nil {
		return nil, err
	}
	path, err := filepath.Abs(path)
	if err != nil {
		return nil, err
	}
	info, err := os.Stat(path)
	switch {
	case err != nil:
		return nil, noDatabase(err)
	case !info.Mode().IsRegular():
		return nil, fmt.Errorf("%w: not a regular file", storage.ErrNoDatabase)
	}
	if err := checkFilesystem(path); err != nil {
		return nil, err
	}
	return &file{path: path, info: info}, nil
}

// noDatabase tells a path that leads nowhere from one that cannot be followed.
func noDatabase(err error) error {
	if pathError, ok := errors.AsType[*fs.PathError](err); ok {
		err = pathError.Err // the path is in the message already
	}
	return fmt.Errorf("%w: %w", storage.ErrNoDatabase, err)
}

func sqliteVersion() int {
	_, number, _ := sqlite3.Version()
	return number
}

// checkVersion refuses a SQLite before minVersion; number is what sqlite3_libversion_number returns.
func checkVersion(number int) error {
	if number >= minVersion {
		return nil
	}
	return fmt.Errorf("SQLite %s is too old: %s or newer is needed", dotted(number), dotted(minVersion))
}

func dotted(number int) string {
	return fmt.Sprintf("%d.%d.%d", number/1_000_000, number/1_000%1_000, number%1_000)
}

var (
	// The mode of the journal is in neither: a file that is only read is left as it is.
	writing = url.Values{
		"_synchronous":  {"FULL"},
		"_foreign_keys": {"off"}, // see the package's documentation
	}
	reading = url.Values{
		"_query_only":  {"on"},
		"_synchronous": {"FULL"},
	}
)

// dsn makes the URI of a file, in which no character of the path means anything to SQLite, with all pragmas.
func dsn(path, mode string, pragmas url.Values) string {
	params := url.Values{
		"mode":          {mode},
		"_busy_timeout": {fmt.Sprint(busyTimeout.Milliseconds())},
	}
	maps.Copy(params, pragmas)
	segments := strings.Split(filepath.ToSlash(path), "/")
	for i, segment := range segments {
		segments[i] = url.PathEscape(segment)
	}
	return "file:" + strings.Join(segments, "/") + "?" + params.Encode()
}

// noteStored notes that a change is stored, after the commit that stored it.
func (s *Store) noteStored(digest plan.Digest) { s.stored.Store(digest, true) }

func (s *Store) isStored(digest plan.Digest) bool {
	_, ok := s.stored.Load(digest)
	return ok
}
