package main

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"

	"github.com/mattn/go-isatty"

	"github.com/belayhq/belay/internal/render"
)

// environment is what the program takes from the process it runs in.
type environment struct {
	// Getenv looks a variable up; empty if it is not set.
	Getenv func(string) string
	// Dir is the working directory; empty is the process's own.
	Dir string
	// Signals brings interrupts; nil brings none.
	Signals <-chan os.Signal
	// Terminal tells whether a stream is one. Nil: none is.
	Terminal func(stream any) bool
	// Exit ends the process at once, at the third signal.
	Exit func(code int)
}

// program is one run of the command line.
type program struct {
	stdin      io.Reader
	stdout     *output
	stderr     *screen
	env        environment
	flags      globalFlags
	settings   settings
	interrupts *interrupts
	// started says that a command's own code runs: an error before is one of usage.
	started bool
	// stdinTaken says that a list of tenants is read from standard input, so that no question can be answered there.
	stdinTaken bool
}

func newProgram(stdin io.Reader, stdout, stderr io.Writer, env environment) *program {
	if env.Getenv == nil {
		env.Getenv = func(string) string { return "" }
	}
	if env.Terminal == nil {
		env.Terminal = func(any) bool { return false }
	}
	screen := &screen{stream: stderr}
	return &program{
		stdin: stdin, stdout: &output{w: stdout}, stderr: screen, env: env,
		interrupts: &interrupts{stderr: screen, exit: env.Exit},
	}
}

// path makes a path that was given on the command line one that the process can open.
func (p *program) path(name string) string {
	if filepath.IsAbs(name) {
		return name
	}
	return filepath.Join(p.env.Dir, name)
}

// say writes a line for people to standard error.
func (p *program) say(format string, args ...any) {
	// There is nobody left to tell if this fails.
	_, _ = fmt.Fprintln(p.stderr, render.CleanLines(fmt.Sprintf(format, args...)))
}

// animated reports whether standard error may be drawn on.
func (p *program) animated() bool {
	return p.env.Terminal(p.stderr.stream) && p.env.Getenv("TERM") != "dumb"
}

// output is standard output. It remembers the first write that failed, because a document that was not written whole
// must not end in success.
type output struct {
	w   io.Writer
	err error
}

func (o *output) Write(b []byte) (int, error) {
	n, err := o.w.Write(b)
	if err != nil && o.err == nil {
		o.err = err
	}
	return n, err
}

// screen is standard error. While a bar is drawn there, everything else appears above it.
type screen struct {
	stream io.Writer

	mu    sync.Mutex
	above io.Writer // nil while nothing is drawn
}

func (s *screen) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.above != nil {
		return s.above.Write(b)
	}
	return s.stream.Write(b)
}

// draw puts a bar on the screen.
func (s *screen) draw(title string, total int) *drawn {
	s.mu.Lock()
	defer s.mu.Unlock()
	bar := render.NewBar(s.stream, title, total)
	s.above = bar
	return &drawn{bar, s}
}

// drawn is a bar on the screen, which gives the screen back when it stops.
type drawn struct {
	*render.Bar
	screen *screen
}

func (d *drawn) Stop() {
	d.screen.mu.Lock()
	defer d.screen.mu.Unlock()
	d.Bar.Stop()
	d.screen.above = nil
}

func isTerminal(stream any) bool {
	file, ok := stream.(*os.File)
	return ok && (isatty.IsTerminal(file.Fd()) || isatty.IsCygwinTerminal(file.Fd()))
}
