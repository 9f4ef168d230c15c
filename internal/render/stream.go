package render

import (
	"io"
	"sync"

	"github.com/belayhq/belay/engine"
	"github.com/belayhq/belay/plan"
	"github.com/belayhq/belay/tenant"
)

// Stream writes an operation as JSON lines while it runs: one for each event and each tenant's result, and the summary
// as the last. Each line is one write.
type Stream struct {
	mu     sync.Mutex
	w      io.Writer
	schema string
}

// NewStream returns a stream of the operation's name, whose lines say "belay.<name>-stream/v1".
func NewStream(w io.Writer, name string) *Stream {
	return &Stream{w: w, schema: Schema(name + "-stream")}
}

type eventDocument struct {
	Type       string              `json:"type"`
	Schema     string              `json:"schema"`
	At         *string             `json:"at"`
	Kind       engine.ProgressKind `json:"kind"`
	Tenant     string              `json:"tenant"`
	TenantID   tenant.ID           `json:"tenant_id"`
	Plan       *plan.ID            `json:"plan"`
	Change     *string             `json:"change"`
	Step       *string             `json:"step"`
	StepsDone  int                 `json:"steps_done"`
	StepsTotal int                 `json:"steps_total"`
	Error      *Failure            `json:"error"`
	Lock       *Lock               `json:"lock,omitempty"`
	Deadline   *string             `json:"deadline,omitempty"`
	Recovered  *Recovered          `json:"recovered,omitempty"`
}

type tenantDocument struct {
	Type   string `json:"type"`
	Schema string `json:"schema"`
	TenantResult
}

type summaryDocument struct {
	Type    string      `json:"type"`
	Schema  string      `json:"schema"`
	Change  string      `json:"change"`
	Digest  plan.Digest `json:"digest,omitempty"`
	Changes []ChangeRef `json:"changes,omitempty"`
	Summary Summary     `json:"summary"`
}

// Event writes an event.
func (s *Stream) Event(p engine.Progress) {
	d := eventDocument{
		Type: "event", Schema: s.schema, At: timestamp(p.At), Kind: p.Kind, Tenant: p.Name, TenantID: p.Tenant,
		Plan: optional(p.Plan), Change: optional(p.Change), Step: optional(p.Step),
		StepsDone: p.StepsDone, StepsTotal: p.StepsTotal, Error: NewFailure(p.Err),
	}
	if p.Waiting != nil {
		lock, deadline := NewLock(p.Waiting.State), timestamp(p.Waiting.Deadline)
		d.Lock, d.Deadline = &lock, deadline
	}
	if p.Recovered != nil {
		recovered := NewRecovered(*p.Recovered)
		d.Recovered = &recovered
	}
	s.write(d)
}

// Result writes a tenant's result.
func (s *Stream) Result(r engine.Result) {
	s.write(tenantDocument{Type: "tenant", Schema: s.schema, TenantResult: NewTenantResult(r)})
}

// Summary writes the last line.
func (s *Stream) Summary(r Report) {
	s.write(summaryDocument{Type: "summary", Schema: s.schema, Change: r.Change, Digest: r.Digest, Changes: r.Changes, Summary: r.Summary})
}

// Stop does nothing: every line has been written.
func (s *Stream) Stop() {}

func (s *Stream) write(v any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	// A reader that has gone away must not stop the work; whoever owns w learns of it.
	_ = JSONLine(s.w, v)
}
