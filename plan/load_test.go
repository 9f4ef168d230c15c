package plan

import (
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// exampleFiles is a change with every kind of part.
var exampleFiles = map[string]string{
	"change.yaml": `version: 1
id: 0042-customer-locale
title: Add customer.locale
requires: [0041-customer, '0007']
on_failure: rollback
checkpoint: step
timeout: 5m
steps:
  - id: add-column
    sql: { up: sql/add.up.sql, down: sql/add.down.sql }
    verify: { query: "SELECT count(*) FROM customer WHERE locale IS NULL", expect: 0 }
    timeout: 30s
  - id: index
    sql: { up: sql/index.sql }
    undo: { covered_by: add-column }
  - id: warm-cache
    action:
      name: cache.warm
      args: { namespace: locales, z: [1, 2.5, true, null, 2024-01-02, x], a: { c: 1, b: 1.0 } }
    undo: { none: caches expire by themselves within an hour }
  - id: tell
    action: { name: mail.send }
`,
	"sql/add.up.sql":            "ALTER TABLE customer ADD locale text;\n",
	"sql/add.down.sql":          "ALTER TABLE customer DROP locale;\n",
	"sql/index.postgres.sql":    "CREATE INDEX i ON customer (locale);\n",
	"sql/index.sqlite.sql":      "CREATE INDEX i ON customer (locale);\n-- sqlite\n",
	"sql/add.down.postgres.sql": "ALTER TABLE customer DROP COLUMN IF EXISTS locale;\n",
}

// with returns the example's files with one of them replaced or added.
func with(name, text string) map[string]string {
	files := maps.Clone(exampleFiles)
	files[name] = text
	return files
}

// write makes a directory of files.
func write(t testing.TB, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		file := filepath.Join(dir, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func mustLoad(t *testing.T, files map[string]string) *Change {
	t.Helper()
	c, err := Load(write(t, files))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// loadProblems returns what Load reports, with paths relative to the change's directory.
func loadProblems(t *testing.T, files map[string]string) []string {
	t.Helper()
	dir := write(t, files)
	_, err := Load(dir)
	return problemLines(t, dir, err)
}

func problemLines(t *testing.T, dir string, err error) []string {
	t.Helper()
	if err == nil {
		return nil
	}
	invalid, ok := errors.AsType[*InvalidError](err)
	if !ok {
		t.Fatalf("error %T: %v", err, err)
	}
	var out []string
	for _, p := range invalid.Problems {
		out = append(out, strings.ReplaceAll(p.String(), dir+string(filepath.Separator), ""))
	}
	return out
}

func TestAChangeIsReadWithItsFiles(t *testing.T) {
	t.Parallel()
	c := mustLoad(t, exampleFiles)
	if c.Version != 1 || c.ID != "0042-customer-locale" || c.Title != "Add customer.locale" ||
		!slices.Equal(c.Requires, []string{"0041-customer", "0007"}) || c.OnFailure != RollbackOnFailure ||
		c.Checkpoint != CheckpointStep || c.Timeout != 5*time.Minute || len(c.Steps) != 4 {
		t.Errorf("change: %+v", c)
	}
	add, index, warm, tell := c.Steps[0], c.Steps[1], c.Steps[2], c.Steps[3]
	if add.Kind != SQL || add.Up.Default.Text != exampleFiles["sql/add.up.sql"] || add.Up.Postgres != nil ||
		add.Down.Default.File != "sql/add.down.sql" || add.Down.Postgres.File != "sql/add.down.postgres.sql" ||
		add.Undo != nil || add.Timeout != 30*time.Second {
		t.Errorf("add-column: %+v", add)
	}
	if add.Verify.Query != "SELECT count(*) FROM customer WHERE locale IS NULL" || *add.Verify.Expect != "0" {
		t.Errorf("verify: %+v", add.Verify)
	}
	if index.Up.Default != nil || index.Up.Postgres == nil || index.Up.SQLite == nil || index.Down != nil ||
		*index.Undo != (NoUndo{CoveredBy: "add-column"}) {
		t.Errorf("index: %+v", index)
	}
	const args = `{"a":{"b":1,"c":1},"namespace":"locales","z":[1,2.5,true,null,"2024-01-02","x"]}`
	if warm.Kind != Action || warm.Action.Name != "cache.warm" || string(warm.Action.Args) != args ||
		*warm.Undo != (NoUndo{None: "caches expire by themselves within an hour"}) {
		t.Errorf("warm-cache: %+v %s", warm, warm.Action.Args)
	}
	if tell.Undo != nil || tell.Action.Args != nil {
		t.Errorf("tell: %+v", tell)
	}
}

func TestDefaultsAreWrittenIntoTheChange(t *testing.T) {
	t.Parallel()
	c := mustLoad(t, with("change.yaml", "version: 1\nid: a\nsteps: [{id: s, action: {name: n}}]\n"))
	if c.OnFailure != StopOnFailure || c.Checkpoint != CheckpointAuto || c.Timeout != 0 || c.Title != "" {
		t.Errorf("%+v", c)
	}
}

func TestAnExpectedValueIsTheTextAsWritten(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"0", "1.50", "true", "2024-01-02", "0x10", "yes", "''", "'null'", "'a b'"} {
		c := mustLoad(t, with("change.yaml",
			"version: 1\nid: a\nsteps: [{id: s, action: {name: n}, verify: {query: SELECT 1, expect: "+text+"}}]\n"))
		if got := *c.Steps[0].Verify.Expect; got != strings.Trim(text, "'") {
			t.Errorf("expect: %s is read as %q", text, got)
		}
	}
}

func TestADirectoryWithoutAChangeIsAnErrorOfTheFileSystem(t *testing.T) {
	t.Parallel()
	for _, dir := range []string{t.TempDir(), filepath.Join(t.TempDir(), "none")} {
		c, err := Load(dir)
		if c != nil || !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), dir) {
			t.Errorf("Load(%s) = %v, %v", dir, c, err)
		}
	}
}

func TestFilesThatAreNoTextOrNoFilesAreRefused(t *testing.T) {
	t.Parallel()
	outside := write(t, map[string]string{"secret.sql": "SELECT 1"})
	for _, tc := range []struct {
		name string
		make func(t *testing.T, file string)
		want string
	}{
		{"a symbolic link that leaves the directory", func(t *testing.T, file string) {
			must(t, os.Symlink(filepath.Join(outside, "secret.sql"), file))
		}, "sql/add.up.sql: path escapes from parent"},
		{"a directory", func(t *testing.T, file string) { must(t, os.Mkdir(file, 0o755)) }, "sql/add.up.sql: not a regular file"},
		{"a named pipe", func(t *testing.T, file string) { must(t, mkfifo(file)) }, "sql/add.up.sql: not a regular file"},
		{"a device", func(t *testing.T, file string) { must(t, os.Symlink("/dev/zero", file)) }, "sql/add.up.sql: path escapes from parent"},
		{"a file that is too large", func(t *testing.T, file string) {
			must(t, os.WriteFile(file, nil, 0o600))
			must(t, os.Truncate(file, maxFileBytes+1))
		}, "sql/add.up.sql: larger than 64 MiB"},
		{"Latin-1", content("SELECT 1;\n  SELECT 'é\xe9'"), "sql/add.up.sql:2:12: the file is not UTF-8"},
		{"UTF-16", content("\xff\xfeS\x00"), "sql/add.up.sql:1:1: the file is UTF-16; save it as UTF-8"},
		{"a NUL", content("SELECT 1\x00"), "sql/add.up.sql:1:9: the file holds a NUL byte; it is not text"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			files := maps.Clone(exampleFiles)
			delete(files, "sql/add.up.sql")
			dir := write(t, files)
			tc.make(t, filepath.Join(dir, "sql", "add.up.sql"))
			_, err := Load(dir)
			if got := problemLines(t, dir, err); !slices.Equal(got, []string{tc.want}) {
				t.Errorf("got %q, want %q", got, tc.want)
			}
		})
	}
}

func content(text string) func(*testing.T, string) {
	return func(t *testing.T, file string) { must(t, os.WriteFile(file, []byte(text), 0o600)) }
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestALinkWithinTheDirectoryIsFollowed(t *testing.T) {
	t.Parallel()
	files := maps.Clone(exampleFiles)
	delete(files, "sql/add.up.sql")
	dir := write(t, files)
	must(t, os.Symlink("add.down.sql", filepath.Join(dir, "sql", "add.up.sql")))
	c, err := Load(dir)
	must(t, err)
	if got := c.Steps[0].Up.Default.Text; got != exampleFiles["sql/add.down.sql"] {
		t.Errorf("the link is read as %q", got)
	}
}

func TestTheChangeFileItselfIsReadByTheSameRules(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"version: 1\nid: \xe9":  "change.yaml:2:5: the file is not UTF-8",
		"version: 1\x00":        "change.yaml:1:11: the file holds a NUL byte; it is not text",
		"\xfe\xff\x00v":         "change.yaml:1:1: the file is UTF-16; save it as UTF-8",
		"":                      "change.yaml:1:1: the file is empty; a change begins with version: 1",
		"# only a comment\n":    "change.yaml:1:1: the file is empty; a change begins with version: 1",
		"version: [1\n":         "change.yaml:2:1: not YAML: did not find expected ',' or ']'",
		"version: 1\n\tid: a\n": "change.yaml:2:1: not YAML: found",
	} {
		got := loadProblems(t, with("change.yaml", text))
		if len(got) != 1 || !strings.HasPrefix(got[0], want) {
			t.Errorf("%q\n got %q\nwant %q", text, got, want)
		}
	}
}
