package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/belayhq/belay/plan"
	"github.com/belayhq/belay/tenant"
)

// findings says in words what doctor found that is not ok, each with the beginning of its fix.
func (w *world) findings(code int, args ...string) string {
	w.t.Helper()
	d := decode[doctorDocument](w.t, w.want(code, append([]string{"doctor", "-o", "json"}, args...)...).stdout)
	var words []string
	for _, c := range d.Checks {
		if (c.Result == findingOK) != (c.Fix == nil) {
			w.t.Errorf("a fix for %+v", c)
		}
		if c.Result != findingOK {
			words = append(words, string(c.Result)+" "+c.Check+": "+*c.Fix)
		}
	}
	if d.Summary.OK+d.Summary.Warn+d.Summary.Fail != len(d.Checks) {
		w.t.Errorf("summary %+v of %d checks", d.Summary, len(d.Checks))
	}
	return strings.Join(words, "\n")
}

func TestTheDoctorFindsNothingInAHealthyFleet(t *testing.T) {
	t.Parallel()
	onBoth(t, []string{"acme", "bolt"}, func(t *testing.T, w *world) {
		w.ok("apply", w.customers("stop"), "--all", "-y")
		if got := w.findings(exitDone); got != "" {
			t.Errorf("found:\n%s", got)
		}
		contains(t, w.ok("doctor").stdout, "ok      settings", "ok      control database", "ok      tenants", "2 tenants in", "ok      plans")
	})
}

func TestTheDoctorNamesEachProblemWithItsFix(t *testing.T) {
	t.Parallel()
	onBoth(t, []string{"acme", "bolt"}, func(t *testing.T, w *world) {
		w.want(exitPerson, "apply", w.broken("stop"), "-t", "acme", "-y")
		if got, want := w.findings(exitDone), "warn plans of acme: belay status -t acme"; got != want {
			t.Errorf("partial\n got %s\nwant %s", got, want)
		}
		if got := w.findings(exitDone, "-t", "bolt"); got != "" {
			t.Errorf("of the other tenant: %s", got)
		}
		w.byHand("bolt", map[bool]string{
			true: "UPDATE belay.schema_version SET version = version + 1", false: "UPDATE belay_schema_version SET version = version + 1",
		}[w.url != ""])
		contains(t, w.findings(exitError), "fail ", ": run a belay as new as the tables")
	})
}

func TestTheDoctorSeesATargetThatIsGoneOrAnothersOrNobodys(t *testing.T) {
	t.Parallel()
	w := fleet(t, "acme", "bolt", "crate")
	w.exec("bolt", "UPDATE belay_site_lock SET tenant_id = '"+string(tenant.NewID())+"'")
	w.exec("crate", "DELETE FROM belay_site_lock")
	if err := os.Remove(filepath.Join(w.dir, "tenants", "acme.db")); err != nil {
		t.Fatal(err)
	}
	got := strings.Split(w.findings(exitError), "\n")
	if len(got) != 3 {
		t.Fatalf("found %q", got)
	}
	for i, want := range []string{
		"fail database: make it reachable, or: belay tenant remove acme --force",
		"fail tenant bolt: if the target is right: belay tenant remove bolt --force, then belay tenant add bolt sqlite://",
		"fail tenant crate: belay tenant add crate sqlite://",
	} {
		if !strings.HasPrefix(got[i], want) {
			t.Errorf("found %q, want %s", got, want)
		}
	}
	// The fix for a target that nobody has is one.
	fix := strings.Fields(got[2])
	w.ok(fix[4:]...)
	lacks(t, w.findings(exitError), "crate")
}

func TestTheDoctorHelpsWhereNothingIsThereYet(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	if got, want := w.findings(exitError), "warn settings: belay init\nfail control database: belay init"; got != want {
		t.Errorf("nowhere\n got %s\nwant %s", got, want)
	}
	w.ok("init")
	if got, want := w.findings(exitDone), "warn tenants: belay tenant add NAME TARGET, or belay tenant import FILE"; got != want {
		t.Errorf("after init\n got %s\nwant %s", got, want)
	}
}

func TestTheSchemaIsPrintedWithoutADatabase(t *testing.T) {
	t.Parallel()
	if out := newWorld(t).ok("change", "schema").stdout; out != string(plan.Schema()) {
		t.Errorf("printed:\n%s", out)
	}
}
