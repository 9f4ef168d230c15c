package main

import "slices"

// mutations lists all of them.
func mutations() []mutation {
	return slices.Concat(ofPostgres, ofSQLite, ofThePlan, ofTheLock, ofTheEngine)
}

func in(packages, tests string) []target { return []target{{packages, tests}} }

var ofThePlan = []mutation{
	{
		name:    "plan: only a plan with some of its steps in place, but not all, is partial",
		edits:   []edit{{"plan/plan.go", "return r.Touched()\n", "return r.Touched() && r.InPlace() < r.Plan.StepsTotal\n"}},
		noticed: in("./plan", "Partial"),
	},
	{
		name:    "plan: an undo in doubt counts as in place",
		edits:   []edit{{"plan/plan.go", "if e.State == StepDone {", "if e.State == StepDone || e.State == StepUndoIntent {"}},
		noticed: in("./plan", "Partial"),
	},
	{
		name:    "plan: an undo in doubt counts as undone",
		edits:   []edit{{"plan/plan.go", "if e.State != StepUndone {", "if e.State != StepUndone && e.State != StepUndoIntent {"}},
		noticed: in("./plan", "Partial"),
	},
}

var ofTheLock = []mutation{
	{
		name:    "sitelock: trust counts from the answer to the acquire",
		edits:   []edit{{"sitelock/acquire.go", "a.req.Lease, sentAt, freed)", "a.req.Lease, time.Now(), freed)"}},
		noticed: in("./sitelock", ""),
	},
	{
		name:    "sitelock: trust counts from the answer to a renewal",
		edits:   []edit{{"sitelock/keeper.go", "renew(ctx, g.store, held, g.lease)\n", "renew(ctx, g.store, held, g.lease)\n\tsentAt = time.Now()\n"}},
		noticed: in("./sitelock", ""),
	},
	{
		name: "sitelock: trust counts from the answer to a renewal that proves",
		edits: []edit{{
			"sitelock/lock.go", "sentAt := time.Now()\n\t\tlost, err := l.sendRenewal(ctx)\n", "lost, err := l.sendRenewal(ctx)\n\t\tsentAt := time.Now()\n",
		}},
		noticed: in("./sitelock", ""),
	},
	{
		name:    "sitelock: a renewal has no deadline",
		edits:   []edit{{"sitelock/keeper.go", "context.WithTimeout(k.ctx, attempt(g.lease))", "context.WithCancel(k.ctx)"}},
		noticed: in("./sitelock", ""),
	},
	{
		name:    "sitelock: a renewal that proves has no deadline",
		edits:   []edit{{"sitelock/lock.go", "context.WithTimeout(ctx, attempt(l.lease))", "context.WithCancel(ctx)"}},
		noticed: in("./sitelock", ""),
	},
}

var ofTheEngine = []mutation{
	{
		name:    "engine: a commit with an unknown outcome counts as failed",
		edits:   []edit{{"engine/run.go", "ErrUnknownOutcome):\n\t\treturn r.findOut(ctx, err)\n", "ErrUnknownOutcome):\n\t\treturn err\n"}},
		noticed: in("./integration", "TestACommitAtWhichTheConnectionDies"),
	},
	{
		name:    "engine: the before-image is captured again when a step is run again",
		edits:   []edit{{"engine/external.go", `r.direction == plan.Down || was != "" && was != plan.StepUndone {`, "r.direction == plan.Down {"}},
		noticed: in("./integration", "TestAnEffectInDoubt|TestAnEffectThatDidNot|ExternalStep"),
	},
	{
		name: "engine: an apply passes over a step whose undo is in doubt",
		edits: []edit{{
			"engine/run.go", "r.record.State(s.Ordinal) != plan.StepDone:",
			"r.record.State(s.Ordinal) != plan.StepDone && r.record.State(s.Ordinal) != plan.StepUndoIntent:",
		}},
		noticed: slices.Concat(in("./engine", ""), in("./integration", "TestAnEffectInDoubt|TestAnEffectThatDidNot")),
	},
	{
		name:    "engine: an undo in doubt that happened is taken for an effect in place",
		edits:   []edit{{"engine/external.go", "inPlace := happened == (state == plan.StepIntent)", "inPlace := happened"}},
		noticed: in("./integration", "TestAnEffectInDoubt|TestAnEffectThatDidNot"),
	},
}
