package sqlite

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/belayhq/belay/engine"
	"github.com/belayhq/belay/sitelock"
)

const (
	// busyPatience is how long a call waits for other processes' transactions, if its context allows.
	busyPatience = 10 * time.Second
	// hurriedPatience is the same for those who are not to wait: what is under way gets to its end, and no more.
	hurriedPatience = 2500 * time.Millisecond
	// turnPatience is how long they wait in one go for their turn in the process.
	turnPatience = 500 * time.Millisecond
	// askEvery is how often they ask whether waiting has become pointless.
	askEvery = 250 * time.Millisecond
	// busyPauseMax bounds the pause between two looks at a busy file. There is no queue between processes: who looks seldom
	// never finds the file free beside others that write one transaction after the other.
	busyPauseMax = 16 * time.Millisecond
)

// write runs fn in a transaction that keeps all other writers out, and commits it if fn returns nil. The context that
// fn gets is never cancelled: Belay's own statements are short, and an interrupted one would leave open what happened.
// It waits its turn in the process as long as ctx allows, for other processes at most busyPatience.
func (s *Store) write(ctx context.Context, fn func(ctx context.Context, t *transaction) error) error {
	return s.writeUnless(ctx, nil, fn)
}

// writeUnless is write for a caller that is not to wait: also the turn in the process is bounded. Each time that the
// database is busy it asks busy, if there is one, whether to give up.
func (s *Store) writeUnless(
	ctx context.Context, busy func(ctx context.Context) error, fn func(ctx context.Context, t *transaction) error,
) error {
	t, err := s.begin(ctx, busy)
	if err != nil {
		return err
	}
	defer t.close()
	ctx = context.WithoutCancel(ctx)
	if err := fn(ctx, t); err != nil {
		t.rollback(ctx)
		return translate(err)
	}
	return t.commit(ctx)
}

func (s *Store) begin(ctx context.Context, busy func(ctx context.Context) error) (t *transaction, err error) {
	err = patiently(ctx, busy, func() error {
		t, err = s.tryBegin(ctx, busy != nil)
		return err
	})
	return t, err
}

// patiently tries again while the database is busy. A caller who is not to wait passes busy, which says whether to give up.
func patiently(ctx context.Context, busy func(ctx context.Context) error, try func() error) error {
	patience := busyPatience
	if busy != nil {
		patience = hurriedPatience
	}
	asked := time.Time{}
	var contended error
	for begun := time.Now(); ; {
		err := try()
		switch {
		case errors.Is(err, sitelock.ErrContended):
			contended = err
		case err != nil && contended != nil && ctx.Err() != nil: // the time was up in the middle of the last try
			return fmt.Errorf("%w: %w", err, contended)
		default:
			return err
		}
		if busy != nil && time.Since(asked) > askEvery {
			if err := busy(ctx); err != nil {
				return err
			}
			asked = time.Now()
		}
		waited := time.Since(begun)
		if waited > patience {
			return err
		}
		// Spread by chance, so that those who wait do not look at the same moments.
		longest := min(time.Millisecond+waited/8, busyPauseMax)
		if cause := pause(ctx, rand.N(longest)); cause != nil {
			return fmt.Errorf("%w: %w", cause, err)
		}
	}
}

func (s *Store) tryBegin(ctx context.Context, hurried bool) (*transaction, error) {
	turn := ctx
	if hurried {
		var cancel context.CancelFunc
		turn, cancel = context.WithTimeout(ctx, turnPatience)
		defer cancel()
	}
	if err := s.turn.Acquire(turn, 1); err != nil {
		if ctx.Err() == nil {
			return nil, fmt.Errorf("%w (by this process)", sitelock.ErrContended)
		}
		return nil, translate(err)
	}
	connection, err := s.writer.Conn(ctx)
	if err != nil {
		s.turn.Release(1)
		return nil, translate(err)
	}
	t := &transaction{session: session{connection}, turn: s.turn, begun: time.Now(), ended: true}
	err = t.native(func(c *conn) error {
		t.conn = c
		return c.demandWAL(ctx)
	})
	if err == nil {
		t.conn.guard.begin()
		_, err = t.exec(context.WithoutCancel(ctx), "BEGIN IMMEDIATE")
	}
	if err != nil {
		t.close()
		return nil, translate(err)
	}
	t.ended = false
	return t, nil
}

// transaction is the one open transaction of the write connection. It has the turn until it is closed.
type transaction struct {
	session
	turn  *semaphore.Weighted
	conn  *conn // the session's, as the driver has it
	begun time.Time
	ended bool
}

// stands reports whether the transaction is still open.
func (t *transaction) stands() bool { return !t.conn.AutoCommit() }

// commit ends the transaction. While SQLite still has it open after an error, nothing was written; if it has not, an
// error of the disk leaves open what another process will find.
func (t *transaction) commit(ctx context.Context) error {
	if !t.stands() {
		t.conn.broken = true
		t.ended = true
		return errors.New("the transaction ended before its commit; nothing was written")
	}
	_, err := t.exec(ctx, "COMMIT")
	if err == nil {
		t.ended = true
		t.conn.broken = t.conn.guard.temporary
		return nil
	}
	t.conn.broken = true
	if t.stands() {
		t.rollback(ctx)
		return fmt.Errorf("commit: %w", err)
	}
	t.ended = true
	if e, ok := errors.AsType[*Error](err); ok && (e.primary() == codeFull || e.primary() == codeConstraint) {
		return fmt.Errorf("commit: %w", err) // a commit record that did not fit, or was not tried, is none
	}
	return fmt.Errorf("commit: %w: %w", engine.ErrUnknownOutcome, err)
}

// rollback ends the transaction without effect. A connection that cannot, or whose transaction is already gone, is
// dropped.
func (t *transaction) rollback(ctx context.Context) {
	if t.ended {
		return
	}
	t.ended = true
	if !t.stands() {
		t.conn.broken = true
		return
	}
	if _, err := t.exec(ctx, "ROLLBACK"); err != nil {
		t.conn.broken = true
	}
}

// close gives the connection back. A transaction still open, because of a panic, is rolled back.
func (t *transaction) close() {
	t.conn.guard.mode = ownSQL
	t.rollback(context.Background())
	_ = t.connection.Close() // a broken connection is closed for good
	t.turn.Release(1)
}
