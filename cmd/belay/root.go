package main

import (
	"errors"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/belayhq/belay/internal/render"
)

const rootLong = `Belay applies a change to many tenants and can always bring each of them back.

A change is a folder with a change.yaml and SQL files. A tenant is a SQLite file, a PostgreSQL schema or a PostgreSQL
database. Whatever crashes or stalls, a tenant is worked on by one process at a time, and what a dead process left behind
is recovered by the next apply or rollback.

Exit codes: 0 done or nothing to do, 1 error, 2 work pending (--detailed-exitcode), 3 some tenant failed and is clean,
4 some tenant needs a person, 5 locked by someone else, 6 cancelled, 8 refused before anything was touched, 64 usage,
130 and 143 stopped by a signal.`

func (p *program) rootCommand() *cobra.Command {
	root := &cobra.Command{
		Use:   "belay",
		Short: "Apply a change to many tenants, and bring each of them back",
		Long:  rootLong,
		Example: `  belay init
  belay tenant add acme sqlite://tenants/acme.db --create
  belay apply changes/0001-customer --all
  belay status
  belay rollback 0001-customer -t acme`,
		SilenceErrors:     true,
		SilenceUsage:      true,
		PersistentPreRunE: p.start,
		Args:              onlyCommands,
		RunE:              func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.SetIn(p.stdin)
	root.SetOut(p.stdout)
	root.SetErr(p.stderr)
	root.SetFlagErrorFunc(flagError)
	f := root.PersistentFlags()
	f.StringVar(&p.flags.config, "config", "", "read settings from `FILE` (default: the nearest belay.yaml, here or above)")
	f.StringVar(&p.flags.databaseURL, "database-url", "", "control database `URL` (default "+defaultDatabaseURL+")")
	f.StringVar(&p.flags.lease, "lease", "", "how long a lock lives without a renewal, a `DURATION` (default 60s)")
	f.StringVar(&p.flags.connections, "max-connections", "", "open at most `N` connections to all databases together (default 200)")
	f.StringVarP(&p.flags.output, "output", "o", "", "`FORMAT` of data on standard output: table, json or jsonl; of tenants also name (default table)")
	f.StringVar(&p.flags.logLevel, "log-level", "", "`LEVEL` of the log on standard error: trace, debug, info, warn, error or off (default warn)")
	root.AddCommand(
		p.initCommand(), p.changeCommand(), p.tenantCommand(), p.applyCommand(), p.rollbackCommand(), p.verifyCommand(),
		p.statusCommand(), p.historyCommand(), p.resolveCommand(), p.lockCommand(), p.leaseCommand(), p.dbCommand(),
		p.doctorCommand(), p.versionCommand(),
	)
	return p.completed(root)
}

// start runs before every command's own code.
func (p *program) start(cmd *cobra.Command, _ []string) error {
	s, err := p.loadSettings(cmd.Flags())
	if err != nil {
		return &failure{code: exitUsage, err: err}
	}
	if s.Format == formatNames && cmd.Annotations[listsNames] == "" {
		return misuse("output is %q, which is for status, tenant list and tenant show: the names of tenants, one a line", s.Format)
	}
	p.settings, p.started = s, true
	return nil
}

// group makes a command that only holds others.
func group(use, short, example string, commands ...*cobra.Command) *cobra.Command {
	cmd := &cobra.Command{Use: use, Short: short, Example: example, Args: onlyCommands}
	cmd.AddCommand(commands...)
	names := make([]string, len(commands))
	for i, c := range commands {
		names[i] = c.Name()
	}
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return misuse("%s needs one of: %s", cmd.CommandPath(), strings.Join(names, ", "))
	}
	return cmd
}

// onlyCommands refuses an argument where a command should stand, and names those that may be meant.
func onlyCommands(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	cmd.SuggestionsMinimumDistance = 2
	f := misuse("unknown command %q for %q", args[0], cmd.CommandPath())
	for _, near := range cmd.SuggestionsFor(args[0]) {
		f = f.advise(cmd.CommandPath()+" "+near, "may be what you mean")
	}
	return f.advise(cmd.CommandPath()+" --help", "lists the commands")
}

// flagError turns a flag that is wrong into a usage error, with the flag that may be meant.
func flagError(cmd *cobra.Command, err error) error {
	f := &failure{code: exitUsage, err: err}
	if unknown, ok := errors.AsType[*pflag.NotExistError](err); ok && unknown.GetSpecifiedShortnames() == "" {
		if near := nearestFlag(cmd, unknown.GetSpecifiedName()); near != "" {
			f = f.advise("--"+near, "may be what you mean")
		}
	}
	return f.advise(cmd.CommandPath()+" --help", "lists the flags")
}

// nearestFlag returns the flag whose name is most like an unknown one, by cobra's own measure of likeness.
func nearestFlag(cmd *cobra.Command, name string) string {
	likeness := &cobra.Command{SuggestionsMinimumDistance: 2}
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		likeness.AddCommand(&cobra.Command{Use: f.Name, Run: func(*cobra.Command, []string) {}})
	})
	if near := likeness.SuggestionsFor(name); len(near) > 0 {
		return near[0]
	}
	return ""
}

// show writes data: the document as JSON, or the table.
func (p *program) show(document any, table func() error) error {
	switch p.settings.Format {
	case formatJSON:
		return render.JSON(p.stdout, document)
	case formatLines:
		return render.JSONLine(p.stdout, document)
	case formatTable, formatNames:
	}
	return table()
}
