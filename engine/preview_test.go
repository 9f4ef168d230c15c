package engine

import (
	"fmt"
	"strings"
	"testing"

	"github.com/belayhq/belay/plan"
	"github.com/belayhq/belay/sitelock"
	"github.com/belayhq/belay/tenant"
)

// stepsOf says in words which steps a preview has: "a b?", the second in doubt.
func stepsOf(c PreviewedChange) string {
	words := make([]string, len(c.Steps))
	for i, s := range c.Steps {
		words[i] = s.Step.ID
		if s.InDoubt {
			words[i] += "?"
		}
	}
	return strings.Join(words, " ")
}

func TestAPreviewHasTheStepsThatAreNotInPlace(t *testing.T) {
	t.Parallel()
	change := changeOf("a b c:ddl")
	for words, want := range map[string]string{
		"":                             "applied a b c",
		"pending":                      "applied a b c",
		"pending a:undone b:undone":    "applied a b c",
		"pending a:done":               "applied b c",
		"pending a:done b:intent":      "applied b? c",
		"pending a:done b:undo_intent": "applied b? c",
		"applying a:done b:intent":     "applied b? c",
		"applied a:done b:done c:done": "already_applied",
		"applied a:done b:done":        "partial half_undone",
		"rolling_back a:done b:undone": "partial half_undone",
		"pending a:done edited":        "refused digest",
	} {
		e, store, site := newFake(t, Config{})
		if words != "" {
			words, edited := strings.CutSuffix(words, " edited")
			r := recordOf(t, "change", words, 3)
			if r.Plan.Digest = change.Digest(); edited {
				r.Plan.Digest = "d0"
			}
			if r.Plan.InFlight() {
				r.Plan.ClaimedFrom = map[plan.Status]plan.Status{plan.Applying: plan.Pending, plan.RollingBack: plan.Applied}[r.Plan.Status]
			}
			store.records = []plan.Record{r}
		}
		for p, err := range e.Preview(t.Context(), one(site), []*plan.Change{change}, ApplyOptions{Repin: true}) {
			if err != nil {
				t.Fatal(err)
			}
			got := string(p.Verdict())
			if p.Err != nil {
				got += " " + reasonOf(p.Err)
			}
			for _, c := range p.Changes {
				got += " " + stepsOf(c)
			}
			equal(t, words, got, want)
		}
		equal(t, "fence after "+words, store.fence, 0)
	}
}

func TestAPreviewTellsWhatOnlyANewerBinaryMayTouch(t *testing.T) {
	t.Parallel()
	e, _, site := newFake(t, Config{})
	s := Surveyed{Tenant: site, Lock: sitelock.State{InFlight: []plan.Plan{{Format: plan.Format + 1}}}}
	p := e.preview(s, pin([]*plan.Change{changeOf("a")}), ApplyOptions{})
	equal(t, "reason", reasonOf(p.Err), string(RefusedNewerBinary))
	equal(t, "changes", len(p.Changes), 0)
}

func one(site tenant.Tenant) func(func(tenant.Tenant, error) bool) {
	return func(yield func(tenant.Tenant, error) bool) { yield(site, nil) }
}

func TestTheBasisIsAnotherOneWheneverSomethingElseWouldRun(t *testing.T) {
	t.Parallel()
	seen := map[Basis]string{}
	for _, words := range []string{
		"pending", "pending a:done", "pending a:intent", "pending a:undone", "pending a:done b:done", "pending b:done",
		"applied a:done b:done", "applied a:done b:undone", "applied a:undo_intent",
	} {
		for _, edit := range []func(*plan.Record){
			func(*plan.Record) {}, func(r *plan.Record) { r.Plan.ID = "other" }, func(r *plan.Record) { r.Plan.Cycle = 2 },
			func(r *plan.Record) { r.Plan.Digest = "d0" }, func(r *plan.Record) { r.Plan.Change = "other" },
		} {
			r := recordOf(t, "change", words, 2)
			edit(&r)
			name := fmt.Sprintf("%+v", r)
			b := basisOf([]plan.Record{r})
			if same := seen[b]; same != "" {
				t.Errorf("one basis for\n%s\n%s", same, name)
			}
			seen[b] = name
		}
	}
	x, y := recordOf(t, "x", "pending a:done", 2), recordOf(t, "y", "applied a:done", 1)
	equal(t, "in another order", basisOf([]plan.Record{x, y}), basisOf([]plan.Record{y, x}))
	if basisOf([]plan.Record{x}) == basisOf([]plan.Record{x, y}) {
		t.Error("a further plan has the same basis")
	}
	inFlight := recordOf(t, "x", "applying a:done", 2)
	inFlight.Plan.ClaimedFrom = plan.Pending
	equal(t, "abandoned or recovered", basisOf(atRest([]plan.Record{inFlight})), basisOf([]plan.Record{x}))
}

// A tenant that moves between the look and the lock is not touched. G3
func TestWhatWasExpectedIsLookedAtAgainUnderTheLock(t *testing.T) {
	t.Parallel()
	for _, moves := range []bool{false, true} {
		for name, apply := range map[string]func(*Engine, tenant.Tenant, ApplyOptions) (Result, error){
			"one change": func(e *Engine, site tenant.Tenant, opts ApplyOptions) (Result, error) {
				return e.Apply(t.Context(), site, changeOf("a b"), opts)
			},
			"a list": func(e *Engine, site tenant.Tenant, opts ApplyOptions) (Result, error) {
				return e.ApplyMissing(t.Context(), site, []*plan.Change{changeOf("a b")}, opts)
			},
		} {
			e, store, site := newFake(t, Config{})
			expect := ApplyOptions{Expect: func(tenant.ID) Basis { return basisOf(nil) }}
			store.deny = func() error {
				if moves {
					store.records = append(store.records, recordOf(t, "other", "applied a:done", 1))
				}
				return nil
			}
			r, err := apply(e, site, expect)
			if !moves {
				equal(t, name+" of a tenant that stays", r.Verdict, VerdictApplied)
				continue
			}
			equal(t, name+" of a tenant that moves", reasonOf(err), "moved")
			equal(t, "verdict", r.Verdict, VerdictRefused)
			equal(t, "committed", strings.Join(store.groups, "; "), "")
			equal(t, "plans", len(store.records), 1)
		}
	}
}
