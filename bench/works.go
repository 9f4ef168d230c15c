package main

import (
	"fmt"

	"github.com/belayhq/belay/plan"
)

// works lists everything that is measured, in the order of the table.
func works(w *world, f *files, o options) []work {
	var all []work
	for _, workers := range o.workers {
		all = append(all, w.applyWork(workers))
	}
	if len(w.sites) > few {
		all = append(all, w.growthWork(16))
	}
	all = append(all, w.tableWork(o.schemas, 16))
	all = append(all, w.lockWork(1, 1), w.lockWork(1000, 16), w.renewWork(1000), w.renewWork(10_000))
	for _, workers := range o.workers {
		all = append(all, w.rollbackWork(workers))
	}
	all = append(all, w.currentWork(10_000))
	for _, workers := range o.workers {
		all = append(all, f.work(workers))
	}
	return all
}

const (
	belayAuto, belayAutoPool, belayAutoDefault = "Belay, auto", "Belay, auto, embedded", "Belay, auto, default caps"
	belayStep, belayStepPool                   = "Belay, step", "Belay, step, embedded"
	dbosWorkflow, gooseProvider, golangMigrate = "dbos, workflow of transactions", "goose, Provider per schema", "golang-migrate, per schema"
	riverPlan, riverStep                       = "river, job per plan", "river, job per step"
	belayApplies, belayRollsBack               = "Belay, apply", "Belay, roll back"
	rawTwo, rawEach                            = "pgx loop, two commits", "pgx loop, a commit per step"
)

// applyWork is ten steps, each of which writes a row, on every tenant.
func (w *world) applyWork(workers int) work {
	k := w.rowTask()
	some := k.on(max(100, len(w.sites)/5)) // are enough where a tenant takes long
	return work{
		name: fmt.Sprintf("a: 10 row steps, %d tenants, %s", len(w.sites), workersOf(workers)), unit: "tenants",
		contenders: []contender{
			w.rawApply(rawTwo, k, len(k.steps), workers),
			w.belayApply(belayAuto, byDirectory, plan.CheckpointAuto, k, workers),
			w.belayApply(belayAutoPool, w.byPool, plan.CheckpointAuto, k, workers),
			w.belayApply(belayAutoDefault, byDefault, plan.CheckpointAuto, k, workers),
			w.rawApply(rawEach, k, 1, workers),
			w.belayApply(belayStep, byDirectory, plan.CheckpointStep, k, workers),
			w.belayApply(belayStepPool, w.byPool, plan.CheckpointStep, k, workers),
			w.dbosApply(some, workers),
			w.riverApply(riverPlan, k, len(k.steps), workers),
			w.riverApply(riverStep, some, 1, workers),
			w.gooseApply(some, workers),
			w.migrateApply(some, workers),
		},
		goals: []goal{
			{belayAuto, rawTwo, 0.8}, {belayAuto, dbosWorkflow, 12}, {belayStep, rawEach, 0.9}, {belayStep, dbosWorkflow, 3.5},
		},
	}
}

// few tenants are what growthWork compares all of them with.
const few = 1000

// growthWork shows whether a tenant costs more where there are many of them.
func (w *world) growthWork(workers int) work {
	k := w.rowTask()
	first, all := fmt.Sprintf("Belay, auto, %d of them", few), "Belay, auto, all of them"
	return work{
		name: fmt.Sprintf("g: 10 row steps, %d tenants, %s", len(w.sites), workersOf(workers)), unit: "tenants",
		contenders: []contender{
			w.belayApply(first, byDirectory, plan.CheckpointAuto, k.on(few), workers),
			w.belayApply(all, byDirectory, plan.CheckpointAuto, k, workers),
		},
		goals: []goal{{all, first, 0.9}},
	}
}

// tableWork is ten steps, each of which makes a table. Belay gives each a transaction of its own, as migrators do.
func (w *world) tableWork(schemas, workers int) work {
	k := w.tableTask(schemas)
	return work{
		name: fmt.Sprintf("b: 10 DDL steps, %d schemas, %s", schemas, workersOf(workers)), unit: "schemas",
		contenders: []contender{
			w.rawApply(rawEach, k, 1, workers),
			w.rawApply(rawTwo, k, len(k.steps), workers),
			w.belayApply(belayAuto, byDirectory, plan.CheckpointAuto, k, workers),
			w.gooseApply(k, workers),
			w.migrateApply(k, workers),
		},
		goals: []goal{{belayAuto, rawEach, 0.7}, {belayAuto, gooseProvider, 2.5}, {belayAuto, golangMigrate, 5}},
	}
}

// rollbackWork takes back what applyWork applies.
func (w *world) rollbackWork(workers int) work {
	k := w.rowTask()
	return work{
		name: fmt.Sprintf("e: roll back 10 row steps, %d tenants, %s", len(w.sites), workersOf(workers)), unit: "tenants",
		contenders: []contender{
			w.belayApply(belayApplies, byDirectory, plan.CheckpointAuto, k, workers),
			w.belayRollback(belayRollsBack, byDirectory, plan.CheckpointAuto, k, workers),
		},
		goals: []goal{{belayRollsBack, belayApplies, 0.7}},
	}
}

func workersOf(n int) string {
	if n == 1 {
		return "1 worker"
	}
	return fmt.Sprintf("%d workers", n)
}
