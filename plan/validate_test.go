package plan

import (
	"errors"
	"strings"
	"testing"

	"github.com/belayhq/belay/tenant"
)

func built() *Change {
	script := func(s string) *Script { return &Script{Default: &Source{File: "x.sql", Text: s}} }
	return &Change{ID: "built", Steps: []Step{
		{ID: "one", Kind: SQL, Up: script("SELECT 1"), Down: script("SELECT 1")},
		{ID: "two", Kind: SQL, Up: script("SELECT 2"), Undo: &NoUndo{CoveredBy: "one"}},
		{ID: "three", Kind: Action, Action: &ActionRef{Name: "a"}},
	}}
}

func TestAChangeBuiltInGoIsHeldToTheRulesOfTheFile(t *testing.T) {
	t.Parallel()
	if err := built().Validate(); err != nil {
		t.Fatal(err)
	}
	for want, spoil := range map[string]func(c *Change){
		"id \"\" must not be empty":              func(c *Change) { c.ID = "" },
		"may hold only lower-case":               func(c *Change) { c.ID = "Über" },
		"version is 2":                           func(c *Change) { c.Version = 2 },
		"on_failure is \"typo\"":                 func(c *Change) { c.OnFailure = "typo" },
		"checkpoint is \"typo\"":                 func(c *Change) { c.Checkpoint = "typo" },
		"at least one step":                      func(c *Change) { c.Steps = nil },
		"two steps are called one":               func(c *Change) { c.Steps[2].ID = "one" },
		"kind \"\"":                              func(c *Change) { c.Steps[0].Kind = "" },
		"without an action":                      func(c *Change) { c.Steps[2].Action = nil },
		"without a script":                       func(c *Change) { c.Steps[0].Up = nil },
		"exactly one of Down and Undo":           func(c *Change) { c.Steps[0].Undo = &NoUndo{None: "x"} },
		"exactly one of None":                    func(c *Change) { c.Steps[1].Undo = &NoUndo{} },
		"no earlier step with an undo":           func(c *Change) { c.Steps[1].Undo.CoveredBy = "three" },
		"requires built twice, or itself":        func(c *Change) { c.Requires = []string{"built"} },
		"step one: timeout is -1ns, it must not": func(c *Change) { c.Steps[0].Timeout = -1 },
	} {
		c := built()
		spoil(c)
		_, err := c.Compile(tenant.SQLite)
		if invalid, ok := errors.AsType[*InvalidError](err); !ok || !strings.Contains(invalid.Error(), want) {
			t.Errorf("want %q, got %v", want, err)
		}
	}
}

func TestDefaultsLeftOutGiveTheSameDigest(t *testing.T) {
	t.Parallel()
	spelt := built()
	spelt.Version, spelt.OnFailure, spelt.Checkpoint = 1, StopOnFailure, CheckpointAuto
	if spelt.Digest() != built().Digest() {
		t.Error("the digest depends on whether a default is spelt out")
	}
}
