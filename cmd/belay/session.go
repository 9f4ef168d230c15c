package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
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

// open opens the control database.
func (p *program) open(ctx context.Context, m missing) (*session, error) {
	s := &session{program: p, log: p.logger()}
	directory, err := storage.NewDirectory(storage.DirectoryConfig{Log: s.log}, postgres.Driver(), sqlite.Driver())
	if err != nil {
		return nil, err
	}
	s.directory = directory
	s.closers = append(s.closers, directory.Close)
	if err := s.openControl(ctx, m); err != nil {
		s.close()
		return nil, err
	}
	return s, nil
}

func (s *session) openControl(ctx context.Context, m missing) error {
	target, err := s.settings.controlTarget()
	if err != nil {
		return err
	}
	db, release, err := s.directory.OpenDatabase(ctx, target)
	if errors.Is(err, storage.ErrNoDatabase) && m == createMissing && target.Dialect == tenant.SQLite {
		if err := createFile(ctx, target.Database); err != nil {
			return fmt.Errorf("control database: %w", err)
		}
		s.say("created control database %s", target.Database)
		db, release, err = s.directory.OpenDatabase(ctx, target)
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
	s.closers = append(s.closers, release)
	return nil
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
	for i := len(s.closers) - 1; i >= 0; i-- {
		s.closers[i]()
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
