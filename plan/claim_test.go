package plan

import (
	"strings"
	"testing"
)

// ownTable is the rule for the change's own plan, of two steps: its status and journal, then what speaks against an apply of
// the content that it has, of other content, and of other content with Repin; then against a rollback of the content that it
// has and of other content. A dot is nothing. Below it are the plans that are more than that.
const ownTable = `
none                            .             .             .             no_plan       no_plan
pending                         .             .             .             nothing       nothing
pending undone                  .             .             .             nothing       nothing
pending undone,undone           .             .             .             nothing       nothing
pending done                    .             digest        .             .             digest
pending done,done               .             digest        .             .             digest
pending done,undone             .             digest        .             .             digest
pending intent                  .             digest        .             .             digest
pending undo_intent             .             digest        .             .             digest
applied done,done               nothing       digest        digest        .             digest
applied done,undone             half_undone   digest        digest        .             digest
applied done,undo_intent        half_undone   digest        digest        .             digest
applied undone,undone           half_undone   half_undone   half_undone   .             digest
applying                        in_flight     in_flight     in_flight     in_flight     digest
applying done                   in_flight     digest        in_flight     in_flight     digest
rolling_back done               in_flight     digest        in_flight     in_flight     digest
rolling_back undone,undone      in_flight     in_flight     in_flight     in_flight     digest

pending quarantined             quarantined   quarantined   quarantined   nothing       nothing
pending done quarantined        quarantined   digest        quarantined   quarantined   digest
applied done,done quarantined   nothing       digest        digest        quarantined   digest
applied done,undone quarantined half_undone   digest        digest        quarantined   digest
applying done quarantined       in_flight     digest        in_flight     in_flight     digest
pending newer                   newer_format  newer_format  newer_format  nothing       nothing
pending done newer              newer_format  digest        newer_format  newer_format  digest
applied done,done newer         nothing       digest        digest        newer_format  digest
applying newer                  newer_format  newer_format  newer_format  newer_format  digest
pending quarantined newer       newer_format  newer_format  newer_format  nothing       nothing
`

// besideTable is the rule for another plan of the tenant, of two steps, claimed later than the change's own where it says so:
// what speaks against an apply and against a rollback that the change's own plan allows.
const besideTable = `
pending                         .             .
pending undone                  .             .
pending done                    partial       partial
pending done,done               partial       partial
pending intent                  partial       partial
pending undo_intent             partial       partial
pending done later              partial       partial
applied done,done               .             .
applied done,done later         .             newer
applied done,undone             partial       partial
applied undone,undone           partial       partial
applied done,undone later       partial       partial
applying                        in_flight     in_flight
applying later                  in_flight     in_flight
applying done later             in_flight     newer
rolling_back done               in_flight     in_flight
rolling_back undone,undone      in_flight     in_flight
pending quarantined             .             .
pending done quarantined        partial       partial
applied done,done quarantined   .             .
pending newer                   .             .
pending done newer              partial       partial
`

// rows reads a table: situations and the answers behind them.
func rows(t *testing.T, table string, answers int) map[string][]string {
	t.Helper()
	read := map[string][]string{}
	for line := range strings.Lines(table) {
		words := strings.Fields(line)
		if len(words) == 0 {
			continue
		}
		situation := strings.Join(words[:len(words)-answers], " ")
		if _, twice := read[situation]; twice {
			t.Errorf("%s is there twice", situation)
		}
		read[situation] = words[len(words)-answers:]
	}
	return read
}

// situated is the plan that a table describes; nil for none.
func situated(t *testing.T, change, situation string) []Record {
	t.Helper()
	words := strings.Fields(situation)
	if words[0] == "none" {
		return nil
	}
	r := Record{Plan: Plan{
		Change: change, Digest: "content", Status: Status(words[0]), Outcome: OutcomeFailed, StepsTotal: 2, AppliedSeq: 5, Format: Format,
	}}
	for _, word := range words[1:] {
		switch word {
		case "quarantined":
			r.Plan.Outcome = OutcomeQuarantined
		case "newer":
			r.Plan.Format = Format + 1
		case "later":
			r.Plan.AppliedSeq = 9
		default:
			for i, state := range strings.Split(word, ",") {
				r.Journal = append(r.Journal, Entry{Ordinal: i, State: StepState(state)})
			}
		}
	}
	return []Record{r}
}

func told(o *Obstacle) string {
	if o == nil {
		return "."
	}
	return string(o.Kind)
}

// G3
func TestWhatAPlanItselfSaysToAClaim(t *testing.T) {
	t.Parallel()
	for situation, want := range rows(t, ownTable, 5) {
		records := situated(t, "mine", situation)
		for i, claim := range []struct {
			d      Direction
			digest Digest
			opts   ClaimOptions
		}{
			{Up, "content", ClaimOptions{}},
			{Up, "other", ClaimOptions{}},
			{Up, "other", ClaimOptions{Repin: true}},
			{Down, "content", ClaimOptions{}},
			{Down, "other", ClaimOptions{Repin: true}},
		} {
			if got := told(WhyNotClaim(records, claim.d, "mine", claim.digest, claim.opts)); got != want[i] {
				t.Errorf("%s: %s of %s with %+v: %s, want %s", situation, claim.d, claim.digest, claim.opts, got, want[i])
			}
			// A retry lifts the quarantine and nothing else.
			lifted := situated(t, "mine", strings.Replace(situation, "quarantined", "", 1))
			claim.opts.Retry = true
			got := told(WhyNotClaim(records, claim.d, "mine", claim.digest, claim.opts))
			if want := told(WhyNotClaim(lifted, claim.d, "mine", claim.digest, ClaimOptions{Repin: claim.opts.Repin})); got != want {
				t.Errorf("%s: %s of %s with %+v: %s, want %s", situation, claim.d, claim.digest, claim.opts, got, want)
			}
		}
	}
}

// G3, G6
func TestWhatAnotherPlanSaysToAClaim(t *testing.T) {
	t.Parallel()
	for situation, want := range rows(t, besideTable, 2) {
		other := situated(t, "other", situation)
		for _, mine := range []string{"none", "pending", "pending done", "applied done,done"} {
			records := append(situated(t, "mine", mine), other...)
			for i, d := range []Direction{Up, Down} {
				if told(WhyNotClaim(records[:len(records)-1], d, "mine", "content", ClaimOptions{})) != "." {
					continue
				}
				o := WhyNotClaim(records, d, "mine", "content", ClaimOptions{})
				if told(o) != want[i] {
					t.Errorf("%s of a plan that is %s, beside one that is %s: %s, want %s", d, mine, situation, told(o), want[i])
				}
				if o != nil && (len(o.Changes) != 1 || o.Changes[0] != "other") {
					t.Errorf("beside one that is %s: the obstacle is about %v", situation, o.Changes)
				}
			}
		}
	}
}

// Nothing else speaks against a claim of which is said only that something is in flight: for those who look before they wait.
func TestInFlightIsTheLastThingThatIsSaid(t *testing.T) {
	t.Parallel()
	applying := situated(t, "other", "applying")
	for situation, want := range map[string]string{
		"pending done":      "in_flight",
		"applied done,done": "nothing",
		"pending newer":     "newer_format",
	} {
		if got := told(WhyNotClaim(append(situated(t, "mine", situation), applying...), Up, "mine", "content", ClaimOptions{})); got != want {
			t.Errorf("%s: %s, want %s", situation, got, want)
		}
	}
	partial := append(situated(t, "third", "pending done"), applying...)
	if got := told(WhyNotClaim(partial, Up, "mine", "content", ClaimOptions{})); got != "partial" {
		t.Errorf("beside a partial plan: %s", got)
	}
}
