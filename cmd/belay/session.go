package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/rs/zerolog"

	"github.com/belayhq/belay/engine"
	"github.com/belayhq/belay/internal/render"
	"github.com/belayhq/belay/storage"
	"github.com/belayhq/belay/storage/postgres"
	"github.com/belayhq/belay/storage/sqlite"
	"github.com/belayhq/belay/tenant"
)

// session is what a command works with: the databases within their cap, the control database, and an engine.
type session struct {
	*program
	directory *storage.Directory
	control   storage.Database
	engine    *engine.Engine
	log       zerolog.Logger

	closers []func()
	watcher render.Watcher // sees what the engine reports; nil before an operation begins
}

// missing says what to do about a control database that is not there.
type missing int

const (
	mustExist missing = iota
	createMissing
)

// open opens the control database, and makes a directory for work on one tenant after the other.
func (p *program) open(ctx context.Context, m missing) (*session, error) {
	s := &session{program: p, log: p.logger()}
	s.closers = append(s.closers, func() { s.directory.Close() })
	err := s.useDirectory(connectionsFor(s.settings.MaxConnections, 1, nil))
	if err == nil {
		err = s.openControl(ctx, m)
	}
	if err != nil {
		s.close()
		return nil, err
	}
	return s, nil
}

// useDirectory opens tenants' databases within these bounds from now on. None may be in use.
func (s *session) useDirectory(cfg storage.DirectoryConfig) error {
	cfg.Log = s.log
	directory, err := storage.NewDirectory(cfg, postgres.Driver(), sqlite.Driver())
	if err != nil {
		return err
	}
	if s.directory != nil {
		s.directory.Close()
	}
	s.directory = directory
	return nil
}

func (s *session) openControl(ctx context.Context, m missing) error {
	target, err := s.settings.controlTarget()
	if err != nil {
		return err
	}
	db, err := s.connectControl(ctx, target)
	if errors.Is(err, storage.ErrNoDatabase) && m == createMissing && target.Dialect == tenant.SQLite {
		if err := createFile(ctx, target.Database); err != nil {
			return fmt.Errorf("control database: %w", err)
		}
		s.say("created control database %s", target.Database)
		db, err = s.connectControl(ctx, target)
	}
	if errors.Is(err, storage.ErrNoDatabase) {
		return fail(exitError, "control database: %w", err).
			advise("belay init", "makes a control database here").
			advise("--database-url URL", "or BELAY_DATABASE_URL, or database_url in belay.yaml, names one")
	}
	if err != nil {
		return fmt.Errorf("control database: %w", err)
	}
	s.control = db
	s.closers = append(s.closers, db.Close)
	return nil
}

// connectControl opens the control database beside the directory: how many connections tenants need is only known when
// their list has been read.
func (s *session) connectControl(ctx context.Context, target tenant.Target) (storage.Database, error) {
	driver := sqlite.Driver()
	if target.Dialect == tenant.Postgres {
		driver = postgres.Driver()
	}
	return driver.Open(ctx, target, storage.Options{Connections: controlConnections, Log: s.log})
}

// controlTarget reads the URL of the control database.
func (s settings) controlTarget() (tenant.Target, error) {
	target, err := tenant.ParseDatabase(s.DatabaseURL, s.Base)
	if err != nil {
		return target, &failure{code: exitUsage, err: fmt.Errorf("control database: %w", err)}
	}
	return target, nil
}

// createFile makes a SQLite file, and the folder it lies in.
func createFile(ctx context.Context, path string) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return sqlite.Create(ctx, path)
}

// startEngineFor makes an engine that works on tenants of a selection at the same time.
func (s *session) startEngineFor(tenants *chosen) error {
	cfg := connectionsFor(s.settings.MaxConnections, s.settings.Workers, tenants.Databases)
	if err := s.useDirectory(cfg); err != nil {
		return err
	}
	return s.startEngine()
}

// startEngine makes the session's engine.
func (s *session) startEngine() error {
	e, err := engine.New(s.directory, engine.Config{Lease: s.settings.Lease, Log: s.log, Observe: s.observe})
	if err != nil {
		return err
	}
	s.engine = e
	s.closers = append(s.closers, e.Close)
	return nil
}

func (s *session) observe(p engine.Progress) {
	if s.watcher != nil {
		s.watcher.Event(p)
	}
}

// close closes in the reverse order of opening.
func (s *session) close() {
	for _, closer := range slices.Backward(s.closers) {
		closer()
	}
	s.closers = nil
}

// logger writes lines for people to standard error.
func (p *program) logger() zerolog.Logger {
	console := zerolog.ConsoleWriter{Out: render.CleanWriter(p.stderr), NoColor: true, TimeFormat: time.TimeOnly}
	return zerolog.New(console).Level(p.settings.LogLevel).With().Timestamp().Logger()
}

// lockTimeout is how long to wait for a lock: what was asked for, else one and a half leases, which outlasts a dead holder.
func (p *program) lockTimeout(asked time.Duration, given bool) (time.Duration, error) {
	if !given {
		return p.settings.Lease * 3 / 2, nil
	}
	if asked < 0 {
		return 0, misuse("--lock-timeout is %s, it must not be negative", asked)
	}
	return asked, nil
}
