package plan

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"strings"
	"testing"
)

func TestADigestIsThatOfTheEncoding(t *testing.T) {
	t.Parallel()
	c := mustLoad(t, exampleFiles)
	d := c.Digest()
	if len(d) != len("sha256:")+64 || !strings.HasPrefix(string(d), "sha256:") || len(d.Short()) != 12 {
		t.Errorf("digest %s, short %s", d, d.Short())
	}
	again, err := DecodeChange(c.Encode())
	if err != nil {
		t.Fatal(err)
	}
	if again.Digest() != d || !bytes.Equal(again.Encode(), c.Encode()) {
		t.Errorf("decoded:\n%s\nwas:\n%s", again.Encode(), c.Encode())
	}
	if strings.Contains(string(c.Encode()), "\n") || !json.Valid(c.Encode()) {
		t.Error("the encoding is not compact JSON")
	}
}

// A digest is pinned in databases: a binary that computed another one for the same files would refuse every rollback.
func TestTheDigestOfAChangeStaysTheSameForEver(t *testing.T) {
	t.Parallel()
	const want = "sha256:a5f84ac6ced0a6b71c307b4e7d95c3afc5e1821509e2b780af8373c6c7445032"
	if got := mustLoad(t, exampleFiles).Digest(); got != want {
		t.Errorf("digest is %s, want %s", got, want)
	}
}

func TestADigestDoesNotDependOnHowTheFilesAreWritten(t *testing.T) {
	t.Parallel()
	want := mustLoad(t, exampleFiles).Digest()
	every := func(f func(string) string) map[string]string {
		files := maps.Clone(exampleFiles)
		for name, text := range files {
			files[name] = f(text)
		}
		return files
	}
	yaml := exampleFiles["change.yaml"]
	reordered := strings.Replace(yaml, "id: 0042-customer-locale\ntitle: Add customer.locale\n", "", 1) +
		"title: Add customer.locale\nid: 0042-customer-locale\n"
	for name, files := range map[string]map[string]string{
		"CRLF":         every(func(s string) string { return strings.ReplaceAll(s, "\n", "\r\n") }),
		"CR":           every(func(s string) string { return strings.ReplaceAll(s, "\n", "\r") }),
		"BOM":          every(func(s string) string { return "\ufeff" + s }),
		"BOM and CRLF": every(func(s string) string { return "\ufeff" + strings.ReplaceAll(s, "\n", "\r\n") }),
		"comments":     with("change.yaml", "# a comment\n"+strings.ReplaceAll(yaml, "steps:\n", "steps: # here\n\n")),
		"key order":    with("change.yaml", reordered),
		"args order":   with("change.yaml", strings.Replace(yaml, "{ c: 1, b: 1.0 }", "{ b: 1, c: 0x1 }", 1)),
		"quotes":       with("change.yaml", strings.Replace(yaml, "title: Add customer.locale", `"title": "Add customer.locale"`, 1)),
		"other files":  with("README.md", "x"),
	} {
		if got := mustLoad(t, files).Digest(); got != want {
			t.Errorf("%s: digest %s, want %s", name, got, want)
		}
	}
}

func TestADigestChangesWithEveryFieldAndFile(t *testing.T) {
	t.Parallel()
	yaml := exampleFiles["change.yaml"]
	seen := map[Digest]string{mustLoad(t, exampleFiles).Digest(): "the example"}
	check := func(name string, files map[string]string) {
		t.Helper()
		d := mustLoad(t, files).Digest()
		if other, ok := seen[d]; ok {
			t.Errorf("%s has the digest of %s", name, other)
		}
		seen[d] = name
	}
	for name, text := range exampleFiles {
		if name != "change.yaml" {
			check(name, with(name, text+" "))
		}
	}
	check("a new variant", with("sql/add.up.sqlite.sql", exampleFiles["sql/add.up.sql"]))
	check("another new variant", with("sql/add.up.postgres.sql", exampleFiles["sql/add.up.sql"]))
	renamed := with("sql/added.up.sql", exampleFiles["sql/add.up.sql"])
	renamed["change.yaml"] = strings.Replace(yaml, "sql/add.up.sql", "sql/added.up.sql", 1)
	check("a renamed file", renamed)
	for _, edit := range [][2]string{
		{"id: 0042-customer-locale", "id: 0042"},
		{"title: Add", "title: add"},
		{", '0007'", ""},
		{"[0041-customer, '0007']", "['0007', 0041-customer]"},
		{"rollback", "stop"},
		{"checkpoint: step", "checkpoint: auto"},
		{"5m", "6m"},
		{"30s", "31s"},
		{"id: tell", "id: told"},
		{"WHERE locale", "WHERE  locale"},
		{"expect: 0", "expect: 1"},
		{", expect: 0", ""},
		{"covered_by: add-column", "none: add-column"},
		{"{ none: caches", "{ irreversible: caches"},
		{"cache.warm", "cache.hot"},
		{"locales,", "locale,"},
		{"2.5", "2.4"},
		{"true", "false"},
		{"null", "'null'"},
		{"[1,", "['1',"},
		{"mail.send }", "mail.send, args: {} }"},
		{"within an hour", "within a day"},
	} {
		if !strings.Contains(yaml, edit[0]) {
			t.Fatalf("the example has no %q", edit[0])
		}
		text := strings.Replace(yaml, edit[0], edit[1], 1)
		if strings.HasPrefix(edit[0], "id: 0042") {
			text = strings.Replace(yaml, edit[0], "id: '0042'", 1)
		}
		check(fmt.Sprint(edit), with("change.yaml", text))
	}
}

func TestADatabaseMayKeepTheEncodingInAFormOfItsOwn(t *testing.T) {
	t.Parallel()
	yaml := "version: 1\nid: a\nsteps: [{id: s, action: {name: n, args: {bb: 1e21, a: 1e-7, ccc: 1e3, d: 18446744073709551615, e: -0.0, f: 2.50, g: '<&\\u2028'}}}]"
	c := mustLoad(t, with("change.yaml", yaml))
	const args = `{"a":1e-7,"bb":1e+21,"ccc":1000,"d":18446744073709551615,"e":0,"f":2.5,"g":"<&\\u2028"}`
	if got := string(c.Steps[0].Action.Args); got != args {
		t.Errorf("args %s", got)
	}
	// What PostgreSQL's jsonb makes of it: other spaces, other order, numbers written out.
	stored := `{"id": "a", "steps": [{"id": "s", "kind": "action", "action": {"args": {"a": 0.0000001, "d": 18446744073709551615,
		"e": -0.0, "f": 2.5, "g": "<&\\u2028", "bb": 1000000000000000000000, "ccc": 1000}, "name": "n"}}], "version": 1, "checkpoint": "auto", "on_failure": "stop"}`
	again, err := DecodeChange([]byte(stored))
	if err != nil {
		t.Fatal(err)
	}
	if again.Digest() != c.Digest() {
		t.Errorf("stored:\n%s\nwas:\n%s", again.Encode(), c.Encode())
	}
	if got := string(again.Steps[0].Action.Args); got != args {
		t.Errorf("decoded args %s", got)
	}
}

func TestArgumentsThatAreNotJSONStillEncode(t *testing.T) {
	t.Parallel()
	for _, args := range []string{"{bad", "{} {}", "1e999", "nul"} {
		c := &Change{Version: 1, ID: "a", Steps: []Step{{ID: "s", Kind: Action, Action: &ActionRef{Name: "n", Args: json.RawMessage(args)}}}}
		if _, err := DecodeChange(c.Encode()); !json.Valid(c.Encode()) || err == nil {
			t.Errorf("%s encodes as %s and decodes with %v", args, c.Encode(), err)
		}
	}
}

func TestWhatThisBinaryDoesNotKnowNeedsANewerOne(t *testing.T) {
	t.Parallel()
	for data, newer := range map[string]bool{
		`{"version":2,"id":"a","steps":[]}`:                                  true,
		`{"version":2,"id":"a","phases":[]}`:                                 true,
		`{"version":1,"id":"a","steps":[{"id":"s","kind":"rows"}]}`:          true,
		`{"version":1,"id":"a","steps":[{"id":"s","kind":"sql","pace":1}]}`:  true,
		`{"version":1,"id":"a","steps":[{"id":"s","kind":"sql"}]}`:           false,
		`{"version":1,"id":"a","steps":[{"id":"s","kind":"action"}]}`:        false,
		`{"version":1,"id":"a","steps":[]}{}`:                                false,
		`{"version":0}`:                                                      true,
		`{"version":1`:                                                       false,
		``:                                                                   false,
		`{"version":1,"steps":[{"kind":"action","action":{"args":[1]}}]}`:    false,
		`{"version":1,"steps":[{"kind":"action","action":{"args":"{bad"}}]}`: false,
	} {
		c, err := DecodeChange([]byte(data))
		if c != nil || err == nil || errors.Is(err, ErrUnsupported) != newer {
			t.Errorf("%s: %v, %v; want newer %v", data, c, err, newer)
		}
	}
}

func TestADigestMismatchIsRecognisedAndNamesBoth(t *testing.T) {
	t.Parallel()
	err := fmt.Errorf("apply: %w", &DigestMismatchError{Change: "a", Pinned: "sha256:0123456789abcdef", Given: "sha256:fedcba9876543210"})
	if !errors.Is(err, ErrDigestMismatch) || errors.Is(err, ErrUnsupported) {
		t.Error("the error is not ErrDigestMismatch")
	}
	if !strings.Contains(err.Error(), "change a differs from the one in place: pinned 0123456789ab, given fedcba987654") {
		t.Error(err)
	}
}
