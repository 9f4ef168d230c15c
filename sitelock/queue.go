package sitelock

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/belayhq/belay/tenant"
)

// queues line up the callers in this process that wait for the same lock, first come, first served. The zero value is
// ready to use.
type queues struct {
	mu    sync.Mutex
	lines map[queueKey][]*place
}

type queueKey struct {
	store  Store
	tenant tenant.ID
}

// place is a caller's place in a queue. The zero value is outside any.
type place struct {
	queues *queues
	key    queueKey
	turn   chan struct{} // closed when the place is at the head
	freed  chan struct{} // written to when this process has released the lock
}

// join adds a place at the end and reports whether it is the head at once.
func (q *queues) join(key queueKey) (p *place, head bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	p = &place{queues: q, key: key, turn: make(chan struct{}), freed: make(chan struct{}, 1)}
	if q.lines == nil {
		q.lines = make(map[queueKey][]*place)
	}
	q.lines[key] = append(q.lines[key], p)
	if head = len(q.lines[key]) == 1; head {
		close(p.turn)
	}
	return p, head
}

// freed returns the function that tells the head of a queue to look at once.
func (q *queues) freed(key queueKey) func() {
	return func() {
		q.mu.Lock()
		defer q.mu.Unlock()
		if line := q.lines[key]; len(line) > 0 {
			select {
			case line[0].freed <- struct{}{}:
			default:
			}
		}
	}
}

// wait returns true when the place is at the head or the deadline has come, and false if ctx ended.
func (p *place) wait(ctx context.Context, deadline time.Time) bool {
	return sleep(ctx, time.Until(deadline), p.turn)
}

// leave gives the place up.
func (p *place) leave() {
	if p.queues == nil {
		return
	}
	q := p.queues
	q.mu.Lock()
	defer q.mu.Unlock()
	line := q.lines[p.key]
	i := slices.Index(line, p)
	line = slices.Delete(line, i, i+1)
	if len(line) == 0 {
		delete(q.lines, p.key)
		return
	}
	q.lines[p.key] = line
	if i == 0 {
		close(line[0].turn)
	}
}
