// Package checker says whether what happened to tenants was as it must be. A [Witness] has triggers write down every row that
// is committed to Belay's tables and to tenants' ledgers; [Witness.Read] brings them in the order of their commits, with the
// tables as they are. Whoever ran the processes adds what only it knows: the calls that outside resources saw, what processes
// said, what readers saw. [Check] returns every [Violation]. Above the reader nothing knows which database it was.
//
// The evidence is that of a database at rest: all processes have ended, and every tenant has been worked on once more. It
// must be complete: the witness watches before the first acquire, and nothing is deleted from what it wrote.
//
// On PostgreSQL the time of a commit gives the order, so track_commit_timestamp must be on; without it, it is the order of
// writing, and I2 and I3 see less. On SQLite one transaction writes at a time, so that the order of writing is that of the
// commits, but it does not name transactions: there I6 takes the write of the lock row, with which a checkpoint ends, for its end.
//
//	I1  fences grow at every change of custody, rows stay     custody, fenceGrows
//	I2  nothing is committed under a former fence             custody
//	I3  fences never decrease in what is committed            custody
//	I4  statuses, steps and events move along legal edges     walk.plan, walk.step, walk.event
//	I5  effects in place are those that the journal says      effectsNow
//	I6  an effect commits with its journal row, once          effects
//	I7  an intent before each call outside, none without      outside, doneWasCalled
//	I8  a before-image is written once, before the effect     images, before
//	I9  the steps in place have no gap                        walk.step
//	I10 acknowledged is durable, failed is gone               heard, verdict
//	I11 what was lost writes nothing more                     said
//	I12 a live lock is not taken                              theft
//	I13 a renewal extends its own lock, by a lease            renewal
//	I14 a release keeps the fence, and ends the term          fenceGrows, custody
//	I15 nothing is in flight and no lock is held              rest
//	I16 all but poison comes to rest, in time                 rest, inTime
//	I17 a claim counts one attempt, up to the limit           walk.plan
//	I18 what is partial says so                               walk.event, rest
//	I19 after a rollback the data are as before               rest
//	I20 nothing is written outside the tenant's scope         effects, rest
//	I21 nothing is written after a removal                    custody
//	I22 a reader sees only what was                           seen
//	I23 nothing is left behind in the database                storage
//	I24 the database is sound, and hides nothing              storage, Witness.Examine
//	I25 no secret in any text                                 said
//	I26 the run had what it is about                          Void
//
// Parts of them cannot be checked here. I7 asks that an outside effect is made at least once, and cannot see one that was made
// and not logged. Of I13, that a renewal is not too short: what is between the statement and the trigger may take any
// time. Of I22, sequences of replies: they carry no number. Of I23, processes and goroutines are the caller's to count. Of I24,
// a chain of hashes over the journal: there is none; instead, tables and history must tell the same.
package checker
