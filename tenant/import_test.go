package tenant_test

import (
	"errors"
	"fmt"
	"io"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/belayhq/belay/tenant"
)

// readImport returns all registrations and the texts of all errors.
func readImport(r io.Reader) (regs []tenant.Registration, errs []string) {
	for reg, err := range tenant.ReadImport(r, "tenants.txt", "/base") {
		if err != nil {
			errs = append(errs, err.Error())
		} else {
			regs = append(regs, reg)
		}
	}
	return regs, errs
}

func TestAnImportFileIsRead(t *testing.T) {
	t.Parallel()
	acme := tenant.Registration{Name: "acme", Target: sqlite("/base/acme.db"), Labels: map[string]string{"ring": "canary", "tier": "paid"}}
	globex := tenant.Registration{Name: "globex", Target: postgres("postgres://a,b/db", "globex", "")}
	at := func(r tenant.Registration, line int) tenant.Registration { r.Line = line; return r }
	for what, c := range map[string]struct {
		text string
		want []tenant.Registration
	}{
		"CSV": {
			"name,target,labels\nacme,sqlite://acme.db,ring=canary;tier=paid\nglobex,\"postgres://a,b/db?schema=globex\",\n",
			[]tenant.Registration{at(acme, 2), at(globex, 3)},
		},
		"CSV with a byte order mark, CRLF, blank lines and spaces": {
			"\ufeffname, target, labels\r\n\r\nacme, sqlite://acme.db, ring=canary; tier=paid\r\n\r\nglobex,\"postgres://a,b/db?schema=globex\",\r\n",
			[]tenant.Registration{at(acme, 3), at(globex, 5)},
		},
		"CSV without labels, in another order and without a last newline": {
			"target,name\n\"postgres://a,b/db?schema=globex\",globex",
			[]tenant.Registration{at(globex, 2)},
		},
		"CSV with the header alone": {"name,target\n", nil},
		"JSON lines": {
			`{"name":"acme","target":"sqlite://acme.db","labels":{"ring":"canary","tier":"paid"}}` + "\n" +
				`{"target":"postgres://a,b/db?schema=globex","name":"globex"}`,
			[]tenant.Registration{at(acme, 1), at(globex, 2)},
		},
		"JSON lines with a byte order mark, CRLF and blank lines": {
			"\ufeff" + `{"name":"acme","target":"sqlite://acme.db","labels":{"ring":"canary","tier":"paid"}}` + "\r\n  \r\n" +
				` { "name" : "globex", "target":"postgres://a,b/db?schema=globex", "labels":{} } ` + "\r\n",
			[]tenant.Registration{at(acme, 1), at(globex, 3)},
		},
	} {
		for _, r := range []io.Reader{strings.NewReader(c.text), iotest.OneByteReader(strings.NewReader(c.text))} {
			got, errs := readImport(r)
			if errs != nil || !reflect.DeepEqual(got, c.want) {
				t.Errorf("%s: got %+v, %q; want %+v", what, got, errs, c.want)
			}
		}
	}
}

func TestABadImportFileIsRefusedWithFileAndLine(t *testing.T) {
	t.Parallel()
	const ok = `{"name":"a","target":"sqlite://a.db"}` + "\n"
	for text, want := range map[string]string{
		"":                                   "1: file is empty",
		"\ufeff":                             "1: file is empty",
		"\n\n":                               "1: file is empty",
		"acme,sqlite://a.db\n":               `1: unknown column "acme": the header is name,target,labels`,
		"\nname,target,labels,x\n":           `2: unknown column "x"`,
		"name,name,target\n":                 `1: column "name" appears twice`,
		"name,labels\n":                      `1: column "target" is missing`,
		"Name,target\n":                      `1: unknown column "Name"`,
		"name,target\na\n":                   "2: 1 fields, want 2 as in the header",
		"name,target\na,b,c\n":               "2: 3 fields, want 2 as in the header",
		"name,target\na,sqlite://a.db\n\"b,": `3: extraneous or missing " in quoted-field`,
		"name,target\n\"a\nb\nc":             `2: extraneous or missing " in quoted-field`,
		"name,target\na,x\"y\n":              `2: bare " in non-quoted-field`,
		"name,target\nAcme,sqlite://a.db\n":  `2: tenant name "Acme" has an upper-case letter`,
		"name,target\na,b.db\n":              "2: target: URL must begin with sqlite://",
		"name,target\na,sqlite://a.db\n\na,sqlite://b.db\n":                `4: tenant "a" is already on line 2`,
		"name,target,labels\na,sqlite://a.db,ring\n":                       `2: label "ring": want key=value`,
		"name,target,labels\na,sqlite://a.db,a=1;a=2\n":                    `2: label "a" is given twice`,
		"name,target\n\"a\nb\",x\n":                                        `2: tenant name "a\nb" has '\n' (U+000A)`,
		ok + ok:                                                            `2: tenant "a" is already on line 1`,
		`{"name":"a","target":"sqlite://a.db","tags":{}}`:                  `1: unknown key "tags"`,
		`{"Name":"a","target":"sqlite://a.db"}`:                            `1: unknown key "Name"`,
		`{"name":"a","name":"b","target":"sqlite://a.db"}`:                 `1: key "name" appears twice`,
		`{"name":1,"target":"sqlite://a.db"}`:                              "1: name must be a string",
		`{"name":"a","target":null}`:                                       "1: target must be a string",
		`{"name":"a","target":{}}`:                                         "1: target must be a string",
		`{"name":"a"}`:                                                     "1: target: URL must begin",
		`{}`:                                                               "1: tenant name is empty",
		`{"name":"a","target":"sqlite://a.db","labels":"ring=x"}`:          "1: labels must be a JSON object",
		`{"name":"a","target":"sqlite://a.db","labels":{"a":1}}`:           `1: value of label "a" must be a string`,
		`{"name":"a","target":"sqlite://a.db","labels":{"a":"1","a":"2"}}`: `1: key "a" appears twice`,
		`{"name":"a","target":"sqlite://a.db","labels":{"a b":"1"}}`:       `1: label key "a b" has ' '`,
		`{"name":"a","target":"sqlite://a.db"} x`:                          "1: text after the JSON object",
		`{"name":"a","target":"sqlite://a.db"}{}`:                          "1: text after the JSON object",
		ok + "[]\n":          "2: record must be a JSON object",
		ok + "name,target\n": "2: not valid JSON at byte 2",
		`{"name":"a",`:       "1: JSON object is not complete",
		`{"name":"a"`:        "1: JSON object is not complete",
		`{"name":"a","target":"sqlite://` + "\xff" + `"}`:                   "1: line is not valid UTF-8",
		`{"name":"a","target":"sqlite://a\u0000.db"}`:                       "1: target: sqlite path contains a control character",
		ok + `{"name":"` + strings.Repeat("x", 1<<20) + `"}`:                "2: record is longer than 1048576 bytes",
		"name,target\na,sqlite://a.db\n\"" + strings.Repeat("x\n", 600_000): "3: record is longer than 1048576 bytes",
	} {
		_, errs := readImport(strings.NewReader(text))
		if len(errs) != 1 || !strings.HasPrefix(errs[0], "tenants.txt:"+want) {
			t.Errorf("%.80q: got %q; want tenants.txt:%s", text, errs, want)
		}
	}
}

func TestAllBadRecordsOfAnImportAreReported(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		"name,target\nA,sqlite://a.db\nb,sqlite://b.db\nc\nd,x\ne,sqlite://e.db\n",
		"{}\n" + `{"name":"b","target":"sqlite://b.db"}` + "\n\n{\n" + `{"name":"e","target":"sqlite://e.db"}` + "\n{} x\n",
	} {
		regs, errs := readImport(strings.NewReader(text))
		if len(errs) != 3 || len(regs) != 2 || regs[0].Name != "b" || regs[1].Name != "e" {
			t.Errorf("%q: got %+v, %q", text, regs, errs)
		}
	}
}

func TestAnImportStopsWhenItsReaderFails(t *testing.T) {
	t.Parallel()
	broken := errors.New("disk on fire")
	for text, line := range map[string]int{
		"":                                 1,
		"name,":                            1,
		"name,target\na,sqlite://a.db\nb,": 3,
		`{"name":"a","target":"sqlite://a.db"}` + "\n": 2,
	} {
		n := 0
		for reg, err := range tenant.ReadImport(io.MultiReader(strings.NewReader(text), iotest.ErrReader(broken)), "f", "/") {
			if err == nil {
				continue
			}
			if n++; !errors.Is(err, broken) || reg.Line != line || !strings.HasPrefix(err.Error(), fmt.Sprintf("f:%d: ", line)) {
				t.Errorf("%q: line %d: %v; want line %d", text, reg.Line, err, line)
			}
		}
		if n != 1 {
			t.Errorf("%q: %d errors", text, n)
		}
	}
}

// Every place that yields must stop when told to; the runtime panics if one does not.
func TestAnImportCanBeLeftAtAnyRecord(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		"name,target,labels\na,sqlite://a.db,\nA,x,\nb\nc,sqlite://c.db,x\nd,sqlite://d.db,\nd,sqlite://d.db,\n\"",
		`{"name":"a","target":"sqlite://a.db"}` + "\n{}\n[]\n" + `{"name":"a","target":"x"}` + "\n" + `{"name":"b","target":"x"}`,
	} {
		total := len(slices.Collect(keys(tenant.ReadImport(strings.NewReader(text), "f", "/"))))
		if total < 5 {
			t.Fatalf("%q has %d records", text, total)
		}
		for stop := range total {
			n := 0
			for range tenant.ReadImport(strings.NewReader(text), "f", "/") {
				if n++; n > stop {
					break
				}
			}
			if n != stop+1 {
				t.Errorf("stopped after %d records, want %d", n, stop+1)
			}
		}
	}
}

func keys[K, V any](seq func(func(K, V) bool)) func(func(K) bool) {
	return func(yield func(K) bool) { seq(func(k K, _ V) bool { return yield(k) }) }
}

func TestAnImportShowsNoPassword(t *testing.T) {
	t.Parallel()
	url := "postgres://u:" + canary + "@h/db"
	for _, text := range []string{
		"name,target\na," + url + "\n",
		"name,target\n" + url + ",a\n",
		"name,target,labels\na,sqlite://a.db," + url + "\n",
		"name,target,labels\na,sqlite://a.db,url=" + url + "\n",
		url + ",target\n",
		"name,target\na,\"" + url + "\n",
		"name,target\na,x\"" + url + "\n",
		`{"name":"a","target":"` + url + `"}`,
		`{"name":"` + url + `"}`,
		`{"name":"a","target":"` + url + "\n",
		`{"` + url + `":1}`,
		`{"` + url,
		`{"name":"a","target":"sqlite://a.db","labels":{"url":"` + url + `"}}`,
		`{"name":"a","target":"sqlite://a.db","labels":{"` + url + `":""}}`,
		`{"name":"a","target":"sqlite://a.db","labels":{"` + url + `":1}}`,
	} {
		regs, errs := readImport(strings.NewReader(text))
		if len(regs) != 0 || len(errs) == 0 || strings.Contains(fmt.Sprint(errs), canary) {
			t.Errorf("%q: got %+v, %q; want errors without the password", text, regs, errs)
		}
	}
}

// Not parallel: it looks at the heap of the whole process.
func TestAnImportKeepsNothingButNames(t *testing.T) {
	const records = 5_000
	padding := strings.Repeat("x", 4000)
	heap := func() uint64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	for what, format := range map[string]string{
		"CSV":        "t%d,sqlite://" + padding + ",\n",
		"JSON lines": `{"name":"t%d","target":"sqlite://` + padding + `"}` + "\n",
	} {
		pr, pw := io.Pipe()
		go func() {
			if what == "CSV" {
				_, _ = io.WriteString(pw, "name,target,labels\n")
			}
			for i := range records {
				if _, err := fmt.Fprintf(pw, format, i); err != nil {
					return
				}
			}
			_ = pw.Close()
		}()
		before, n := heap(), 0
		for _, err := range tenant.ReadImport(pr, "f", "/") {
			if err != nil {
				t.Fatal(err)
			}
			if n++; n == records {
				if after := heap(); after > before+8<<20 {
					t.Errorf("%s: the heap grew by %d bytes over %d records", what, after-before, records)
				}
			}
		}
		if n != records {
			t.Errorf("%s: read %d records, want %d", what, n, records)
		}
	}
}
