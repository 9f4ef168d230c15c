package pgproxy_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"go.uber.org/goleak"

	"github.com/belayhq/belay/internal/pgproxy"
	"github.com/belayhq/belay/internal/postgrestest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// network is a proxy, a client behind it, and a client that goes by another way.
type network struct {
	*testing.T
	*pgproxy.Proxy
	url    string
	client *pgx.Conn
	direct *pgx.Conn
}

func newNetwork(t *testing.T) *network {
	t.Helper()
	direct := postgrestest.URL(t)
	url, proxy := postgrestest.Through(t, direct)
	n := &network{T: t, Proxy: proxy, url: url}
	n.client, n.direct = n.dial(url), n.dial(direct)
	if _, err := n.direct.Exec(t.Context(), `CREATE TABLE note (n integer)`); err != nil {
		t.Fatal(err)
	}
	return n
}

func (n *network) dial(url string) *pgx.Conn {
	n.Helper()
	conn, err := pgx.Connect(n.Context(), url)
	if err != nil {
		n.Fatal(err)
	}
	n.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_ = conn.Close(ctx) // it may be silent
	})
	return conn
}

// ways are the ways in which a client may send a transaction.
var ways = map[string]func(ctx context.Context, conn *pgx.Conn, begin string) error{
	"simple": func(ctx context.Context, conn *pgx.Conn, begin string) error {
		_, err := conn.PgConn().Exec(ctx, begin+"; INSERT INTO note VALUES (1); COMMIT").ReadAll()
		return err
	},
	"statements": func(ctx context.Context, conn *pgx.Conn, begin string) error {
		for _, sql := range []string{begin, "INSERT INTO note VALUES (1)", "commit"} {
			if _, err := conn.Exec(ctx, sql, pgx.QueryExecModeExec); err != nil {
				return err
			}
		}
		return nil
	},
	"prepared pipeline": func(ctx context.Context, conn *pgx.Conn, begin string) error {
		if _, err := conn.Prepare(ctx, "the end", "COMMIT"); err != nil {
			return err
		}
		line := conn.PgConn().StartPipeline(ctx)
		for _, sql := range []string{begin, "INSERT INTO note VALUES (1)"} {
			line.SendQueryParams(sql, nil, nil, nil, nil)
		}
		line.SendQueryPrepared("the end", nil, nil, nil)
		if err := line.Sync(); err != nil {
			return err
		}
		return line.Close()
	},
}

// committed says whether the transaction of the test is in place.
func (n *network) committed() bool {
	n.Helper()
	var count int
	if err := n.direct.QueryRow(n.Context(), `SELECT count(*) FROM note`).Scan(&count); err != nil {
		n.Fatal(err)
	}
	return count > 0
}

func (n *network) await(f *pgproxy.Fault) {
	n.Helper()
	select {
	case <-f.Happened():
	case <-time.After(20 * time.Second):
		n.Fatal("the fault never happened")
	}
}

func TestACommitIsLostBeforeOrBehindTheServer(t *testing.T) {
	t.Parallel()
	for name, send := range ways {
		for do, committed := range map[pgproxy.Do]bool{
			pgproxy.CutBefore: false, pgproxy.CutAfter: true, pgproxy.Swallow: true, pgproxy.Hold: true,
		} {
			t.Run(name+"/"+string(do), func(t *testing.T) {
				t.Parallel()
				n := newNetwork(t)
				f := n.Plan(pgproxy.Order{Class: pgproxy.Steps, Do: do})
				ctx, giveUp := context.WithCancel(t.Context())
				defer giveUp()
				answer := make(chan error, 1)
				go func() { answer <- send(ctx, n.client, "BEGIN") }()
				n.await(f)
				if do == pgproxy.Hold || do == pgproxy.Swallow {
					select {
					case err := <-answer:
						t.Fatalf("the client has an answer: %v", err)
					default:
					}
				}
				switch do {
				case pgproxy.Swallow:
					giveUp()
				case pgproxy.Hold:
					f.Release()
				case pgproxy.CutBefore, pgproxy.CutAfter:
				}
				if err := <-answer; (err == nil) != (do == pgproxy.Hold) {
					t.Fatalf("answer: %v", err)
				}
				// A simple query goes as a whole, so that nothing of one that was cut is there.
				if n.committed() != committed {
					t.Errorf("committed: %v", !committed)
				}
			})
		}
	}
}

func TestOnlyCommitsOfItsClassThatMayHaveWrittenAreCounted(t *testing.T) {
	t.Parallel()
	for name, send := range ways {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newNetwork(t)
			second := n.Plan(pgproxy.Order{Class: pgproxy.Steps, Do: pgproxy.CutAfter, Nth: 2})
			read := `BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY`
			for range 3 {
				if err := readOnly(t, n.client, read); err != nil {
					t.Fatal(err)
				}
			}
			renewing := n.dial(n.url + "&application_name=belay+renewal")
			for _, conn := range []*pgx.Conn{renewing, renewing, n.client} {
				if err := send(t.Context(), conn, "BEGIN"); err != nil {
					t.Fatal(err)
				}
			}
			if err := send(t.Context(), n.client, "BEGIN"); err == nil {
				t.Error("the second commit was answered")
			}
			if !second.Cancel() {
				t.Error("nothing happened")
			}
			if n.Cut(pgproxy.Renewals) != 1 || send(t.Context(), renewing, "BEGIN") == nil {
				t.Error("the other class's connection was not cut")
			}
		})
	}
}

func readOnly(t *testing.T, conn *pgx.Conn, begin string) error {
	t.Helper()
	for _, sql := range []string{begin, "SELECT 1", "COMMIT"} {
		if _, err := conn.Exec(t.Context(), sql, pgx.QueryExecModeExec); err != nil {
			return err
		}
	}
	return nil
}

func TestABlackHoleEndsNoConnectionAndADelayLosesNothing(t *testing.T) {
	t.Parallel()
	for _, way := range []pgproxy.Direction{pgproxy.ToServer, pgproxy.ToClient} {
		t.Run(strings.ReplaceAll(string(way), " ", "_"), func(t *testing.T) {
			t.Parallel()
			n := newNetwork(t)
			const late = 200 * time.Millisecond
			n.Delay(pgproxy.Steps, way, late)
			began := time.Now()
			if _, err := n.client.Exec(t.Context(), `SELECT 1`); err != nil || time.Since(began) < late {
				t.Fatalf("answer after %s: %v", time.Since(began), err)
			}
			n.BlackHole(pgproxy.Steps, way)
			ctx, giveUp := context.WithTimeout(t.Context(), late)
			defer giveUp()
			if _, err := n.client.Exec(ctx, `INSERT INTO note VALUES (1)`); err == nil || ctx.Err() == nil {
				t.Fatalf("a black hole answered: %v", err)
			}
			dialling, giveUpToo := context.WithTimeout(t.Context(), late)
			defer giveUpToo()
			if conn, err := pgx.Connect(dialling, n.url); err == nil || dialling.Err() == nil {
				t.Fatalf("a black hole let a connection through: %v %v", conn, err)
			}
			select {
			case <-n.Lost(pgproxy.Steps):
			default:
				t.Error("nobody was told of what is lost")
			}
			if n.committed() != (way == pgproxy.ToClient) {
				t.Error("what was said went the wrong way")
			}
			n.Pass(pgproxy.Steps, way)
			if _, err := n.dial(n.url).Exec(t.Context(), `SELECT 1`); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// recorder is a test that is seen to fail.
type recorder struct {
	testing.TB
	failed   bool
	cleanups []func()
}

func (r *recorder) Errorf(string, ...any) { r.failed = true }
func (r *recorder) Cleanup(f func())      { r.cleanups = append(r.cleanups, f) }

func TestAPlannedFaultThatNeverHappenedFailsTheTest(t *testing.T) {
	t.Parallel()
	for _, planned := range []bool{true, false} {
		r := &recorder{TB: t}
		proxy := pgproxy.Start(r, "unix", "/nowhere")
		f := proxy.Plan(pgproxy.Order{Class: pgproxy.Steps, Do: pgproxy.CutBefore})
		if !planned && f.Cancel() {
			t.Error("it happened")
		}
		for _, end := range r.cleanups {
			end()
		}
		if r.failed != planned {
			t.Errorf("planned %v, failed %v", planned, r.failed)
		}
	}
}
