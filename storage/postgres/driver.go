package postgres

import (
	"context"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/rs/zerolog"
	"golang.org/x/sync/singleflight"

	"github.com/belayhq/belay/plan"
	"github.com/belayhq/belay/storage"
	"github.com/belayhq/belay/tenant"
)

const (
	defaultConnections = 8
	connectTimeout     = 10 * time.Second
)

// Driver opens PostgreSQL databases.
func Driver() storage.Driver { return driver{} }

type driver struct{}

func (driver) Dialect() tenant.Dialect { return tenant.Postgres }

// Open connects to the database of a target. Of the URL's start-up settings only application_name is kept.
func (driver) Open(ctx context.Context, target tenant.Target, opts storage.Options) (storage.Database, error) {
	cfg, err := poolConfig(target, opts)
	if err != nil {
		return nil, err
	}
	pool, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		return nil, openError(err)
	}
	s, err := New(ctx, pool, opts)
	if err != nil {
		pool.Close()
		return nil, err
	}
	s.ownsPool = true
	return s, nil
}

func poolConfig(target tenant.Target, opts storage.Options) (*pgxpool.Config, error) {
	cfg, err := pgxpool.ParseConfig(target.Database)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", target, err) // the driver hides the password
	}
	if target.PasswordEnv != "" {
		password, ok := os.LookupEnv(target.PasswordEnv)
		if !ok {
			return nil, fmt.Errorf("open %s: environment variable %s, which should hold the password, is not set", target, target.PasswordEnv)
		}
		cfg.ConnConfig.Password = password
	}
	cfg.MaxConns = int32(opts.Connections)
	if opts.Connections <= 0 {
		cfg.MaxConns = defaultConnections
	}
	// Poolers refuse start-up settings that they do not know, and one they accept would leak to other clients.
	name := cfg.ConnConfig.RuntimeParams["application_name"]
	if name == "" {
		name = "belay"
	}
	cfg.ConnConfig.RuntimeParams = map[string]string{"application_name": name}
	cfg.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeExec
	cfg.ConnConfig.StatementCacheCapacity = 0
	cfg.ConnConfig.DescriptionCacheCapacity = 0
	if cfg.ConnConfig.ConnectTimeout == 0 {
		cfg.ConnConfig.ConnectTimeout = connectTimeout
	}
	return cfg, nil
}

// Store is a PostgreSQL database with, from the first write on, Belay's tables in its schema belay.
type Store struct {
	pool     *pgxpool.Pool
	renewals *pgxpool.Pool
	ownsPool bool
	log      zerolog.Logger

	// watch is how often the server looks whether its client is still there while a statement runs; 0 where the server's
	// platform cannot tell.
	watch time.Duration
	// preparing turns false, for good, when a pooler loses prepared statements.
	preparing atomic.Bool

	migrated  atomic.Bool // the tables are there and of this binary's version
	renewing  atomic.Bool // the connection for renewals was opened
	migrating sync.Mutex
	stored    sync.Map // digests of changes that this Store has committed
	keeping   singleflight.Group
}

var _ storage.Database = (*Store)(nil)

// New makes a Store on a pool of the embedding program, which stays the program's to close. Renewals go through one
// more connection with the same configuration, which Close closes.
func New(ctx context.Context, pool *pgxpool.Pool, opts storage.Options) (*Store, error) {
	cfg := pool.Config()
	cfg.MaxConns, cfg.MinConns, cfg.MinIdleConns = storage.RenewalConnections, 0, 0
	// A ping would hang as the renewal does where the other end is silent, and the pool would wait for the only connection to
	// be drained.
	cfg.ShouldPing = func(context.Context, pgxpool.ShouldPingParams) bool { return false }
	if name := cfg.ConnConfig.RuntimeParams["application_name"]; name != "" {
		cfg.ConnConfig.RuntimeParams["application_name"] = name + " renewal"
	}
	s := &Store{pool: pool, log: opts.Log}
	s.preparing.Store(true)
	if err := s.probe(ctx); err != nil {
		return nil, err
	}
	renewals, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		return nil, openError(err)
	}
	s.renewals = renewals
	return s, nil
}

const probeSQL = `SELECT current_setting('server_version_num')::integer`

const watchSQL = `SELECT set_config('client_connection_check_interval', '2s', true)`

const (
	oldestServer = 140000
	watchEvery   = 2 * time.Second
)

// probe asks the server what it is and can.
func (s *Store) probe(ctx context.Context) error {
	var version int
	if err := s.pool.QueryRow(ctx, probeSQL, pgx.QueryExecModeExec).Scan(&version); err != nil {
		return openError(err)
	}
	if version < oldestServer {
		return fmt.Errorf("open database: server is PostgreSQL %d, at least %d is needed", version/10000, oldestServer/10000)
	}
	if _, err := s.pool.Exec(ctx, watchSQL); err == nil {
		s.watch = watchEvery
	}
	return nil
}

// Dialect says that steps take a change's scripts for PostgreSQL.
func (*Store) Dialect() tenant.Dialect { return tenant.Postgres }

// Close closes the connections that the Store made.
func (s *Store) Close() {
	s.renewals.Close()
	if s.ownsPool {
		s.pool.Close()
	}
}

// isStored reports whether this Store has committed a change's text.
func (s *Store) isStored(d plan.Digest) bool {
	_, ok := s.stored.Load(d)
	return ok
}
