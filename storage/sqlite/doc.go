// Package sqlite keeps locks, plans and journals in a SQLite file, beside the tenant's data that they describe, and
// carries out steps in it. Belay's tables have the prefix belay_.
//
// A [Store] has one connection that writes and a pool that reads. Every transaction that writes begins immediate, which
// keeps every other writer of the file out until it ends: comparing holder and fence inside it is the proof, and what
// the journal says cannot change between reading and writing it. The file is in WAL mode with synchronous=FULL: what a
// commit acknowledged survives a power cut, and readers never wait.
//
// # Clock
//
// The database's clock is that of each process's machine. Safety does not rest on it. Processes whose clocks differ by
// more than a lease take over from each other while both are alive; the fence keeps the loser from writing.
//
// # Steps
//
// SQL that is not Belay's own runs under an authorizer that denies transaction control, ATTACH and DETACH, every PRAGMA
// that does more than look at the schema, and Belay's tables. After every step, also one that failed, the transaction must
// still stand; otherwise nothing is written, and the connection is dropped. Foreign keys are not enforced
// statement by statement, since a table rebuild would delete or refuse the rows that refer to the table: before the commit,
// PRAGMA foreign_key_check looks at the tables that were written and those that refer to them, and any violation that
// was not there before fails the group. So ON DELETE and ON UPDATE clauses do nothing in steps.
//
// # Errors
//
// SQLite's own messages name tables, columns and constraints and are kept. Two kinds may quote rows and are replaced:
// the text of RAISE, which can be built from a row, and general errors found while a statement runs (a bad JSON path, a
// malformed MATCH expression).
//
// # What it does not do
//
// It refuses network file systems, as far as the system tells them, and SQLite before 3.51.3. It never opens the
// database file except through SQLite, because closing any descriptor of it would drop the process's POSIX locks, and
// nobody else in the process may either. A file that is replaced or deleted while it is open takes no more calls: each
// fails with an error that says so, until the store is opened again.
package sqlite
