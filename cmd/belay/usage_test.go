package main

import (
	"errors"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/belayhq/belay/engine"
	"github.com/belayhq/belay/internal/render"
	"github.com/belayhq/belay/plan"
	"github.com/belayhq/belay/sitelock"
)

func TestMisuseExits64WithAHint(t *testing.T) {
	t.Parallel()
	w := fleet(t, "acme")
	for args, says := range map[string]string{
		"stauts":                                       "belay status",
		"tenant":                                       "tenant needs one of",
		"tenant lst":                                   "belay tenant list",
		"apply":                                        "accepts 1 arg",
		"apply x --tenat acme":                         "--tenant",
		"apply x --all -o xml":                         "table, json or jsonl",
		"apply x --all -p none":                        "a number from 1",
		"apply x --all --lease 1ms":                    "from 1s to 1h",
		"apply x --all --max-connections 3":            "a number from 10",
		"apply x --all --lock-timeout -1s":             "must not be negative",
		"apply x --all --max-failures -1":              "must not be negative",
		"rollback --all":                               "either a CHANGE or --to",
		"rollback x --to y --all":                      "either a CHANGE or --to",
		"rollback x -y":                                "no command that writes defaults to all",
		"rollback --to x -y":                           "no command that writes defaults to all",
		"rollback x --all":                             "no terminal to ask on",
		"status --database-url mysql://db":             "must begin with sqlite://",
		"status --log-level loud":                      "trace, debug",
		"tenant add UPPER sqlite://x.db":               "names are lower-case",
		"tenant add x postgres://u:s3cret@db/x":        "password",
		"tenant label acme":                            "which labels",
		"history -n 0":                                 "at least 1",
		"change validate x --on oracle":                "postgres and sqlite",
		"lock hold acme --reason x --ttl 1ms":          "at least 1s",
		"tenant remove acme":                           "no terminal to ask on",
		"status --config nothing.yaml":                 "no such file",
		"apply changes/x --all --definitely-not-known": "unknown flag",
	} {
		t.Run(args, func(t *testing.T) {
			r := w.want(exitUsage, strings.Fields(args)...)
			contains(t, r.stderr, "error: ", says)
			lacks(t, r.stderr, "s3cret")
			if r.stdout != "" {
				t.Errorf("standard output holds %q", r.stdout)
			}
		})
	}
}

func TestEveryCommandHasAnExampleAndHelp(t *testing.T) {
	t.Parallel()
	var walk func(*cobra.Command)
	walk = func(cmd *cobra.Command) {
		if cmd.Example == "" || cmd.Short == "" {
			t.Errorf("%s has no example or no summary", cmd.CommandPath())
		}
		for _, child := range cmd.Commands() {
			walk(child)
		}
	}
	walk(newProgram(nil, nil, nil, environment{}).rootCommand())
	contains(t, newWorld(t).ok("--help").stdout, "Exit codes:", "Available Commands")
	contains(t, newWorld(t).ok("apply", "--help").stdout, "Examples:", "--allow-irreversible")
	contains(t, newWorld(t).ok("version").stdout, "belay ")
	contains(t, newWorld(t).ok("version", "-o", "json").stdout, `"schema": "belay.version/v1"`)
}

func TestFlagsComeBeforeTheEnvironmentAndThisBeforeTheFile(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.ok("init")
	w.write("belay.yaml", "database_url: sqlite://.belay/control.db\nlease: 2h\nworkers: 4\n")
	contains(t, w.want(exitUsage, "status").stderr, "belay.yaml: lease is 2h0m0s")
	w.env["BELAY_LEASE"] = "3x"
	contains(t, w.want(exitUsage, "status").stderr, "BELAY_LEASE: lease")
	w.ok("status", "--lease", "5s")
	w.env["BELAY_LEASE"] = "3s"
	w.ok("status")
	w.env["BELAY_OUTPUT"] = "json"
	contains(t, w.ok("status").stdout, `"belay.status/v1"`)
	lacks(t, w.ok("status", "-o", "table").stdout, `"belay.status/v1"`)
}

func TestTheFileOfSettingsIsStrictAndFoundFromBelow(t *testing.T) {
	t.Parallel()
	w := fleet(t, "acme")
	w.write("deep/below/x", "")
	below := *w
	below.dir = w.dir + "/deep/below"
	contains(t, below.ok("tenant", "list").stdout, "acme", w.dir+"/tenants/acme.db")

	w.write("belay.yaml", "databse_url: sqlite://x.db\n")
	contains(t, w.want(exitUsage, "status").stderr, "belay.yaml", "databse_url")
	w.write("belay.yaml", "# nothing yet\n")
	w.ok("status")
	w.write("belay.yaml", "lease: 5s\n---\nlease: 6s\n")
	contains(t, w.want(exitUsage, "status").stderr, "more than one document")
	w.write("other.yaml", "database_url: sqlite://elsewhere.db\n")
	contains(t, w.want(exitError, "status", "--config", "other.yaml").stderr, "elsewhere.db", "belay init")
}

func TestAMissingControlDatabaseIsMadeByInitOrTheFirstTenant(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	contains(t, w.want(exitError, "status").stderr, "no such database", "belay init")
	r := w.ok("tenant", "add", "acme", "sqlite://acme.db", "--create")
	contains(t, r.stderr, "created control database")
	w.ok("init")
	w.ok("init")
	contains(t, w.ok("status").stdout, "tenants: 1")
	contains(t, w.ok("db", "status", "--all").stdout, "control.db (control)", "acme.db")
	w.ok("db", "migrate", "--all")
	w.ok("lease", "list")

	w.ok("init", "below")
	sub := *w
	sub.dir += "/below"
	contains(t, sub.ok("status").stdout, "tenants: 0")
}

func TestTablesOfANewerBelayAreRefused(t *testing.T) {
	t.Parallel()
	w := fleet(t, "acme", "bolt")
	w.exec("acme", "UPDATE belay_schema_version SET version = 99")
	path := w.customers("stop")
	r := w.want(exitRefused, "apply", path, "--all", "-y")
	contains(t, r.stderr, "error: acme: ", "99", "belay db status -t acme")
	contains(t, r.stdout, "1 applied, 1 refused")
	r = w.run("db", "status", "--all")
	contains(t, r.stdout, "99", "made by a newer belay")
}

func TestOutputThatCannotBeWrittenIsNotSuccess(t *testing.T) {
	t.Parallel()
	w := fleet(t, "acme")
	var stderr syncBuffer
	code := w.runWith(brokenPipe{}, &stderr, "apply", w.customers("stop"), "--all", "-y", "-o", "jsonl")
	if code != exitError {
		t.Errorf("exit code %d", code)
	}
	contains(t, stderr.String(), "standard output: broken pipe")
	contains(t, w.ok("status").stdout, "1 applied")
}

type brokenPipe struct{}

func (brokenPipe) Write([]byte) (int, error) { return 0, errors.New("broken pipe") }

func TestOfSeveralResultsTheWorstCounts(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		sum  render.Summary
		err  error
		code int
	}{
		{render.Summary{Applied: 3, AlreadyApplied: 2}, nil, exitDone},
		{render.Summary{Skipped: 1}, nil, exitDone},
		{render.Summary{Busy: 1}, nil, exitLocked},
		{render.Summary{Busy: 1, Refused: 1}, nil, exitRefused},
		{render.Summary{Busy: 1, Refused: 1}, errors.New("list tenants"), exitError},
		{render.Summary{Busy: 1, Refused: 1, Failed: 1}, errors.New("list tenants"), exitFailed},
		{render.Summary{Busy: 1, Refused: 1, Failed: 1, Partial: 1}, nil, exitPerson},
		{render.Summary{Busy: 1, Refused: 1, Failed: 1, Partial: 1, Cancelled: 1}, nil, exitCancelled},
		{render.Summary{}, &sitelock.LockBusyError{}, exitLocked},
		{render.Summary{}, &plan.DigestMismatchError{}, exitRefused},
		{render.Summary{}, engine.ErrNewerSchema, exitRefused},
		{render.Summary{}, sitelock.ErrNewerBinary, exitRefused},
		{render.Summary{}, sitelock.ErrScopeTaken, exitRefused},
		{render.Summary{}, sitelock.ErrRemoved, exitRefused},
		{render.Summary{}, engine.ErrNoScope, exitRefused},
	} {
		if got := worst(c.sum, c.err); got != c.code {
			t.Errorf("%+v, %v: %d, want %d", c.sum, c.err, got, c.code)
		}
	}
}
