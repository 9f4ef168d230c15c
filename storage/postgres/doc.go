// Package postgres keeps Belay's locks, plans and journals in PostgreSQL 14 or newer and carries out steps there.
//
// It is for [storage.NewDirectory], by way of [Driver], and for programs with a pool of their own, by way of [New].
//
// # One door
//
// Every write is one transaction of this shape, sent without waiting for answers, so that it costs one round trip:
//
//	BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE
//	in one statement: limits of this transaction, Belay's own search path, a mark that vanishes with the transaction; the
//	  proof: SELECT … FROM site_lock WHERE tenant, holder, fence are mine FOR KEY SHARE, or raise; the tenant's search path
//	for each step: its statements, behind a boundary unless both it and the step before only write rows
//	the closing boundary, the journal, the images, the move, the release
//	COMMIT
//
// Acquire and break have, in the place of the proof, the statement that takes the lock row NOWAIT. Behind a proof that
// raises nothing takes effect, COMMIT included. An action or a verify query ends the round trip, not the transaction.
//
// # What is guaranteed
//
//   - A change of custody raises the fence, which is part of a unique key, and so waits for every open proof; a renewal
//     changes no key and passes. All custody changes here give up at once instead of waiting.
//   - Time is the database's clock alone, read inside the statement that needs it.
//   - A connection that dies once COMMIT has been sent gives [engine.ErrUnknownOutcome]; before, nothing is in place.
//   - No setting outlives its transaction and none is in the start-up packet, so that all works behind a pooler in
//     transaction mode. Belay's own statements are prepared, a step's never; where a pooler loses prepared statements,
//     preparing switches itself off for the Store.
//   - Renewals have connections of their own, so that steps cannot starve them.
//   - Errors hold what the server said, but no value of a row: no detail, and of data exceptions only the kind and place.
//
// # What is not
//
// A step runs with the role that Belay connects as. The boundary notices a step that ended the transaction, changed the
// role or the search path, so that accidents stop there; it is no wall against malice. On a pool that the embedding
// program owns, what a step sets for its session, and temporary tables, stay with that connection.
package postgres
