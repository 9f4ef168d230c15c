// Package engine applies changes to tenants and brings them back.
//
// An Engine is given a [Directory] that opens the database of a tenant, and carries out plans there under the tenant's
// site lock. Everything it writes goes through [Store.Checkpoint] and [Store.Claim], which prove the lock's fence inside
// the very transaction that writes; a process that has lost its lock may run on for a while, but nothing it writes
// commits.
//
// The life of one plan: acquire the lock, recover what a dead holder left, claim the plan (one transaction); carry the
// steps out in groups (one transaction each); finish and release with the last group. Apply and rollback are the same run
// in two directions: see run.go.
//
// Cancelling the context of an operation stops it at its next checkpoint, with a true status; [Engine.Abort] cuts
// short what still runs then. A failed apply leaves its plan partial or undoes it, as the change says.
//
// The package knows no SQL and no driver, prints nothing, and needs no control database.
package engine
