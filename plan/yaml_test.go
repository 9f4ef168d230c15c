package plan

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// step is the head of a change of which only the steps matter.
const step = "version: 1\nid: a\nsteps:\n"

func TestWhatIsWrongWithAChangeIsSaidWhereItStands(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", 101)
	for _, tc := range []struct {
		text string
		want []string // what the problems begin with
	}{
		// The top.
		{"[]", []string{"1:1: a change must be a mapping with version, id, title, requires, on_failure, checkpoint, timeout and steps, not a list"}},
		{"{}", []string{"1:1: id is missing", "1:1: steps is missing", "1:1: version is missing; this is version: 1"}},
		{"version: 2\nid: a\nsteps: [{id: s, action: {name: n}}]", []string{"1:10: version 2 is not supported; this binary reads version 1"}},
		{"version: one\nid: a\nsteps: [{id: s, action: {name: n}}]", []string{`1:10: version must be the number 1, not "one"`}},
		{"version: 1.0\nid: a\nsteps: [{id: s, action: {name: n}}]", []string{"1:10: version must be the number 1, not the number 1.0"}},
		{"version: 1\nid: a\nsteps: []", []string{"3:8: a change needs at least one step"}},
		{"version: 1\nid: a\nsteps: {id: s}", []string{"3:8: steps must be a list, not a mapping"}},
		{"version: 1\nid: a\nsteps:", []string{"3:7: steps must be a list, not null"}},
		{"version: 1\nid: a\nstep: []\ncolour: red\nsteps: [{id: s, action: {name: n}}]", []string{
			"3:1: unknown key step in a change; did you mean steps?", "4:1: unknown key colour in a change",
		}},
		{"version: 1\nid: a\non_failure: stopp\ncheckpoint: 1\ntimeout: 30\ntitle: [x]\nrequires: b\nsteps: [{id: s, action: {name: n}}]", []string{
			`3:13: on_failure must be stop or rollback, not "stopp"; did you mean stop?`,
			"4:13: checkpoint must be auto or step, not the number 1",
			"5:10: timeout must be a duration such as 30s or 5m, not the number 30",
			"6:8: title must be a string, not a list",
			`7:11: requires must be a list, not "b"`,
		}},
		{"version: 1\nid: a\ntimeout: -1s\ntitle: \"a\\tb\"\nsteps: [{id: s, action: {name: n}, timeout: 0s}]", []string{
			"3:10: timeout must be more than zero", "4:8: title must be one line without control characters", "5:45: timeout must be more than zero",
		}},
		{"version: 1\nid: b\nrequires: [a, a, b, 7, C]\nsteps: [{id: s, action: {name: n}}]", []string{
			"3:15: change a is required twice", "3:18: change b requires itself",
			`3:21: a required change must be a string, not the number 7; write "7"`,
			`3:24: a required change "C" may hold only lower-case letters, digits, -, _ and .`,
		}},

		// Identifiers.
		{"version: 1\nid: 0042\nsteps: [{id: s, action: {name: n}}]", []string{`2:5: id must be a string, not the number 0042; write "0042"`}},
		{"version: 1\nid: ''\nsteps: [{id: s, action: {name: n}}]", []string{"2:5: id must not be empty"}},
		{"version: 1\nid:\nsteps: [{id: s, action: {name: n}}]", []string{"2:4: id must be a string, not null"}},
		{"version: 1\nid: Ab/c\nsteps: [{id: s, action: {name: n}}]", []string{`2:5: id "Ab/c" may hold only`}},
		{"version: 1\nid: ..\nsteps: [{id: s, action: {name: n}}]", []string{`2:5: id ".." must begin with a letter or a digit`}},
		{"version: 1\nid: " + long + "\nsteps: [{id: s, action: {name: n}}]", []string{"2:5: id is longer than 100 characters"}},
		{"version: 1\nid: " + long[1:] + "\nsteps: [{id: 2024-01-02, action: {name: n}}]", nil},
		{step + "  - {id: s, action: {name: n}}\n  - {id: S, action: {name: n}}\n  - {id: s, action: {name: n}}\n  - {action: {name: n}}", []string{
			`5:10: a step's id "S" may hold only`, "6:10: two steps are called s", "7:5: a step needs an id",
		}},

		// What YAML offers beyond plain values.
		{"version: 1\nid: a\nid: b\nsteps: [{id: s, action: {name: n, name: m, args: {x: 1, x: 2}}}]", []string{
			"3:1: duplicate key id, first on line 2", "4:35: duplicate key name, first on line 4", "4:57: duplicate key x, first on line 4",
		}},
		{"version: 1\nid: &x a\ntitle: *x\nsteps: [{id: s, action: {name: n}}]", []string{
			"2:5: anchor &x; anchors are not supported", "3:8: alias *x; aliases are not supported",
		}},
		{step + "  - &s {id: s, action: {name: n}}\n  - {<<: *s, id: t}\n  - *s", []string{
			"4:5: anchor &s;", "5:5: a step needs sql: {up, down} or action", "5:6: merge key <<;", "5:10: alias *s;", "6:5: alias *s;",
		}},
		{"version: !!int 1\nid: !mine a\nsteps: [{id: s, action: {name: n, args: {a: !!binary aGk=}}}]", []string{
			"1:10: tag !!int; tags are not supported", "2:5: id must be a string", "2:5: tag !mine; tags", "3:45: tag !!binary; tags",
		}},
		{"version: 1\nid: a\nsteps: [{id: s, action: {name: n}}]\n---\nversion: 1\n", []string{"4:1: a second document; a change is one document"}},
		{"version: 1\nid: a\nsteps: [{id: s, action: {name: n}}]\n--- [\n", []string{"5:1: not YAML:"}},
		{"version: 1\nid: a\n1: x\n[b]: c\nsteps: [{id: s, action: {name: n, args: {2: x}}}]", []string{
			"3:1: a key must be a string; quote it", "4:1: a key must be a string", "5:42: a key must be a string",
		}},

		// Steps.
		{step + "  - x", []string{`4:5: a step must be a mapping with id, sql, action, rows, undo, verify and timeout, not "x"`}},
		{step + "  - {id: s}", []string{"4:5: a step needs sql: {up, down} or action: {name, args}"}},
		{step + "  - {id: s, sql: {up: sql/add.up.sql, down: sql/add.down.sql}, action: {name: n}}", []string{"4:72: a step has sql or action, not both"}},
		{step + "  - {id: s, rows: {table: t}}", []string{"4:19: rows steps are not supported by this version"}},
		{step + "  - {id: s, spl: {}, action: {nam: n}}", []string{
			"4:13: unknown key spl in a step; did you mean sql?", "4:30: an action needs a name", "4:31: unknown key nam in action; did you mean name?",
		}},
		{step + "  - {id: s, sql: {up: sql/add.up.sql}}", []string{"4:18: how is this step undone? give down: a file, or undo: with one of none:"}},
		{step + "  - {id: s, sql: {down: sql/add.down.sql}}", []string{"4:18: sql needs up, the file to run"}},
		{step + "  - {id: s, sql: sql/add.up.sql}", []string{`4:18: sql must be a mapping with up, down and goose, not "sql/add.up.sql"`}},
		{step + "  - {id: s, sql: {up: sql/add.up.sql, down: sql/add.down.sql}, undo: {none: x}}", []string{"4:70: a step has down or undo, not both"}},
		{step + "  - {id: s, sql: {up: sql/add.up.sql, down: sql/add.up.sql}}", []string{"4:45: up and down are the same file"}},
		{step + "  - {id: s, action: {name: n}, undo: {}}\n  - {id: t, action: {name: n}, undo: {none: a, irreversible: b}}", []string{
			"4:38: undo has exactly one of", "5:38: undo has exactly one of none, covered_by and irreversible",
		}},
		{step + "  - {id: s, action: {name: n}, undo: {none: }}\n  - {id: t, action: {name: n}, undo: {irreversible: ' '}}", []string{
			"4:45: none must say why", "5:53: irreversible must say why",
		}},
		{step + "  - {id: s, action: {name: n}, undo: {nothing: x}}\n  - {id: t, action: {name: n}, undo: none}", []string{
			"4:38: undo has exactly one of", "4:39: unknown key nothing in undo", `5:38: undo must be a mapping with none, covered_by and irreversible, not "none"`,
		}},

		// covered_by.
		{step + "  - {id: s, action: {name: n}, undo: {none: x}}\n  - {id: t, action: {name: n}, undo: {covered_by: s}}", []string{"5:51: step s has nothing to run on the way back"}},
		{step + "  - {id: s, action: {name: n}, undo: {covered_by: s}}", []string{"4:51: covered_by must name an earlier step; none is called s"}},
		{step + "  - {id: s, action: {name: n}, undo: {covered_by: later}}\n  - {id: later, action: {name: n}}", []string{"4:51: covered_by must name an earlier step"}},
		{step + "  - {id: first, action: {name: n}}\n  - {id: t, action: {name: n}, undo: {covered_by: frist}}", []string{"5:51: covered_by must name an earlier step; none is called frist; did you mean first?"}},
		{step + "  - {id: s, sql: {up: sql/add.up.sql, down: sql/add.down.sql}}\n  - {id: t, action: {name: n}, undo: {covered_by: s}}", nil},

		// File names.
		{step + "  - {id: s, sql: {up: /etc/passwd.sql, down: ../x.sql}}", []string{
			`4:23: "/etc/passwd.sql" is not a file below the change's directory`, `4:46: "../x.sql" is not a file below`,
		}},
		{step + `  - {id: s, sql: {up: sql\a.sql, down: sql/add.down.postgres.sql}}`, []string{
			`4:23: a file name is written with /, not \`, `4:40: "sql/add.down.postgres.sql" is a variant; name sql/add.down.sql`,
		}},
		{step + "  - {id: s, sql: {up: DROP TABLE x, down: sql/none.sql}}", []string{
			`4:23: "DROP TABLE x" does not end in .sql`, "4:43: there is no file sql/none.sql, nor sql/none.postgres.sql or sql/none.sqlite.sql beside it",
		}},
		{step + "  - {id: s, sql: {up: [a.sql], down: }}", []string{"4:23: a script must be a string, not a list", "4:38: a script must be a string, not null"}},

		// verify.
		{step + "  - {id: s, action: {name: n}, verify: {expect: null}}", []string{"4:40: verify needs a query", "4:49: expect cannot be null"}},
		{step + "  - {id: s, action: {name: n}, verify: {query: '', expect: [1]}}", []string{"4:48: verify needs a query", "4:60: expect must be one value, not a list"}},
		{step + "  - {id: s, action: {name: n}, verify: SELECT 1}", []string{`4:40: verify must be a mapping with query and expect, not "SELECT 1"`}},
		{step + "  - {id: s, action: {name: n}, verify: {query: 1}}", []string{`4:48: query must be a string, not the number 1; write "1"`}},

		// Actions.
		{step + "  - {id: s, action: {args: {}}}", []string{"4:21: an action needs a name"}},
		{step + "  - {id: s, action: {name: '', args: [1]}}", []string{"4:28: an action needs a name", "4:38: args must be a mapping, not a list"}},
		{step + "  - {id: s, action: {name: n, args: {a: .inf, b: .nan, c: 123456789012345678901234567890, d: \"\\0\"}}}", []string{
			"4:41: .inf is not a number that JSON can hold", "4:50: .nan is not a number", "4:59: 123456789012345678901234567890 does not fit in 64 bits", "4:94: a NUL character",
		}},
		{step + "  - {id: s, action: {name: n, args: {a: " + strings.Repeat("[", 99) + strings.Repeat("]", 99) + "}}}", []string{"4:136: nested more than 100 deep"}},
	} {
		got := loadProblems(t, with("change.yaml", tc.text))
		ok := len(got) == len(tc.want)
		for i := 0; ok && i < len(got); i++ {
			ok = strings.HasPrefix(got[i], "change.yaml:"+tc.want[i])
		}
		if !ok {
			t.Errorf("%s\n got %s\nwant %s", tc.text, strings.Join(got, "\n     "), strings.Join(tc.want, "\n     "))
		}
	}
}

// G10
func TestAChangeHasATenThousandStepsAtMost(t *testing.T) {
	t.Parallel()
	var steps strings.Builder
	for i := range maxSteps + 1 {
		steps.WriteString("  - {id: s" + string(rune('a'+i%26)) + strings.Repeat("x", i%3) + ", action: {name: n}}\n")
	}
	got := loadProblems(t, with("change.yaml", step+steps.String()))
	if !slices.Equal(got, []string{"change.yaml:10004:5: more than 10000 steps"}) {
		t.Errorf("got %.3q", got)
	}
}

func TestProblemsOfAllFilesComeTogetherAndSorted(t *testing.T) {
	t.Parallel()
	files := with("sql/add.up.sql", "\xff")
	files["sql/add.down.sql"] = "a\n\x00"
	files["change.yaml"] = strings.Replace(files["change.yaml"], "on_failure: rollback", "on_failure: maybe", 1)
	want := []string{
		`change.yaml:5:13: on_failure must be stop or rollback, not "maybe"`,
		"sql/add.down.sql:2:1: the file holds a NUL byte; it is not text",
		"sql/add.up.sql:1:1: the file is not UTF-8",
	}
	if got := loadProblems(t, files); !slices.Equal(got, want) {
		t.Errorf("got %q", got)
	}
}

func TestTheNearestWordIsSuggested(t *testing.T) {
	t.Parallel()
	known := []string{"version", "steps", "on_failure", "up"}
	for word, want := range map[string]string{
		"verison": "version", "Steps": "steps", "step": "steps", "onfailure": "on_failure", "pu": "up", "colour": "", "x": "", "": "",
	} {
		got := nearest(word, known)
		if (got == "") != (want == "") || !strings.Contains(got, want) {
			t.Errorf("nearest(%q) = %q, want %q", word, got, want)
		}
	}
}

func FuzzLoad(f *testing.F) {
	f.Add(exampleFiles["change.yaml"])
	for _, text := range []string{
		"", "a: &a [*a]", "{a: {b: {c: [", "? [a]\n: b", "<<: {a: 1}", "version: 1\nid: a\nsteps: [{id: s, sql: {up: sql/add.up.sql}, undo: {none: x}}]",
		"version: 1\n---\n---\n", "a: !!float x", "%TAG ! x\n---\na", "version: 1\nid: a\nsteps: [{id: s, action: {name: n, args: {a: 0o7, b: 1_0, c: 1e999, d: -0.0}}}]",
	} {
		f.Add(text)
	}
	dir := write(f, exampleFiles)
	root, err := os.OpenRoot(dir)
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, text string) {
		text, err := normalise([]byte(text))
		if err != nil {
			t.Skip()
		}
		w := &walk{dir: dir, file: filepath.Join(dir, changeFile), scripts: map[string]*Source{}, reader: &reader{root: root}}
		c := w.document(text)
		for _, p := range w.problems {
			if p.Message == "" || p.File == "" || p.Line < 0 || p.Column < 0 {
				t.Fatalf("%q: problem %+v", text, p)
			}
		}
		if len(w.problems) > 0 {
			return
		}
		again, err := DecodeChange(c.Encode())
		if err != nil || again.Digest() != c.Digest() {
			t.Fatalf("%q: %s reads back as %v, %v", text, c.Encode(), again, err)
		}
	})
}
