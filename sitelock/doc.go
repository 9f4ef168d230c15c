// Package sitelock is the lease protocol: how at most one process at a time works on a tenant, whatever crashes, stalls or
// loses its network, and how an abandoned tenant heals without a person.
//
// # Who is who
//
// A lock is one row per tenant, in the database that holds the tenant's data, and is never deleted. An acquisition is
// identified by
//   - the holder: a random [HolderID], fresh each time, so that nobody takes an old row for its own;
//   - the fence: a number that grows by one at every change of custody and never restarts.
//
// Together with the tenant they are a [Held], the proof that every writing call carries. Host, pid and start time stand beside
// them for people; no decision rests on them.
//
// # Who decides
//
// The database decides, alone: who holds a lock, until when, and whether a write may commit. Expiry is computed there, by its
// clock, inside the statement; no time goes in. Safety rests on no clock at all, but on a locking proof: a transaction that
// writes for a holder first locks the row where holder and fence are its own, and a take-over, which changes the fence, waits
// for that lock. Local time only decides when this process stops believing in itself.
//
// # The life of a lock
//
//	           Acquire                    Renew: expiry = now + lease
//	┌──────┐   fence + 1    ┌──────┐ ───┐
//	│ free │ ─────────────▶ │ held │    │ four times a lease
//	└──────┘                └──────┘ ◀──┘
//	  ▲  ▲      Release      │    │  ▲
//	  │  └───────────────────┘    │  │ Renew, if nobody took it
//	  │         fence stays       ▼  │
//	  │         Break           ┌────────┐    Acquire by anyone    ┌──────────────┐
//	  └──────────────────────── │ lapsed │ ──────────────────────▶ │ held by them │
//	     fence + 1, recover     └────────┘   fence + 1, recover    └──────────────┘
//
// A lapsed lock that nobody took is held again when its holder renews it. Acquire takes a row that is free, lapsed or its
// own, and returns the plans that a dead holder left in flight to the status they were claimed from, in the same transaction:
// recovery in a second one would overwrite what happened between. Break also takes a lock that is live.
//
// # Trust
//
// A [Lock] is believed held
//
//	until = (monotonic time at which the last successful renewal was sent) + lease − lease/8
//
// It counts from the sending, because the database counts from some moment after it: a late answer adds nothing. The margin,
// an eighth and so at least 125 ms, is the time to stop in before anyone may take over. When trust ends, or when the database
// says that the row is gone or taken, the lock is lost: [Lock.Err] says so before each step, and [Lock.Context] is
// cancelled with a *[LockLostError]. Loss is final. Trust is not proof: a process that was stopped for an hour may believe
// for an instant longer, and nothing it then writes commits.
//
// A transaction that proves the fence and is open when trust ends may commit, because its row lock keeps every take-over
// out; see [Lock.Proving]. On SQLite it also keeps renewals out, so it extends the lease itself; see [Lock.Extended].
//
// # Renewal
//
// A [Locker] renews all its locks of one database by one call per quarter of the lease. No database waits for another. A call
// has a deadline within the quarter. What failed is tried again in the next quarter: three renewals fall into the trust. A
// lock is in one renewal at a time. They go on beside a transaction that ends by releasing the lock, so that no live holder
// looks dead; one that finds it gone then decides nothing, because that may be the transaction's own doing: see
// [Lock.Releasing]. None is sent once a lock is released.
//
// # Waiting
//
// Nobody waits inside a statement. Callers in one process line up for a lock, and the head of the line reads its state with
// pauses between that grow from 50 ms to 1 s, and asks for it when it seems to be there: at the latest a moment after the
// lease that it saw has lapsed. All are spread by chance, and of any number of callers the database lets one win.
//
// # What each failure does
//
//   - The holder dies: its lease lapses, and the next acquire recovers its plans.
//   - The holder stalls and is taken over: its next proof fails, with *[LockLostError], and nothing of it commits.
//   - A renewal fails, hangs, or its answer is lost: nothing at first; it is idempotent and is tried again.
//   - The database is away until trust ends: the lock is lost before its lease lapses, and the work stops.
//   - The answer to an acquire is lost: it is sent again with the same holder, which recognises its row.
//   - A release fails: the work stands as it was committed, and the lock lapses.
//   - The database's clock jumps ahead: locks may be taken early, and their holders stop at their next proof. It jumps back:
//     leases last longer; no row counts as live further ahead than [MaxLease], but for an operator's hold.
//   - A plan in flight was written by a newer binary: nobody takes it over who cannot read it, with [ErrNewerBinary].
//
// # Named leases
//
// The same primitive without plans, for work that must run in one process only: [TryLease], [RunWhileLeader]. A check at
// renewal protects nothing by itself; writes under a named lease carry a locking proof too.
//
// # What this package does not do
//
// It opens no database and holds no SQL: a [Store] does what is said here, in one transaction each. It runs no step and
// decides no status. It does not stop a goroutine that ignores its context; it only sees to it that what such a goroutine
// writes through a proof is refused. An effect outside the database can still be late: its step gets the fence to hand on.
package sitelock
