package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"iter"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/belayhq/belay/internal/render"
	"github.com/belayhq/belay/tenant"
)

// tenantPage is how many tenants are read from the control database at once.
const tenantPage = 1000

// selection is how a command was told which tenants it is about.
type selection struct {
	names     []string
	selectors []string
	from      string
	all       bool
	exclude   []string
	expect    int

	expectGiven bool
}

// addTo gives a command the flags that select tenants.
func (sel *selection) addTo(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringSliceVarP(&sel.names, "tenant", "t", nil, "the tenants of this `NAME`; globs are allowed, and several")
	f.StringArrayVarP(&sel.selectors, "selector", "l", nil, "the tenants whose labels match, such as `ring=canary,tier!=free`")
	f.StringVar(&sel.from, "tenants-from", "", "the tenants named in a `FILE`, one a line; - is standard input")
	f.BoolVar(&sel.all, "all", false, "all tenants that are not disabled")
	f.StringSliceVar(&sel.exclude, "exclude", nil, "but not the tenants of this `NAME`; globs are allowed")
	f.IntVar(&sel.expect, "expect", 0, "refuse (exit 8) unless exactly `N` tenants are selected")
}

// given reports whether anything was selected.
func (sel *selection) given() bool {
	return sel.all || len(sel.names) > 0 || len(sel.selectors) > 0 || sel.from != ""
}

// emptyFlag refuses a flag that was given nothing, as by a variable that is not set: it would select all, or exclude none.
func (sel *selection) emptyFlag(cmd *cobra.Command) error {
	for flag, value := range map[string]int{"tenant": len(sel.names), "exclude": len(sel.exclude), "tenants-from": len(sel.from)} {
		if cmd.Flags().Changed(flag) && value == 0 {
			return misuse("--%s is empty", flag)
		}
	}
	return nil
}

// chosen is a selection that has been looked up.
type chosen struct {
	session *session
	match   matcher
	// Count of Total tenants are selected.
	Count, Total int
	// Databases counts the tenants selected by database.
	Databases spread
}

// dialects are those of the tenants selected.
func (c *chosen) dialects() []tenant.Dialect {
	seen := map[tenant.Dialect]bool{}
	for d := range c.Databases {
		seen[d.dialect] = true
	}
	return slices.Sorted(maps.Keys(seen))
}

// matcher decides which tenants are selected.
type matcher struct {
	// exact names select disabled tenants too.
	exact    map[string]bool
	globs    []string
	labels   []tenant.Selector
	excluded []string
	named    bool
}

func (m *matcher) matches(t tenant.Tenant) bool {
	exact := m.exact[t.Name]
	switch {
	case m.named && !exact && !matchesAny(m.globs, t.Name):
		return false
	case t.Disabled && !exact:
		return false
	case matchesAny(m.excluded, t.Name):
		return false
	}
	return !slices.ContainsFunc(m.labels, func(l tenant.Selector) bool { return !l.Matches(t.Labels) })
}

func matchesAny(globs []string, name string) bool {
	return slices.ContainsFunc(globs, func(glob string) bool { return tenant.MatchName(glob, name) })
}

// choose looks a selection up. A command that writes must be told which tenants; one that reads may be told none, and
// means all, disabled ones included.
func (s *session) choose(ctx context.Context, cmd *cobra.Command, sel *selection) (*chosen, error) {
	if err := sel.emptyFlag(cmd); err != nil {
		return nil, err
	}
	if !sel.given() {
		return nil, misuse("no tenants are selected, and no command that writes defaults to all of them").
			advise(cmd.CommandPath()+" … -t NAME", "selects tenants by name, -l 'ring=canary' by label, --tenants-from FILE from a list").
			advise(cmd.CommandPath()+" … --all", "selects all of them")
	}
	sel.expectGiven = cmd.Flags().Changed("expect")
	m, err := s.matcher(sel)
	if err != nil {
		return nil, err
	}
	c := &chosen{session: s, match: m, Databases: spread{}}
	if err := c.count(ctx); err != nil {
		return nil, err
	}
	s.say("%d of %s selected", c.Count, render.Plural(c.Total, "tenant"))
	if sel.expectGiven && c.Count != sel.expect {
		return nil, fail(exitRefused, "%s selected, --expect says %d: nothing was touched", isOrAre(c.Count, "tenant"), sel.expect)
	}
	return c, nil
}

// isOrAre is a count with its noun and verb.
func isOrAre(n int, noun string) string {
	verb := " are"
	if n == 1 {
		verb = " is"
	}
	return render.Plural(n, noun) + verb
}

// chooseAny is choose for a command that only reads: without a selection it is about every tenant.
func (s *session) chooseAny(ctx context.Context, cmd *cobra.Command, sel *selection) (*chosen, error) {
	if err := sel.emptyFlag(cmd); err != nil {
		return nil, err
	}
	if sel.given() || len(sel.exclude) > 0 {
		sel.all = sel.all || !sel.given()
		return s.choose(ctx, cmd, sel)
	}
	return &chosen{session: s, match: matcher{exact: map[string]bool{}, named: false}, Count: -1}, nil
}

func (s *session) matcher(sel *selection) (matcher, error) {
	m := matcher{exact: map[string]bool{}, excluded: sel.exclude, named: len(sel.names) > 0 || sel.from != ""}
	if sel.all && (m.named || len(sel.selectors) > 0) {
		return m, misuse("--all is all tenants: it goes with --exclude, not with --tenant, --selector or --tenants-from")
	}
	for _, name := range slices.Concat(sel.names, sel.exclude) {
		if err := tenant.ValidPattern(name); err != nil {
			return m, &failure{code: exitUsage, err: err}
		}
	}
	for _, name := range sel.names {
		if strings.ContainsAny(name, `*?[\`) {
			m.globs = append(m.globs, name)
		} else {
			m.exact[name] = true
		}
	}
	for _, text := range sel.selectors {
		l, err := tenant.ParseSelector(text)
		if err != nil {
			return m, &failure{code: exitUsage, err: err}
		}
		m.labels = append(m.labels, l)
	}
	if sel.from == "" {
		return m, nil
	}
	names, err := s.readNames(sel.from)
	if err != nil {
		return m, err
	}
	for _, name := range names {
		m.exact[name] = true
	}
	return m, nil
}

// readNames reads names of tenants, one a line. Empty lines and those that begin with # are left out.
func (s *session) readNames(from string) ([]string, error) {
	in := s.stdin
	if from == "-" {
		s.stdinTaken = true
	} else {
		f, err := os.Open(s.path(from))
		if err != nil {
			return nil, &failure{code: exitUsage, err: fmt.Errorf("--tenants-from: %w", err)}
		}
		defer f.Close() // read only
		in = f
	}
	var names []string
	scanner := bufio.NewScanner(io.LimitReader(in, 64<<20))
	for line := 1; scanner.Scan(); line++ {
		name := strings.TrimSpace(scanner.Text())
		if name == "" || strings.HasPrefix(name, "#") {
			continue
		}
		if err := tenant.ValidateName(name); err != nil {
			return nil, misuse("--tenants-from %s: line %d: %w", from, line, err)
		}
		names = append(names, name)
	}
	if err := scanner.Err(); err != nil {
		return nil, fmt.Errorf("--tenants-from %s: %w", from, err)
	}
	if len(names) == 0 {
		return nil, misuse("--tenants-from %s: names no tenant", from)
	}
	return names, nil
}

// count goes through all tenants once, and makes sure that every name and glob is one of some tenant: a misspelt
// --exclude would touch the very tenant that was to be left alone.
func (c *chosen) count(ctx context.Context) error {
	unseen := map[string]bool{}
	globs := slices.Concat(c.match.globs, c.match.excluded)
	for name := range c.match.exact {
		unseen[name] = true
	}
	for _, glob := range globs {
		unseen[glob] = true
	}
	for t, err := range c.session.allTenants(ctx) {
		if err != nil {
			return err
		}
		c.Total++
		delete(unseen, t.Name)
		for _, glob := range globs {
			if unseen[glob] && tenant.MatchName(glob, t.Name) {
				delete(unseen, glob)
			}
		}
		if c.match.matches(t) {
			c.Count++
			c.Databases.add(t.Target)
		}
	}
	if len(unseen) > 0 {
		return c.unknown(unseen)
	}
	return nil
}

func (c *chosen) unknown(unseen map[string]bool) error {
	const shown = 10
	names := slices.Sorted(maps.Keys(unseen))
	more := ""
	if len(names) > shown {
		more = fmt.Sprintf(" and %d more", len(names)-shown)
		names = names[:shown]
	}
	return fail(exitRefused, "no tenant is called %s%s: nothing was touched", strings.Join(names, ", "), more).
		advise("belay tenant list", fmt.Sprintf("shows all %d", c.Total))
}

// tenants goes through those selected, by name, a page at a time.
func (c *chosen) tenants(ctx context.Context) iter.Seq2[tenant.Tenant, error] {
	return func(yield func(tenant.Tenant, error) bool) {
		for t, err := range c.session.allTenants(ctx) {
			if err != nil {
				yield(t, err)
				return
			}
			// Without any condition a command only reads, and is about disabled tenants too.
			if (c.Count < 0 || c.match.matches(t)) && !yield(t, nil) {
				return
			}
		}
	}
}

// allTenants goes through every tenant of the control database.
func (s *session) allTenants(ctx context.Context) iter.Seq2[tenant.Tenant, error] {
	return func(yield func(tenant.Tenant, error) bool) {
		after := ""
		for {
			page, err := s.control.Tenants(ctx, after, tenantPage)
			if err != nil {
				yield(tenant.Tenant{}, fmt.Errorf("list tenants: %w", err))
				return
			}
			for _, t := range page {
				if !yield(t, nil) {
					return
				}
				after = t.Name
			}
			if len(page) < tenantPage {
				return
			}
		}
	}
}
