package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/belayhq/belay/engine"
	"github.com/belayhq/belay/internal/render"
	"github.com/belayhq/belay/plan"
	"github.com/belayhq/belay/sitelock"
)

// The exit codes. Of several, a signal's counts first, then 6, 4, 3, 1, 8, 5, 2.
const (
	exitDone       = 0
	exitError      = 1
	exitPending    = 2 // only with --detailed-exitcode: work is left
	exitFailed     = 3 // some tenant failed, each is clean
	exitPerson     = 4 // some tenant needs a person: partial, quarantined, undo failed
	exitLocked     = 5 // locked by someone else
	exitCancelled  = 6
	exitRefused    = 8 // before anything was touched
	exitUsage      = 64
	exitInterrupt  = 130
	exitTerminated = 143
)

// failure is an error with the exit code it leads to, and what is safe to do next.
type failure struct {
	code int
	err  error
	next []render.Next
}

func (f *failure) Error() string { return f.err.Error() }
func (f *failure) Unwrap() error { return f.err }

// fail makes an error with an exit code.
func fail(code int, format string, args ...any) *failure {
	return &failure{code: code, err: fmt.Errorf(format, args...)}
}

// misuse is an error in how belay was called.
func misuse(format string, args ...any) *failure { return fail(exitUsage, format, args...) }

// advise adds a command that is safe next.
func (f *failure) advise(command, why string) *failure {
	f.next = append(f.next, render.Next{Command: command, Why: why})
	return f
}

// exitCode tells an error to people and returns the exit code.
func (p *program) exitCode(err error) int {
	code := exitDone
	if err != nil {
		code = p.codeOf(err)
		p.tell(err)
	}
	if p.stdout.err != nil {
		p.say("error: write to standard output: %v", p.stdout.err)
		if code == exitDone {
			code = exitError
		}
	}
	if s := p.interrupts.first(); s != nil {
		return codeOfSignal(s)
	}
	return code
}

func (p *program) codeOf(err error) int {
	if f, ok := errors.AsType[*failure](err); ok {
		return f.code
	}
	if !p.started {
		return exitUsage // cobra's own: unknown command, flag or number of arguments
	}
	return codeOf(err)
}

// codeOf is the code of an error that is not about one of several tenants.
func codeOf(err error) int {
	_, refused := errors.AsType[*engine.RefusedError](engine.AsRefusal(err))
	_, invalid := errors.AsType[*plan.InvalidError](err)
	_, busy := errors.AsType[*sitelock.LockBusyError](err)
	switch {
	case refused, invalid, errors.Is(err, plan.ErrDigestMismatch):
		return exitRefused
	case busy:
		return exitLocked
	case errors.Is(err, context.Canceled):
		return exitCancelled
	}
	return exitError
}

// tell writes an error with its advice.
func (p *program) tell(err error) {
	var b strings.Builder
	fmt.Fprintf(&b, "error: %s\n", render.CleanLines(err.Error()))
	if f, ok := errors.AsType[*failure](err); ok {
		render.WriteNext(&b, f.next)
	} else if !p.started {
		b.WriteString("  belay --help lists the commands\n")
	}
	p.write(b.String())
}

func (p *program) write(text string) {
	// There is nobody left to tell if this fails.
	_, _ = p.stderr.Write([]byte(text))
}

// worst is the exit code of an operation over many tenants.
func worst(s render.Summary, err error) int {
	switch {
	case s.Cancelled > 0:
		return exitCancelled
	case s.Partial > 0:
		return exitPerson
	case s.Failed > 0:
		return exitFailed
	case err != nil:
		return codeOf(err)
	case s.Refused > 0:
		return exitRefused
	case s.Busy > 0:
		return exitLocked
	}
	return exitDone
}
