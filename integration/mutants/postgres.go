package main

import "strings"

const (
	postgresTables      = "migrations/postgres/0001_init.sql"
	postgresLock        = "storage/postgres/lock.go"
	postgresClaim       = "storage/postgres/claim.go"
	postgresJournal     = "storage/postgres/journal.go"
	postgresCheckpoint  = "storage/postgres/checkpoint.go"
	postgresSteps       = "storage/postgres/step_sql.go"
	postgresTransaction = "storage/postgres/transaction.go"
)

// postgres names a group of the suite on PostgreSQL, or one of its sentences.
func postgres(group string, sentence ...string) []target {
	return in("./storage/postgres", strings.Join(append([]string{"TestPostgresKeepsTheContract", "^(" + group + ")$"}, sentence...), "/"))
}

const (
	postgresProven   = "custody{held, ownLimits}.begin"
	postgresUnproven = "ownLimits.begin"
	postgresRecovers = "tx.ask(recoverSQL, a.readRecovered, req.Tenant, req.Holder, plan.Format, plan.MaxAttempts)\n"
)

var ofPostgres = []mutation{
	{
		name:    "postgres: the proof is a plain read",
		edits:   []edit{{postgresCheckpoint, "$9::bigint FOR KEY SHARE)", "$9::bigint)"}},
		noticed: in("./storage/postgres", "TestAnOpenCheckpointKeeps|TestTheProofLocks"),
	},
	{
		name:    "postgres: the proof does not raise",
		edits:   []edit{{postgresCheckpoint, "THEN belay.refuse('BY001', 'lock lost') END", "THEN 'lock lost' END"}},
		noticed: postgres("fences", "^Checkpoint of sql steps$"),
	},
	{
		name: "postgres: the fence is part of no unique key",
		edits: []edit{
			{postgresTables, "CONSTRAINT site_lock_fence_key UNIQUE (tenant_id, fence)", "CONSTRAINT site_lock_fence_key CHECK (fence >= 0)"},
			{
				postgresTables, "FOREIGN KEY (tenant_id, fence) REFERENCES belay.site_lock (tenant_id, fence)\n        DEFERRABLE INITIALLY DEFERRED",
				"CHECK (fence >= 0)",
			},
		},
		noticed: in("./storage/postgres", "TestAnOpenCheckpointKeeps|TestTheProofLocks"),
	},
	{
		name:    "postgres: a claim under a lease already held proves nothing",
		edits:   []edit{{postgresClaim, postgresProven, postgresUnproven}},
		noticed: postgres("fences", "^Claim of an apply$"),
	},
	{
		name: "postgres: a checkpoint proves nothing",
		edits: []edit{
			{postgresCheckpoint, "begin := custody{held, own}.begin", "begin := own.begin"},
			{postgresSteps, "+ proof + `", "+ `$7::uuid IS NULL, $8::uuid IS NULL, $9::bigint IS NULL"},
		},
		noticed: postgres("fences", "^Checkpoint of sql steps$"),
	},
	{
		name: "postgres: the finish of a plan asks for no fence",
		edits: []edit{
			{
				postgresCheckpoint, "begin := custody{held, own}.begin",
				"begin := custody{held, own}.begin\n\tif group.Move != nil {\n\t\tbegin = own.begin\n\t}",
			},
			{postgresJournal, "ELSE p.fence = $3::bigint END", "ELSE $3::bigint IS NOT NULL END"},
		},
		noticed: postgres("fences", "^Checkpoint of a move$"),
	},
	{
		name:    "postgres: a lock that changes hands keeps its fence",
		edits:   []edit{{postgresLock, "THEN l.fence ELSE l.fence + 1 END", "THEN l.fence ELSE GREATEST(l.fence, 1) END"}},
		noticed: postgres("locks", "a lapsed lock is taken over"),
	},
	{
		name: "postgres: a live lock may be taken",
		edits: []edit{{
			postgresLock, "(l.holder = $3::uuid OR (NOT ` + live + ` AND $12::uuid IS NULL)", "(l.holder = $3::uuid OR $12::uuid IS NULL",
		}},
		noticed: postgres("locks", "a live lock is refused to anyone else"),
	},
	{
		name:    "postgres: recovery goes on behind a refused take",
		edits:   []edit{{postgresClaim, "l.holder = $2::uuid AND ` + inFlight", "$2::uuid IS NOT NULL AND ` + inFlight"}},
		noticed: postgres("locks", "a live lock is refused to anyone else"),
	},
	{
		name:    "postgres: the claim of an apply goes on behind a refused take",
		edits:   []edit{{postgresClaim, "l.holder = $2::uuid AND ` + noOther", "$2::uuid IS NOT NULL AND ` + noOther"}},
		noticed: postgres("locks", "a live lock is refused to anyone else"),
	},
	{
		name: "postgres: the claim of a rollback goes on behind a refused take",
		edits: []edit{{
			postgresClaim, "l.holder = $2::uuid\n        AND p.tenant_id", "$2::uuid IS NOT NULL\n        AND p.tenant_id",
		}},
		noticed: postgres("locks", "a live lock is refused to anyone else"),
	},
	{
		// One statement has one snapshot: it cannot claim what it has just recovered.
		name: "postgres: recovery and claim are one statement",
		edits: []edit{
			{postgresLock, postgresRecovers, "if req.Claim == nil || req.Claim.Direction == plan.Down {\n" + postgresRecovers + "}\n"},
			{
				postgresClaim, "tx.ask(claimApplySQL, read, id, holder, c.Change, c.NewPlan, c.Digest, len(c.Body.Steps), plan.Format, c.Retry, c.Repin)",
				`recovering := strings.NewReplacer("$3", "$7", "$4", "$10", "noted", "noticed",
					"\nSELECT plan_id::text, change_id, was, status FROM recovered", ", ").Replace(recoverSQL)
				tx.ask(recovering+strings.TrimPrefix(claimApplySQL, "\nWITH "), read, id, holder, c.Change, c.NewPlan, c.Digest,
					len(c.Body.Steps), plan.Format, c.Retry, c.Repin, plan.MaxAttempts)`,
			},
			{postgresClaim, "import (", "import (\n\t\"strings\"\n"},
		},
		noticed: postgres("recovery"),
	},
	{
		name: "postgres: a lease's end is counted from the client's clock, which is an hour behind",
		edits: []edit{
			{postgresLock, "expires_at = belay.now_ms() + $11::bigint\nFROM", "expires_at = $15::bigint + $11::bigint\nFROM"},
			{postgresLock, "req.Replace.Fence, plan.Format)", "req.Replace.Fence, plan.Format, time.Now().Add(-time.Hour).UnixMilli())"},
		},
		noticed: postgres("locks", "the same holder recognises its row"),
	},
	{
		name: "postgres: the first lease's end is counted from the client's clock, which is an hour behind",
		edits: []edit{
			{postgresLock, "clock.now, clock.now + $10::bigint\n", "clock.now, $11::bigint + $10::bigint\n"},
			{postgresLock, "orNull(newPlan), millis(req.Lease))\n\t\t}", "orNull(newPlan), millis(req.Lease), time.Now().Add(-time.Hour).UnixMilli())\n\t\t}"},
		},
		noticed: postgres("locks", "the first acquire gives fence 1"),
	},
	{
		name:    "postgres: recovery is in a second transaction",
		edits:   []edit{{postgresLock, postgresRecovers, "tx.own(commit)\n\t\ttx.own(writing)\n\t\t" + postgresRecovers}},
		noticed: postgres("recovery"),
	},
	{
		name: "postgres: a release deletes the lock row",
		edits: []edit{{
			postgresLock, "const releaseLockSQL = `",
			"const releaseLockSQL = `DELETE FROM belay.site_lock WHERE tenant_id = $1::uuid AND holder = $2::uuid AND fence = $3::bigint RETURNING 1`\n\nconst _ = `",
		}},
		noticed: postgres("locks", "a release frees the lock and keeps the fence"),
	},
	{
		name:    "postgres: a break recovers nothing",
		edits:   []edit{{postgresLock, "tx.ask(recoverSQL, a.readRecovered, id, breaker, plan.Format, plan.MaxAttempts)\n", "\n"}},
		noticed: postgres("breaks"),
	},
	{
		name: "postgres: only a plan with some of its steps in place, but not all, is partial",
		edits: []edit{{
			postgresClaim, "CASE p.status WHEN 'pending' THEN ` + touched + `", "CASE p.status WHEN 'pending' THEN ` + touched + ` AND ` + done + ` < p.steps_total",
		}},
		noticed: postgres("claims|recovery"),
	},
	{
		name:    "postgres: a partial plan blocks no other",
		edits:   []edit{{postgresClaim, "AND ` + unsettled + ` AND ` + partial + `)`", "AND false AND ` + unsettled + ` AND ` + partial + `)`"}},
		noticed: postgres("claims"),
	},
	{
		name: "postgres: a plan gets its place in the order when it is finished",
		edits: []edit{
			{postgresClaim, "` + nextAppliedSeq + `, 1, $6::integer", "NULL::bigint, 1, $6::integer"},
			{postgresJournal, "WHEN $9::text = 'resolve_applied' THEN COALESCE(p.applied_seq", "WHEN $5::text = 'applied' THEN COALESCE(p.applied_seq"},
		},
		noticed: postgres("claims"),
	},
	{
		name:    "postgres: the isolation level is the role's default",
		edits:   []edit{{postgresTransaction, "`BEGIN ISOLATION LEVEL READ COMMITTED`", "`BEGIN`"}},
		noticed: in("./storage/postgres", "TestTheIsolationLevel"),
	},
	{
		name: "postgres: a commit is as durable as the role has it",
		edits: []edit{{
			postgresTransaction, "WHEN 'remote_apply' THEN 'remote_apply' ELSE 'on' END, true)`",
			"WHEN '' THEN '' ELSE pg_catalog.current_setting('synchronous_commit') END, true)`",
		}},
		noticed: in("./storage/postgres", "TestACommitIsDurable"),
	},
	{
		name: "postgres: a step that is run again replaces its before-image",
		edits: []edit{{
			postgresJournal, "ON CONFLICT (tenant_id, plan_id, ordinal, part) DO NOTHING",
			"ON CONFLICT (tenant_id, plan_id, ordinal, part) DO UPDATE SET body = EXCLUDED.body, checksum = EXCLUDED.checksum",
		}},
		noticed: postgres("images"),
	},
	{
		name:    "postgres: an undo in doubt counts as in place",
		edits:   []edit{{postgresTables, "AND j.state = 'done')", "AND j.state IN ('done', 'undo_intent'))"}},
		noticed: postgres("claims", "an undo in doubt is no step in place"),
	},
	{
		name:    "postgres: the row of a step may move anywhere",
		edits:   []edit{{postgresJournal, "belay.refuse('BY002', 'illegal move of a step')", "''"}},
		noticed: postgres("checkpoints|journal"),
	},
	{
		name:    "postgres: a group for a plan that is not in flight is no error",
		edits:   []edit{{postgresJournal, "belay.refuse('BY002', 'plan is not in flight under this fence')", "''"}},
		noticed: postgres("checkpoints|journal|moves"),
	},
	{
		name:    "postgres: a move that matches no row is no error",
		edits:   []edit{{postgresJournal, "belay.refuse('BY002', 'plan is not as the holder knows it')", "''"}},
		noticed: postgres("moves"),
	},
}
