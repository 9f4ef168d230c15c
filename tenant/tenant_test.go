package tenant_test

import (
	"testing"

	"github.com/belayhq/belay/tenant"
)

func TestAnIDIsFreshAndCanonical(t *testing.T) {
	t.Parallel()
	a, b := tenant.NewID(), tenant.NewID()
	if a == b {
		t.Errorf("two new ids are both %s", a)
	}
	if got, err := tenant.ParseID(string(a)); err != nil || got != a {
		t.Errorf("ParseID(%s) = %s, %v", a, got, err)
	}
	const want = "0190a6e2-7c1b-4d3e-9f00-aabbccddeeff"
	for _, s := range []string{want, "0190A6E2-7C1B-4D3E-9F00-AABBCCDDEEFF"} {
		if got, err := tenant.ParseID(s); err != nil || got != want {
			t.Errorf("ParseID(%s) = %s, %v; want %s", s, got, err, want)
		}
	}
	for _, s := range []string{"", "acme", want + "0"} {
		if got, err := tenant.ParseID(s); err == nil {
			t.Errorf("ParseID(%q) = %s; want an error", s, got)
		}
	}
}
