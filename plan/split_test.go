package plan

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/belayhq/belay/tenant"
)

// shape writes statements as "line: first words … [rows]".
func shape(statements []Statement) []string {
	var out []string
	for _, s := range statements {
		words := strings.Fields(s.SQL)
		line := fmt.Sprintf("%d: %s", s.Line, strings.Join(words[:min(4, len(words))], " "))
		if s.RowsOnly {
			line += " [rows]"
		}
		out = append(out, line)
	}
	return out
}

func TestARealPostgresScriptIsCutAtItsStatements(t *testing.T) {
	t.Parallel()
	statements := mustSplit(t, tenant.Postgres, readFile(t, "testdata/realistic.postgres.sql"))
	want := []string{
		"3: CREATE TABLE customer_order (",
		"10: CREATE OR REPLACE FUNCTION",
		"22: CREATE TRIGGER order_touched BEFORE",
		"24: DO $$ BEGIN IF",
		"32: CREATE FUNCTION order_label(n integer)",
		"38: CREATE PROCEDURE sweep() BEGIN",
		"40: CREATE RULE keep AS",
		"42: INSERT INTO customer_order (note, [rows]",
		"45: SELECT $1::text, a$b$c, 1.5e3 [rows]",
	}
	if got := shape(statements); !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	for _, s := range statements {
		if s.SQL != strings.TrimSpace(s.SQL) || strings.HasSuffix(s.SQL, ";") || s.File != "file.sql" {
			t.Errorf("statement %q of %s is not trimmed", s.SQL, s.File)
		}
	}
	if last := statements[len(statements)-1].SQL; !strings.HasSuffix(last, "customer_order") {
		t.Errorf("the last statement ends in %q", last)
	}
}

func TestARealSQLiteScriptIsCutAtItsStatements(t *testing.T) {
	t.Parallel()
	statements := mustSplit(t, tenant.SQLite, readFile(t, "testdata/realistic.sqlite.sql"))
	want := []string{
		"2: CREATE TABLE [odd;table] (`a;b`",
		"4: CREATE TRIGGER product_ai AFTER",
		"9: create temp trigger second_trigger",
		"14: REPLACE INTO log(what) VALUES [rows]",
		"15: CREATE INDEX i ON",
	}
	if got := shape(statements); !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	if end := statements[2].SQL; !strings.HasSuffix(end, "end") {
		t.Errorf("the trigger ends in %q", end)
	}
}

func TestWhereStatementsEnd(t *testing.T) {
	t.Parallel()
	const both = tenant.Dialect("")
	for _, tc := range []struct {
		dialect tenant.Dialect
		text    string
		want    []string
	}{
		{both, "", nil},
		{both, " \n\t-- only a comment", nil},
		{both, ";;/* a */;--b\n;", nil},
		{both, "SELECT 1", []string{"SELECT 1"}},
		{both, "SELECT 1;SELECT 2;", []string{"SELECT 1", "SELECT 2"}},
		{both, "SELECT ';' ; SELECT ''';'", []string{"SELECT ';'", "SELECT ''';'"}},
		{both, `SELECT ";" ; SELECT """;"`, []string{`SELECT ";"`, `SELECT """;"`}},
		{both, "SELECT 1 -- ;\n+ 1; SELECT 2 /* ; */ + 1", []string{"SELECT 1 -- ;\n+ 1", "SELECT 2 /* ; */ + 1"}},
		{both, `SELECT '\'; SELECT 2`, []string{`SELECT '\'`, "SELECT 2"}},
		{both, "SELECT é;SELECT 'ü;'", []string{"SELECT é", "SELECT 'ü;'"}},
		{both, "SELECT a-1--;\n;", []string{"SELECT a-1"}},
		{both, "SELECT a/b*/* ; */c;", []string{"SELECT a/b*/* ; */c"}},
		{both, "SELECT 'a'\n';b';", []string{"SELECT 'a'\n';b'"}},
		{both, "SELECT CASE a WHEN 1 THEN 2 END; SELECT 1", []string{"SELECT CASE a WHEN 1 THEN 2 END", "SELECT 1"}},

		{tenant.Postgres, `SELECT E'\';'; SELECT e'\\'; SELECT 1`, []string{`SELECT E'\';'`, `SELECT e'\\'`, "SELECT 1"}},
		{tenant.Postgres, "SELECT E'a'\n  '\\';'; SELECT 1", []string{"SELECT E'a'\n  '\\';'", "SELECT 1"}},
		{tenant.Postgres, "SELECT E'a' -- ;\n '\\';'; SELECT 1", []string{"SELECT E'a' -- ;\n '\\';'", "SELECT 1"}},
		{tenant.Postgres, `SELECT E'a' '\'; SELECT 1`, []string{`SELECT E'a' '\'`, "SELECT 1"}},
		{tenant.Postgres, "SELECT E'it''s;'; SELECT 1", []string{"SELECT E'it''s;'", "SELECT 1"}},
		{tenant.Postgres, `SELECT type'\'; SELECT 1`, []string{`SELECT type'\'`, "SELECT 1"}},
		{tenant.Postgres, `SELECT U&'\0041;' UESCAPE '!'; SELECT U&"d\;"`, []string{`SELECT U&'\0041;' UESCAPE '!'`, `SELECT U&"d\;"`}},
		{tenant.Postgres, "SELECT $$;$$;SELECT $a$;$$;$b$;$a$", []string{"SELECT $$;$$", "SELECT $a$;$$;$b$;$a$"}},
		{tenant.Postgres, "SELECT $é1$;$é1$;SELECT 1", []string{"SELECT $é1$;$é1$", "SELECT 1"}},
		{tenant.Postgres, "SELECT a$$;SELECT $1;SELECT $2$", []string{"SELECT a$$", "SELECT $1", "SELECT $2$"}},
		{tenant.Postgres, "SELECT 1$a$;$a$;SELECT 2", []string{"SELECT 1$a$;$a$", "SELECT 2"}},
		{tenant.Postgres, "/* a /* ; */ ; */SELECT 1", []string{"SELECT 1"}},
		{tenant.Postgres, "SELECT '[';SELECT a[1];", []string{"SELECT '['", "SELECT a[1]"}},
		{tenant.Postgres, "SELECT (1; SELECT 2", []string{"SELECT (1", "SELECT 2"}},
		{
			tenant.Postgres, "CREATE FUNCTION f() RETURNS int RETURN CASE WHEN true THEN 1 END; SELECT 1",
			[]string{"CREATE FUNCTION f() RETURNS int RETURN CASE WHEN true THEN 1 END", "SELECT 1"},
		},
		{tenant.Postgres, "CREATE TABLE f (a int); SELECT 1", []string{"CREATE TABLE f (a int)", "SELECT 1"}},
		{
			tenant.Postgres, "create function f() returns int begin atomic; select 1; end; select 2",
			[]string{"create function f() returns int begin atomic; select 1; end", "select 2"},
		},

		{tenant.SQLite, "SELECT `;``;`; SELECT [;'\"]; SELECT 1", []string{"SELECT `;``;`", "SELECT [;'\"]", "SELECT 1"}},
		{tenant.SQLite, "/* a /* ; */ SELECT 1", []string{"SELECT 1"}},
		{tenant.SQLite, "SELECT $a, $$;SELECT :b, @c, ?1", []string{"SELECT $a, $$", "SELECT :b, @c, ?1"}},
		{tenant.SQLite, `SELECT E'\'; SELECT 1`, []string{`SELECT E'\'`, "SELECT 1"}},
		{tenant.SQLite, "CREATE TRIGGER t AFTER INSERT ON a BEGIN SELECT 1; END", []string{"CREATE TRIGGER t AFTER INSERT ON a BEGIN SELECT 1; END"}},
		{tenant.SQLite, "CREATE TABLE trigger_log (a); SELECT 1", []string{"CREATE TABLE trigger_log (a)", "SELECT 1"}},
	} {
		dialects := []tenant.Dialect{tc.dialect}
		if tc.dialect == both {
			dialects = []tenant.Dialect{tenant.Postgres, tenant.SQLite}
		}
		for _, d := range dialects {
			var got []string
			for _, s := range mustSplit(t, d, tc.text) {
				got = append(got, s.SQL)
			}
			if !slices.Equal(got, tc.want) {
				t.Errorf("%s: %q\n got %q\nwant %q", d, tc.text, got, tc.want)
			}
		}
	}
}

func TestWhatNeverEndsIsReportedWhereItOpened(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		dialect tenant.Dialect
		text    string
		want    string
	}{
		{tenant.Postgres, "SELECT 1;\n  SELECT 'a;\n", "file.sql:2:10: this string never ends"},
		{tenant.Postgres, "SELECT 'ü', \"a", "file.sql:1:13: this quoted name never ends"},
		{tenant.Postgres, "SELECT E'\\'", "file.sql:1:8: this string never ends"},
		{tenant.Postgres, "SELECT E'\\", "file.sql:1:8: this string never ends"},
		{tenant.Postgres, "\n$x$ $$ $X$", "file.sql:2:1: this string never ends; $x$ is missing"},
		{tenant.Postgres, "SELECT /* a /* b */ 1", "file.sql:1:8: this comment never ends; */ is missing"},
		{tenant.Postgres, "\nCREATE FUNCTION f() BEGIN ATOMIC SELECT 1;", "file.sql:2:1: the BEGIN ATOMIC of this statement has no END"},
		{tenant.Postgres, "CREATE OR REPLACE RULE r AS ON INSERT TO a DO (SELECT 1;", "file.sql:1:1: a parenthesis of this rule is never closed"},
		{tenant.SQLite, "SELECT 'a''", "file.sql:1:8: this string never ends"},
		{tenant.SQLite, "SELECT `a", "file.sql:1:8: this quoted name never ends"},
		{tenant.SQLite, "SELECT [a", "file.sql:1:8: this quoted name never ends; ] is missing"},
		{tenant.SQLite, "SELECT 1 /*", "file.sql:1:10: this comment never ends; */ is missing"},
		{tenant.SQLite, " CREATE TRIGGER t AFTER INSERT ON a BEGIN SELECT 1 END; SELECT 2;", "file.sql:1:2: this trigger has no END after the last semicolon of its body"},
	} {
		_, err := Split(tc.dialect, Source{File: "file.sql", Text: tc.text})
		if err == nil || err.Error() != tc.want {
			t.Errorf("%s: %q\n got %v\nwant %s", tc.dialect, tc.text, err, tc.want)
		}
	}
}

func TestWhichStatementsOnlyTouchRows(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		text             string
		postgres, sqlite bool
	}{
		{"SELECT 1", true, true},
		{"((SELECT 1) UNION (SELECT 2))", true, true},
		{"VALUES (1)", true, true},
		{"TABLE t", true, false},
		{"insert into t select 1", true, true},
		{"INSERT OR REPLACE INTO t VALUES (1)", true, true},
		{"UPDATE t SET a = 1", true, true},
		{"DELETE FROM t", true, true},
		{"MERGE INTO t USING s ON true WHEN MATCHED THEN DELETE", true, false},
		{"REPLACE INTO t VALUES (1)", false, true},
		{"SELECT a INTO b FROM c", false, true},
		{"SELECT 'x' AS a, 1 INTO TEMP b", false, true},
		{"WITH x AS (SELECT 1) SELECT * FROM x", true, true},
		{"WITH x AS (INSERT INTO t VALUES (1) RETURNING *) DELETE FROM u USING x", true, true},
		{"WITH x AS (SELECT 1) SELECT * INTO t FROM x", false, true},
		{"WITH x AS (MERGE INTO t USING s ON true WHEN MATCHED THEN DELETE RETURNING 1) TABLE x", true, true},
		{"CREATE TABLE t AS SELECT 1", false, false},
		{"EXPLAIN SELECT 1", false, false},
		{"ALTER TABLE t ADD a int", false, false},
		{"DROP TABLE t", false, false},
		{"TRUNCATE t", false, false},
		{"DO $$BEGIN END$$", false, false},
		{"CALL f()", false, false},
		{"LOCK TABLE t", false, false},
		{"COPY t TO '/tmp/x'", false, false},
		{`"SELECT" 1`, false, false},
	} {
		for d, want := range map[tenant.Dialect]bool{tenant.Postgres: tc.postgres, tenant.SQLite: tc.sqlite} {
			s := mustSplit(t, d, tc.text)
			if len(s) != 1 || s[0].RowsOnly != want {
				t.Errorf("%s: %s: %+v, want RowsOnly %v", d, tc.text, s, want)
			}
		}
	}
}

func mustSplit(t *testing.T, d tenant.Dialect, text string) []Statement {
	t.Helper()
	statements, err := Split(d, Source{File: "file.sql", Text: text})
	if err != nil {
		t.Fatalf("%s: %q: %v", d, text, err)
	}
	return statements
}

func readFile(t *testing.T, name string) string {
	t.Helper()
	data, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// FuzzSplit checks that nothing but comments, white space and semicolons lies between statements, and that each
// statement splits into itself.
func FuzzSplit(f *testing.F) {
	for _, name := range []string{"testdata/realistic.postgres.sql", "testdata/realistic.sqlite.sql"} {
		data, err := os.ReadFile(name)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(string(data))
	}
	for _, text := range []string{
		"SELECT E'\\'' '\n'';", "a$b$;$$;$$", "CREATE RULE r (;);;", "\\i x\nSELECT 1;", "SET ROLE a; COMMIT", "((;))", ".a\n;",
		"COPY t FROM STDIN;\n1\n\\.\nSELECT 1", "CREATE TRIGGER a ; END ; x", "CREATE FUNCTION a BEGIN ATOMIC CASE END ; END ; a",
		"PRAGMA a.table_info", "SCHEMA belay,", "set_config('role',$a$role$a$)", "REINDEX (CLUSTER (VERBOSE", "CLUSTER (", "SET LOCAL", "U&\"a\"",
	} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		for _, d := range []tenant.Dialect{tenant.Postgres, tenant.SQLite} {
			checkSplit(t, d, text)
		}
	})
}

func checkSplit(t *testing.T, d tenant.Dialect, text string) {
	t.Helper()
	statements, err := Split(d, Source{File: "file.sql", Text: text})
	if err != nil {
		if invalid, ok := errors.AsType[*InvalidError](err); !ok || len(invalid.Problems) == 0 || statements != nil {
			t.Fatalf("%s: %q: error %T with statements %v", d, text, err, statements)
		}
		return
	}
	rest := skipBetween(d, text)
	for _, s := range statements {
		if !strings.HasPrefix(rest, s.SQL) {
			t.Fatalf("%s: %q: statement %q does not follow", d, text, s.SQL)
		}
		if line := 1 + strings.Count(text[:len(text)-len(rest)], "\n"); line != s.Line {
			t.Fatalf("%s: %q: statement %q is on line %d, not %d", d, text, s.SQL, line, s.Line)
		}
		rest = skipBetween(d, rest[len(s.SQL):])
		again, err := Split(d, Source{Text: s.SQL})
		if err != nil || len(again) != 1 || again[0].SQL != s.SQL || again[0].RowsOnly != s.RowsOnly {
			t.Fatalf("%s: %q: statement %q splits into %+v, %v", d, text, s.SQL, again, err)
		}
	}
	if rest != "" {
		t.Fatalf("%s: %q: %q is lost", d, text, rest)
	}
}

// skipBetween returns a text without the white space, semicolons and comments it begins with. It is written without
// the lexer, so that the two check each other.
func skipBetween(d tenant.Dialect, text string) string {
	for text != "" {
		switch {
		case strings.ContainsAny(text[:1], " \n\t\r\f\v;"):
			text = text[1:]
		case strings.HasPrefix(text, "--"):
			_, text, _ = strings.Cut(text, "\n")
		case strings.HasPrefix(text, "/*"):
			rest, ok := afterComment(d, text)
			if !ok {
				return text
			}
			text = rest
		default:
			return text
		}
	}
	return text
}

func afterComment(d tenant.Dialect, text string) (string, bool) {
	inner := text[2:]
	for {
		end := strings.Index(inner, "*/")
		if end < 0 {
			return "", false
		}
		open := strings.Index(inner, "/*")
		if d == tenant.Postgres && open >= 0 && open < end {
			rest, ok := afterComment(d, inner[open:])
			if !ok {
				return "", false
			}
			inner = rest
			continue
		}
		return inner[end+2:], true
	}
}

// TestAnyMixOfFragmentsSplitsIntoItself reaches what single random bytes seldom do.
func TestAnyMixOfFragmentsSplitsIntoItself(t *testing.T) {
	t.Parallel()
	fragments := strings.Fields(`' '' " "" E' e'a' \' \\ $$ $a$ $1 a$ -- /* */ ( ) [ ] ; ; ; . , : :: = ü 1 1.5e3 x'00' U&' U&" a b case end begin
		atomic create or replace function procedure rule trigger temp as select insert into with update delete from merge set local role
		session authorization search_path schema belay belay_ copy stdin \. \i .read cluster verbose reindex concurrently pragma table_info`)
	fragments = append(fragments, "\n", "\n", "\t", "\"a;b\"", "'a;b'", "create function f() begin atomic", "create trigger t begin",
		"; end ;", "create rule r as (", "`", "`a;b`", "[a;b]", "$$;$$")
	random := rand.New(rand.NewPCG(1, 2))
	split := 0
	for range 20_000 {
		var text strings.Builder
		for range 1 + random.IntN(14) {
			text.WriteString(fragments[random.IntN(len(fragments))])
			if random.IntN(3) > 0 {
				text.WriteByte(' ')
			}
		}
		for _, d := range []tenant.Dialect{tenant.Postgres, tenant.SQLite} {
			checkSplit(t, d, text.String())
			if statements, _ := Split(d, Source{Text: text.String()}); len(statements) > 1 {
				split++
			}
		}
	}
	if split < 1000 {
		t.Errorf("only %d mixes held more than one statement", split)
	}
}
