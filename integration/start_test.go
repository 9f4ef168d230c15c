package integration

import (
	"strings"
	"testing"

	"github.com/belayhq/belay/tenant"
)

// Sixteen processes that start at once on a database without Belay's tables all come up: the tables are made once, nobody
// sees an error, and each change is applied once.
func TestSixteenProcessesStartOnAnEmptyDatabase(t *testing.T) {
	t.Parallel()
	const processes = 16
	onBoth(t, func(t *testing.T, w *world) {
		s := newSite(w, "auto")
		children := make([]*child, processes)
		for i := range children {
			children[i] = startChild(t, "", append(s.args("apply"), "-wait", hang.String())...)
		}
		applied := 0
		for _, c := range children {
			switch r := c.wait(); r.Verdict {
			case "applied":
				applied++
			case "already_applied":
			default:
				t.Errorf("%+v", r)
			}
		}
		if applied != 1 {
			t.Errorf("%d processes applied the change", applied)
		}
		s.appliedOnce()
	})
}

// The same with a tenant each: all sixteen apply.
func TestSixteenProcessesApplyToTenantsOfTheirOwnInAnEmptyDatabase(t *testing.T) {
	t.Parallel()
	w := newWorld(t, tenant.Postgres)
	const processes = 16
	children := make([]*child, processes)
	for i := range children {
		schema := "tenant_" + string(rune('a'+i))
		w.exec("CREATE SCHEMA " + schema)
		own := *w
		own.id, own.scope = tenant.NewID(), schema
		own.target = strings.ReplaceAll(w.target, "schema=site", "schema="+schema)
		s := newSite(&own, "auto")
		children[i] = startChild(t, "", s.args("apply")...)
	}
	for _, c := range children {
		equal(t, "verdict", c.wait().Verdict, "applied")
	}
	equal(t, "plans", w.query("SELECT status, count(*) FROM belay.plan GROUP BY 1"), "applied|16")
}
