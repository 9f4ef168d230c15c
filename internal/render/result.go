package render

import (
	"errors"
	"fmt"
	"strings"

	"github.com/belayhq/belay/engine"
	"github.com/belayhq/belay/plan"
	"github.com/belayhq/belay/sitelock"
	"github.com/belayhq/belay/tenant"
)

// Report is the document of an operation over tenants: apply, rollback, verify and resolve.
type Report struct {
	Schema string `json:"schema"`
	// Change is empty where the operation was about a directory of changes, which are then in Changes, in their order.
	Change  string         `json:"change"`
	Digest  plan.Digest    `json:"digest,omitempty"`
	Changes []ChangeRef    `json:"changes,omitempty"`
	Summary Summary        `json:"summary"`
	Tenants []TenantResult `json:"tenants"`
}

// ChangeRef names a change and its content.
type ChangeRef struct {
	Change string      `json:"change"`
	Digest plan.Digest `json:"digest"`
}

// Schema names a document's form.
func Schema(what string) string { return "belay." + what + "/v1" }

// Summary counts tenants by what the operation came to.
type Summary struct {
	Selected          int `json:"selected"`
	Applied           int `json:"applied"`
	AlreadyApplied    int `json:"already_applied"`
	RolledBack        int `json:"rolled_back"`
	AlreadyRolledBack int `json:"already_rolled_back"`
	Verified          int `json:"verified"`
	Resolved          int `json:"resolved"`
	Failed            int `json:"failed"`
	Partial           int `json:"partial"`
	Busy              int `json:"busy"`
	Cancelled         int `json:"cancelled"`
	Refused           int `json:"refused"`
	Skipped           int `json:"skipped"`
}

// Count adds one result.
func (s *Summary) Count(v engine.Verdict) {
	switch v {
	case engine.VerdictApplied:
		s.Applied++
	case engine.VerdictAlreadyApplied:
		s.AlreadyApplied++
	case engine.VerdictRolledBack:
		s.RolledBack++
	case engine.VerdictAlreadyRolledBack:
		s.AlreadyRolledBack++
	case engine.VerdictVerified:
		s.Verified++
	case engine.VerdictResolved:
		s.Resolved++
	case engine.VerdictFailed:
		s.Failed++
	case engine.VerdictPartial:
		s.Partial++
	case engine.VerdictBusy:
		s.Busy++
	case engine.VerdictCancelled:
		s.Cancelled++
	case engine.VerdictRefused:
		s.Refused++
	case engine.VerdictSkipped:
		s.Skipped++
	}
}

// String is the summary in words, without what did not occur.
func (s *Summary) String() string {
	return inWords(
		counted{s.Applied, "applied"},
		counted{s.AlreadyApplied, "already applied"},
		counted{s.RolledBack, "rolled back"},
		counted{s.AlreadyRolledBack, "already rolled back"},
		counted{s.Verified, "verified"},
		counted{s.Resolved, "resolved"},
		counted{s.Failed, "failed"},
		counted{s.Partial, "partial or quarantined"},
		counted{s.Busy, "locked by someone else"},
		counted{s.Cancelled, "cancelled"},
		counted{s.Refused, "refused"},
		counted{s.Skipped, "skipped"},
	)
}

// counted is a number with what it counts.
type counted struct {
	n    int
	what string
}

// inWords lists what occurs.
func inWords(counts ...counted) string {
	var parts []string
	for _, c := range counts {
		if c.n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", c.n, c.what))
		}
	}
	return strings.Join(parts, ", ")
}

// NothingToDo reports whether every tenant selected was already where the operation would have brought it.
func (s *Summary) NothingToDo() bool {
	return s.AlreadyApplied+s.AlreadyRolledBack == s.Selected
}

// TenantResult is what an operation did to one tenant.
type TenantResult struct {
	Tenant     string         `json:"tenant"`
	TenantID   tenant.ID      `json:"tenant_id"`
	Plan       *plan.ID       `json:"plan"`
	Change     string         `json:"change"`
	Result     engine.Verdict `json:"result"`
	Digest     *plan.Digest   `json:"digest"`
	StepsDone  int            `json:"steps_done"`
	StepsTotal int            `json:"steps_total"`
	Error      *Failure       `json:"error"`
	Recovered  []Recovered    `json:"recovered"`
	// Also names the other changes that were applied or rolled back before, in the same operation.
	Also       []string `json:"also"`
	DurationMS int64    `json:"duration_ms"`
}

// NewTenantResult makes the document of a result.
func NewTenantResult(r engine.Result) TenantResult {
	out := TenantResult{
		Tenant: r.Tenant.Name, TenantID: r.Tenant.ID, Plan: optional(r.Plan), Change: r.Change, Result: r.Verdict, Digest: optional(r.Digest),
		StepsDone: r.StepsDone, StepsTotal: r.StepsTotal, Error: NewFailure(r.Err), Also: list(r.Also),
		DurationMS: r.Duration.Milliseconds(), Recovered: []Recovered{},
	}
	for _, one := range r.Recovered {
		out.Recovered = append(out.Recovered, NewRecovered(one))
	}
	return out
}

// Recovered is a plan that was taken back from a dead holder.
type Recovered struct {
	Plan   plan.ID     `json:"plan"`
	Change string      `json:"change"`
	Was    plan.Status `json:"was"`
	Status plan.Status `json:"status"`
	Host   *string     `json:"host"`
	PID    *int        `json:"pid"`
	Advice string      `json:"advice"`
}

// NewRecovered makes the document of a recovered plan.
func NewRecovered(r sitelock.Recovered) Recovered {
	return Recovered{
		Plan: r.Plan, Change: r.Change, Was: r.Was, Status: r.Status,
		Host: optional(r.Process.Host), PID: optional(r.Process.PID), Advice: recoveredAdvice(r.Was),
	}
}

// Failure is why a tenant's result is not a good one.
type Failure struct {
	Step        string `json:"step"`
	Message     string `json:"message"`
	UndoMessage string `json:"undo_message"`
	// File and Line are of the statement that failed.
	File string `json:"file,omitempty"`
	Line int    `json:"line,omitempty"`
	// InPlace names the steps in place now, Undone those taken back.
	InPlace []string `json:"in_place,omitempty"`
	Undone  []string `json:"undone,omitempty"`
	// Refusal says why nothing was touched; Changes are the other changes it is about.
	Refusal engine.Refusal `json:"refusal,omitempty"`
	Changes []string       `json:"changes,omitempty"`
	// PinnedDigest and GivenDigest differ where a change was edited after it was applied.
	PinnedDigest plan.Digest `json:"pinned_digest,omitempty"`
	GivenDigest  plan.Digest `json:"given_digest,omitempty"`
	// Lock says who has a lock that could not be had.
	Lock *Lock `json:"lock,omitempty"`
}

// NewFailure makes the document of an error; nil of nil.
func NewFailure(err error) *Failure {
	if err == nil {
		return nil
	}
	f := &Failure{Message: err.Error()}
	if e, ok := errors.AsType[*engine.PlanError](err); ok {
		f.Step, f.Message, f.InPlace, f.Undone = e.Failed, e.Err.Error(), e.Applied, e.Undone
		if e.UndoErr != nil {
			f.UndoMessage = e.UndoErr.Error()
		}
	}
	if e, ok := errors.AsType[*engine.StepError](err); ok {
		f.Step, f.File, f.Line = e.Step, e.File, e.Line
	}
	if e, ok := errors.AsType[*engine.RefusedError](err); ok {
		f.Refusal, f.Changes = e.Reason, e.Changes
	}
	if e, ok := errors.AsType[*plan.DigestMismatchError](err); ok {
		f.PinnedDigest, f.GivenDigest = e.Pinned, e.Given
	}
	if e, ok := errors.AsType[*sitelock.LockBusyError](err); ok && e.State != nil {
		lock := NewLock(*e.State)
		f.Lock = &lock
	}
	return f
}
