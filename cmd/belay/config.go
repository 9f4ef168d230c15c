package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/rs/zerolog"
	"github.com/spf13/pflag"
	"go.yaml.in/yaml/v4"

	"github.com/belayhq/belay/sitelock"
)

const (
	configFile         = "belay.yaml"
	defaultDatabaseURL = "sqlite://.belay/control.db"
	defaultWorkers     = 8
	maxWorkers         = 1000
	// defaultMaxConnections is enough for 64 workers, each on a database of its own.
	defaultMaxConnections = 200
	minMaxConnections     = 10
	maxMaxConnections     = 100_000
)

// globalFlags are the flags of every command.
type globalFlags struct {
	config      string
	databaseURL string
	lease       string
	workers     string
	connections string
	output      string
	logLevel    string
}

// settings is what a command runs with: flags come before BELAY_* variables, these before belay.yaml.
type settings struct {
	// File is belay.yaml; empty if there is none. Base is its folder, else the working directory: relative SQLite paths
	// start there.
	File, Base  string
	DatabaseURL string
	// DefaultDatabase says that nobody chose DatabaseURL.
	DefaultDatabase bool
	Lease           time.Duration
	Workers         int
	// MaxConnections bounds the connections to all databases together.
	MaxConnections int
	Format         format
	LogLevel       zerolog.Level
}

// format is how data is written.
type format string

const (
	formatTable format = "table"
	formatJSON  format = "json"
	formatLines format = "jsonl"
	// formatNames is one name a line, of the commands that have listsNames among their annotations.
	formatNames format = "name"
)

// listsNames marks a command that lists tenants.
const listsNames = "names"

// configDocument is belay.yaml.
type configDocument struct {
	DatabaseURL string `yaml:"database_url"`
	Lease       string `yaml:"lease"`
	Workers     string `yaml:"workers"`
	Connections string `yaml:"max_connections"`
	Output      string `yaml:"output"`
	LogLevel    string `yaml:"log_level"`
}

// origin is a value with the place it comes from, for messages.
type origin struct{ value, from string }

// loadSettings finds and reads belay.yaml and puts the three sources together. All errors are usage errors.
func (p *program) loadSettings(flags *pflag.FlagSet) (settings, error) {
	var s settings
	dir, err := filepath.Abs(p.path("."))
	if err != nil {
		return s, fmt.Errorf("working directory: %w", err)
	}
	s.Base = dir
	s.File, err = p.findConfig(dir)
	if err != nil {
		return s, err
	}
	var doc configDocument
	if s.File != "" {
		s.Base = filepath.Dir(s.File)
		if doc, err = readConfig(s.File); err != nil {
			return s, err
		}
	}
	pick := func(flag, value, variable, written string) origin {
		if f := flags.Lookup(flag); f != nil && f.Changed {
			return origin{value, "--" + flag}
		}
		if v := p.env.Getenv(variable); v != "" {
			return origin{v, variable}
		}
		return origin{written, s.File}
	}
	s.DatabaseURL = pick("database-url", p.flags.databaseURL, "BELAY_DATABASE_URL", doc.DatabaseURL).value
	if s.DatabaseURL == "" {
		s.DatabaseURL, s.DefaultDatabase = defaultDatabaseURL, true
	}
	var problems [5]error
	s.Lease, problems[0] = parseLease(pick("lease", p.flags.lease, "BELAY_LEASE", doc.Lease))
	s.Workers, problems[1] = parseWorkers(pick("workers", p.flags.workers, "BELAY_WORKERS", doc.Workers))
	s.MaxConnections, problems[4] = parseConnections(pick("max-connections", p.flags.connections, "BELAY_MAX_CONNECTIONS", doc.Connections))
	s.Format, problems[2] = parseFormat(pick("output", p.flags.output, "BELAY_OUTPUT", doc.Output))
	s.LogLevel, problems[3] = parseLogLevel(pick("log-level", p.flags.logLevel, "BELAY_LOG_LEVEL", doc.LogLevel))
	return s, errors.Join(problems[:]...)
}

// findConfig returns the path of belay.yaml: the one asked for, else the nearest in the working directory and its
// parents; empty if there is none.
func (p *program) findConfig(dir string) (string, error) {
	asked := p.flags.config
	if asked == "" {
		asked = p.env.Getenv("BELAY_CONFIG")
	}
	if asked != "" {
		return filepath.Abs(p.path(asked))
	}
	for {
		file := filepath.Join(dir, configFile)
		if info, err := os.Stat(file); err == nil && info.Mode().IsRegular() {
			return file, nil
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			return "", nil
		}
		dir = parent
	}
}

// readConfig reads belay.yaml strictly: a key that is misspelt would silently leave a setting at its default.
func readConfig(file string) (configDocument, error) {
	var doc configDocument
	text, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return doc, fmt.Errorf("no such file: %s", file)
	}
	if err != nil {
		return doc, fmt.Errorf("read settings: %w", err)
	}
	loader, err := yaml.NewLoader(bytes.NewReader(text), yaml.WithKnownFields())
	if err != nil {
		return doc, fmt.Errorf("%s: %w", file, err)
	}
	if err := loader.Load(&doc); err != nil && !errors.Is(err, io.EOF) {
		return doc, fmt.Errorf("%s: %w", file, err)
	}
	if err := loader.Load(new(yaml.Node)); !errors.Is(err, io.EOF) {
		return doc, fmt.Errorf("%s: holds more than one document", file)
	}
	return doc, nil
}

func parseLease(o origin) (time.Duration, error) {
	if o.value == "" {
		return sitelock.DefaultLease, nil
	}
	d, err := time.ParseDuration(o.value)
	if err != nil {
		return 0, fmt.Errorf("%s: lease %q is not a duration such as 60s", o.from, o.value)
	}
	if d < sitelock.MinLease || d > sitelock.MaxLease {
		return 0, fmt.Errorf("%s: lease is %s, it must be from %s to %s", o.from, d, sitelock.MinLease, sitelock.MaxLease)
	}
	return d, nil
}

func parseWorkers(o origin) (int, error) {
	if o.value == "" {
		return defaultWorkers, nil
	}
	n, err := strconv.Atoi(o.value)
	if err != nil || n < 1 || n > maxWorkers {
		return 0, fmt.Errorf("%s: workers is %q, it must be a number from 1 to %d", o.from, o.value, maxWorkers)
	}
	return n, nil
}

func parseConnections(o origin) (int, error) {
	if o.value == "" {
		return defaultMaxConnections, nil
	}
	n, err := strconv.Atoi(o.value)
	if err != nil || n < minMaxConnections || n > maxMaxConnections {
		return 0, fmt.Errorf("%s: max connections is %q, it must be a number from %d to %d", o.from, o.value, minMaxConnections, maxMaxConnections)
	}
	return n, nil
}

func parseFormat(o origin) (format, error) {
	switch f := format(o.value); f {
	case "":
		return formatTable, nil
	case formatTable, formatJSON, formatLines, formatNames:
		return f, nil
	}
	return "", fmt.Errorf("%s: output is %q, it must be table, json or jsonl, or name for what lists tenants", o.from, o.value)
}

func parseLogLevel(o origin) (zerolog.Level, error) {
	if o.value == "" {
		return zerolog.WarnLevel, nil
	}
	if o.value == "off" {
		return zerolog.Disabled, nil
	}
	level, err := zerolog.ParseLevel(o.value)
	if err != nil || level < zerolog.TraceLevel || level > zerolog.ErrorLevel {
		return 0, fmt.Errorf("%s: log level is %q, it must be trace, debug, info, warn, error or off", o.from, o.value)
	}
	return level, nil
}
