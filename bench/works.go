package main

import (
	"fmt"

	"github.com/belayhq/belay/plan"
)

// works lists everything that is measured, in the order of the table.
func works(w *world, o options) []work {
	var all []work
	for _, workers := range o.workers {
		all = append(all, w.applyWork(workers))
	}
	return all
}

const (
	belayAuto, belayAutoPool, belayAutoDefault = "Belay, auto", "Belay, auto, embedded", "Belay, auto, default caps"
	belayStep, belayStepPool                   = "Belay, step", "Belay, step, embedded"
	rawTwo, rawEach                            = "pgx loop, two commits", "pgx loop, a commit per step"
)

// applyWork is ten steps, each of which writes a row, on every tenant.
func (w *world) applyWork(workers int) work {
	steps := rowSteps(10)
	return work{
		name: fmt.Sprintf("a: 10 row steps, %d tenants, %s", len(w.sites), workersOf(workers)), unit: "tenants",
		contenders: []contender{
			w.rawApply(rawTwo, steps, len(steps), workers),
			w.belayApply(belayAuto, byDirectory, plan.CheckpointAuto, steps, workers),
			w.belayApply(belayAutoPool, w.byPool, plan.CheckpointAuto, steps, workers),
			w.belayApply(belayAutoDefault, byDefault, plan.CheckpointAuto, steps, workers),
			w.rawApply(rawEach, steps, 1, workers),
			w.belayApply(belayStep, byDirectory, plan.CheckpointStep, steps, workers),
			w.belayApply(belayStepPool, w.byPool, plan.CheckpointStep, steps, workers),
		},
		goals: []goal{{belayAuto, rawTwo, 0.8}, {belayStep, rawEach, 0.9}},
	}
}

func workersOf(n int) string {
	if n == 1 {
		return "1 worker"
	}
	return fmt.Sprintf("%d workers", n)
}
