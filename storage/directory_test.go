package storage_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/belayhq/belay/storage"
	"github.com/belayhq/belay/tenant"
)

// server stands for all database servers: it counts the connections that databases opened through it may use.
type server struct {
	dialect tenant.Dialect
	// beforeOpen, if set, runs at the start of every Open.
	beforeOpen func(ctx context.Context, target tenant.Target) error

	mu         sync.Mutex
	now, peak  int
	opens      []string // the Database of every target opened, in order
	closes     []string
	lastOption storage.Options
}

// database is all of storage.Database that a directory touches.
type database struct {
	storage.Database
	server *server
	name   string
	size   int
}

func (s *server) Dialect() tenant.Dialect { return s.dialect }

func (s *server) Open(ctx context.Context, target tenant.Target, opts storage.Options) (storage.Database, error) {
	if s.beforeOpen != nil {
		if err := s.beforeOpen(ctx, target); err != nil {
			return nil, err
		}
	}
	size := opts.Connections
	if s.dialect == tenant.Postgres {
		size++ // for renewals
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lastOption = opts
	s.opens = append(s.opens, target.Database)
	s.now += size
	s.peak = max(s.peak, s.now)
	return &database{server: s, name: target.Database, size: size}, nil
}

func (d *database) Close() {
	d.server.mu.Lock()
	defer d.server.mu.Unlock()
	d.server.now -= d.size
	d.server.closes = append(d.server.closes, d.name)
}

func (s *server) connections() (now, peak int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.now, s.peak
}

func postgres(database string) tenant.Target {
	return tenant.Target{Dialect: tenant.Postgres, Database: "postgres://db.example/" + database, Scope: "public"}
}

func newDirectory(t *testing.T, cfg storage.DirectoryConfig, drivers ...storage.Driver) *storage.Directory {
	t.Helper()
	dir, err := storage.NewDirectory(cfg, drivers...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(dir.Close)
	return dir
}

func open(t *testing.T, dir *storage.Directory, target tenant.Target) (storage.Database, func()) {
	t.Helper()
	db, release, err := dir.OpenDatabase(t.Context(), target)
	if err != nil {
		t.Fatalf("open %s: %v", target, err)
	}
	return db, release
}

func TestADirectoryReportsEverythingThatIsWrongWithItsArguments(t *testing.T) {
	cfg := storage.DirectoryConfig{Connections: 1, PerDatabase: -1}
	_, err := storage.NewDirectory(cfg, &server{dialect: tenant.SQLite}, &server{dialect: tenant.SQLite})
	for _, want := range []string{"Connections is 1", "PerDatabase is -1", "two drivers for sqlite"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v does not say %q", err, want)
		}
	}
	if _, err := storage.NewDirectory(storage.DirectoryConfig{}); err == nil {
		t.Error("a directory without drivers was made")
	}
}

func TestTenantsOfOneDatabaseShareIt(t *testing.T) {
	srv := &server{dialect: tenant.Postgres}
	dir := newDirectory(t, storage.DirectoryConfig{}, srv)
	acme, other := postgres("fleet"), postgres("fleet")
	acme.Scope, other.Scope = "acme", "other"

	first, releaseFirst, err := dir.Open(t.Context(), tenant.Tenant{Target: acme})
	if err != nil {
		t.Fatal(err)
	}
	second, releaseSecond, err := dir.Open(t.Context(), tenant.Tenant{Target: other})
	if err != nil {
		t.Fatal(err)
	}
	if first != second {
		t.Error("two schemas of one database have two stores")
	}
	if got := srv.lastOption.Connections; got != 8 {
		t.Errorf("opened with %d connections, want 8", got)
	}
	releaseFirst()
	if got := dir.Stats(); got != (storage.DirectoryStats{Databases: 1, Connections: 9}) {
		t.Errorf("with one user left: %+v", got)
	}
	releaseSecond()
	if got := dir.Stats(); got != (storage.DirectoryStats{Databases: 1, Idle: 1, Connections: 9}) {
		t.Errorf("with no user left: %+v", got)
	}
	third, releaseThird := open(t, dir, acme)
	defer releaseThird()
	if third != first || len(srv.opens) != 1 {
		t.Errorf("an idle database was opened again: %v", srv.opens)
	}
}

func TestManyCallersOpenADatabaseOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		proceed := make(chan struct{})
		srv := &server{dialect: tenant.Postgres}
		srv.beforeOpen = func(context.Context, tenant.Target) error { <-proceed; return nil }
		dir := newDirectory(t, storage.DirectoryConfig{}, srv)
		var group errgroup.Group
		for range 20 {
			group.Go(func() error {
				_, release, err := dir.OpenDatabase(t.Context(), postgres("fleet"))
				if err == nil {
					release()
				}
				return err
			})
		}
		synctest.Wait() // all twenty have asked
		close(proceed)
		if err := group.Wait(); err != nil {
			t.Fatal(err)
		}
		if len(srv.opens) != 1 {
			t.Errorf("opened %d times, want once", len(srv.opens))
		}
	})
}

func TestACancelledCallerDoesNotFailThoseWhoWaitForTheSameDatabase(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var calls atomic.Int32
		srv := &server{dialect: tenant.Postgres}
		srv.beforeOpen = func(ctx context.Context, _ tenant.Target) error {
			if calls.Add(1) == 1 {
				<-ctx.Done()
				return ctx.Err()
			}
			return nil
		}
		dir := newDirectory(t, storage.DirectoryConfig{}, srv)
		impatient, cancel := context.WithCancel(t.Context())
		var first, second error
		var group sync.WaitGroup
		group.Go(func() { _, _, first = dir.OpenDatabase(impatient, postgres("fleet")) })
		synctest.Wait()
		group.Go(func() {
			var release func()
			if _, release, second = dir.OpenDatabase(t.Context(), postgres("fleet")); second == nil {
				release()
			}
		})
		synctest.Wait()
		cancel()
		group.Wait()
		if !errors.Is(first, context.Canceled) || second != nil {
			t.Errorf("cancelled caller got %v, the other %v", first, second)
		}
	})
}

func TestADatabaseThatCannotBeOpenedIsTriedAgainByTheNextCaller(t *testing.T) {
	refuse := true
	srv := &server{dialect: tenant.Postgres}
	srv.beforeOpen = func(context.Context, tenant.Target) error {
		if refuse {
			return storage.ErrNoDatabase
		}
		return nil
	}
	dir := newDirectory(t, storage.DirectoryConfig{}, srv)
	if _, _, err := dir.OpenDatabase(t.Context(), postgres("fleet")); !errors.Is(err, storage.ErrNoDatabase) {
		t.Fatalf("got %v, want ErrNoDatabase", err)
	}
	if got := dir.Stats(); got != (storage.DirectoryStats{}) {
		t.Errorf("the failed open left %+v", got)
	}
	refuse = false
	_, release := open(t, dir, postgres("fleet"))
	release()
}

func TestADriverThatPanicsLeavesNothingBehind(t *testing.T) {
	srv := &server{dialect: tenant.Postgres}
	srv.beforeOpen = func(context.Context, tenant.Target) error { panic("driver") }
	dir := newDirectory(t, storage.DirectoryConfig{}, srv)
	func() {
		defer func() {
			if recover() == nil {
				t.Error("the panic was swallowed")
			}
		}()
		_, _, _ = dir.OpenDatabase(t.Context(), postgres("fleet"))
	}()
	if got := dir.Stats(); got != (storage.DirectoryStats{}) {
		t.Errorf("the panic left %+v", got)
	}
}

func TestTheLongestUnusedDatabaseIsClosedFirst(t *testing.T) {
	srv := &server{dialect: tenant.Postgres}
	dir := newDirectory(t, storage.DirectoryConfig{Connections: 6, PerDatabase: 1}, srv) // three at once
	releases := make([]func(), 3)
	for i, name := range []string{"a", "b", "c"} {
		_, releases[i] = open(t, dir, postgres(name))
	}
	for _, i := range []int{1, 0, 2} {
		releases[i]()
	}
	_, release := open(t, dir, postgres("b")) // used again: now a is the longest unused
	release()
	_, release = open(t, dir, postgres("d"))
	defer release()
	if want := postgres("a").Database; len(srv.closes) != 1 || srv.closes[0] != want {
		t.Errorf("closed %v, want %s", srv.closes, want)
	}
}

func TestOpenWaitsWhileEverythingIsInUse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv := &server{dialect: tenant.Postgres}
		dir := newDirectory(t, storage.DirectoryConfig{Connections: 4, PerDatabase: 1}, srv) // two at once
		_, releaseA := open(t, dir, postgres("a"))
		_, releaseB := open(t, dir, postgres("b"))

		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		_, _, err := dir.OpenDatabase(ctx, postgres("c"))
		if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "all 4 are in use") {
			t.Fatalf("got %v, want a deadline that says what it waited for", err)
		}

		got := make(chan error)
		go func() {
			_, release, err := dir.OpenDatabase(t.Context(), postgres("c"))
			if err == nil {
				defer release()
			}
			got <- err
		}()
		synctest.Wait()
		if waiting := dir.Stats().Waiting; waiting != 1 {
			t.Fatalf("%d callers wait, want 1", waiting)
		}
		releaseA()
		releaseA() // the second call must not take b's place
		if err := <-got; err != nil {
			t.Fatal(err)
		}
		if _, peak := srv.connections(); peak != 4 {
			t.Errorf("peak of %d connections, want 4", peak)
		}
		releaseB()
	})
}

func TestReleasingTwiceEndsOneUse(t *testing.T) {
	srv := &server{dialect: tenant.Postgres}
	dir := newDirectory(t, storage.DirectoryConfig{}, srv)
	_, releaseFirst := open(t, dir, postgres("fleet"))
	_, releaseSecond := open(t, dir, postgres("fleet"))
	releaseFirst()
	releaseFirst()
	if got := dir.Stats(); got.Idle != 0 {
		t.Errorf("a database in use counts as idle: %+v", got)
	}
	releaseSecond()
	if got := dir.Stats(); got.Idle != 1 {
		t.Errorf("after the last release: %+v", got)
	}
}

func TestOneDatabaseTakesNoMoreThanTheCap(t *testing.T) {
	srv := &server{dialect: tenant.Postgres}
	dir := newDirectory(t, storage.DirectoryConfig{Connections: 10, PerDatabase: 1000}, srv)
	_, release := open(t, dir, postgres("tenants"))
	defer release()
	if now, _ := srv.connections(); now != 10 {
		t.Errorf("the database uses %d connections, want 10", now)
	}
}

func TestTwoNamesOfOneFileAreOneDatabase(t *testing.T) {
	folder := t.TempDir()
	file := filepath.Join(folder, "shop.db")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	symlink, hardLink := filepath.Join(folder, "symlink.db"), filepath.Join(folder, "hardlink.db")
	if err := errors.Join(os.Symlink(file, symlink), os.Link(file, hardLink)); err != nil {
		t.Fatal(err)
	}
	srv := &server{dialect: tenant.SQLite}
	dir := newDirectory(t, storage.DirectoryConfig{}, srv)
	want, release := open(t, dir, tenant.Target{Dialect: tenant.SQLite, Database: file})
	release()
	for _, path := range []string{symlink, hardLink} {
		got, release := open(t, dir, tenant.Target{Dialect: tenant.SQLite, Database: path})
		release()
		if got != want {
			t.Errorf("%s is a database of its own", filepath.Base(path))
		}
	}
	if got := dir.Stats().Connections; got != 2 {
		t.Errorf("a SQLite file takes %d connections, want 2", got)
	}
}

func TestAFileThatReplacedAnotherIsAnotherDatabase(t *testing.T) {
	file := filepath.Join(t.TempDir(), "shop.db")
	target := tenant.Target{Dialect: tenant.SQLite, Database: file}
	srv := &server{dialect: tenant.SQLite}
	dir := newDirectory(t, storage.DirectoryConfig{}, srv)
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	before, releaseBefore := open(t, dir, target)
	defer releaseBefore()

	restored := file + ".restored"
	if err := errors.Join(os.WriteFile(restored, nil, 0o600), os.Rename(restored, file)); err != nil {
		t.Fatal(err)
	}
	after, releaseAfter := open(t, dir, target)
	defer releaseAfter()
	if before == after {
		t.Error("the connections to the replaced file were handed out")
	}
}

func TestAMissingFileIsLeftToTheDriver(t *testing.T) {
	folder := t.TempDir()
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(folder, link); err != nil {
		t.Fatal(err)
	}
	srv := &server{dialect: tenant.SQLite}
	dir := newDirectory(t, storage.DirectoryConfig{}, srv)
	direct, release := open(t, dir, tenant.Target{Dialect: tenant.SQLite, Database: filepath.Join(folder, "new.db")})
	defer release()
	linked, release := open(t, dir, tenant.Target{Dialect: tenant.SQLite, Database: filepath.Join(link, "new.db")})
	defer release()
	if direct != linked {
		t.Error("a file not yet made has a database for each of its names")
	}
}

func TestADatabaseOfAnUnknownKindIsRefused(t *testing.T) {
	dir := newDirectory(t, storage.DirectoryConfig{}, &server{dialect: tenant.SQLite})
	if _, _, err := dir.OpenDatabase(t.Context(), postgres("fleet")); err == nil || !strings.Contains(err.Error(), "postgres") {
		t.Errorf("got %v, want an error that names the kind", err)
	}
}

func TestAClosedDirectoryRefusesAndClosesWhatIsReleased(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv := &server{dialect: tenant.Postgres}
		dir := newDirectory(t, storage.DirectoryConfig{Connections: 4, PerDatabase: 1}, srv)
		_, releaseA := open(t, dir, postgres("a"))
		_, releaseB := open(t, dir, postgres("b"))
		waiter := make(chan error)
		go func() {
			_, _, err := dir.OpenDatabase(t.Context(), postgres("c"))
			waiter <- err
		}()
		synctest.Wait()

		dir.Close()
		dir.Close()
		if err := <-waiter; !errors.Is(err, storage.ErrDirectoryClosed) {
			t.Errorf("who waited got %v", err)
		}
		if _, _, err := dir.OpenDatabase(t.Context(), postgres("a")); !errors.Is(err, storage.ErrDirectoryClosed) {
			t.Errorf("who came later got %v", err)
		}
		if now, _ := srv.connections(); now != 4 {
			t.Errorf("%d connections after Close with two databases in use, want 4", now)
		}
		releaseA()
		releaseB()
		if now, _ := srv.connections(); now != 0 {
			t.Errorf("%d connections after the last release, want 0", now)
		}
	})
}

// G10
func TestThousandsOfDatabasesStayWithinTheCap(t *testing.T) {
	const databases, limit, workers = 2000, 20, 16
	srv := &server{dialect: tenant.Postgres}
	dir, err := storage.NewDirectory(storage.DirectoryConfig{Connections: limit, PerDatabase: 2}, srv)
	if err != nil {
		t.Fatal(err)
	}
	group, ctx := errgroup.WithContext(t.Context())
	group.SetLimit(workers)
	for i := range 2 * databases { // each one twice, neighbours at the same time
		group.Go(func() error {
			_, release, err := dir.OpenDatabase(ctx, postgres(fmt.Sprintf("tenant%d", i/2)))
			if err != nil {
				return err
			}
			defer release()
			if got := dir.Stats().Connections; got > limit {
				return fmt.Errorf("%d connections are taken", got)
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}
	dir.Close()
	if now, peak := srv.connections(); now != 0 || peak > limit {
		t.Errorf("%d connections after Close and a peak of %d, want 0 and at most %d", now, peak, limit)
	}
	if len(srv.opens) < databases {
		t.Errorf("%d databases were opened, want %d", len(srv.opens), databases)
	}
	if got := dir.Stats(); got != (storage.DirectoryStats{}) {
		t.Errorf("after Close: %+v", got)
	}
}
