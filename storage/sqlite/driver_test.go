package sqlite

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/mattn/go-sqlite3"

	"github.com/belayhq/belay/sitelock"
	"github.com/belayhq/belay/storage"
	"github.com/belayhq/belay/tenant"
)

func TestAnyFileNameIsOnlyAName(t *testing.T) {
	t.Parallel()
	for _, name := range []string{
		"plain.db", "with space.db", "it's.db", `say "hi".db`, "a?b.db", "a?mode=memory", "a#b.db", "100%.db", "a%41b.db", "a%00b.db",
		"a&_busy_timeout=0.db", "a;b=c.db", "a+b.db", "a:b.db", "file:x.db", ":memory:", "ünï 日本.db", `back\slash.db`, "-.db", " ",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := newDatabaseAt(t, filepath.Join(t.TempDir(), name))
			s := d.open(t)
			if _, err := s.Acquire(t.Context(), request(tenant.NewID())); err != nil {
				t.Fatalf("acquire: %v", err)
			}
			entries, err := os.ReadDir(filepath.Dir(d.path))
			if err != nil {
				t.Fatal(err)
			}
			for _, e := range entries {
				if base := strings.TrimSuffix(strings.TrimSuffix(e.Name(), "-wal"), "-shm"); base != name {
					t.Errorf("made a file %q", e.Name())
				}
			}
		})
	}
}

func TestOpeningMakesNoFile(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for name, path := range map[string]string{
		"missing":           filepath.Join(dir, "missing.db"),
		"in a missing dir":  filepath.Join(dir, "nowhere", "missing.db"),
		"a directory":       dir,
		"through a NUL":     filepath.Join(dir, "a\x00b.db"),
		"below a file":      filepath.Join(os.Args[0], "x.db"),
		"with a long name ": filepath.Join(dir, strings.Repeat("x", 300)),
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := Open(t.Context(), path, storage.Options{}); !errors.Is(err, storage.ErrNoDatabase) {
				t.Errorf("got %v, want ErrNoDatabase", err)
			}
		})
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 0 {
		t.Errorf("found %v, %v", entries, err)
	}
}

func TestAFileThatIsNoDatabaseIsRefused(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "notes.txt")
	text := []byte(strings.Repeat("these are not pages of a database\n", 100))
	if err := os.WriteFile(path, text, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(t.Context(), path, storage.Options{}); !errors.Is(err, storage.ErrNoDatabase) {
		t.Errorf("open: got %v, want ErrNoDatabase", err)
	}
	if err := Create(t.Context(), path); err == nil {
		t.Error("created over a file that is no database")
	}
	if after, err := os.ReadFile(path); err != nil || string(after) != string(text) {
		t.Error("the file changed")
	}
}

func TestCreateKeepsWhatIsThere(t *testing.T) {
	t.Parallel()
	d := newDatabase(t)
	d.exec(t, "CREATE TABLE mine AS SELECT 7 AS k")
	if err := Create(t.Context(), d.path); err != nil {
		t.Fatal(err)
	}
	if got := d.query(t, "SELECT k FROM mine"); got != "7" {
		t.Errorf("k is %s", got)
	}
}

func TestAConnectionHasItsPragmas(t *testing.T) {
	t.Parallel()
	s := newDatabase(t).open(t)
	for _, test := range []struct{ pragma, writer, reader string }{
		{"journal_mode", "wal", "wal"},
		{"synchronous", "2", "2"},
		{"busy_timeout", "10", "10"},
		{"foreign_keys", "0", "0"},
		{"query_only", "0", "1"},
	} {
		var writer, reader string
		if err := errors.Join(
			s.writer.QueryRowContext(t.Context(), "PRAGMA "+test.pragma).Scan(&writer),
			s.reader.QueryRowContext(t.Context(), "PRAGMA "+test.pragma).Scan(&reader),
		); err != nil {
			t.Fatal(err)
		}
		if writer != test.writer || reader != test.reader {
			t.Errorf("%s is %s for the writer, %s for readers; want %s, %s", test.pragma, writer, reader, test.writer, test.reader)
		}
	}
	if _, err := s.reader.ExecContext(t.Context(), "CREATE TABLE mine (k)"); err == nil {
		t.Error("a reading connection wrote")
	}
}

func TestOldReleasesOfSQLiteAreRefused(t *testing.T) {
	t.Parallel()
	for number, ok := range map[int]bool{
		3_007_000: false, 3_050_004: false, 3_051_002: false, 3_051_003: true, 3_052_000: true, 3_054_001: true, 4_000_000: true,
	} {
		if err := checkVersion(number); (err == nil) != ok {
			t.Errorf("%d: %v", number, err)
		}
	}
	err := checkVersion(3_050_004)
	if err == nil || !strings.Contains(err.Error(), "3.50.4") || !strings.Contains(err.Error(), "3.51.3") {
		t.Errorf("the error does not name both versions: %v", err)
	}
	if version, _, _ := sqlite3.Version(); dotted(sqliteVersion()) != version {
		t.Errorf("version %s read as %s", version, dotted(sqliteVersion()))
	}
}

func TestAReplacedFileTakesNoMoreCalls(t *testing.T) {
	t.Parallel()
	for name, replace := range map[string]func(t *testing.T, path string){
		"another in its place": func(t *testing.T, path string) {
			other := filepath.Join(filepath.Dir(path), "other.db")
			if err := errors.Join(Create(t.Context(), other), os.Rename(other, path)); err != nil {
				t.Fatal(err)
			}
		},
		"deleted": func(t *testing.T, path string) {
			if err := os.Remove(path); err != nil {
				t.Fatal(err)
			}
		},
		"moved away": func(t *testing.T, path string) {
			if err := os.Rename(path, path+".old"); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newDatabase(t).open(t)
			id := tenant.NewID()
			c := change("0001-first", 1)
			grant := acquire(t, s, id, apply(c))
			replace(t, s.path(t))
			for range 3 { // it does not heal by itself, nor by reading
				_, acquired := s.Acquire(t.Context(), request(tenant.NewID()))
				_, read := s.State(t.Context(), id)
				for call, err := range map[string]error{
					"acquire":    acquired,
					"state":      read,
					"release":    s.Release(t.Context(), grant.Held),
					"checkpoint": s.Checkpoint(t.Context(), grant.Held, group(grant, sqlStep(0, "CREATE TABLE lost (k)"))),
				} {
					if err == nil || !strings.Contains(err.Error(), "while it was open") {
						t.Errorf("%s: got %v", call, err)
					}
				}
			}
		})
	}
}

func TestManyProcessesComeUpOnOneEmptyFile(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "empty.db")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	for range 16 {
		all.Go(func() {
			s, err := Open(t.Context(), path, storage.Options{})
			if err != nil {
				t.Errorf("open: %v", err)
				return
			}
			defer s.Close()
			if _, err := s.Acquire(t.Context(), request(tenant.NewID())); err != nil && !errors.Is(err, sitelock.ErrScopeTaken) {
				t.Errorf("acquire: %v", err)
			}
			if v, err := s.SchemaVersion(t.Context()); v != 1 || err != nil {
				t.Errorf("version %d, %v", v, err)
			}
		})
	}
	all.Wait()
}

func TestAClosedStoreRefuses(t *testing.T) {
	t.Parallel()
	s := newDatabase(t).open(t)
	id := tenant.NewID()
	acquire(t, s, id, nil)
	s.Close()
	s.Close()
	if _, err := s.Acquire(t.Context(), request(id)); err == nil {
		t.Error("acquired")
	}
	if _, err := s.State(t.Context(), id); err == nil {
		t.Error("read")
	}
}

func TestClosingWaitsForNobody(t *testing.T) {
	t.Parallel()
	d := newDatabase(t)
	d.exec(t, "CREATE TABLE item (k)")
	s := d.open(t)
	grant := acquire(t, s, tenant.NewID(), apply(change("0001-first", 1)))
	step := actionStep(0, func(tx *Tx) error {
		s.Close()
		_, err := tx.Exec(t.Context(), "INSERT INTO item VALUES (1)")
		return err
	})
	if err := s.Checkpoint(t.Context(), grant.Held, finish(grant, step)); err != nil {
		t.Errorf("the open checkpoint: %v", err)
	}
	if n := d.query(t, "SELECT count(*) FROM item"); n != "1" {
		t.Errorf("%s rows", n)
	}
	if err := s.Release(t.Context(), grant.Held); err == nil {
		t.Error("the closed store took another call")
	}
}
