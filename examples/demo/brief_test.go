package main

import (
	"fmt"
	"strings"
	"testing"
)

func TestOnlyRoutineLinesAreLeftOut(t *testing.T) {
	t.Parallel()
	var in strings.Builder
	for i := range 10 {
		fmt.Fprintf(&in, "shop-%02d: add-locale done (1/4)\n", i)
	}
	in.WriteString("shop-03: step add-locale: boom\nerror: shop-03: boom\nshop-03: failed (0/4) in 1ms\n")
	in.WriteString("shop-04  failed  0/4  1ms\nno line end")
	var out strings.Builder
	b := &brief{to: &out}
	text := in.String()
	for _, part := range []string{text[:7], text[7:100], text[100:]} {
		if _, err := b.Write([]byte(part)); err != nil {
			t.Fatal(err)
		}
	}
	if err := b.end(); err != nil {
		t.Fatal(err)
	}
	want := `shop-00: add-locale done (1/4)
shop-01: add-locale done (1/4)
shop-02: add-locale done (1/4)
shop-03: add-locale done (1/4)
… and 6 more lines like these
shop-03: step add-locale: boom
error: shop-03: boom
shop-03: failed (0/4) in 1ms
shop-04  failed  0/4  1ms
no line end
`
	if out.String() != want {
		t.Errorf("got:\n%s\nwant:\n%s", out.String(), want)
	}
}
