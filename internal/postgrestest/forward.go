package postgrestest

import (
	"context"
	"io"
	"net"
	"sync"
	"testing"
)

// forward passes connections to a loopback port on to a unix socket until the test ends.
func forward(tb testing.TB, socket string) (port int, err error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	ctx, stop := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			running.Go(func() { pass(ctx, client, socket) })
		}
	})
	tb.Cleanup(func() {
		stop()
		_ = listener.Close() // ends Accept
		running.Wait()
	})
	return listener.Addr().(*net.TCPAddr).Port, nil
}

// pass copies both ways until one side ends or ctx does.
func pass(ctx context.Context, client net.Conn, socket string) {
	server, err := net.Dial("unix", socket)
	if err != nil {
		_ = client.Close() // the client sees why it cannot connect: nobody answers
		return
	}
	hangUp := func() {
		_ = client.Close()
		_ = server.Close()
	}
	defer context.AfterFunc(ctx, hangUp)()
	var copies sync.WaitGroup
	for _, way := range [][2]net.Conn{{client, server}, {server, client}} {
		copies.Go(func() {
			_, _ = io.Copy(way[0], way[1])
			hangUp()
		})
	}
	copies.Wait()
}
