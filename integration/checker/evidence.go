package checker

import (
	"encoding/hex"
	"encoding/json"
	"strings"
	"time"

	"github.com/belayhq/belay/integration/testchild/fake"
	"github.com/belayhq/belay/plan"
	"github.com/belayhq/belay/tenant"
)

// Evidence is everything that is known about one database whose tenants were worked on, gathered when all is at rest.
type Evidence struct {
	// History is what was committed, in the order of the commits.
	History []Moment
	// The tables as they are now.
	Locks   []Lock
	Plans   []Plan
	Journal []Step
	Images  []Image
	InPlace []Effect
	// Left is what somebody forgot in the database: open transactions, locks. Unsound is what its own checks say of it.
	Left, Unsound []string

	// Calls is what resources outside the database saw, in their own order.
	Calls []fake.Entry
	// Said is what processes said of their operations.
	Said []Said
	// Seen is what readers saw of plans while others worked on them.
	Seen []Sight
	// Data holds, for each tenant, what its data looked like before the first change and look like now. A tenant without
	// an entry is not compared.
	Data map[tenant.ID]Data
	// Secrets are values that must not occur in Texts, which holds everything that people get to read: logs, errors.
	Secrets []string
	Texts   map[string]string

	// Lease is the length of every lease in the history; zero if they differ or are not known.
	Lease time.Duration
	// Poison names the changes that cannot be applied.
	Poison map[string]bool
	// Quiet is when the last fault ended, and Bound how long afterwards every plan must rest. Zero Quiet asks for no bound.
	Quiet time.Time
	Bound time.Duration
}

// Moment is one row that was written: exactly one of its pointers is set.
type Moment struct {
	// Tx names its transaction; empty where the database does not tell.
	Tx string
	// At is when it was written and Committed when its transaction was, in milliseconds of the database's clock; Committed is
	// zero where the database does not tell.
	At, Committed int64
	Tenant        tenant.ID

	Lock   *Diff[Lock]
	Plan   *Diff[Plan]
	Step   *Diff[Step]
	Image  *Diff[Image]
	Event  *Event
	Effect *Diff[Effect]
}

// Diff is a row before and after: Was is nil for a new one, Now for one that was deleted.
type Diff[T any] struct{ Was, Now *T }

// Lock is a row of site_lock.
type Lock struct {
	Tenant    tenant.ID  `json:"tenant_id"`
	Scope     string     `json:"scope"`
	Fence     plan.Fence `json:"fence"`
	Holder    string     `json:"holder"`
	Host      string     `json:"host"`
	PID       int        `json:"pid"`
	StartedAt int64      `json:"started_at"`
	Operation string     `json:"operation"`
	ExpiresAt int64      `json:"expires_at"`
	RemovedAt int64      `json:"removed_at"`
}

// Lapsed is what a test sets expires_at to when it makes a lock lapse, as time would.
const Lapsed = 1

// Plan is a row of plan.
type Plan struct {
	Tenant      tenant.ID    `json:"tenant_id"`
	ID          plan.ID      `json:"plan_id"`
	Change      string       `json:"change_id"`
	Status      plan.Status  `json:"status"`
	ClaimedFrom plan.Status  `json:"claimed_from"`
	Fence       plan.Fence   `json:"fence"`
	Outcome     plan.Outcome `json:"outcome"`
	Attempts    int          `json:"attempts"`
	Cycle       int          `json:"cycle"`
	StepsTotal  int          `json:"steps_total"`
}

// Step is a row of the journal.
type Step struct {
	Tenant  tenant.ID      `json:"tenant_id"`
	Plan    plan.ID        `json:"plan_id"`
	Ordinal int            `json:"ordinal"`
	ID      string         `json:"step_id"`
	State   plan.StepState `json:"state"`
	Fence   plan.Fence     `json:"fence"`
	Cycle   int            `json:"cycle"`
	Attempt int            `json:"attempt"`
}

// Image is a before-image.
type Image struct {
	Tenant   tenant.ID  `json:"tenant_id"`
	Plan     plan.ID    `json:"plan_id"`
	Ordinal  int        `json:"ordinal"`
	Part     int        `json:"part"`
	Cycle    int        `json:"cycle"`
	Fence    plan.Fence `json:"fence"`
	Body     Bytes      `json:"body"`
	Checksum Bytes      `json:"checksum"`
}

// Event is a row of the history that people read.
type Event struct {
	Tenant  tenant.ID    `json:"tenant_id"`
	Fence   plan.Fence   `json:"fence"`
	Plan    plan.ID      `json:"plan_id"`
	Change  string       `json:"change_id"`
	Kind    plan.Event   `json:"kind"`
	From    plan.Status  `json:"status_from"`
	To      plan.Status  `json:"status_to"`
	Outcome plan.Outcome `json:"outcome"`
	PID     int          `json:"pid"`
}

// Effect is a row of a tenant's table ledger, in which every step has one as long as it is in place, unless its effect
// is outside the database. Step ids differ between the changes of a tenant.
type Effect struct {
	Scope string `json:"scope"`
	Step  string `json:"step"`
}

// Said is what a process said of one operation, or of one transaction of it.
type Said struct {
	PID    int       `json:"pid"`
	Tenant tenant.ID `json:"tenant"`
	// From and To are when it began and when it ended, in milliseconds of the clock that the database has too.
	From int64 `json:"from"`
	To   int64 `json:"to"`

	// Change and Verdict are of an operation.
	Change  string `json:"change,omitempty"`
	Verdict string `json:"verdict,omitempty"`
	Error   string `json:"error,omitempty"`

	// Fence and Heard are of a transaction: what the process was told of it.
	Fence plan.Fence `json:"fence,omitempty"`
	Heard Heard      `json:"heard,omitempty"`
	// Plan is that of the transaction, and Writes the states that it writes for steps.
	Plan   plan.ID                `json:"plan,omitempty"`
	Writes map[int]plan.StepState `json:"writes,omitempty"`
}

// Heard is how a transaction ended, as far as its process knows.
type Heard string

// What a process hears.
const (
	HeardDone    Heard = "done"    // it is committed
	HeardFailed  Heard = "failed"  // nothing of it is
	HeardLost    Heard = "lost"    // nothing of it is: the lock was lost
	HeardUnknown Heard = "unknown" // the answer got lost
)

// Sight is what a reader saw of a plan between two times.
type Sight struct {
	Tenant   tenant.ID
	Plan     plan.ID
	Status   plan.Status
	From, To int64
}

// Data is a tenant's data as text, before the first change and now.
type Data struct{ Before, Now string }

// Bytes are bytes that a database has put into JSON as hexadecimal digits.
type Bytes []byte

// UnmarshalJSON reads the forms of both databases.
func (b *Bytes) UnmarshalJSON(raw []byte) error {
	var digits string
	if err := json.Unmarshal(raw, &digits); err != nil {
		return err
	}
	decoded, err := hex.DecodeString(strings.TrimPrefix(digits, `\x`))
	*b = decoded
	return err
}
