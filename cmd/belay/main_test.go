package main

import (
	"bytes"
	"database/sql"
	"encoding/json"
	"flag"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"

	"go.uber.org/goleak"

	_ "github.com/mattn/go-sqlite3" // to look into tenants' files
)

var update = flag.Bool("update", false, "write the golden files")

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// world is a folder with belay in it.
type world struct {
	t   *testing.T
	dir string
	env map[string]string
	// terminal makes every stream look like one; answers is what is typed there.
	terminal bool
	stdin    string
	signals  chan os.Signal
	// url is that of the control database, where it is a PostgreSQL.
	url string
}

func newWorld(t *testing.T) *world {
	t.Helper()
	return &world{t: t, dir: t.TempDir(), env: map[string]string{}}
}

// fleet is a world with a control database and SQLite tenants of these names.
func fleet(t *testing.T, names ...string) *world {
	t.Helper()
	w := newWorld(t)
	w.ok("init")
	for _, name := range names {
		w.ok("tenant", "add", name, "sqlite://tenants/"+name+".db", "--create")
	}
	return w
}

// result is how a run of belay ended.
type result struct {
	code           int
	stdout, stderr string
}

// run runs the program in this process.
func (w *world) run(args ...string) result {
	w.t.Helper()
	var stdout, stderr syncBuffer
	code := w.runWith(&stdout, &stderr, args...)
	return result{code, stdout.String(), stderr.String()}
}

func (w *world) runWith(stdout, stderr io.Writer, args ...string) int {
	return run(w.t.Context(), args, strings.NewReader(w.stdin), stdout, stderr, environment{
		Getenv:   func(name string) string { return w.env[name] },
		Dir:      w.dir,
		Terminal: func(any) bool { return w.terminal },
		Signals:  w.signals,
	})
}

// want runs the program and demands an exit code.
func (w *world) want(code int, args ...string) result {
	w.t.Helper()
	r := w.run(args...)
	if r.code != code {
		w.t.Fatalf("belay %s: exit code %d, want %d\nstdout:\n%s\nstderr:\n%s", strings.Join(args, " "), r.code, code, r.stdout, r.stderr)
	}
	return r
}

func (w *world) ok(args ...string) result { w.t.Helper(); return w.want(exitDone, args...) }

// change writes the files of a change, "name: text" each, and returns its path.
func (w *world) change(id string, files map[string]string) string {
	w.t.Helper()
	for name, text := range files {
		w.write(filepath.Join("changes", id, name), text)
	}
	return "changes/" + id
}

func (w *world) write(name, text string) {
	w.t.Helper()
	path := filepath.Join(w.dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		w.t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		w.t.Fatal(err)
	}
}

// customers writes a change of two steps, one checkpoint each.
func (w *world) customers(onFailure string) string {
	w.t.Helper()
	return w.change("0001-customer", map[string]string{
		"change.yaml": `version: 1
id: 0001-customer
title: Customers
on_failure: ` + onFailure + `
checkpoint: step
steps:
  - id: table
    sql: { up: table.up.sql, down: table.down.sql }
  - id: fill
    sql: { up: fill.up.sql, down: fill.down.sql }
    verify: { query: "SELECT count(*) FROM customer", expect: 2 }
`,
		"table.up.sql":   "CREATE TABLE customer (id integer PRIMARY KEY, name text NOT NULL);\n",
		"table.down.sql": "DROP TABLE customer;\n",
		"fill.up.sql":    "INSERT INTO customer (id, name) VALUES (1, 'Ada'), (2, 'Grace');\n",
		"fill.down.sql":  "DELETE FROM customer;\n",
	})
}

// broken is customers with a second step that fails in its second statement, whose message could quote a value.
func (w *world) broken(onFailure string) string {
	w.t.Helper()
	path := w.customers(onFailure)
	w.write(path+"/fill.up.sql", "INSERT INTO customer (id, name) VALUES (1, 'Ada');\nINSERT INTO customer (id, name) VALUES (1, 's3cret');\n")
	return path
}

// exec runs SQL on a tenant's file, outside belay.
func (w *world) exec(tenant, statement string) {
	w.t.Helper()
	w.onFile("tenants/"+tenant+".db", func(db *sql.DB) error {
		_, err := db.ExecContext(w.t.Context(), statement)
		return err
	})
}

// scalar reads one value from a tenant's file.
func (w *world) scalar(tenant, query string) string {
	w.t.Helper()
	var value string
	w.onFile("tenants/"+tenant+".db", func(db *sql.DB) error { return db.QueryRowContext(w.t.Context(), query).Scan(&value) })
	return value
}

func (w *world) onFile(name string, fn func(*sql.DB) error) {
	w.t.Helper()
	db, err := sql.Open("sqlite3", "file:"+filepath.Join(w.dir, name)+"?mode=rw&_busy_timeout=5000")
	if err == nil {
		err = fn(db)
	}
	if err != nil {
		w.t.Fatalf("%s: %v", name, err)
	}
	if err := db.Close(); err != nil {
		w.t.Fatal(err)
	}
}

// decode reads a JSON document.
func decode[T any](t *testing.T, text string) T {
	t.Helper()
	var v T
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		t.Fatalf("not a JSON document: %v\n%s", err, text)
	}
	return v
}

func contains(t *testing.T, text string, parts ...string) {
	t.Helper()
	for _, part := range parts {
		if !strings.Contains(text, part) {
			t.Errorf("does not say %q:\n%s", part, text)
		}
	}
}

func lacks(t *testing.T, text string, parts ...string) {
	t.Helper()
	for _, part := range parts {
		if strings.Contains(text, part) {
			t.Errorf("says %q:\n%s", part, text)
		}
	}
}

// volatile is what differs from run to run.
var volatile = []struct {
	pattern *regexp.Regexp
	becomes string
}{
	{regexp.MustCompile(`[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}`), "<uuid>"},
	{regexp.MustCompile(`sha256:[0-9a-f]{64}`), "<digest>"},
	{regexp.MustCompile(`"\d{4}-\d\d-\d\dT[0-9:.]+Z"`), `"<time>"`},
	{regexp.MustCompile(`"basis": "[0-9a-f]{32}"`), `"basis": "<basis>"`},
	{regexp.MustCompile(`"(pid|duration_ms)":( ?)\d+`), `"$1":$2<number>`},
	{regexp.MustCompile(`"host":( ?)"[^"]*"`), `"host":$1"<host>"`},
}

// golden compares a document with testdata, without what differs from run to run.
func golden(t *testing.T, name, text string) {
	t.Helper()
	for _, v := range volatile {
		text = v.pattern.ReplaceAllString(text, v.becomes)
	}
	file := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if text != string(want) {
		t.Errorf("%s differs: scripts rely on this document, fields are only ever added\ngot:\n%s\nwant:\n%s", name, text, want)
	}
}

// syncBuffer is a buffer that a run writes to while a test reads it.
type syncBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *syncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *syncBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}
