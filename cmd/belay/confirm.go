package main

import (
	"bufio"
	"context"
	"fmt"
	"strings"

	"github.com/belayhq/belay/internal/render"
)

// confirm asks on the terminal before something is changed. Without a terminal only -y can say so.
func (p *program) confirm(ctx context.Context, question string) error {
	if p.stdinTaken || !p.env.Terminal(p.stdin) || !p.env.Terminal(p.stderr.stream) {
		return misuse("this asks before it changes anything, and there is no terminal to ask on: nothing was touched").
			advise("-y", "answers yes beforehand")
	}
	p.write(render.Clean(question) + " [y/N] ")
	answer := make(chan string, 1)
	go func() {
		// Left behind if a signal comes first: the process ends then.
		line, _ := bufio.NewReader(p.stdin).ReadString('\n')
		answer <- strings.ToLower(strings.TrimSpace(line))
	}()
	select {
	case line := <-answer:
		if line == "y" || line == "yes" {
			return nil
		}
		return fail(exitCancelled, "not confirmed: nothing was touched")
	case <-ctx.Done():
		p.write("\n")
		return &failure{code: exitCancelled, err: fmt.Errorf("not confirmed: %w", context.Cause(ctx))}
	}
}
