package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/belayhq/belay/internal/render"
	"github.com/belayhq/belay/plan"
)

type statusFlags struct {
	selection
	change, behind string
	verbose, watch bool
	every          time.Duration
}

func (p *program) statusCommand() *cobra.Command {
	var f statusFlags
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show where tenants stand",
		Long: `Status counts tenants by the state of their lock and plans by their status, then shows the tenants whose lock is not idle, with
who has it, and those that need a person: unreadable, or with a plan that is abandoned, partial, quarantined or failed. It takes
no lock.

With --behind DIR it shows those that lack a change of a directory instead. With --watch it looks again and again until it is
stopped.`,
		Example: `  belay status
  belay status -v -t 'shop-*'
  belay status --change 0042-customer-locale -o json
  belay status --behind changes -o name | belay apply changes --tenants-from - -y
  belay status -w -l ring=canary`,
		Args: cobra.NoArgs, Annotations: map[string]string{listsNames: "yes"},
	}
	f.addTo(cmd)
	cmd.Flags().StringVar(&f.change, "change", "", "only the plans of `CHANGE`, and those that are partial")
	cmd.Flags().StringVar(&f.behind, "behind", "", "the tenants that lack a change of `DIR`, and which")
	cmd.Flags().BoolVarP(&f.verbose, "verbose", "v", false, "show every tenant")
	cmd.Flags().BoolVarP(&f.watch, "watch", "w", false, "look again and again, until stopped")
	cmd.Flags().DurationVar(&f.every, "every", 2*time.Second, "how long --watch waits between two looks")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error { return p.status(cmd, f) }
	return cmd
}

func (p *program) status(cmd *cobra.Command, f statusFlags) error {
	ctx := cmd.Context()
	switch {
	case cmd.Flags().Changed("behind") && f.behind == "":
		return misuse("--behind is empty")
	case f.change != "" && f.behind != "":
		return misuse("--change is about one change and --behind about all of a directory: give one of them")
	case f.watch && p.settings.Format == formatJSON:
		return misuse("--watch never ends its document: use -o jsonl")
	case f.every <= 0:
		return misuse("--every is %s, it must be longer than nothing", f.every)
	}
	s, err := p.open(ctx, mustExist)
	if err != nil {
		return err
	}
	defer s.close()
	view := statusView{session: s, verbose: f.verbose}
	if f.change != "" {
		if view.change, err = p.changeID(f.change); err != nil {
			return err
		}
	}
	if f.behind != "" {
		if view.behind, _, err = s.findChanges(ctx, f.behind); err != nil {
			return err
		}
	}
	tenants, err := s.chooseAny(ctx, cmd, &f.selection)
	if err != nil {
		return err
	}
	if err := s.startEngine(); err != nil {
		return err
	}
	if f.watch {
		return view.watch(ctx, tenants, f.every)
	}
	return view.look(ctx, tenants, s.stdout)
}

// statusView writes tenants in one of the formats, keeping no more of them than the format needs.
type statusView struct {
	session *session
	verbose bool
	change  string
	behind  []*plan.Change // nil if nobody asked

	w        io.Writer
	document render.Status
	table    *render.StatusTable
}

// watch looks again and again. On a terminal each look takes the place of the one before it.
func (v *statusView) watch(ctx context.Context, tenants *chosen, every time.Duration) error {
	s := v.session
	replace := s.env.Terminal(s.stdout.w) && s.env.Getenv("TERM") != "dumb" && s.settings.Format == formatTable
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	for {
		var seen bytes.Buffer
		if replace {
			seen.WriteString("\x1b[H\x1b[2J") // to the top, and nothing below
		}
		err := v.look(ctx, tenants, &seen)
		if ctx.Err() != nil {
			return nil // the signal says why
		}
		if err != nil {
			s.say("error: %v", err)
		}
		if _, err := s.stdout.Write(seen.Bytes()); err != nil {
			return nil // nobody reads
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return nil
		}
	}
}

// look reads all tenants once and writes them.
func (v *statusView) look(ctx context.Context, tenants *chosen, w io.Writer) error {
	v.w, v.table = w, render.NewStatusTable()
	v.document = render.Status{Schema: render.Schema("status"), Tenants: []render.TenantStatus{}}
	if v.behind != nil {
		v.table = render.NewBehindTable()
		v.document.Summary.Behind = new(int)
	}
	for one, err := range v.session.engine.Survey(ctx, tenants.tenants(ctx), v.change) {
		if err != nil {
			return err
		}
		t := render.NewTenantStatus(one)
		if v.behind != nil {
			t.Lags(v.behind)
		}
		if err := v.add(t); err != nil {
			return err
		}
	}
	if err := v.end(); err != nil {
		return err
	}
	if n := v.document.Summary.Unreadable; n > 0 {
		return fail(exitError, "%s could not be read", render.Plural(n, "tenant"))
	}
	return nil
}

type statusLine struct {
	Type   string `json:"type"`
	Schema string `json:"schema"`
	render.TenantStatus
}

type statusSummaryLine struct {
	Type    string               `json:"type"`
	Schema  string               `json:"schema"`
	Summary render.StatusSummary `json:"summary"`
}

func (v *statusView) add(t render.TenantStatus) error {
	v.document.Summary.Count(t, v.change)
	shown := v.verbose || t.Listed()
	switch v.session.settings.Format {
	case formatLines:
		return render.JSONLine(v.w, statusLine{"tenant", v.document.Schema, t})
	case formatJSON:
		v.document.Tenants = append(v.document.Tenants, t)
	case formatNames:
		if shown {
			_, err := fmt.Fprintln(v.w, t.Tenant)
			return err
		}
	case formatTable:
		if shown {
			v.table.Add(t)
		}
	}
	return nil
}

func (v *statusView) end() error {
	switch v.session.settings.Format {
	case formatLines:
		return render.JSONLine(v.w, statusSummaryLine{"summary", v.document.Schema, v.document.Summary})
	case formatJSON:
		return render.JSON(v.w, v.document)
	case formatNames:
		return nil
	case formatTable:
	}
	for _, line := range v.document.Summary.Lines() {
		if _, err := fmt.Fprintln(v.w, line); err != nil {
			return err
		}
	}
	return v.table.Write(v.w)
}
