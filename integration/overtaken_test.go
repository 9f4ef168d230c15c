package integration

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/belayhq/belay/engine"
	"github.com/belayhq/belay/plan"
	"github.com/belayhq/belay/sitelock"
)

// lostToOther demands that an operation ended because somebody else has had its lock.
func lostToOther(t *testing.T, r engine.Result) {
	t.Helper()
	if _, lost := errors.AsType[*sitelock.LockLostError](r.Err); !lost {
		t.Fatalf("%s: %v", r.Verdict, r.Err)
	}
}

// The answer to a commit is lost, and before the run finds out what became of it, somebody else has undone what it did, or
// done what it undid, and has let the lock go. The run does nothing over.
func TestARunThatLooksWhatBecameOfACommitRedoesNothing(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		steps string
		at    string
		// back says that the run is a rollback, and the other an apply.
		back bool
		// lapses says that the other takes over a plan in flight.
		lapses bool
		rests  string
		holds  string
	}{
		"after its last commit":     {steps: "a b", at: "b", rests: "pending rolled_back 0/2"},
		"half-way":                  {steps: "a b c", at: "b", lapses: true, rests: "pending rolled_back 0/3"},
		"after that of a rollback":  {steps: "a b", at: "a", back: true, rests: "applied applied 2/2", holds: "a b"},
		"half-way through one back": {steps: "a b c", at: "c", back: true, lapses: true, rests: "pending rolled_back 0/3"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			onBoth(t, func(t *testing.T, w *world) {
				l, broken := newFaultyLab(w, engine.Config{})
				other := newEngine(t, l.directory, engine.Config{})
				c := oneByOne(newChange("change", tt.steps))
				state := plan.StepDone
				if tt.back {
					state = plan.StepUndone
					l.came(l.apply(c), engine.VerdictApplied, "do:"+strings.ReplaceAll(tt.steps, " ", " do:"))
				}
				broken.once(writes(tt.at, state), func(commit func() error) error {
					check(t, commit())
					if tt.lapses {
						l.expire()
					}
					var err error
					if tt.back && !tt.lapses {
						_, err = other.Apply(t.Context(), l.tenant, c, engine.ApplyOptions{LockTimeout: hang})
					} else {
						_, err = other.Rollback(t.Context(), l.tenant, "change", engine.RollbackOptions{LockTimeout: hang})
					}
					check(t, err)
					return engine.ErrUnknownOutcome
				})
				run := later(t, func() engine.Result {
					if tt.back {
						return l.rollback("change")
					}
					return l.apply(c)
				})
				if r := run(); tt.back && tt.lapses {
					// What the other did is what the run wanted.
					if r.Verdict != engine.VerdictRolledBack {
						t.Fatalf("%s: %v", r.Verdict, r.Err)
					}
				} else {
					lostToOther(t, r)
				}
				l.rests("change", tt.rests)
				l.holds(tt.holds)
			})
		})
	}
}

// A claim inside a cascade whose answer is lost is not made again if somebody else had the tenant in between. G1
func TestAClaimThatOthersOvertookIsNotMadeAgain(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, w *world) {
		l, meddler := newClaimsLab(w)
		other := newEngine(t, l.directory, engine.Config{})
		meddler.first(func(ctx context.Context, claim func(context.Context) (*plan.Record, error)) (*plan.Record, error) {
			if _, err := claim(ctx); err != nil {
				return nil, err
			}
			if _, err := other.Break(ctx, l.tenant, "somebody looks"); err != nil {
				return nil, err
			}
			return nil, engine.ErrUnknownOutcome
		})
		r := later(t, func() engine.Result { return l.rollbackWith("change-1", engine.RollbackOptions{Cascade: true}) })()
		lostToOther(t, r)
		equal(t, "status", string(l.record("change-1").Plan.Status), string(plan.Applied))
		l.holds("1")
	})
}
