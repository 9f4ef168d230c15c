// Package failpoint lets a test stop a process at a named point of the code and decide what happens to it there. Without the
// build tag "failpoints" every call is an empty function that the compiler removes, and no name remains in the binary.
//
// With the tag, a process started with [Env] set to "name" or "name#3" (the third time it is passed) writes "at name" to file
// descriptor 3 there, and reads its orders from descriptor 4: "go" to go on, "fail" to return an error. The parent may also
// kill or stop it while it waits. With [Env] set to [Every] it writes that line at each point, and stops at none.
package failpoint

// Env is the environment variable that names the point.
const Env = "BELAY_FAILPOINT"

// Every is the value of [Env] that has a process tell what it passes.
const Every = "*"

// The points, in the order in which a plan passes them. Before and after are the process's own: at After the database has
// answered. Finish is the transaction in which a plan is given up, and release one that does nothing else; where all goes well
// both are part of the last checkpoint.
const (
	BeforeMigrate       = "migrate.before"
	BeforeMigrateCommit = "migrate.before_commit"
	AfterMigrate        = "migrate.after"
	BeforeAcquire       = "acquire.before"
	AfterAcquire        = "acquire.after"
	BeforeCheckpoint    = "checkpoint.before"
	BeforeCommit        = "checkpoint.before_commit"
	AfterCheckpoint     = "checkpoint.after"
	BeforeEffect        = "effect.before"
	AfterEffect         = "effect.after"
	BeforeFinish        = "finish.before"
	AfterFinish         = "finish.after"
	BeforeRelease       = "release.before"
	AfterRelease        = "release.after"
	BeforeRenew         = "renew.before"
	AfterRenew          = "renew.after"
)

// Points lists all of them, for tests that sweep. A point that is not listed cannot be passed.
func Points() []string {
	return []string{
		BeforeMigrate, BeforeMigrateCommit, AfterMigrate, BeforeAcquire, AfterAcquire,
		BeforeCheckpoint, BeforeCommit, AfterCheckpoint, BeforeEffect, AfterEffect,
		BeforeFinish, AfterFinish, BeforeRelease, AfterRelease, BeforeRenew, AfterRenew,
	}
}
