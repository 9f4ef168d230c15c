package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A mutation that no longer applies shows nothing. Whoever moves the code that it breaks is told so at once.
func TestEveryMutationStillApplies(t *testing.T) {
	t.Parallel()
	names := map[string]bool{}
	for _, m := range mutations() {
		if names[m.name] {
			t.Errorf("two mutations are called %q", m.name)
		}
		names[m.name] = true
		changed, err := m.apply(tree{root: "../.."})
		if err != nil {
			t.Error(err)
		}
		if len(changed) == 0 || len(m.noticed) == 0 {
			t.Errorf("%q changes %d files and names %d targets", m.name, len(changed), len(m.noticed))
		}
	}
}

func TestAnAnchorHoldsOnlyWhereItIsTheOnlyOne(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	if err := os.WriteFile(filepath.Join(root, "code"), []byte("one two two"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		edits []edit
		says  string
	}{
		{[]edit{{"code", "one", "ONE"}, {"code", "ONE two two", "done"}}, ""},
		{[]edit{{"code", "two", "TWO"}}, "code has this text 2 times"},
		{[]edit{{"code", "three", "THREE"}}, "code has this text 0 times"},
		{[]edit{{"elsewhere", "one", "ONE"}}, "elsewhere is not there any more"},
	} {
		changed, err := mutation{name: "m", edits: test.edits}.apply(tree{root})
		if test.says == "" {
			if err != nil || changed["code"] != "done" {
				t.Errorf("got %q, %v", changed, err)
			}
			continue
		}
		if err == nil || !strings.Contains(err.Error(), test.says) {
			t.Errorf("got %v, want %q", err, test.says)
		}
	}
}

func TestTheInnermostTestThatFailedIsNamed(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		lines string
		depth int
		red   string
		ran   bool
		fails bool
	}{
		{`{"Action":"run","Test":"A"}{"Action":"pass","Test":"A"}{"Action":"pass"}`, 0, "", true, false},
		{`{"Action":"run","Test":"A"}{"Action":"pass","Test":"A"}{"Action":"pass"}`, 1, "", false, false},
		{`{"Action":"pass"}`, 0, "", false, false},
		{`{"Action":"run","Test":"A/b"}{"Action":"fail","Test":"A"}{"Action":"fail","Test":"A/b"}{"Action":"fail"}`, 0, "A/b", true, false},
		{`{"Action":"run","Test":"A"}{"Action":"fail","Package":"p"}`, 0, "p", true, false},
		{`{"Action":"build-fail"}{"Action":"fail","Package":"p"}`, 0, "", false, true},
		{`not JSON`, 0, "", false, true},
	} {
		red, ran, err := read([]byte(test.lines), test.depth)
		if red != test.red || ran != test.ran || (err != nil) != test.fails {
			t.Errorf("%s: got %q, %v, %v", test.lines, red, ran, err)
		}
	}
}
