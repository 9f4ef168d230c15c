package tenant_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"unicode"

	"github.com/belayhq/belay/tenant"
)

func TestAPlainNameIsAccepted(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"a", "0", "acme", "acme-2", "acme_2", "acme.example.com", "a..b", "a-", strings.Repeat("x", 63)} {
		if err := tenant.ValidateName(name); err != nil {
			t.Errorf("%q: %v", name, err)
		}
	}
}

func TestAHostileNameIsRefusedAndShownSafely(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]string{
		"":                               "tenant name is empty",
		"Acme":                           `"Acme" has an upper-case letter at position 1: names are lower-case`,
		"acmE":                           `"acmE" has an upper-case letter at position 4`,
		".":                              `"." must begin with a letter or a digit`,
		"..":                             `".." must begin`,
		"-x":                             `"-x" must begin`,
		"_x":                             `"_x" must begin`,
		"../etc":                         `"../etc" must begin`,
		"a/b":                            `"a/b" has "/" at position 2`,
		`a\b`:                            `"a\\b" has "\\" at position 2`,
		`a"b`:                            `"a\"b" has "\"" at position 2`,
		"a'b":                            `"a'b" has "'" at position 2`,
		"a;--":                           `"a;--" has ";" at position 2`,
		"a b":                            `"a b" has ' ' (U+0020) at position 2`,
		"a\x00":                          `"a\x00" has '\x00' (U+0000) at position 2`,
		"a\n":                            `"a\n" has '\n' (U+000A) at position 2`,
		"a\x1b[31m":                      `"a\x1b[31m" has '\x1b' (U+001B) at position 2`,
		"a\x7f":                          `'\x7f' (U+007F) at position 2`,
		"a\xff":                          `"a\xff" has byte 0xFF, which is not UTF-8, at position 2`,
		"\u0430cme":                      `has 'а' (U+0430) at position 1`,
		"acme\u200b":                     `"acme\u200b" has '\u200b' (U+200B) at position 5`,
		"a\u202eb":                       `"a\u202eb" has '\u202e' (U+202E)`,
		"ａ":                              `(U+FF41)`,
		"é":                              `(U+00E9)`,
		"\ufffd":                         `(U+FFFD)`,
		"$(id)":                          `has "$" at position 1`,
		"<b>":                            `has "<" at position 1`,
		strings.Repeat("x", 64):          `"` + strings.Repeat("x", 40) + `"… has 64 bytes, at most 63 are allowed`,
		strings.Repeat("é", 40) + "\x00": "has 81 bytes",
		strings.Repeat("a", 39) + strings.Repeat("é", 20): `"` + strings.Repeat("a", 39) + `"… has 79 bytes`,
	} {
		err := tenant.ValidateName(name)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("ValidateName(%q): %v; want %q", name, err, want)
		} else if strings.ContainsFunc(err.Error(), func(r rune) bool { return !unicode.IsPrint(r) }) || len(err.Error()) > 250 {
			t.Errorf("ValidateName(%q): the error is not fit for a terminal: %q", name, err)
		}
	}
}

func TestTwoLongNamesThatDifferAtTheEndAreBothRefused(t *testing.T) {
	t.Parallel()
	for _, end := range []string{"a", "b"} {
		if err := tenant.ValidateName(strings.Repeat("x", 69) + end); err == nil || !strings.Contains(err.Error(), "70 bytes") {
			t.Errorf("a name of 70 bytes: %v", err)
		}
	}
}

func TestAURLInPlaceOfANameIsNotShown(t *testing.T) {
	t.Parallel()
	url := "postgres://u:" + canary + "@h/db"
	_, _, errChange := tenant.ParseLabelChanges([]string{url})
	_, errLabels := tenant.ParseLabels(url+"?a=b", ";")
	_, errValue := tenant.ParseLabels("password="+canary+"!", ";")
	_, errSelector := tenant.ParseSelector(url)
	for _, err := range []error{
		tenant.ValidateName(url), tenant.ValidateName("https://" + canary), tenant.ValidateName("u:" + canary + "@h"), tenant.ValidateName("host=h password=" + canary),
		tenant.ValidPattern("[" + url), errChange, errLabels, errValue, errSelector,
	} {
		if err == nil || strings.Contains(err.Error(), canary) {
			t.Errorf("got %v; want an error without the password", err)
		}
	}
}

func TestLabelsAreChecked(t *testing.T) {
	t.Parallel()
	many := map[string]string{}
	for i := range tenant.MaxLabels + 1 {
		many[fmt.Sprint("k", i)] = ""
	}
	for _, c := range []struct {
		labels map[string]string
		want   string
	}{
		{nil, ""},
		{map[string]string{"ring": "canary", "tier": "", "app.example/x_y-z": "A.b_c-1/2"}, ""},
		{map[string]string{longLabel: longLabel}, ""},
		{map[string]string{"": "x"}, "label key is empty"},
		{map[string]string{longLabel + "x": ""}, "has 64 bytes"},
		{map[string]string{"a": longLabel + "x"}, `label "a": the value has 64 bytes`},
		{map[string]string{"-a": ""}, `label key "-a" must begin and end`},
		{map[string]string{"a-": ""}, `label key "a-" must begin and end`},
		{map[string]string{"a b": ""}, `label key "a b" has ' ' (U+0020) at position 2`},
		{map[string]string{"a": "x,y"}, `label "a": the value has "," at position 2`},
		{map[string]string{"a": "x\x00"}, `label "a": the value has '\x00' (U+0000) at position 2`},
		{map[string]string{"a": "é"}, "(U+00E9)"},
		{map[string]string{"b": "!", "a": "!", "c": "!"}, `label "a"`},
		{many, "65 labels, at most 64"},
	} {
		err := tenant.ValidateLabels(c.labels)
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("ValidateLabels(%v): %v; want %q", c.labels, err, c.want)
		}
	}
}

func TestLabelsAreReadFromPairs(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		text, sep string
		want      map[string]string
		err       string
	}{
		{"", ";", nil, ""},
		{"  ", ";", nil, ""},
		{"ring=canary", ";", map[string]string{"ring": "canary"}, ""},
		{"ring=canary;tier=", ";", map[string]string{"ring": "canary", "tier": ""}, ""},
		{" ring=canary , tier=free ", ",", map[string]string{"ring": "canary", "tier": "free"}, ""},
		{"a=1;a=2", ";", nil, `label "a" is given twice`},
		{"a=1;", ";", nil, `label "": want key=value`},
		{"a", ";", nil, `label "a": want key=value`},
		{"=x", ";", nil, "label key is empty"},
		{"a=1,b=2", ";", nil, `label "a": the value has "," at position 2`},
		{"a=b=c", ";", nil, `label "a": the value has "=" at position 2`},
	} {
		got, err := tenant.ParseLabels(c.text, c.sep)
		if c.err != "" {
			if err == nil || !strings.Contains(err.Error(), c.err) {
				t.Errorf("ParseLabels(%q): %v; want %q", c.text, err, c.err)
			}
		} else if err != nil || !maps.Equal(got, c.want) || (got == nil) != (c.want == nil) {
			t.Errorf("ParseLabels(%q) = %v, %v; want %v", c.text, got, err, c.want)
		}
	}
}

func TestLabelChangesSetAndRemove(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		args   []string
		set    map[string]string
		remove []string
		err    string
	}{
		{nil, map[string]string{}, nil, ""},
		{[]string{"ring=canary", "tier-"}, map[string]string{"ring": "canary"}, []string{"tier"}, ""},
		{[]string{"z-,a=1, b=", "y-"}, map[string]string{"a": "1", "b": ""}, []string{"z", "y"}, ""},
		{[]string{"a-b-"}, map[string]string{}, []string{"a-b"}, ""},
		{[]string{"a=1", "a-"}, nil, nil, `label "a" is given twice`},
		{[]string{"a-", "a=1"}, nil, nil, `label "a" is given twice`},
		{[]string{"a-", "a-"}, nil, nil, `label "a" is given twice`},
		{[]string{"a=1,a=1"}, nil, nil, `label "a" is given twice`},
		{[]string{"a=1-"}, nil, nil, `label "a": the value must begin and end`},
		{[]string{"-"}, nil, nil, "label key is empty"},
		{[]string{"a--"}, nil, nil, `label key "a-" must begin and end`},
		{[]string{"a"}, nil, nil, "want key=value"},
		{[]string{""}, nil, nil, "want key=value"},
	} {
		set, remove, err := tenant.ParseLabelChanges(c.args)
		if c.err != "" {
			if err == nil || !strings.Contains(err.Error(), c.err) {
				t.Errorf("ParseLabelChanges(%q): %v; want %q", c.args, err, c.err)
			}
		} else if err != nil || !maps.Equal(set, c.set) || !slices.Equal(remove, c.remove) {
			t.Errorf("ParseLabelChanges(%q) = %v, %v, %v; want %v, %v", c.args, set, remove, err, c.set, c.remove)
		}
	}
}
