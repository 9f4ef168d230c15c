package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"runtime/pprof"
	"slices"
	"strings"
	"time"
)

// work is one piece of work that several contenders do, each its own way.
type work struct {
	// name is what the table calls it, with its size and its workers.
	name string
	// unit is what a rate counts per second.
	unit string
	// contenders do the work. Ratios are to the first.
	contenders []contender
	goals      []goal
}

// goal is a ratio that Belay means to reach.
type goal struct {
	contender, rival string
	atLeast          float64
}

// contender is one way to do a piece of work.
type contender struct {
	name string
	// prepare brings the database to where the work begins. None of it is timed.
	prepare func(ctx context.Context) (*trial, error)
}

// trial is a contender ready to begin.
type trial struct {
	// count is how many units of work run does.
	count int
	run   func(ctx context.Context) error
	// check says whether the work was done: who does not do it is not fast.
	check func(ctx context.Context) error
	close func()
}

// lap is one round of one contender.
type lap struct {
	// rate is in units of work per second.
	rate float64
	// cpu is what one unit of work used.
	cpu cpu
	// peak is the most memory that this process had at once, in bytes.
	peak int64
}

// measured is what the rounds of one work gave, by contender and round.
type measured struct {
	work work
	laps [][]lap
	// broken is why a contender dropped out; nil if it did not.
	broken []error
}

// bench is one run of the program.
type bench struct {
	rounds     int
	only       *regexp.Regexp
	profileDir string
	// serverCPU is the processor time of the server so far.
	serverCPU func() time.Duration
	// statements, if set, follows a trial with what the server says of the statements that it ran.
	statements func(ctx context.Context, begin bool, path string) error
}

// selected cuts a work down to the contenders that were asked for. Ratios are to the first that is left.
func (b *bench) selected(w work) work {
	w.contenders = slices.DeleteFunc(slices.Clone(w.contenders), func(c contender) bool {
		return !b.only.MatchString(w.name + ": " + c.name)
	})
	return w
}

// measure lets the contenders do the work in turns, so that whatever slows the machine down for a while slows all of
// them. Each round begins with another one.
func (b *bench) measure(ctx context.Context, w work) (measured, error) {
	m := measured{work: w, laps: make([][]lap, len(w.contenders)), broken: make([]error, len(w.contenders))}
	for round := range b.rounds {
		for i := range w.contenders {
			i = (i + round) % len(w.contenders)
			if m.broken[i] != nil {
				continue
			}
			l, err := b.lap(ctx, w, w.contenders[i], round == b.rounds-1)
			if ctx.Err() != nil {
				return m, context.Cause(ctx)
			}
			if err != nil {
				m.broken[i] = err
				fmt.Fprintf(os.Stderr, "%s: %s: %v\n", w.name, w.contenders[i].name, err)
				continue
			}
			m.laps[i] = append(m.laps[i], l)
			fmt.Fprintf(os.Stderr, "%s: %s: round %d: %.0f %s/s\n", w.name, w.contenders[i].name, round+1, l.rate, w.unit)
		}
	}
	return m, nil
}

// lap times one contender once.
func (b *bench) lap(ctx context.Context, w work, c contender, last bool) (lap, error) {
	t, err := c.prepare(ctx)
	if err != nil {
		return lap{}, fmt.Errorf("prepare: %w", err)
	}
	defer t.close()
	forgetPeak() // what others left behind is not this one's to collect
	stop := func() error { return nil }
	if last && b.profileDir != "" {
		if stop, err = b.profile(ctx, w.name+" "+c.name); err != nil {
			return lap{}, err
		}
	}
	before := b.cpu()
	began := time.Now()
	err = t.run(ctx)
	took := time.Since(began)
	used, most := b.cpu().since(before, t.count), peak()
	if stopErr := stop(); err == nil {
		err = stopErr
	}
	if err == nil && t.check != nil {
		err = t.check(ctx)
	}
	return lap{rate: float64(t.count) / took.Seconds(), cpu: used, peak: most}, err
}

func (b *bench) cpu() cpu { return cpu{client: clientCPU(), server: b.serverCPU()} }

var notInNames = regexp.MustCompile(`[^a-z0-9]+`)

// profile records where the processor's time goes until the function it returns is called: the client's in a pprof
// file, the server's by statement.
func (b *bench) profile(ctx context.Context, name string) (stop func() error, err error) {
	path := filepath.Join(b.profileDir, strings.Trim(notInNames.ReplaceAllString(strings.ToLower(name), "-"), "-"))
	file, err := os.Create(path + ".pprof")
	if err != nil {
		return nil, err
	}
	if b.statements != nil {
		if err := b.statements(ctx, true, ""); err != nil {
			return nil, err
		}
	}
	if err := pprof.StartCPUProfile(file); err != nil {
		return nil, err
	}
	return func() error {
		pprof.StopCPUProfile()
		if err := file.Close(); err != nil {
			return err
		}
		if b.statements == nil {
			return nil
		}
		return b.statements(ctx, false, path+".statements.txt")
	}, nil
}
