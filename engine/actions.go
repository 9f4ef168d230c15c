package engine

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/belayhq/belay/plan"
	"github.com/belayhq/belay/sitelock"
	"github.com/belayhq/belay/tenant"
)

// ActionCall is what an action is told. The context it comes with is cancelled when the lock is lost, when the step's
// time is up, or when the operation is cancelled; [HeldLock] finds the lock in it.
type ActionCall[A any] struct {
	Tenant    tenant.Tenant
	PlanID    plan.ID
	StepID    string
	Direction plan.Direction
	// Fence grows with every change of custody: a resource that refuses lower fences than it has seen shuts out a
	// stalled former holder.
	Fence sitelock.Fence
	// IdempotencyKey is the same for every attempt at this step in this cycle and direction.
	IdempotencyKey string
	// Attempt counts from 1.
	Attempt int
	// MayHaveRun says that an earlier attempt may have taken effect.
	MayHaveRun bool
	Args       A
	// Before is the before-image that the step returned or captured; nil if that was nil or empty, and on the way up of a
	// transactional action.
	Before []byte
}

// Transactional is an action whose effect is in the tenant's own database: it runs inside the checkpoint, exactly once.
type Transactional[A any] struct {
	// Do makes the effect through tx and returns the before-image that Undo will need; nil if it needs none.
	Do func(ctx context.Context, tx Tx, call ActionCall[A]) (before []byte, err error)
	// Undo takes the effect back. Nil if there is nothing to run; the change must then say why.
	Undo func(ctx context.Context, tx Tx, call ActionCall[A]) error
}

// External is an action whose effect is outside the tenant's database. A durable intent with the before-image comes
// first; the effect then happens at least once.
type External[A any] struct {
	// Capture reads what Undo will need. It runs before the intent and must change nothing. Optional.
	Capture func(ctx context.Context, call ActionCall[A]) (before []byte, err error)
	// Do makes the effect. It must bear being run again.
	Do func(ctx context.Context, call ActionCall[A]) error
	// Inspect says whether an effect in doubt happened, in the call's direction. Without it, the effect is run again.
	Inspect func(ctx context.Context, call ActionCall[A]) (happened bool, err error)
	// Undo takes the effect back, using call.Before. Nil if there is nothing to run; the change must then say why.
	Undo func(ctx context.Context, call ActionCall[A]) error
	// FencesChecked says that the resource refuses a lower fence than it has seen. The engine then need not wait, after
	// a take-over, until the former holder's call has run out of time. An Inspect must show the resource its fence, too: its
	// answer may settle the step without another call, and a late one of the former holder would still be let in.
	FencesChecked bool
}

// Actions is the set of actions that changes may name.
type Actions struct {
	mu     sync.RWMutex
	byName map[string]action
}

// NewActions returns an empty set.
func NewActions() *Actions { return &Actions{byName: make(map[string]action)} }

// Register adds a transactional action under a name. Arguments are decoded strictly into A. It panics if the name is
// taken or Do is missing: both are mistakes in the program.
func Register[A any](s *Actions, name string, t Transactional[A]) {
	if t.Do == nil {
		panic("engine: action " + name + " has no Do")
	}
	a := action{decode: decoder[A](), hasUndo: t.Undo != nil}
	a.do = func(ctx context.Context, tx Tx, c call) ([]byte, error) {
		typed, err := typedCall[A](c)
		if err != nil {
			return nil, err
		}
		return t.Do(ctx, tx, typed)
	}
	if t.Undo != nil {
		a.undo = func(ctx context.Context, tx Tx, c call) error {
			typed, err := typedCall[A](c)
			if err != nil {
				return err
			}
			return t.Undo(ctx, tx, typed)
		}
	}
	s.add(name, a)
}

// RegisterExternal adds an external action under a name, as [Register] does a transactional one.
func RegisterExternal[A any](s *Actions, name string, x External[A]) {
	if x.Do == nil {
		panic("engine: action " + name + " has no Do")
	}
	a := action{decode: decoder[A](), external: true, hasUndo: x.Undo != nil, fencesChecked: x.FencesChecked}
	a.effect = bindExternal(x.Do)
	if x.Undo != nil {
		a.undoEffect = bindExternal(x.Undo)
	}
	if x.Capture != nil {
		a.capture = func(ctx context.Context, c call) ([]byte, error) {
			typed, err := typedCall[A](c)
			if err != nil {
				return nil, err
			}
			return x.Capture(ctx, typed)
		}
	}
	if x.Inspect != nil {
		a.inspect = func(ctx context.Context, c call) (bool, error) {
			typed, err := typedCall[A](c)
			if err != nil {
				return false, err
			}
			return x.Inspect(ctx, typed)
		}
	}
	s.add(name, a)
}

// Names lists the registered actions in order.
func (s *Actions) Names() []string {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return slices.Sorted(maps.Keys(s.byName))
}

// Check says, joined, what is wrong with a change's action steps: unknown names, arguments that do not decode, and a
// missing undo that the change does not explain.
func (s *Actions) Check(c *plan.Change) error {
	var problems []error
	for i := range c.Steps {
		step := &c.Steps[i]
		if step.Kind != plan.Action {
			continue
		}
		a, ok := s.lookup(step.Action.Name)
		if !ok {
			problems = append(problems, fmt.Errorf("step %s: no action is registered as %q", step.ID, step.Action.Name))
			continue
		}
		if err := a.decode(step.Action.Args); err != nil {
			problems = append(problems, fmt.Errorf("step %s: arguments of %s: %w", step.ID, step.Action.Name, err))
		}
		if !a.hasUndo && step.Undo == nil {
			problems = append(problems, fmt.Errorf("step %s: action %s has no undo, so the step needs undo: {none: …} or {irreversible: …}",
				step.ID, step.Action.Name))
		}
	}
	return errors.Join(problems...)
}

func (s *Actions) add(name string, a action) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, taken := s.byName[name]; taken {
		panic("engine: action " + name + " is registered twice")
	}
	s.byName[name] = a
}

func (s *Actions) lookup(name string) (action, bool) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	a, ok := s.byName[name]
	return a, ok
}

// action is a registered action with its argument type erased.
type action struct {
	external, hasUndo, fencesChecked bool
	decode                           func(json.RawMessage) error
	do                               func(context.Context, Tx, call) ([]byte, error)
	undo                             func(context.Context, Tx, call) error
	capture                          func(context.Context, call) ([]byte, error)
	effect, undoEffect               func(context.Context, call) error
	inspect                          func(context.Context, call) (bool, error)
}

// call is an ActionCall whose arguments are still JSON.
type call = ActionCall[json.RawMessage]

func bindExternal[A any](fn func(context.Context, ActionCall[A]) error) func(context.Context, call) error {
	return func(ctx context.Context, c call) error {
		typed, err := typedCall[A](c)
		if err != nil {
			return err
		}
		return fn(ctx, typed)
	}
}

func typedCall[A any](c call) (ActionCall[A], error) {
	typed := ActionCall[A]{
		Tenant: c.Tenant, PlanID: c.PlanID, StepID: c.StepID, Direction: c.Direction, Fence: c.Fence,
		IdempotencyKey: c.IdempotencyKey, Attempt: c.Attempt, MayHaveRun: c.MayHaveRun, Before: c.Before,
	}
	return typed, decodeStrictly(c.Args, &typed.Args)
}

func decoder[A any]() func(json.RawMessage) error {
	return func(raw json.RawMessage) error {
		var args A
		return decodeStrictly(raw, &args)
	}
}

func decodeStrictly(raw json.RawMessage, into any) error {
	if len(raw) == 0 {
		return nil
	}
	d := json.NewDecoder(bytes.NewReader(raw))
	d.DisallowUnknownFields()
	return d.Decode(into)
}

// protect runs an action's function so that a panic or a Goexit becomes an error, and one that ignores the end of its
// context is left behind after a grace, with ErrLeftBehind. What fn sets may be read only if protect returns nil.
func protect(ctx context.Context, grace time.Duration, fn func() error) error {
	done := make(chan error, 1)
	go func() {
		ended := errors.New("action ended its goroutine")
		defer func() {
			if p := recover(); p != nil {
				ended = fmt.Errorf("action panicked: %v", p)
			}
			done <- ended
		}()
		ended = fn()
	}()
	select {
	case err := <-done:
		return withCause(ctx, err)
	case <-ctx.Done():
	}
	timer := time.NewTimer(grace)
	defer timer.Stop()
	select {
	case err := <-done:
		return withCause(ctx, err)
	case <-timer.C:
		return fmt.Errorf("%w for %s: %w", ErrLeftBehind, grace, context.Cause(ctx))
	}
}

// withCause tells why a context ended in an error that says only that it did.
func withCause(ctx context.Context, err error) error {
	cause := context.Cause(ctx)
	if err == nil || cause == nil || !errors.Is(err, ctx.Err()) || errors.Is(err, cause) {
		return err
	}
	return fmt.Errorf("%w: %w", cause, err)
}

// closableTx passes calls on until it is closed, so that an action left behind cannot begin a call on a transaction that has
// moved on. Closing does not wait for a call under way: the store then gives the connection up, see [ErrLeftBehind].
type closableTx struct {
	tx     Tx
	closed atomic.Bool
}

var errTxClosed = errors.New("the checkpoint of this action is over")

func (c *closableTx) Exec(ctx context.Context, sql string, args ...any) (int64, error) {
	if c.closed.Load() {
		return 0, errTxClosed
	}
	return c.tx.Exec(ctx, sql, args...)
}

func (c *closableTx) Query(ctx context.Context, sql string, args []any, row func(scan func(dest ...any) error) error) error {
	if c.closed.Load() {
		return errTxClosed
	}
	return c.tx.Query(ctx, sql, args, row)
}

// Native returns a transaction as the store gave it. The storage packages' Unwrap need it; an action calls those.
func Native(tx Tx) Tx {
	if c, ok := tx.(*closableTx); ok {
		return c.tx
	}
	return tx
}
