// Package pgproxy is a network between a test's engine and its PostgreSQL that fails on order: it passes messages, delays
// them, drops them, or cuts connections, at once or around a COMMIT that it sees going by.
//
// It tells connections apart by the application name of their start-up message, so that renewals and steps fail
// separately. A message is passed on once it is whole. There is no encryption.
package pgproxy

import (
	"context"
	"net"
	"strings"
	"sync"
	"testing"
	"time"
)

// Class is a kind of connection.
type Class string

// The classes of connections: those of the keeper, whose application name ends in "renewal", and all others.
const (
	Steps    Class = "steps"
	Renewals Class = "renewals"
)

func classOf(application string) Class {
	if strings.HasSuffix(application, "renewal") {
		return Renewals
	}
	return Steps
}

// Direction is one of the two ways of a connection.
type Direction string

// The directions.
const (
	ToServer Direction = "to server"
	ToClient Direction = "to client"
)

type way struct {
	class     Class
	direction Direction
}

// weather is what happens to all messages on a way.
type weather struct {
	delay time.Duration
	hole  bool
}

// Proxy is the network.
type Proxy struct {
	tb              testing.TB
	listener        net.Listener
	network, server string
	ctx             context.Context
	running         sync.WaitGroup

	mu      sync.Mutex
	weather map[way]weather
	lost    map[Class]chan struct{}
	links   map[*link]struct{}
	faults  []*Fault
}

// Start opens a loopback port whose connections lead to a server, until the test ends. A planned fault that never happened
// fails the test then.
func Start(tb testing.TB, network, server string) *Proxy {
	tb.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatalf("open a loopback port: %v", err)
	}
	ctx, stop := context.WithCancel(context.Background())
	p := &Proxy{
		tb: tb, listener: listener, network: network, server: server, ctx: ctx,
		weather: make(map[way]weather), lost: make(map[Class]chan struct{}), links: make(map[*link]struct{}),
	}
	p.running.Go(p.accept)
	tb.Cleanup(func() {
		stop()
		_ = listener.Close() // ends accept
		p.running.Wait()
		for _, f := range p.faults {
			tb.Errorf("%s of commit %d of %s never happened", f.order.Do, f.order.Nth, f.order.Class)
		}
	})
	return p
}

// Address is where the proxy listens, as host:port.
func (p *Proxy) Address() string { return p.listener.Addr().String() }

func (p *Proxy) accept() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return
		}
		p.running.Go(func() { p.serve(client) })
	}
}

// Delay has everything on a way arrive later, on connections that are open too.
func (p *Proxy) Delay(c Class, d Direction, by time.Duration) { p.set(way{c, d}, weather{delay: by}) }

// BlackHole has everything on a way vanish, without an end of any connection, new ones included. What has lost a message
// stays silent for good.
func (p *Proxy) BlackHole(c Class, d Direction) { p.set(way{c, d}, weather{hole: true}) }

// Lost is closed when a black hole has taken something from a class of connections.
func (p *Proxy) Lost(c Class) <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.lostOf(c)
}

// lostOf makes the channel of Lost. The caller has the lock.
func (p *Proxy) lostOf(c Class) chan struct{} {
	if p.lost[c] == nil {
		p.lost[c] = make(chan struct{})
	}
	return p.lost[c]
}

// loses marks that something was lost.
func (p *Proxy) loses(c Class) {
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case <-p.lostOf(c):
	default:
		close(p.lost[c])
	}
}

// Pass has everything on a way arrive at once again.
func (p *Proxy) Pass(c Class, d Direction) { p.set(way{c, d}, weather{}) }

func (p *Proxy) set(w way, is weather) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.weather[w] = is
}

func (p *Proxy) weatherOn(w way) weather {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.weather[w]
}

// Cut ends the connections of a class that are open, at both ends, and returns how many there were.
func (p *Proxy) Cut(c Class) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	cut := 0
	for l := range p.links {
		if l.class == c {
			l.hangUp()
			cut++
		}
	}
	return cut
}

// Do is what a fault does to a COMMIT.
type Do string

// What a fault may do. CutBefore ends the connection instead of passing the COMMIT on; what stands before it in its batch
// arrives. The others pass the batch on and wait for the whole answer: CutAfter then ends the connection, Swallow leaves it
// open and silent for good, Hold keeps the answer until Fault.Release.
const (
	CutBefore Do = "cut before"
	CutAfter  Do = "cut after"
	Swallow   Do = "swallow"
	Hold      Do = "hold"
)

// Order plans a fault.
type Order struct {
	Class Class
	Do    Do
	// Nth counts the COMMITs of the class from now on, those of read-only transactions left out. Zero is the first.
	Nth int
}

// Fault is one that was planned.
type Fault struct {
	proxy    *Proxy
	order    Order
	seen     int
	happened chan struct{}
	release  chan struct{}
}

// Plan has a fault happen once.
func (p *Proxy) Plan(o Order) *Fault {
	o.Nth = max(o.Nth, 1)
	f := &Fault{proxy: p, order: o, happened: make(chan struct{}), release: make(chan struct{})}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.faults = append(p.faults, f)
	return f
}

// Happened is closed when the fault has happened: the server has the COMMIT behind it, or will never have it.
func (f *Fault) Happened() <-chan struct{} { return f.happened }

// Release lets go of what Hold keeps. It is called once.
func (f *Fault) Release() { close(f.release) }

// Cancel takes the fault back and reports whether it had happened.
func (f *Fault) Cancel() bool {
	f.proxy.mu.Lock()
	defer f.proxy.mu.Unlock()
	f.proxy.drop(f)
	select {
	case <-f.happened:
		return true
	default:
		return false
	}
}

// drop forgets a fault. The caller has the lock.
func (p *Proxy) drop(f *Fault) {
	for i := range p.faults {
		if p.faults[i] == f {
			p.faults = append(p.faults[:i:i], p.faults[i+1:]...)
			return
		}
	}
}

// met counts a COMMIT of a class and returns the fault that is due; nil if none is.
func (p *Proxy) met(c Class) *Fault {
	p.mu.Lock()
	defer p.mu.Unlock()
	var due *Fault
	for _, f := range p.faults {
		if f.order.Class != c {
			continue
		}
		if f.seen++; f.seen == f.order.Nth && due == nil {
			due = f
		}
	}
	return due
}

// happens marks a fault.
func (p *Proxy) happens(f *Fault) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.drop(f)
	close(f.happened)
}
