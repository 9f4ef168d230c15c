package main

import (
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
)

// completions is the most that a shell is offered at once.
const completions = 500

// completeTenants offers the names of tenants. A shell that asks is never told of an error: it offers nothing then.
func (p *program) completeTenants(cmd *cobra.Command, _ []string, begun string) ([]string, cobra.ShellCompDirective) {
	var names []string
	_ = p.whileCompleting(cmd, func(s *session) error {
		for t, err := range s.allTenants(cmd.Context()) {
			if err != nil || len(names) == completions {
				return err
			}
			if strings.HasPrefix(t.Name, begun) {
				names = append(names, t.Name)
			}
		}
		return nil
	})
	return names, cobra.ShellCompDirectiveNoFileComp
}

// completeChanges offers the folders here that hold a change, or changes.
func (p *program) completeChanges(_ *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	dir, _ := filepath.Split(begun)
	entries, err := os.ReadDir(p.path(dir))
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	var found []string
	for _, e := range entries {
		name := dir + e.Name()
		if e.IsDir() && strings.HasPrefix(name, begun) && !strings.HasPrefix(e.Name(), ".") {
			found = append(found, name)
		}
	}
	return found, cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveNoSpace
}

// whileCompleting opens the control database for a shell that asks: no command has run its start.
func (p *program) whileCompleting(cmd *cobra.Command, look func(*session) error) error {
	settings, err := p.loadSettings(cmd.Flags())
	if err != nil {
		return err
	}
	p.settings = settings
	s, err := p.open(cmd.Context(), mustExist)
	if err != nil {
		return err
	}
	defer s.close()
	return look(s)
}

// completed gives commands and flags what a shell completes them with.
func (p *program) completed(root *cobra.Command) *cobra.Command {
	for _, cmd := range allCommands(root) {
		for flag, complete := range map[string]cobra.CompletionFunc{
			"tenant": p.completeTenants, "exclude": p.completeTenants, "to": p.completeChanges, "behind": p.completeChanges,
			"change": p.completeChanges, "output": cobra.FixedCompletions([]string{
				string(formatTable), string(formatJSON), string(formatLines), string(formatNames),
			}, cobra.ShellCompDirectiveNoFileComp),
		} {
			if cmd.LocalFlags().Lookup(flag) != nil {
				_ = cmd.RegisterFlagCompletionFunc(flag, complete) // it fails only for a flag that is not there, or twice
			}
		}
		words := strings.Fields(cmd.Use)
		switch {
		case cmd.ValidArgsFunction != nil || len(words) < 2:
		case words[1] == "TENANT", words[1] == "[TENANT]":
			cmd.ValidArgsFunction = p.completeTenants
		case strings.HasPrefix(words[1], "CHANGE"), words[1] == "FOLDER…":
			cmd.ValidArgsFunction = p.completeChanges
		}
	}
	return root
}

func allCommands(cmd *cobra.Command) []*cobra.Command {
	all := []*cobra.Command{cmd}
	for _, child := range cmd.Commands() {
		all = append(all, allCommands(child)...)
	}
	return all
}
