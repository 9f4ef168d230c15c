package engine

import (
	"context"
	"fmt"
	"sync"

	"github.com/belayhq/belay/plan"
	"github.com/belayhq/belay/tenant"
)

// programs keeps changes compiled, by digest and dialect: thousands of tenants share them.
type programs struct {
	mu    sync.Mutex
	cache map[programKey]*plan.Program
}

type programKey struct {
	digest  plan.Digest
	dialect tenant.Dialect
}

const programsMax = 256

func (p *programs) keep(program *plan.Program) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cache == nil || len(p.cache) >= programsMax {
		p.cache = make(map[programKey]*plan.Program)
	}
	p.cache[programKey{program.Digest, program.Dialect}] = program
}

func (p *programs) cached(digest plan.Digest, d tenant.Dialect) *plan.Program {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.cache[programKey{digest, d}]
}

// prepare checks a change against this engine and splits its scripts for one database.
func (e *Engine) prepare(change *plan.Change, digest plan.Digest, d tenant.Dialect) (*plan.Program, error) {
	if program := e.programs.cached(digest, d); program != nil {
		return program, nil
	}
	program, err := change.Compile(d)
	if err != nil {
		return nil, &RefusedError{Reason: RefusedInvalid, Err: err}
	}
	if err := e.config.Actions.Check(change); err != nil {
		return nil, &RefusedError{Reason: RefusedInvalid, Err: fmt.Errorf("change %s: %w", change.ID, err)}
	}
	e.programs.keep(program)
	return program, nil
}

// undoPrograms reads the changes of the chosen plans and refuses if any of their steps in place has no way back.
func (o *operation) undoPrograms(ctx context.Context, chosen []plan.Record) ([]*plan.Program, error) {
	programs := make([]*plan.Program, 0, len(chosen))
	for _, record := range chosen {
		program := o.engine.programs.cached(record.Plan.Digest, o.store.Dialect())
		if program == nil {
			change, err := o.store.Change(ctx, record.Plan.Digest)
			if err != nil {
				return nil, fmt.Errorf("change %s: %w", record.Plan.Change, err)
			}
			if program, err = o.engine.prepare(change, record.Plan.Digest, o.store.Dialect()); err != nil {
				return nil, err
			}
		}
		if err := o.whyNotUndo(ctx, program, record); err != nil {
			return nil, err
		}
		programs = append(programs, program)
	}
	return programs, nil
}
