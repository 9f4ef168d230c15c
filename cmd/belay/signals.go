package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"syscall"

	"github.com/belayhq/belay/internal/render"
)

// errInterrupted is the cause with which a signal cancels the command's context.
var errInterrupted = errors.New("interrupted")

// interrupts turns signals into ways to stop: the first stops at the next checkpoint, the second cuts short what runs,
// the third ends the process, whose locks then lapse.
type interrupts struct {
	stderr io.Writer
	exit   func(code int)

	mu     sync.Mutex
	signal os.Signal
	// abort cuts short what runs; inFlight names the tenants whose plans a stop waits for. Both are nil while nothing runs.
	abort    func()
	inFlight func() []string
}

// watch returns a context that ends at the first signal, and a function that ends the watching.
func (i *interrupts) watch(ctx context.Context, signals <-chan os.Signal) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	quit, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for n := 1; ; n++ {
			select {
			case s := <-signals:
				i.received(s, n, cancel)
			case <-quit:
				return
			}
		}
	}()
	return ctx, func() { close(quit); <-ended; cancel(context.Canceled) }
}

func (i *interrupts) received(s os.Signal, nth int, cancel context.CancelCauseFunc) {
	i.mu.Lock()
	defer i.mu.Unlock()
	switch nth {
	case 1:
		i.signal = s
		cancel(errInterrupted)
		i.say(i.waitsFor())
	case 2:
		if i.abort != nil {
			i.say("cancelling the statements that run; plans are finished truthfully and locks released; once more ends the process at once")
			i.abort()
		}
	default:
		i.say("ended at once: locks lapse by themselves, and the next apply or rollback recovers their plans")
		if i.exit != nil {
			i.exit(codeOfSignal(i.signal))
		}
	}
}

// waitsFor says what a stop waits for. The caller has locked mu.
func (i *interrupts) waitsFor() string {
	if i.inFlight == nil {
		return "stopping"
	}
	const shown = 5
	names := i.inFlight()
	if len(names) == 0 {
		return "stopping: no plan is in flight"
	}
	more := ""
	if len(names) > shown {
		more = fmt.Sprintf(" and %d more", len(names)-shown)
		names = names[:shown]
	}
	return fmt.Sprintf("stopping: waiting for the next checkpoint of %s%s; once more cancels the statements that run",
		strings.Join(names, ", "), more)
}

func (i *interrupts) say(text string) {
	// There is nobody left to tell if this fails.
	_, _ = io.WriteString(i.stderr, render.Clean(text)+"\n")
}

// during tells how to cut short what is about to run, and returns a function that ends it.
func (i *interrupts) during(abort func(), inFlight func() []string) func() {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.abort, i.inFlight = abort, inFlight
	return func() {
		i.mu.Lock()
		defer i.mu.Unlock()
		i.abort, i.inFlight = nil, nil
	}
}

// first returns the first signal that came; nil if none did.
func (i *interrupts) first() os.Signal {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.signal
}

func codeOfSignal(s os.Signal) int {
	if s == syscall.SIGTERM {
		return exitTerminated
	}
	return exitInterrupt
}
