package storagetest

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"

	"golang.org/x/sync/errgroup"

	"github.com/belayhq/belay/plan"
	"github.com/belayhq/belay/sitelock"
	"github.com/belayhq/belay/tenant"
)

// The rule for claims is [plan.WhyNotClaim]. Each store follows it in its own words, and these tests put every combination of
// what it speaks of before both.
var rule = []test{
	{"a claim is made exactly when the plan's own state allows it", func(t *testing.T, d *database) {
		var cells []cell
		for _, own := range append(ownRows(), nil) {
			for _, claim := range everyClaim() {
				cells = append(cells, cell{own: own, claim: claim})
			}
		}
		d.judge(t, cells)
	}},
	{"a claim is made exactly when the tenant's other plans allow it", func(t *testing.T, d *database) {
		var cells []cell
		for _, own := range typicalOwn {
			for _, other := range otherRows() {
				for _, claim := range plainClaims {
					cells = append(cells, cell{own: own, others: []*row{other}, claim: claim})
				}
			}
			for i, first := range typicalOthers {
				for _, second := range typicalOthers[i:] {
					for _, claim := range plainClaims {
						cells = append(cells, cell{own: own, others: []*row{first, second}, claim: claim})
					}
				}
			}
		}
		d.judge(t, cells)
	}},
	{"a claim is made exactly when everything together allows it", func(t *testing.T, d *database) {
		random := rand.New(rand.NewPCG(1, 2)) // the same cells each time
		own, others, claims := append(ownRows(), nil), otherRows(), everyClaim()
		var cells []cell
		for len(cells) < 600 {
			c := cell{own: own[random.IntN(len(own))], claim: claims[random.IntN(len(claims))]}
			for range 1 + random.IntN(3) {
				c.others = append(c.others, others[random.IntN(len(others))])
			}
			if c.inFlight() <= 1 {
				cells = append(cells, c)
			}
		}
		d.judge(t, cells)
	}},
}

// row is a plan of two steps as its row and its journal say. Its number in the order of claims is 5 for the plan in question,
// less for an older one, more for a newer.
type row struct {
	status  plan.Status
	outcome plan.Outcome
	journal string // states, separated by commas
	digest  int    // which of two contents it has
	format  int
	seq     int
}

// cell is a tenant with the plan in question, nil if there is none, others beside it, and a claim.
type cell struct {
	own    *row
	others []*row
	claim  claimOf
}

type claimOf struct {
	direction    plan.Direction
	retry, repin bool
}

func (c cell) rows() []*row {
	if c.own == nil {
		return c.others
	}
	return append([]*row{c.own}, c.others...)
}

func (c cell) inFlight() int {
	n := 0
	for _, r := range c.rows() {
		if r.status.InFlight() {
			n++
		}
	}
	return n
}

var (
	allStatuses = []plan.Status{plan.Pending, plan.Applying, plan.Applied, plan.RollingBack}
	allOutcomes = []plan.Outcome{
		plan.OutcomeNeverRun, plan.OutcomeInterrupted, plan.OutcomeFailed, plan.OutcomeRolledBack, plan.OutcomeApplied,
		plan.OutcomeQuarantined, plan.OutcomeResolved,
	}
	// allJournals are no rows, all, some, and each kind of doubt.
	allJournals = []string{"", "undone,undone", "done", "done,done", "done,undone", "intent", "done,undo_intent"}
	plainClaims = []claimOf{{direction: plan.Up}, {direction: plan.Down}}
)

func everyClaim() []claimOf {
	var all []claimOf
	for _, direction := range []plan.Direction{plan.Up, plan.Down} {
		for _, retry := range []bool{false, true} {
			for _, repin := range []bool{false, true} {
				all = append(all, claimOf{direction, retry, repin})
			}
		}
	}
	return all
}

// ownRows are all that the plan in question can be.
func ownRows() []*row {
	var all []*row
	for _, status := range allStatuses {
		for _, outcome := range allOutcomes {
			for _, journal := range allJournals {
				for digest := range 2 {
					all = append(all, &row{status, outcome, journal, digest, plan.Format, 5})
				}
				all = append(all, &row{status, outcome, journal, 0, plan.Format + 1, 5}, &row{status, outcome, journal, 0, plan.Format, 0})
			}
		}
	}
	return all
}

// otherRows are all that another plan can be. No store lets a plan rest partial with an outcome that does not say so, see
// "moves"; in flight it may have any.
func otherRows() []*row {
	var all []*row
	for _, status := range allStatuses {
		for _, outcome := range allOutcomes {
			for _, journal := range allJournals {
				for _, seq := range []int{3, 9} {
					r := &row{status, outcome, journal, 0, plan.Format, seq}
					if outcome.Unsettled() || !r.record("").Partial() {
						all = append(all, r)
					}
				}
			}
		}
	}
	return all
}

var typicalOwn = []*row{
	nil,
	{plan.Pending, plan.OutcomeRolledBack, "undone,undone", 0, plan.Format, 0},
	{plan.Pending, plan.OutcomeInterrupted, "done", 0, plan.Format, 5},
	{plan.Applied, plan.OutcomeApplied, "done,done", 0, plan.Format, 5},
	{plan.Applied, plan.OutcomeFailed, "done,undone", 0, plan.Format, 5},
}

var typicalOthers = []*row{
	{plan.Applied, plan.OutcomeApplied, "done,done", 0, plan.Format, 3},
	{plan.Applied, plan.OutcomeResolved, "done,done", 0, plan.Format, 9},
	{plan.Pending, plan.OutcomeRolledBack, "undone,undone", 0, plan.Format, 9},
	{plan.Pending, plan.OutcomeFailed, "", 0, plan.Format, 0},
	{plan.Pending, plan.OutcomeQuarantined, "done", 0, plan.Format, 9},
	{plan.Applied, plan.OutcomeInterrupted, "done,undo_intent", 0, plan.Format, 3},
}

// record is the row as the pure rule sees it.
func (r *row) record(change string) plan.Record {
	record := plan.Record{Plan: plan.Plan{
		Change: change, Status: r.status, Outcome: r.outcome, StepsTotal: 2, AppliedSeq: int64(r.seq), Format: r.format,
	}}
	for i, state := range strings.FieldsFunc(r.journal, func(c rune) bool { return c == ',' }) {
		record.Journal = append(record.Journal, plan.Entry{Ordinal: i, State: plan.StepState(state)})
	}
	return record
}

// contents are those that plans of these tests have.
var contents = [2]*plan.Change{change("0001-own", 2), edited(change("0001-own", 2))}

// judge puts each cell into the database, as a tenant of its own whose lock is held, makes the claim, and demands the verdict
// of the rule over what the database says of the tenant. A claim that is refused must leave the tenant as it was.
func (d *database) judge(t *testing.T, cells []cell) {
	t.Helper()
	if _, _, err := d.db.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, c := range contents {
		if err := d.db.PutChange(t.Context(), c); err != nil {
			t.Fatal(err)
		}
	}
	const batch = 500
	for len(cells) > 0 {
		n := min(batch, len(cells))
		d.judgeBatch(t, cells[:n])
		cells = cells[n:]
	}
}

func (d *database) judgeBatch(t *testing.T, cells []cell) {
	t.Helper()
	held := make([]sitelock.Held, len(cells))
	ids := make([]tenant.ID, len(cells))
	for i := range cells {
		ids[i] = tenant.NewID()
		held[i] = sitelock.Held{Tenant: ids[i], Holder: sitelock.NewHolderID(), Fence: 7}
	}
	d.insert(t, cells, held)
	before := d.survey(t, ids)
	var workers errgroup.Group
	workers.SetLimit(4)
	made := make([]bool, len(cells))
	for i, c := range cells {
		workers.Go(func() error {
			claim := sitelock.Claim{
				Direction: c.claim.direction, Change: contents[0].ID, Digest: contents[0].Digest(), Body: contents[0],
				NewPlan: plan.NewID(), Retry: c.claim.retry, Repin: c.claim.repin,
			}
			record, err := d.db.Claim(t.Context(), held[i], claim)
			made[i] = record != nil
			return err
		})
	}
	if err := workers.Wait(); err != nil {
		t.Fatalf("claim: %v", err)
	}
	after := d.survey(t, ids)
	for i, c := range cells {
		opts := plan.ClaimOptions{Retry: c.claim.retry, Repin: c.claim.repin}
		obstacle := plan.WhyNotClaim(before[i], c.claim.direction, contents[0].ID, contents[0].Digest(), opts)
		if (obstacle == nil) != made[i] {
			t.Errorf("%s: made %v, by the rule %v", c, made[i], obstacle)
		}
		if !made[i] && !reflect.DeepEqual(before[i], after[i]) {
			t.Errorf("%s: a refused claim changed %+v to %+v", c, before[i], after[i])
		}
	}
}

func (c cell) String() string {
	own, others := "no plan", make([]string, len(c.others))
	if c.own != nil {
		own = fmt.Sprintf("%+v", *c.own)
	}
	for i, r := range c.others {
		others[i] = fmt.Sprintf("%+v", *r)
	}
	return fmt.Sprintf("%+v on %s beside %s", c.claim, own, others)
}

// survey reads all plans of the tenants.
func (d *database) survey(t *testing.T, ids []tenant.ID) [][]plan.Record {
	t.Helper()
	surveyed, err := d.db.Survey(t.Context(), ids, "")
	if err != nil {
		t.Fatal(err)
	}
	records := make([][]plan.Record, len(ids))
	for i, s := range surveyed {
		records[i] = s.Records
	}
	return records
}

// insert writes the rows of the cells behind Belay's back, in three statements.
func (d *database) insert(t *testing.T, cells []cell, held []sitelock.Held) {
	t.Helper()
	var locks, plans, journal []string
	for i, c := range cells {
		id, others := held[i].Tenant, 0
		locks = append(locks, fmt.Sprintf("('%s', '%s', 7, '%s', 'apply', 9000000000000)", id, id, held[i].Holder))
		for _, r := range c.rows() {
			name := contents[0].ID
			if r != c.own {
				others++
				name = fmt.Sprintf("0002-other-%d", others)
			}
			p, seq, fence := plan.NewID(), "NULL", "NULL"
			if r.seq > 0 {
				seq = fmt.Sprint(r.seq)
			}
			if r.status.InFlight() {
				fence = "7"
			}
			plans = append(plans, fmt.Sprintf("('%s', '%s', '%s', '%s', '%s', %s, '%s', 1, %s, 1, 2, %d, 1, 1)",
				id, p, name, contents[r.digest].Digest(), r.status, fence, r.outcome, seq, r.format))
			for _, e := range r.record(name).Journal {
				journal = append(journal, fmt.Sprintf("('%s', '%s', %d, '%s', '%s', 7, 1, 1)", id, p, e.Ordinal, stepID(e.Ordinal), e.State))
			}
		}
	}
	// In this order: a plan in flight refers to the lock.
	d.insertInto(t, "site_lock", "tenant_id, scope, fence, holder, operation, expires_at", locks)
	d.insertInto(t, "plan", "tenant_id, plan_id, change_id, digest, status, fence, outcome, attempts, applied_seq, cycle, steps_total, "+
		"format, created_at, updated_at", plans)
	d.insertInto(t, "journal", "tenant_id, plan_id, ordinal, step_id, state, fence, cycle, updated_at", journal)
}

func (d *database) insertInto(t *testing.T, table, columns string, rows []string) {
	t.Helper()
	if len(rows) > 0 {
		d.Exec(t, "", fmt.Sprintf("INSERT INTO %s (%s) VALUES %s", d.Table(table), columns, strings.Join(rows, ", ")))
	}
}
