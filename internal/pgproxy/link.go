package pgproxy

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgproto3"
)

// link is one connection through the proxy.
type link struct {
	proxy          *Proxy
	class          Class
	client, server net.Conn
	ctx            context.Context
	hangUp         context.CancelFunc

	// statements and portals hold SQL by name; readOnly is how the last transaction began. All are the client's side's.
	statements, portals map[string]string
	readOnly            bool

	mu sync.Mutex
	// asked and answered count what a ReadyForQuery answers: the start-up, each Sync and each simple query.
	asked, answered int
	// due is the fault whose COMMIT is on its way, and dueAt the answer that it waits for.
	due   *Fault
	dueAt int
	// silent holds the ways on which something was lost, so that nothing more arrives.
	silent map[Direction]bool
}

// serve passes one connection on.
func (p *Proxy) serve(client net.Conn) {
	defer client.Close()
	ctx, hangUp := context.WithCancel(p.ctx)
	defer hangUp()
	defer context.AfterFunc(ctx, func() { _ = client.Close() })()
	start, class, err := greet(client)
	if err != nil {
		return
	}
	server, err := new(net.Dialer).DialContext(ctx, p.network, p.server)
	if err != nil {
		return // the client sees why: nobody answers
	}
	defer server.Close()
	defer context.AfterFunc(ctx, func() { _ = server.Close() })()
	l := &link{
		proxy: p, class: class, client: client, server: server, ctx: ctx, hangUp: hangUp, asked: 1,
		statements: make(map[string]string), portals: make(map[string]string),
		silent: make(map[Direction]bool),
	}
	p.enter(l)
	defer p.leave(l)
	var ways sync.WaitGroup
	ways.Go(func() { defer hangUp(); l.toServer(start) })
	ways.Go(func() { defer hangUp(); l.toClient() })
	ways.Wait()
}

func (p *Proxy) enter(l *link) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.links[l] = struct{}{}
}

func (p *Proxy) leave(l *link) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.links, l)
}

// greet reads a connection's first message, which alone has no type. A request to cancel is passed on like any other.
func greet(client net.Conn) (start []byte, class Class, err error) {
	for {
		header := make([]byte, 4)
		if _, err := io.ReadFull(client, header); err != nil {
			return nil, "", err
		}
		start, err := whole(header, header, client)
		if err != nil {
			return nil, "", err
		}
		var ssl pgproto3.SSLRequest
		var gss pgproto3.GSSEncRequest
		if ssl.Decode(start[4:]) == nil || gss.Decode(start[4:]) == nil {
			if _, err := client.Write([]byte{'N'}); err != nil { // no encryption
				return nil, "", err
			}
			continue
		}
		var first pgproto3.StartupMessage
		if first.Decode(start[4:]) == nil {
			return start, classOf(first.Parameters["application_name"]), nil
		}
		return start, Steps, nil
	}
}

const messageMax = 1 << 30

// whole reads the rest of a message whose length is the end of its header.
func whole(header, length []byte, from io.Reader) ([]byte, error) {
	size := binary.BigEndian.Uint32(length)
	if size < 4 || size > messageMax {
		return nil, errors.New("no message of PostgreSQL's")
	}
	message := make([]byte, len(header)+int(size)-4)
	_, err := io.ReadFull(from, message[copy(message, header):])
	return message, err
}

// receive reads a message that has a type.
func receive(from *bufio.Reader) ([]byte, error) {
	header := make([]byte, 5)
	if _, err := io.ReadFull(from, header); err != nil {
		return nil, err
	}
	return whole(header, header[1:], from)
}

// toServer passes on what the client says.
func (l *link) toServer(start []byte) {
	if !l.deliver(ToServer, l.server, start) {
		return
	}
	from := bufio.NewReader(l.client)
	var batch bytes.Buffer
	for {
		message, err := receive(from)
		if err != nil {
			return
		}
		if at := l.commitAnsweredAt(message); at > 0 {
			if f := l.proxy.met(l.class); f != nil && !l.begin(f, at, batch.Bytes()) {
				return
			}
		}
		batch.Write(message)
		if from.Buffered() > 0 {
			continue // more of it is here already
		}
		if !l.deliver(ToServer, l.server, batch.Bytes()) {
			return
		}
		batch.Reset()
	}
}

// commitAnsweredAt follows what the client does, and returns at which ReadyForQuery a message that commits is answered; 0
// for every other message, and for the end of a transaction that only read.
func (l *link) commitAnsweredAt(message []byte) int {
	kind, body := message[0], message[5:]
	switch kind {
	case 'P':
		var m pgproto3.Parse
		if m.Decode(body) == nil {
			l.statements[m.Name] = m.Query
		}
	case 'B':
		var m pgproto3.Bind
		if m.Decode(body) == nil {
			l.portals[m.DestinationPortal] = l.statements[m.PreparedStatement]
		}
	case 'E':
		var m pgproto3.Execute
		if m.Decode(body) == nil && l.ends(l.portals[m.Portal]) {
			return l.ask(0) + 1 // at the Sync that is to come
		}
	case 'Q':
		at := l.ask(1)
		var m pgproto3.Query
		if m.Decode(body) == nil && l.ends(m.String) {
			return at
		}
	case 'S', 'F':
		l.ask(1)
	}
	return 0
}

// ask counts what will be answered by a ReadyForQuery.
func (l *link) ask(n int) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.asked += n
	return l.asked
}

// ends reports whether statements commit something that may have been written.
func (l *link) ends(sql string) bool {
	commits := false
	for statement := range strings.SplitSeq(sql, ";") {
		words := strings.Fields(strings.ToUpper(statement))
		if len(words) == 0 {
			continue
		}
		switch words[0] {
		case "BEGIN", "START":
			l.readOnly = strings.HasSuffix(strings.Join(words, " "), "READ ONLY")
		case "COMMIT", "END":
			commits = commits || !l.readOnly
		}
	}
	return commits
}

// begin begins a fault at a COMMIT that is next, behind what stands before it. It returns false if that ends the
// connection.
func (l *link) begin(f *Fault, answeredAt int, before []byte) bool {
	if f.order.Do != CutBefore {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.due, l.dueAt = f, answeredAt
		return true
	}
	l.deliver(ToServer, l.server, before)
	l.proxy.happens(f) // before the client can notice
	l.hangUp()
	return false
}

// toClient passes on what the server says.
func (l *link) toClient() {
	from := bufio.NewReader(l.server)
	var batch bytes.Buffer
	for {
		message, err := receive(from)
		if err != nil {
			return
		}
		f, complete := l.dueAnswer(message)
		if f == nil || f.order.Do == Hold {
			batch.Write(message)
		}
		if complete {
			if !l.end(f) {
				return
			}
			f = nil
		}
		if from.Buffered() > 0 || f != nil || batch.Len() == 0 {
			continue
		}
		if !l.deliver(ToClient, l.client, batch.Bytes()) {
			return
		}
		batch.Reset()
	}
}

// dueAnswer returns the fault that a message of the server's is part of, and whether that answer is complete with it.
func (l *link) dueAnswer(message []byte) (f *Fault, complete bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if message[0] == 'Z' {
		l.answered++
	}
	f = l.due
	if complete = f != nil && l.answered == l.dueAt; complete {
		l.due = nil
	}
	return f, complete
}

// end does what a fault does to a complete answer. It returns false if that ends the connection.
func (l *link) end(f *Fault) bool {
	if f.order.Do == Swallow {
		l.silence(ToServer)
		l.silence(ToClient)
	}
	l.proxy.happens(f) // before the client can notice
	switch f.order.Do {
	case CutAfter:
		l.hangUp()
		return false
	case Hold:
		select {
		case <-f.release:
		case <-l.ctx.Done():
		}
	case Swallow, CutBefore:
	}
	return true
}

// deliver passes data on as the weather has it. It returns false if the connection has ended.
func (l *link) deliver(d Direction, to io.Writer, data []byte) bool {
	is := l.proxy.weatherOn(way{l.class, d})
	if is.delay > 0 {
		timer := time.NewTimer(is.delay)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-l.ctx.Done():
			return false
		}
	}
	if is.hole {
		l.silence(d)
		l.proxy.loses(l.class)
	}
	if l.isSilent(d) {
		return true
	}
	_, err := to.Write(data)
	return err == nil
}

func (l *link) silence(d Direction) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.silent[d] = true
}

func (l *link) isSilent(d Direction) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.silent[d]
}
