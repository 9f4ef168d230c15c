package sitesync

import (
	_ "embed"
	"encoding/json"
	"fmt"

	"github.com/belayhq/belay/plan"
)

// The actions' names and the steps that use them stand in stored changes: to rename one is to lose the way back.
const (
	writeRows       = "sitesync.rows"
	publishManifest = "sitesync.publish"

	stepTables  = "tables"
	stepRows    = "rows"
	stepPublish = "publish"
)

//go:embed tables.sql
var tablesSQL string

// change makes the change that turns a site into wanted.
func (p *Product) change(id string, diff Difference, wanted contents) (*plan.Change, error) {
	rows, err := action(writeRows, diff)
	if err != nil {
		return nil, err
	}
	publish, err := action(publishManifest, publication{wanted.manifest()})
	if err != nil {
		return nil, err
	}
	c := &plan.Change{
		Version: 1, ID: id, Title: "Sync with " + p.source,
		OnFailure: plan.RollbackOnFailure, Checkpoint: plan.CheckpointAuto,
	}
	if diff.NoTables {
		c.Steps = append(c.Steps, plan.Step{
			ID: stepTables, Kind: plan.SQL,
			Up:   &plan.Script{Default: &plan.Source{File: "tables.sql", Text: tablesSQL}},
			Undo: &plan.NoUndo{None: "empty tables do no harm, and dropping them would take what was written since"},
		})
	}
	count := fmt.Sprintf("%d pages, %d settings", len(wanted.pages), len(wanted.settings))
	c.Steps = append(c.Steps,
		plan.Step{ID: stepRows, Kind: plan.Action, Action: rows, Verify: &plan.Verify{
			Query:  `SELECT (SELECT count(*) FROM pages) || ' pages, ' || (SELECT count(*) FROM settings) || ' settings'`,
			Expect: &count,
		}},
		plan.Step{ID: stepPublish, Kind: plan.Action, Action: publish, Timeout: p.config.PublishTimeout},
	)
	return c, nil
}

func action(name string, args any) (*plan.ActionRef, error) {
	text, err := json.Marshal(args)
	if err != nil {
		return nil, fmt.Errorf("arguments of %s: %w", name, err)
	}
	return &plan.ActionRef{Name: name, Args: text}, nil
}

// rowsWritten returns what the rows step of a plan wrote, and whether it is in place.
func rowsWritten(c *plan.Change, r plan.Record) (written Difference, inPlace bool, err error) {
	for i, s := range c.Steps {
		if s.ID != stepRows || r.State(i) != plan.StepDone {
			continue
		}
		if err := json.Unmarshal(s.Action.Args, &written); err != nil {
			return Difference{}, false, fmt.Errorf("arguments of step %s of %s: %w", s.ID, c.ID, err)
		}
		return written, true, nil
	}
	return Difference{}, false, nil
}
