// Command bench measures Belay beside what people use for the same work today, on one private PostgreSQL and on SQLite
// files of its own, and beside hand-written loops that show how fast these databases can be.
//
// The contenders of a work take turns, several rounds long. What it prints are medians over the rounds, the spread, and
// ratios taken round by round, because they survive a machine that is busy with other things.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"regexp"
	"strconv"
	"strings"
	"syscall"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:])
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// options are the program's flags.
type options struct {
	rounds, tenants, schemas  int
	workers                   []int
	only, profileDir, writeTo string
}

func parse(args []string) (options, error) {
	var o options
	var workers string
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	flags.IntVar(&o.rounds, "rounds", 5, "how often every contender does its work")
	flags.IntVar(&o.tenants, "tenants", 1000, "how many tenants there are")
	flags.IntVar(&o.schemas, "schemas", 200, "how many of them DDL runs on, and how many SQLite files there are")
	flags.StringVar(&workers, "workers", "1,16,64", "how many tenants are worked on at once, a list")
	flags.StringVar(&o.only, "only", "", "a regular expression over `work: contender`; the others are left out")
	flags.StringVar(&o.profileDir, "profile", "", "a directory for CPU profiles and statement counts of the last round, which they slow down")
	flags.StringVar(&o.writeTo, "write", "", "the `file` to write as docs/performance.md is")
	if err := flags.Parse(args); err != nil {
		return o, err
	}
	for text := range strings.SplitSeq(workers, ",") {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 || n > mostWorkers {
			return o, fmt.Errorf("-workers: %q is not a number from 1 to %d", text, mostWorkers)
		}
		o.workers = append(o.workers, n)
	}
	if o.tenants < o.schemas || o.tenants < 20 || o.rounds < 1 {
		return o, fmt.Errorf("-tenants must be at least 20 and -schemas, -rounds at least 1")
	}
	return o, nil
}

func run(ctx context.Context, args []string) error {
	o, err := parse(args)
	if err != nil {
		return err
	}
	b := &bench{rounds: o.rounds, profileDir: o.profileDir}
	if b.only, err = regexp.Compile(o.only); err != nil {
		return fmt.Errorf("-only: %w", err)
	}
	serverSettings := settings
	if o.profileDir != "" {
		if err := os.MkdirAll(o.profileDir, 0o755); err != nil {
			return err
		}
		serverSettings = append(serverSettings, counting...)
	}
	w, err := newWorld(ctx, o.tenants, serverSettings...)
	if err != nil {
		return err
	}
	defer w.close()
	b.serverCPU = w.serverCPU
	if o.profileDir != "" {
		b.statements = w.statements
	}
	f, err := newFiles(o.schemas)
	if err != nil {
		return err
	}
	defer f.close()
	var all []measured
	for _, piece := range works(w, f, o) {
		if piece = b.selected(piece); len(piece.contenders) == 0 {
			continue
		}
		m, err := b.measure(ctx, piece)
		if err != nil {
			return err
		}
		all = append(all, m)
		if err := show(os.Stdout, rows([]measured{m})); err != nil { // at once, for who stops it before the end
			return err
		}
	}
	if _, err := fmt.Fprintf(os.Stdout, "\n%s\n", strings.Join(losses(all), "\n")); err != nil {
		return err
	}
	if o.writeTo == "" {
		return nil
	}
	return write(o.writeTo, all, w, o)
}
