// Package plan holds changes and plans as values: the change file and its digest, the SQL splitter, the four statuses
// with the one function that moves a plan between them, and the journal that says which steps are in place. Nothing
// here opens a database; what is stored and how is for storage/postgres and storage/sqlite.
package plan
