package plan

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"go.yaml.in/yaml/v4"
)

// beyondSchema begins what only the loader can see.
var beyondSchema = []string{
	"there is no file", "two steps are called", "requires itself", "covered_by must name an earlier step", "has nothing to run on the way back",
	"up and down are the same file", "the Down section has no statement", "the file has a Down section", "this is no goose migration",
	"a statement before -- +goose Up",
}

func compileSchema(t *testing.T) *jsonschema.Schema {
	t.Helper()
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(Schema()))
	if err != nil {
		t.Fatal(err)
	}
	c := jsonschema.NewCompiler()
	c.AssertFormat()
	if err := c.AddResource("change.json", doc); err != nil {
		t.Fatal(err)
	}
	s, err := c.Compile("change.json")
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// agree demands that the schema and the loader say the same of a document.
func agree(t *testing.T, s *jsonschema.Schema, dir string, doc any) {
	t.Helper()
	text, err := yaml.Marshal(doc)
	if err != nil {
		t.Fatal(err)
	}
	asJSON, err := json.Marshal(doc)
	if err != nil {
		t.Fatal(err)
	}
	value, err := jsonschema.UnmarshalJSON(bytes.NewReader(asJSON))
	if err != nil {
		t.Fatal(err)
	}
	bySchema := s.Validate(value)
	_, byLoader := Parse(dir, text)
	invalid, ok := errors.AsType[*InvalidError](byLoader)
	switch {
	case byLoader == nil && bySchema != nil:
		t.Errorf("the loader takes what the schema refuses:\n%s\n%v", text, bySchema)
	case ok && bySchema == nil && slices.ContainsFunc(invalid.Problems, func(p Problem) bool { return !isBeyondSchema(p.Message) }):
		t.Errorf("the schema takes what the loader refuses:\n%s\n%v", text, byLoader)
	}
}

func isBeyondSchema(message string) bool {
	return slices.ContainsFunc(beyondSchema, func(part string) bool { return strings.Contains(message, part) })
}

const goosePieces = `version: 1
id: history
steps:
  - id: both
    sql: { goose: sql/goose.sql }
  - id: up-only
    sql: { goose: sql/up.sql }
    undo: { irreversible: because }
  - id: plain
    sql: { up: sql/add.up.sql }
    undo: { none: because }
    verify: { query: SELECT 1 }
`

func TestTheSchemaAndTheLoaderAgree(t *testing.T) {
	t.Parallel()
	s := compileSchema(t)
	files := with("sql/goose.sql", "-- +goose Up\nSELECT 1;\n-- +goose Down\nSELECT 2;\n")
	files["sql/up.sql"] = "-- +goose Up\nSELECT 1;\n"
	dir := write(t, files)
	documents := 0
	for _, text := range []string{exampleFiles["change.yaml"], goosePieces} {
		var doc any
		if err := yaml.Unmarshal([]byte(text), &doc); err != nil {
			t.Fatal(err)
		}
		if _, err := Parse(dir, []byte(text)); err != nil {
			t.Fatal(err)
		}
		agree(t, s, dir, doc)
		mutate(doc, func() {
			documents++
			if !t.Failed() {
				agree(t, s, dir, doc)
			}
		})
	}
	if documents < 1000 {
		t.Errorf("only %d documents were compared", documents)
	}
}

// values stand in the place of every value in turn, and beside them those that only some keys are choosy about.
var values = []any{nil, 1, true, "", " ", "x", "X", "a\tb", "a\n", []any{}, []any{"a", "a"}, map[string]any{}, map[string]any{"none": "x"}}

var choosy = map[string][]any{
	"version":    {0, 2, -1, 1.5},
	"id":         {"-a", "a b", strings.Repeat("a", 100), strings.Repeat("a", 101), "add-column"},
	"requires":   {[]any{1}, []any{"a", "b"}},
	"on_failure": {"stop", "rollback", "step"},
	"checkpoint": {"auto", "step", "stop"},
	"timeout":    {"1h2m", ".5s", "5.s", "0s", "0h0m", "-1s", "+1s", "30", "1d"},
	"expect":     {1.5, -1},
	"up":         files, "down": files, "goose": files,
	"sql": {map[string]any{"up": "sql/add.up.sql"}, map[string]any{"goose": "sql/goose.sql"}},
}

var files = []any{
	"sql/add.up.sql", "sql/goose.sql", "sql/none.sql", "../x.sql", "/x.sql", "./x.sql", "a/../b.sql", "a//b.sql", ".sql", "a/.sql", `a\b.sql`,
	"x.postgres.sql", "x.sql.txt", "..a.sql",
}

var keys = []string{
	"version", "id", "title", "requires", "on_failure", "checkpoint", "timeout", "steps", "sql", "action", "undo", "verify", "up", "down",
	"goose", "name", "none", "covered_by", "irreversible", "rows", "extra",
}

// mutate changes one place of a document after the other, and calls look each time.
func mutate(node any, look func()) {
	switch node := node.(type) {
	case map[string]any:
		for _, key := range slices.Sorted(maps.Keys(node)) {
			was := node[key]
			delete(node, key)
			look()
			for _, v := range slices.Concat(values, choosy[key]) {
				node[key] = v
				look()
			}
			if node[key] = was; key != "args" && key != "requires" { // any value is one argument more
				mutate(was, look)
			}
		}
		for _, key := range keys {
			if _, taken := node[key]; taken {
				continue
			}
			for _, v := range []any{nil, map[string]any{"none": "x"}, "sql/add.down.sql"} {
				node[key] = v
				look()
			}
			delete(node, key)
		}
	case []any:
		for i, was := range node {
			for _, v := range values {
				node[i] = v
				look()
			}
			node[i] = was
			mutate(was, look)
		}
	}
}

func TestEveryExampleFollowsTheSchema(t *testing.T) {
	t.Parallel()
	s := compileSchema(t)
	found := 0
	for _, pattern := range []string{"../examples/*/change.yaml", "../docs/change-file.md"} {
		names, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range names {
			text, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			if _, example, ok := strings.Cut(string(text), "```yaml\n"); ok {
				example, _, _ = strings.Cut(example, "```")
				text = []byte(example)
			}
			var doc any
			if err := yaml.Unmarshal(text, &doc); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			asJSON, err := json.Marshal(doc)
			if err != nil {
				t.Fatal(err)
			}
			value, err := jsonschema.UnmarshalJSON(bytes.NewReader(asJSON))
			if err != nil {
				t.Fatal(err)
			}
			if err := s.Validate(value); err != nil {
				t.Errorf("%s: %v", name, fmt.Sprint(err))
			}
			found++
		}
	}
	if found < 2 {
		t.Errorf("%d examples", found)
	}
}
