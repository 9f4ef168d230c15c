package postgres_test

import (
	"context"
	"errors"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/belayhq/belay/internal/postgrestest"
	"github.com/belayhq/belay/plan"
	"github.com/belayhq/belay/sitelock"
)

// silent is a network that stops delivering what a client sends after so many bytes; both ends stay open.
type silent struct {
	armed atomic.Bool
	left  atomic.Int64
	gone  chan struct{}
}

type silentConn struct {
	net.Conn
	network *silent
}

func (n *silent) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	conn, err := new(net.Dialer).DialContext(ctx, network, addr)
	return &silentConn{conn, n}, err
}

func (c *silentConn) Write(p []byte) (int, error) {
	if !c.network.armed.Load() {
		return c.Conn.Write(p)
	}
	fits := max(c.network.left.Add(-int64(len(p)))+int64(len(p)), 0)
	if fits >= int64(len(p)) {
		return c.Conn.Write(p)
	}
	if _, err := c.Conn.Write(p[:fits]); err != nil {
		return 0, err
	}
	<-c.network.gone
	return 0, net.ErrClosed
}

// G2: however a checkpoint stalls, its rows are free again within the limits that were set for it: the server is never left
// in the middle of more than one message, and between messages the idle limit runs.
func TestAClientThatFallsSilentInTheMiddleOfALargeGroupIsTakenOver(t *testing.T) {
	t.Parallel()
	url := postgrestest.URL(t)
	network := &silent{gone: make(chan struct{})}
	db, _ := embedded(t, url, func(cfg *pgxpool.Config) { cfg.ConnConfig.DialFunc = network.dial })
	other := open(t, url)
	site := newSite(t, url)
	claim := applyOf(2)
	held, group := begin(t, db, site, claim)
	group.Limits.Idle = time.Second
	small, large := step(0, `INSERT INTO t VALUES (1)`), step(1, `INSERT INTO t SELECT 2 WHERE length('`+strings.Repeat("x", 4<<20)+`') > 0`)
	group.Steps = append(group.Steps, small, large)

	network.left.Store(1 << 20) // a quarter of the large statement arrives
	network.armed.Store(true)
	resume := sync.OnceFunc(func() { close(network.gone) })
	t.Cleanup(resume)
	ended := make(chan error, 1)
	go func() { ended <- db.Checkpoint(t.Context(), held, group) }()

	lapse(t, url, site)
	again := sitelock.Claim{Direction: plan.Up, Change: claim.Change, Digest: claim.Digest, Body: claim.Body, NewPlan: plan.NewID()}
	for deadline := time.Now().Add(20 * time.Second); ; {
		_, err := other.Acquire(t.Context(), request(site, &again))
		if err == nil {
			break
		}
		if !errors.Is(err, sitelock.ErrContended) || time.Now().After(deadline) {
			t.Fatalf("take-over: %v", err)
		}
		scalar(t, url, "", `SELECT pg_sleep(0.05)::text`)
	}
	resume()
	if err := <-ended; err == nil {
		t.Error("the stalled checkpoint committed")
	}
	if n := scalar(t, url, string(site), `SELECT count(*) FROM t`); n != "0" {
		t.Errorf("%s rows of the stalled checkpoint", n)
	}
}
