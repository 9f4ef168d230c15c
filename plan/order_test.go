package plan

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// changesOf makes changes from "id: required …" texts.
func changesOf(texts ...string) []*Change {
	var out []*Change
	for _, text := range texts {
		id, requires, _ := strings.Cut(text, ":")
		out = append(out, &Change{ID: id, Requires: strings.Fields(requires)})
	}
	return out
}

func TestChangesComeAfterWhatTheyRequireAndThenById(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		changes []string
		want    string
	}{
		{nil, ""},
		{[]string{"c", "a", "b"}, "a b c"},
		{[]string{"a: c", "b", "c"}, "b c a"},
		{[]string{"a: z", "b: a", "c", "z"}, "c z a b"},
		{[]string{"d: b c", "c: a", "b: a", "a"}, "a b c d"},
		{[]string{"1: 3", "2: 3", "3: 5", "4", "5"}, "4 5 3 1 2"},
	} {
		got, err := Order(changesOf(tc.changes...))
		var ids []string
		for _, c := range got {
			ids = append(ids, c.ID)
		}
		if err != nil || strings.Join(ids, " ") != tc.want {
			t.Errorf("%v: %v, %v; want %s", tc.changes, ids, err, tc.want)
		}
	}
}

func TestChangesThatCannotBeOrderedAreNamed(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		changes []string
		want    []string
	}{
		{[]string{"a: b", "b: a"}, []string{"the changes require each other in a circle: a → b → a"}},
		{[]string{"a: a"}, []string{"the changes require each other in a circle: a → a"}},
		{[]string{"x: b", "b: c", "c: d", "d: b"}, []string{"the changes require each other in a circle: b → c → d → b"}},
		{[]string{"a: b", "b: a", "c: d", "d: c"}, []string{
			"the changes require each other in a circle: a → b → a", "the changes require each other in a circle: c → d → c",
		}},
		{[]string{"first", "b: frist nothing-like-it"}, []string{
			"change b requires frist, which is not here; did you mean first?", "change b requires nothing-like-it, which is not here",
		}},
		{[]string{"a", "a"}, []string{"change a is here a second time"}},
	} {
		order, err := Order(changesOf(tc.changes...))
		if got := problemLines(t, ".", err); order != nil || !slices.Equal(got, tc.want) {
			t.Errorf("%v: %v, %q; want %q", tc.changes, order, got, tc.want)
		}
	}
}

func TestEveryChangeOfADirectoryIsRead(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if got, err := LoadAll(dir); len(got) != 0 || err != nil {
		t.Fatalf("an empty directory: %v, %v", got, err)
	}
	put := func(folder, text string) {
		must(t, os.MkdirAll(filepath.Join(dir, folder), 0o755))
		if text != "" {
			must(t, os.WriteFile(filepath.Join(dir, folder, changeFile), []byte(text), 0o600))
		}
	}
	const tail = "\nsteps: [{id: s, action: {name: n}}]\n"
	put("two", "version: 1\nid: b\nrequires: [a]"+tail)
	put("one", "version: 1\nid: c\nrequires: [b]"+tail)
	put("three", "version: 1\nid: a"+tail)
	put("notes", "")
	must(t, os.WriteFile(filepath.Join(dir, "README.md"), nil, 0o600))
	all, err := LoadAll(dir)
	must(t, err)
	ordered, err := Order(all)
	must(t, err)
	if len(ordered) != 3 || ordered[0].ID != "a" || ordered[1].ID != "b" || ordered[2].ID != "c" {
		t.Errorf("order %v", ordered)
	}

	put("zz", "version: 1\nid: b\nrequires: [a, none]"+tail)
	put("one", "version: 1\nid: c\nrequires: [missing]"+tail)
	all, err = LoadAll(dir)
	must(t, err)
	_, err = Order(all)
	want := []string{
		"one/change.yaml:3:12: change c requires missing, which is not here",
		"zz/change.yaml:2:5: change b is here a second time; it is also in two/change.yaml",
	}
	if got := problemLines(t, dir, err); !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}

	put("one", "version: 2")
	put("two", "id: 7")
	_, err = LoadAll(dir)
	if got := problemLines(t, dir, err); len(got) != 6 || !strings.HasPrefix(got[0], "one/") || !strings.HasPrefix(got[5], "two/") {
		t.Errorf("got %q", got)
	}
	if _, err := LoadAll(filepath.Join(dir, "none")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a directory that is not there: %v", err)
	}
}
