package plan

import (
	"errors"
	"strings"
	"testing"

	"github.com/belayhq/belay/tenant"
)

// refusals lists scripts of one line with what their problems begin with; no problem means that the script passes.
type refusals []struct {
	text string
	want []string
}

func (r refusals) check(t *testing.T, d tenant.Dialect) {
	t.Helper()
	for _, tc := range r {
		_, err := Split(d, Source{File: "f", Text: tc.text})
		var got []string
		if invalid, ok := errors.AsType[*InvalidError](err); ok {
			for _, p := range invalid.Problems {
				got = append(got, p.String())
			}
		}
		ok := len(got) == len(tc.want)
		for i := 0; ok && i < len(got); i++ {
			ok = strings.HasPrefix(got[i], tc.want[i])
		}
		if !ok {
			t.Errorf("%s: %s\n got %q\nwant %q", d, tc.text, got, tc.want)
		}
	}
}

// G8
func TestWhatAPostgresScriptMayNotDo(t *testing.T) {
	t.Parallel()
	one := func(s string) []string { return []string{s} }
	refusals{
		{"BEGIN", one("f:1:1: BEGIN: the engine owns the transaction")},
		{"begin isolation level serializable", one("f:1:1: BEGIN:")},
		{"START TRANSACTION", one("f:1:1: START TRANSACTION:")},
		{"SELECT 1;\n  COMMIT;", one("f:2:3: COMMIT:")},
		{"COMMIT PREPARED 'a'", one("f:1:1: COMMIT:")},
		{"END", one("f:1:1: END:")},
		{"ROLLBACK TO a", one("f:1:1: ROLLBACK:")},
		{"ROLLBACK PREPARED 'a'", one("f:1:1: ROLLBACK:")},
		{"ABORT", one("f:1:1: ABORT:")},
		{"SAVEPOINT a", one("f:1:1: SAVEPOINT:")},
		{"RELEASE a", one("f:1:1: RELEASE:")},
		{"PREPARE TRANSACTION 'a'", one("f:1:1: PREPARE TRANSACTION:")},
		{"SET TRANSACTION READ ONLY", one("f:1:1: SET TRANSACTION:")},
		{"SET LOCAL TRANSACTION READ ONLY", one("f:1:1: SET LOCAL TRANSACTION:")},
		{"SET SESSION CHARACTERISTICS AS TRANSACTION READ ONLY", one("f:1:1: SET SESSION CHARACTERISTICS:")},
		{"SET LOCAL transaction_read_only = on", one("f:1:1: SET of transaction_read_only: the engine owns")},
		{"SET CONSTRAINTS ALL DEFERRED", nil},

		{"SET ROLE a", one("f:1:1: SET of role: a step runs as the role")},
		{"SET LOCAL role = 'a'", one("f:1:1: SET of role")},
		{"RESET ROLE", one("f:1:1: RESET")},
		{"SET SESSION AUTHORIZATION a", one("f:1:1: SET of session_authorization")},
		{"SET LOCAL SESSION AUTHORIZATION a", one("f:1:1: SET of session_authorization")},
		{"SET SESSION SESSION AUTHORIZATION a", one("f:1:1: SET of session_authorization")},
		{"RESET SESSION AUTHORIZATION", one("f:1:1: RESET")},
		{"SET search_path = a, b", one("f:1:1: SET of search_path: a step runs in the scope of its tenant")},
		{`SET LOCAL "Search_Path" TO a`, one("f:1:1: SET of search_path")},
		{"SET SESSION search_path TO a", one("f:1:1: SET of search_path")},
		{"SET SCHEMA 'a'", one("f:1:1: SET of search_path")},
		{"SET LOCAL SCHEMA 'a'", one("f:1:1: SET of search_path")},
		{"RESET search_path", one("f:1:1: RESET")},
		{"RESET ALL", one("f:1:1: RESET")},
		{"SET NAMES 'latin1'", one("f:1:1: SET of client_encoding")},
		{"SET LOCAL standard_conforming_strings = off", one("f:1:1: SET of standard_conforming_strings")},
		{"SELECT pg_catalog.set_config('search_path', 'a', true)", one("f:1:30: set_config of search_path")},
		{"SELECT set_config ( $$Role$$, 'a', true)", one("f:1:21: set_config of role")},
		{"SELECT set_config(E'session_authorization', 'a', true)", one("f:1:19: set_config of session_authorization")},
		{"SELECT set_config('app.tenant', 'search_path', true)", nil},
		{"SET statement_timeout = 0", one("f:1:1: SET stays behind on a connection that other tenants share; use SET LOCAL")},
		{"SET SESSION statement_timeout = 0", one("f:1:1: SET stays behind")},
		{"SET TIME ZONE 'UTC'", one("f:1:1: SET stays behind")},
		{"SET LOCAL lock_timeout = '5s'", nil},
		{"SET LOCAL TIME ZONE 'UTC'", nil},
		{"SHOW search_path", nil},
		{"ALTER FUNCTION f() SET search_path = a", nil},
		{"DISCARD ALL", one("f:1:1: DISCARD changes the session")},
		{"LISTEN a", one("f:1:1: LISTEN")},
		{"UNLISTEN *", one("f:1:1: UNLISTEN")},
		{"NOTIFY a, 'b'", nil},
		{"PREPARE a AS SELECT 1", one("f:1:1: PREPARE changes the session")},
		{"DEALLOCATE ALL", one("f:1:1: DEALLOCATE")},
		{"LOAD 'auto_explain'", one("f:1:1: LOAD")},

		{"\\i other.sql\nSELECT 1;\nCOMMIT", []string{`f:1:1: \i is a command of psql: make the other file a step`, "f:3:1: COMMIT"}},
		{"SELECT 1 \\gexec\nCOMMIT", []string{`f:1:10: \gexec is a command of psql: build`, "f:2:1: COMMIT"}},
		{"\\connect db\n\\copy a from b\n\\restrict x", []string{`f:1:1: \connect is`, `f:2:1: \copy is`, `f:3:1: \restrict is a command of psql: only the client`}},
		{"\\c;COMMIT", []string{`f:1:1: \c is`}},
		{"SELECT 'a\\b'", nil},
		{"COPY a (b) FROM stdin;\n1\tit's\n2\t\\N\n\\.\nCOMMIT;", []string{"f:1:1: COPY from or to the client", "f:5:1: COMMIT"}},
		{"COPY a FROM STDIN;\n\\.\n", one("f:1:1: COPY")},
		{"COPY (SELECT 1) TO STDOUT WITH CSV", one("f:1:1: COPY")},
		{"COPY a TO PROGRAM 'cat'", nil},
		{"SELECT stdin FROM stdin", nil},

		{"SELECT * FROM belay.plan", one("f:1:15: the schema belay holds")},
		{"SELECT * FROM \"belay\" . plan, Belay.lock", []string{"f:1:15: the schema belay", "f:1:31: the schema belay"}},
		{"DROP SCHEMA a, belay CASCADE", one("f:1:16: the schema belay")},
		{"CREATE SCHEMA IF NOT EXISTS belay", one("f:1:29: the schema belay")},
		{"DROP SCHEMA IF EXISTS belay", one("f:1:23: the schema belay")},
		{"ALTER TABLE a SET SCHEMA belay", one("f:1:26: the schema belay")},
		{"GRANT USAGE ON SCHEMA app TO belay", nil},
		{"GRANT USAGE ON SCHEMA app, belay TO a", one("f:1:28: the schema belay")},
		{"GRANT SELECT ON ALL TABLES IN SCHEMA app TO a, belay", nil},
		{"CREATE SCHEMA app AUTHORIZATION belay", nil},
		{`SELECT "Belay".a FROM "Belay"`, nil},
		{"SELECT 'belay.plan', belay, belayed.a -- belay.plan", nil},

		{"CREATE DATABASE a", one("f:1:1: CREATE DATABASE cannot run in a transaction")},
		{"DROP DATABASE a", one("f:1:1: DROP DATABASE cannot")},
		{"ALTER DATABASE a SET TABLESPACE b", one("f:1:1: ALTER DATABASE cannot")},
		{"ALTER DATABASE a OWNER TO b", nil},
		{"CREATE TABLESPACE a LOCATION '/a'", one("f:1:1: CREATE TABLESPACE cannot")},
		{"DROP TABLESPACE a", one("f:1:1: DROP TABLESPACE cannot")},
		{"ALTER TABLESPACE a RENAME TO b", nil},
		{"ALTER SYSTEM SET a = 1", one("f:1:1: ALTER SYSTEM cannot")},
		{"CREATE UNIQUE INDEX CONCURRENTLY a ON b (c)", one("f:1:1: CREATE … CONCURRENTLY cannot")},
		{"DROP INDEX CONCURRENTLY a", one("f:1:1: DROP … CONCURRENTLY cannot")},
		{"REINDEX INDEX CONCURRENTLY a", one("f:1:1: REINDEX … CONCURRENTLY cannot")},
		{"REINDEX (VERBOSE, CONCURRENTLY) TABLE a", one("f:1:1: REINDEX … CONCURRENTLY cannot")},
		{"REINDEX DATABASE a", one("f:1:1: REINDEX DATABASE cannot")},
		{"REINDEX (VERBOSE) SCHEMA a", one("f:1:1: REINDEX SCHEMA cannot")},
		{"REINDEX TABLE a", nil},
		{"ALTER TABLE a DETACH PARTITION b CONCURRENTLY", one("f:1:1: ALTER … CONCURRENTLY cannot")},
		{"REFRESH MATERIALIZED VIEW CONCURRENTLY a", nil},
		{"VACUUM (ANALYZE) a", one("f:1:1: VACUUM cannot")},
		{"CLUSTER", one("f:1:1: CLUSTER of all tables cannot")},
		{"CLUSTER VERBOSE", one("f:1:1: CLUSTER of all tables cannot")},
		{"CLUSTER (VERBOSE)", one("f:1:1: CLUSTER of all tables cannot")},
		{"CLUSTER VERBOSE a USING b", nil},
		{"CLUSTER (", nil},
		{"ANALYZE", nil},
		{"ALTER TYPE a ADD VALUE 'b'", nil},
		{"()", nil},
		{"(", one("f:1:1: this is not a statement")},
	}.check(t, tenant.Postgres)
}

// G8
func TestWhatASQLiteScriptMayNotDo(t *testing.T) {
	t.Parallel()
	one := func(s string) []string { return []string{s} }
	refusals{
		{"BEGIN IMMEDIATE", one("f:1:1: BEGIN: the engine owns the transaction")},
		{"commit", one("f:1:1: COMMIT:")},
		{"END TRANSACTION", one("f:1:1: END:")},
		{"ROLLBACK", one("f:1:1: ROLLBACK:")},
		{"SAVEPOINT a", one("f:1:1: SAVEPOINT:")},
		{"RELEASE a", one("f:1:1: RELEASE:")},
		{"ATTACH 'a' AS b", one("f:1:1: ATTACH: a step works in the one file")},
		{"DETACH b", one("f:1:1: DETACH:")},
		{"VACUUM INTO 'a'", one("f:1:1: VACUUM cannot run in a transaction")},
		{"PRAGMA foreign_keys = OFF", one("f:1:1: PRAGMA foreign_keys:")},
		{"PRAGMA main.journal_mode(delete)", one("f:1:1: PRAGMA journal_mode:")},
		{`PRAGMA "writable_schema" = 1`, one("f:1:1: PRAGMA writable_schema:")},
		{"PRAGMA", one("f:1:1: PRAGMA ")},
		{"PRAGMA main.table_info(a); PRAGMA index_list = b; PRAGMA Table_XInfo(a); PRAGMA foreign_key_list(a)", nil},
		{"SELECT * FROM belay_plan", one("f:1:15: names that begin with belay_")},
		{"DROP TABLE main.[Belay_plan]", one("f:1:17: names that begin with belay_")},
		{"UPDATE `belay_lock` SET a = 1", one("f:1:8: names that begin with belay_")},
		{`SELECT 'belay_plan', belay, "belayed_" -- belay_plan`, nil},
		{
			"CREATE TRIGGER a AFTER INSERT ON b BEGIN DELETE FROM belay_plan; END; COMMIT",
			[]string{"f:1:54: names that begin with belay_", "f:1:71: COMMIT"},
		},
		{"UPDATE sqlite_schema SET sql = ''", one("f:1:1: UPDATE of sqlite_schema: use CREATE")},
		{`UPDATE OR IGNORE main."sqlite_master" SET sql = ''`, one("f:1:1: UPDATE of sqlite_master")},
		{"INSERT OR REPLACE INTO temp.sqlite_temp_master VALUES (1)", one("f:1:1: INSERT of sqlite_temp_master")},
		{"DELETE FROM sqlite_schema", one("f:1:1: DELETE of sqlite_schema")},
		{"DELETE FROM sqlite_sequence WHERE name = 'a'", nil},
		{"SELECT sql FROM sqlite_schema", nil},
		{"INSERT OR ROLLBACK INTO a VALUES (1)", one("f:1:11: OR ROLLBACK would end")},
		{"UPDATE OR ROLLBACK a SET b = 1", one("f:1:11: OR ROLLBACK would end")},
		{"INSERT OR ABORT INTO a VALUES (1)", nil},
		{"SELECT 1;\n \\copy a from b\nCOMMIT", []string{`f:2:2: \copy is a command of psql`, "f:3:1: COMMIT"}},
		{".read a.sql\nSELECT 1;\n.mode csv\nCOMMIT;", []string{
			"f:1:1: .read is a command of the sqlite3 shell: make the other file",
			"f:3:1: .mode is a command of the sqlite3 shell: only the client", "f:4:1: COMMIT",
		}},
		{"CREATE TABLE a (b); DROP TABLE a; REINDEX; ANALYZE", nil},
	}.check(t, tenant.SQLite)
}
