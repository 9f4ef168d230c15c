package tenant_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/belayhq/belay/tenant"
)

func ExampleParseSelector() {
	sel, err := tenant.ParseSelector("ring=canary, tier!=free, region in (us,eu), !frozen")
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(sel)
	fmt.Println(sel.Matches(map[string]string{"ring": "canary", "region": "eu"}))
	fmt.Println(sel.Matches(map[string]string{"ring": "canary", "region": "eu", "tier": "free"}))

	_, err = tenant.ParseSelector("ring=canary,region in eu")
	fmt.Println(err)
	// Output:
	// ring=canary,tier!=free,region in (eu,us),!frozen
	// true
	// false
	// selector: column 23: want "(", got "eu"
}

func TestASelectorMatchesAsInKubernetes(t *testing.T) {
	t.Parallel()
	type labels = map[string]string
	for _, c := range []struct {
		selector string
		matches  []labels
		misses   []labels
	}{
		{"ring=canary", []labels{{"ring": "canary"}, {"ring": "canary", "x": "y"}}, []labels{nil, {"ring": "Canary"}, {"ring": ""}, {"x": "canary"}}},
		{"ring==canary", []labels{{"ring": "canary"}}, []labels{nil, {"ring": "main"}}},
		{"tier!=free", []labels{nil, {"tier": "paid"}, {"tier": ""}}, []labels{{"tier": "free"}}},
		{"region in (eu,us)", []labels{{"region": "eu"}, {"region": "us"}}, []labels{nil, {"region": "ap"}, {"region": ""}}},
		{"region notin (eu,us)", []labels{nil, {"region": "ap"}, {"region": ""}}, []labels{{"region": "eu"}, {"region": "us"}}},
		{"ring", []labels{{"ring": ""}, {"ring": "x"}}, []labels{nil, {"rings": "x"}}},
		{"!ring", []labels{nil, {"rings": "x"}}, []labels{{"ring": ""}, {"ring": "x"}}},
		{"ring=", []labels{{"ring": ""}}, []labels{nil, {"ring": "x"}}},
		{"ring!=", []labels{nil, {"ring": "x"}}, []labels{{"ring": ""}}},
		{"a=1,b=2", []labels{{"a": "1", "b": "2"}}, []labels{{"a": "1"}, {"b": "2"}, {"a": "1", "b": "3"}}},
		{"a!=1,a!=2", []labels{nil, {"a": "3"}}, []labels{{"a": "1"}, {"a": "2"}}},
	} {
		sel, err := tenant.ParseSelector(c.selector)
		if err != nil {
			t.Errorf("%s: %v", c.selector, err)
			continue
		}
		for _, l := range c.matches {
			if !sel.Matches(l) {
				t.Errorf("%s does not match %v", c.selector, l)
			}
		}
		for _, l := range c.misses {
			if sel.Matches(l) {
				t.Errorf("%s matches %v", c.selector, l)
			}
		}
	}
}

func TestTheZeroSelectorMatchesEveryTenant(t *testing.T) {
	t.Parallel()
	var sel tenant.Selector
	if !sel.Matches(nil) || !sel.Matches(map[string]string{"a": "b"}) || sel.String() != "" {
		t.Errorf("the zero selector %q has a condition", sel)
	}
}

func TestASelectorHasOneSpelling(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"  ring  ==  canary  ":      "ring=canary",
		"region in(us , eu,us),!a":  "region in (eu,us),!a",
		"a notin\t( x )":            "a notin (x)",
		"! a , b":                   "!a,b",
		"in in (in),notin notin (a": "",
		"in in (in),notin,in":       "in in (in),notin,in",
		"a= , b":                    "a=,b",
		"app.example/ring!=A_1-b.c": "app.example/ring!=A_1-b.c",
	} {
		sel, err := tenant.ParseSelector(in)
		if (err != nil) != (want == "") || sel.String() != want {
			t.Errorf("ParseSelector(%q) = %q, %v; want %q", in, sel, err, want)
		}
	}
}

func TestABadSelectorIsLocated(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"":                     "column 1: want a label key, got the end",
		"   ":                  "column 4: want a label key, got the end",
		"a=b,":                 "column 5: want a label key, got the end",
		",a":                   `column 1: want a label key, got ","`,
		"a=b,,c":               `column 5: want a label key, got ","`,
		"a b":                  `column 3: want "=", "!=", "in", "notin", "," or the end, got "b"`,
		"a IN (b)":             `column 3: want "=", "!=", "in", "notin", "," or the end, got "IN"`,
		"a>1":                  `column 2: want "=", "!=", "in", "notin", "," or the end, got ">"`,
		"!a=b":                 `column 3: want "," or the end, got "="`,
		"!":                    "column 2: want a label key, got the end",
		"a=b c":                `column 5: want "," or the end, got "c"`,
		"a===b":                `column 4: want a value, got "="`,
		"a in":                 `column 5: want "(", got the end`,
		"a in b":               `column 6: want "(", got "b"`,
		"a in ()":              `column 7: want a value, got ")"`,
		"a in (b":              `column 8: want "," or ")", got the end`,
		"a in (b,)":            `column 9: want a value, got ")"`,
		"a in (b c)":           `column 9: want "," or ")", got "c"`,
		"a in (b))":            `column 9: want "," or the end, got ")"`,
		"a='b'":                `column 3: want a value, got "'"`,
		"é=b":                  `column 1: want a label key, got 'é' (U+00E9)`,
		"a=é,b":                `column 3: want a value, got 'é' (U+00E9)`,
		"a in (b\u00a0é)":      `column 9: want "," or ")", got 'é' (U+00E9)`,
		"a\xff":                `column 2: want "=", "!=", "in", "notin", "," or the end, got byte 0xFF, which is not UTF-8,`,
		"a,-b":                 `column 3: "-b" must begin and end with a letter or a digit`,
		"a=b.":                 `column 3: "b." must begin and end with a letter or a digit`,
		longLabel + "x=b":      "column 1: \"" + longLabel[:40] + "\"… has 64 bytes, at most 63 are allowed",
		"a=" + longLabel + "y": "column 3: \"" + longLabel[:40] + "\"… has 64 bytes, at most 63 are allowed",
	} {
		_, err := tenant.ParseSelector(in)
		if err == nil || err.Error() != "selector: "+want {
			t.Errorf("ParseSelector(%q): %v; want %s", in, err, want)
		}
	}
}

var longLabel = strings.Repeat("k", tenant.MaxLabelBytes)

func TestAGlobMatchesNames(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		pattern, name string
		want          bool
	}{
		{"acme", "acme", true},
		{"acme", "acme2", false},
		{"*", "acme", true},
		{"*", "", true},
		{"*", "eu/acme", true},
		{"eu*", "eu/acme/x", true},
		{"eu?acme", "eu/acme", true},
		{"eu/acme", "eu/acme", true},
		{"eu/acme", "eu.acme", false},
		{"a*e", "acme", true},
		{"a*e", "acmes", false},
		{"acme-?", "acme-1", true},
		{"acme-?", "acme-12", false},
		{"acme-[0-3]", "acme-2", true},
		{"acme-[0-3]", "acme-4", false},
		{"acme-[^0-3]", "acme-4", true},
		{"acme-[^0-3]", "acme-1", false},
		{`a\*`, "a*", true},
		{`a\*`, "ab", false},
		{"a[", "a[", false},
		{"[", "[", false},
		{"", "", true},
	} {
		if got := tenant.MatchName(c.pattern, c.name); got != c.want {
			t.Errorf("MatchName(%q, %q) = %v", c.pattern, c.name, got)
		}
	}
}

func TestAGlobThatCannotBeUsedIsRefused(t *testing.T) {
	t.Parallel()
	for _, pattern := range []string{"", "[", "a[", "a[b", "a[]", "a[b-", "a[-b]", "*a[", "x*y[z", `a\`, "[!a]", "a\x00", "a\xff", "a\x1b[31m"} {
		if err := tenant.ValidPattern(pattern); err == nil {
			t.Errorf("%q is accepted", pattern)
		} else if strings.ContainsAny(err.Error(), "\x00\x1b") {
			t.Errorf("%q: the error holds control bytes: %q", pattern, err)
		}
	}
	for _, pattern := range []string{"*", "acme", "a*[b-d]?", "[^a]", `\[!`[:2] + "x", "é*"} {
		if err := tenant.ValidPattern(pattern); err != nil {
			t.Errorf("%q: %v", pattern, err)
		}
	}
}

func FuzzParseSelector(f *testing.F) {
	for _, s := range []string{"ring=canary,tier!=free", "region in (eu,us),region notin (x)", "key,!key", "a=,b", "in in (in)", "a in (", "é", "a==b", ""} {
		f.Add(s, "ring", "canary")
	}
	f.Fuzz(func(t *testing.T, s, key, value string) {
		sel, err := tenant.ParseSelector(s)
		if err != nil {
			return
		}
		back, err := tenant.ParseSelector(sel.String())
		if err != nil || back.String() != sel.String() {
			t.Errorf("%q is %q, which reads back as %q, %v", s, sel, back, err)
		}
		for _, labels := range []map[string]string{nil, {key: value}} {
			if sel.Matches(labels) != back.Matches(labels) {
				t.Errorf("%q and %q differ on %v", sel, back, labels)
			}
		}
	})
}
