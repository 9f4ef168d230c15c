// Package failpoint lets a test stop a process at a named point of the code and decide what happens to it there. Without the
// build tag "failpoints" every call is an empty function that the compiler removes, and no name remains in the binary.
//
// With the tag, a process started with [Env] set to "name" or "name#3" (the third time it is passed) writes "at name" to file
// descriptor 3 there, and reads its orders from descriptor 4: "go" to go on, "fail" to return an error. The parent may also
// kill or stop it while it waits.
package failpoint

// Env is the environment variable that names the point.
const Env = "BELAY_FAILPOINT"

// The points, in the order in which a plan passes them. Before and after are the process's own: at After the database has
// answered.
const (
	BeforeAcquire    = "acquire.before"
	AfterAcquire     = "acquire.after"
	BeforeCheckpoint = "checkpoint.before"
	BeforeCommit     = "checkpoint.before_commit"
	AfterCheckpoint  = "checkpoint.after"
	BeforeEffect     = "effect.before"
	AfterEffect      = "effect.after"
	BeforeFinish     = "finish.before"
	AfterFinish      = "finish.after"
	BeforeRelease    = "release.before"
	AfterRelease     = "release.after"
	BeforeRenew      = "renew.before"
	AfterRenew       = "renew.after"
)

// Points lists all of them, for tests that sweep.
func Points() []string {
	return []string{
		BeforeAcquire, AfterAcquire, BeforeCheckpoint, BeforeCommit, AfterCheckpoint, BeforeEffect, AfterEffect,
		BeforeFinish, AfterFinish, BeforeRelease, AfterRelease, BeforeRenew, AfterRenew,
	}
}
