package render

import (
	"io"
	"sync/atomic"
	"time"

	"github.com/vbauerster/mpb/v8"
	"github.com/vbauerster/mpb/v8/decor"

	"github.com/belayhq/belay/engine"
)

// NewBar draws a bar over so many tenants on a terminal. What a person should see at once, such as waits, recoveries and
// failures, appears as lines above it. While it is drawn, anything else for this terminal must be written through the Bar:
// what is written beside it would be drawn over.
func NewBar(w io.Writer, title string, total int) *Bar {
	b := &Bar{
		progress: mpb.New(mpb.WithOutput(w), mpb.WithWidth(barWidth), mpb.WithRefreshRate(barRefresh)),
	}
	b.bar = b.progress.AddBar(int64(total),
		mpb.PrependDecorators(decor.Name(Clean(title)+" ")),
		mpb.AppendDecorators(
			decor.CountersNoUnit(" %d/%d "+Noun(total, "tenant")),
			decor.Any(func(decor.Statistics) string { return b.state() }),
		),
	)
	b.above.w = b.progress
	return b
}

const (
	barWidth   = 40
	barRefresh = 120 * time.Millisecond
)

// Bar is a [Watcher] that draws, and a writer of lines above what it draws.
type Bar struct {
	progress      *mpb.Progress
	bar           *mpb.Bar
	above         lines
	running, poor atomic.Int64
}

func (b *Bar) state() string {
	text := ""
	if n := b.running.Load(); n > 0 {
		text += ", " + Plural(int(n), "plan") + " in flight"
	}
	if n := b.poor.Load(); n > 0 {
		text += ", " + Plural(int(n), "problem")
	}
	return text
}

// Write writes whole lines above the bar.
func (b *Bar) Write(p []byte) (int, error) { return b.progress.Write(p) }

// Event counts plans in flight.
func (b *Bar) Event(p engine.Progress) {
	switch p.Kind {
	case engine.KindClaimed:
		b.running.Add(1)
	case engine.KindFinished:
		b.running.Add(-1)
	case engine.KindWaiting, engine.KindRecovered, engine.KindStepFailed, engine.KindUndoing:
		b.above.Event(p)
	case engine.KindStepDone, engine.KindStepUndone:
	}
}

// Result moves the bar on.
func (b *Bar) Result(r engine.Result) {
	if r.Err != nil {
		b.poor.Add(1)
		b.above.Result(r)
	}
	b.bar.Increment()
}

// Stop draws the bar for the last time.
func (b *Bar) Stop() {
	b.bar.Abort(false) // a bar that is full is complete, and this does nothing
	b.progress.Wait()
}
