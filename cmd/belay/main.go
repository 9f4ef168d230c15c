// Command belay applies a change to many tenants and can always bring each of them back.
//
// Data goes to standard output, everything else to standard error. What each exit code means is written in exit.go.
package main

import (
	"context"
	"io"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	signals := make(chan os.Signal, 3)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	// Whoever reads our output may go away: the write fails then, and the plans under way are finished truthfully.
	signal.Ignore(syscall.SIGPIPE)
	os.Exit(run(context.Background(), os.Args[1:], os.Stdin, os.Stdout, os.Stderr, environment{
		Getenv: os.Getenv, Signals: signals, Terminal: isTerminal, Exit: os.Exit,
	}))
}

// run is the whole program. It returns the exit code.
func run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer, env environment) int {
	p := newProgram(stdin, stdout, stderr, env)
	ctx, done := p.interrupts.watch(ctx, env.Signals)
	defer done()
	root := p.rootCommand()
	root.SetArgs(args)
	return p.exitCode(root.ExecuteContext(ctx))
}
