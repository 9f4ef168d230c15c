package main

import "strings"

const (
	sqliteLock        = "storage/sqlite/lock.go"
	sqliteClaim       = "storage/sqlite/claim.go"
	sqliteJournal     = "storage/sqlite/journal.go"
	sqliteCheckpoint  = "storage/sqlite/checkpoint.go"
	sqliteTransaction = "storage/sqlite/transaction.go"
)

// sqlite names a group of the suite on SQLite, or one of its sentences.
func sqlite(group string, sentence ...string) []target {
	return in("./storage/sqlite", strings.Join(append([]string{"TestSQLiteKeepsTheContract", "^(" + group + ")$"}, sentence...), "/"))
}

const sqliteProof = "l, err := t.prove(own, held)\n"

var ofSQLite = []mutation{
	{
		name:    "sqlite: the proof is a plain read, before the transaction keeps others out",
		edits:   []edit{{sqliteTransaction, `"BEGIN IMMEDIATE"`, `"BEGIN"`}},
		noticed: append(sqlite("checkpoints|breaks|locks"), in("./storage/sqlite", "TestProcessesTakeTurns")...),
	},
	{
		name:    "sqlite: the proof compares nothing",
		edits:   []edit{{sqliteLock, "if !l.heldBy(held) {", "if !l.exists {"}},
		noticed: sqlite("fences", "^Checkpoint of sql steps$"),
	},
	{
		name:    "sqlite: a claim under a lease already held proves nothing",
		edits:   []edit{{sqliteClaim, "l, err := t.prove(ctx, held)\n", "l, err := t.lock(ctx, held.Tenant)\n"}},
		noticed: sqlite("fences", "^Claim of an apply$"),
	},
	{
		name:    "sqlite: a checkpoint proves nothing",
		edits:   []edit{{sqliteCheckpoint, sqliteProof, "l, err := t.lock(own, held.Tenant)\n"}},
		noticed: sqlite("fences", "^Checkpoint of sql steps$"),
	},
	{
		name: "sqlite: the finish of a plan asks for no fence",
		edits: []edit{
			{sqliteCheckpoint, sqliteProof, "l, err := t.lock(own, held.Tenant)\nif group.Move == nil {\nl, err = t.prove(own, held)\n}\n"},
			{sqliteCheckpoint, "if p.Fence != held.Fence {", "if m == nil && p.Fence != held.Fence {"},
			{sqliteJournal, "AND fence IS ?11", "AND (fence IS ?11 OR true)"},
		},
		noticed: sqlite("fences", "^Checkpoint of a move$"),
	},
	{
		name:    "sqlite: a lock that changes hands keeps its fence",
		edits:   []edit{{sqliteLock, "fence = fence + (holder IS NOT ?2)", "fence = fence + (holder IS NOT ?2) * 0"}},
		noticed: sqlite("locks", "a lapsed lock is taken over"),
	},
	{
		name:    "sqlite: a live lock may be taken",
		edits:   []edit{{sqliteLock, "return !l.Live\n", "return true\n"}},
		noticed: sqlite("locks", "a live lock is refused to anyone else"),
	},
	{
		name: "sqlite: recovery and claim go on behind a refused take",
		edits: []edit{{
			sqliteLock, "grant, err := t.take(ctx, before, req)\n\tif err != nil {",
			"grant, err := t.take(ctx, before, req)\n\tif err != nil && !errors.Is(err, sitelock.ErrRefused) {",
		}},
		noticed: sqlite("locks", "a live lock is refused to anyone else"),
	},
	{
		name: "sqlite: recovery is in a second transaction",
		edits: []edit{{
			sqliteLock, "\tby := term{held: grant.Held, process: req.Process",
			`	for _, sql := range []string{"COMMIT", "BEGIN IMMEDIATE"} {
		if _, err := t.exec(ctx, sql); err != nil {
			return sitelock.Grant{}, err
		}
	}
	by := term{held: grant.Held, process: req.Process`,
		}},
		noticed: append(sqlite("recovery"), in("./storage/sqlite", "TestAPlanOfTenSteps")...),
	},
	{
		name: "sqlite: a release deletes the lock row",
		edits: []edit{{
			sqliteLock, "const releaseLockSQL = `",
			"const releaseLockSQL = `DELETE FROM belay_site_lock WHERE tenant_id = ? AND holder = ? AND fence = ?`\n\nconst _ = `",
		}},
		noticed: sqlite("locks", "a release frees the lock and keeps the fence"),
	},
	{
		name:    "sqlite: a break recovers nothing",
		edits:   []edit{{sqliteLock, "if recovered, err = t.recover(ctx, breaker, before, records); err != nil {", "if _ = records; err != nil {"}},
		noticed: sqlite("breaks"),
	},
	{
		name:    "sqlite: a partial plan blocks no other",
		edits:   []edit{{sqliteClaim, "blocked = true", "blocked = false"}},
		noticed: sqlite("claims"),
	},
	{
		name: "sqlite: a plan gets its place in the order when it is finished",
		edits: []edit{
			{sqliteClaim, "?9, ` + nextAppliedSeq + `, ?10", "?9, NULL, ?10"},
			{sqliteClaim, "COALESCE(applied_seq, ` + nextAppliedSeq + `)", "applied_seq"},
			{
				sqliteJournal, "case m.Event == plan.EventResolveApplied:\n\t\t_, err = t.exec(ctx, giveSeqSQL",
				"case m.To == plan.Applied:\n\t\t_, err = t.exec(ctx, giveSeqSQL",
			},
		},
		noticed: sqlite("claims"),
	},
	{
		name:    "sqlite: a commit is not flushed",
		edits:   []edit{{"storage/sqlite/driver.go", "\"_synchronous\":  {\"FULL\"}", "\"_synchronous\":  {\"NORMAL\"}"}},
		noticed: in("./storage/sqlite", "TestAConnectionHasItsPragmas"),
	},
	{
		name: "sqlite: a step that is run again replaces its before-image",
		edits: []edit{{
			sqliteJournal, "ON CONFLICT (tenant_id, plan_id, ordinal, part) DO NOTHING",
			"ON CONFLICT (tenant_id, plan_id, ordinal, part) DO UPDATE SET body = excluded.body, checksum = excluded.checksum",
		}},
		noticed: sqlite("images"),
	},
	{
		name:    "sqlite: a group for a plan that is not in flight is no error",
		edits:   []edit{{sqliteCheckpoint, "if p.Fence != held.Fence {", "if p.ID == \"\" {"}},
		noticed: sqlite("checkpoints|journal|moves"),
	},
	{
		name:    "sqlite: a move that matches no row is no error",
		edits:   []edit{{sqliteJournal, "if n != 1 {", "if n > 1 {"}},
		noticed: sqlite("moves"),
	},
	{
		name:    "sqlite: the row of a step may move anywhere",
		edits:   []edit{{sqliteJournal, "!was.CanBecome(step.State)", "false"}},
		noticed: sqlite("checkpoints|journal"),
	},
	{
		name:    "sqlite: a release that matches no row is no error",
		edits:   []edit{{sqliteLock, "if err == nil && n == 0 {", "if err == nil && n < 0 {"}},
		noticed: sqlite("locks|fences"),
	},
}
