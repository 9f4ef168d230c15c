package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/belayhq/belay/internal/render"
)

// hostile are names that reach for more than they are.
var hostile = map[string]string{
	"a quote":              "o'reilly",
	"a double quote":       `a"b`,
	"a NUL":                "a\x00b",
	"70 bytes":             strings.Repeat("a", 70),
	"SQL":                  "a;--",
	"the folder above":     "..",
	"a path":               "../acme",
	"an escape":            "a\x1b[2Jb",
	"a line end":           "a\nb",
	"a look-alike":         "аcme", // the first letter is Cyrillic
	"letters side by side": "ａｃｍｅ",
	"right to left":        "a\u202eb",
	"no UTF-8":             "a\xff",
	"nothing":              "",
	"a space":              "a b",
	"a flag":               "-t",
	"a hidden file":        ".acme",
	"upper case":           "Acme",
}

func TestATenantOfAHostileNameIsRefusedEverywhere(t *testing.T) {
	t.Parallel()
	w := fleet(t, "acme")
	w.ok("apply", w.customers("stop"), "--all", "-y")
	before := w.ok("status", "-v", "-o", "json").stdout + w.ok("tenant", "list").stdout
	for what, name := range hostile {
		t.Run(what, func(t *testing.T) {
			for _, args := range [][]string{
				{"tenant", "add", "--create", "--", name, "sqlite://tenants/new.db"},
				{"tenant", "remove", "-y", "--", name},
				{"tenant", "label", "--", name, "a=b"},
				{"history", "--", name},
				{"apply", "changes/0001-customer", "-y", "--tenant=" + name},
				{"rollback", "0001-customer", "-y", "--tenant=" + name},
				{"lock", "break", "--reason", "x", "--", name},
				{"resolve", "--as", "applied", "--reason", "x", "--", name, "0001-customer"},
				{"status", "--tenant=" + name},
			} {
				r := w.run(args...)
				if r.code != exitUsage && r.code != exitRefused {
					t.Errorf("belay %q: exit code %d\n%s", args, r.code, r.stderr)
				}
				contains(t, r.stderr, "error: ")
				lacks(t, r.stdout+r.stderr, "\x1b", "\u202e", "\xff", "\x00")
			}
			w.write("names.csv", "name,target\n\""+strings.ReplaceAll(name, `"`, `""`)+"\",sqlite://tenants/new.db\n")
			r := w.want(exitError, "tenant", "import", "names.csv", "--create")
			contains(t, r.stderr, "error: names.csv:")
			lacks(t, r.stdout+r.stderr, "\x1b", "\u202e", "\xff", "\x00")
			w.write("names.txt", name+"\n")
			if r := w.run("status", "--tenants-from", "names.txt"); r.code != exitUsage && r.code != exitRefused {
				t.Errorf("--tenants-from: exit code %d\n%s", r.code, r.stderr)
			}
		})
	}
	if after := w.ok("status", "-v", "-o", "json").stdout + w.ok("tenant", "list").stdout; after != before {
		t.Errorf("something changed:\n%s\nbefore:\n%s", after, before)
	}
	if _, err := os.Stat(filepath.Join(w.dir, "tenants/new.db")); err == nil {
		t.Error("a file was made for a tenant that was refused")
	}
}

func TestAHostilePathOfAFileIsOneOrIsRefused(t *testing.T) {
	t.Parallel()
	for what, c := range map[string]struct {
		path    string
		refused bool
	}{
		"a query":           {"a.db?mode=memory", true},
		"a line end":        {"a\nb.db", true},
		"an escape":         {"a\x1b.db", true},
		"no UTF-8":          {"a\xff.db", true},
		"a folder":          {"tenants/", true},
		"memory":            {":memory:", true},
		"a URI":             {"file:a.db", true},
		"a fragment":        {"a#b.db", false},
		"a percent":         {"100%.db", false},
		"an escaped letter": {"a%20b.db", false},
		"an escaped NUL":    {"a%00b.db", false},
		"a quote":           {"o'reilly.db", false},
		"SQL":               {"a;--.db", false},
		"a space":           {"a b.db", false},
		"an ampersand":      {"a&mode=memory.db", false},
		"the folder above":  {"sub/../a.db", false},
		"letters of others": {"日本.db", false},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.ok("init")
			list := func() []string {
				entries, err := os.ReadDir(w.dir)
				if err != nil {
					t.Fatal(err)
				}
				var names []string
				for _, e := range entries {
					names = append(names, e.Name())
				}
				return names
			}
			before := list()
			if c.refused {
				r := w.want(exitUsage, "tenant", "add", "acme", "sqlite://"+c.path, "--create")
				contains(t, r.stderr, "error: ")
				lacks(t, r.stderr, "\x1b", "\xff")
				if after := list(); len(after) != len(before) {
					t.Errorf("files were made: %q", after)
				}
				return
			}
			w.ok("tenant", "add", "acme", "sqlite://"+c.path, "--create")
			w.ok("apply", w.customers("stop"), "--all", "-y")
			if _, err := os.Stat(filepath.Join(w.dir, filepath.Clean(c.path))); err != nil {
				t.Errorf("the data went elsewhere: %q", list())
			}
			w.ok("rollback", "0001-customer", "--all", "-y")
		})
	}
}

func TestAHostileSchemaIsOneOrIsRefused(t *testing.T) {
	t.Parallel()
	w := schemas(t)
	for what, c := range map[string]struct {
		schema  string // as it stands in a URL
		refused bool
	}{
		"a NUL":                {"a%00b", true},
		"an escape":            {"a%1b[2J", true},
		"70 bytes":             {strings.Repeat("a", 70), true},
		"no UTF-8":             {"a%ff", true},
		"nothing":              {"", true},
		"Belay's own":          {"belay", true},
		"PostgreSQL's":         {"pg_catalog", true},
		"the role's":           {"$user", true},
		"a quote":              {"o'reilly", false},
		"a double quote":       {"a%22b", false},
		"SQL":                  {"a%22;DROP%20SCHEMA%20belay%20CASCADE;--", false},
		"several":              {"a,public", false},
		"a backslash":          {`a%5Cb`, false},
		"a space":              {"a%20b", false},
		"upper case":           {"Acme", false},
		"lower case":           {"acme", false},
		"a look-alike":         {"аcme", false},
		"a word of SQL's":      {"select", false},
		"letters side by side": {"ａｃｍｅ", false},
		"63 bytes":             {strings.Repeat("b", 63), false},
	} {
		t.Run(what, func(t *testing.T) {
			name := "t-" + strings.ToLower(strings.NewReplacer(" ", "-", "'", "").Replace(what))
			if c.refused {
				r := w.want(exitUsage, "tenant", "add", name, withSchema(w.url, c.schema), "--create")
				contains(t, r.stderr, "error: ", "schema")
				lacks(t, r.stderr, "\x1b", "\x00", "\xff")
				return
			}
			w.ok("tenant", "add", name, withSchema(w.url, c.schema), "--create")
		})
	}
	path := w.customers("stop")
	w.ok("apply", path, "--all", "-y")
	status := decode[render.Status](t, w.ok("status", "-o", "json").stdout)
	if status.Summary.Applied != 12 || status.Summary.Tenants != 12 {
		t.Errorf("status: %+v", status.Summary)
	}
	w.ok("verify", "0001-customer", "--all")
	w.ok("rollback", "0001-customer", "--all", "-y")
	contains(t, w.ok("status").stdout, "tenants: 12 (12 idle)", "12 pending")
}
