package main

import (
	"errors"
	"io"
	"net"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgproto3"
)

const (
	canaryRow      = "c4nary-in-a-row"
	canaryPassword = "c4nary-p4ssword"
)

// leaks is a change whose first step leaves a canary in a row and whose second one fails on it.
func (w *world) leaks(up, verify string) string {
	w.t.Helper()
	if verify != "" {
		verify = "    verify: { query: " + verify + " }\n"
	}
	return w.change("0001-leak", map[string]string{
		"change.yaml": `version: 1
id: 0001-leak
checkpoint: step
steps:
  - id: table
    sql: { up: table.sql, down: drop.sql }
  - id: leak
    sql: { up: leak.sql }
    undo: { none: it never gets that far }
` + verify,
		"table.sql": "CREATE TABLE secret (v text PRIMARY KEY, n integer, CHECK (length(v) < 20));\nINSERT INTO secret VALUES ('" + canaryRow + "', 1);\n",
		"drop.sql":  "DROP TABLE secret;\n",
		"leak.sql":  up,
	})
}

// silent runs a failing apply in every form, with the exit code it has, then what tells of it afterwards, and demands that no canary appears.
func (w *world) silent(code int, path string) {
	w.t.Helper()
	check := func(r result) {
		w.t.Helper()
		lacks(w.t, r.stdout+r.stderr, canaryRow, canaryPassword)
	}
	for _, format := range []format{formatTable, formatJSON, formatLines} {
		check(w.want(code, "apply", path, "--all", "-y", "--log-level", "trace", "--lock-timeout", "0", "--retry", "-o", string(format)))
		for _, command := range []string{"status -v", "history", "lock list -v", "db status --all", "tenant list"} {
			check(w.run(append(strings.Fields(command), "--log-level", "trace", "-o", string(format))...))
		}
	}
}

func TestNoRowIsShownWhenAStepFails(t *testing.T) {
	t.Parallel()
	const copied = "INSERT INTO secret SELECT v, 2 FROM secret;\n"
	for name, c := range map[string]struct{ up, verify string }{
		"a unique constraint":  {up: copied},
		"a check":              {up: "UPDATE secret SET v = v || v;\n"},
		"a row that is quoted": {up: "INSERT INTO secret VALUES ('" + canaryRow + "', 3);\n"},
		"a verify that says no": {
			up:     "UPDATE secret SET n = 2;\n",
			verify: `"SELECT v FROM secret", expect: other`,
		},
		"a verify that cannot run": {
			up:     "UPDATE secret SET n = 2;\n",
			verify: `"SELECT abs(-9223372036854775807 - length(v)) FROM secret", expect: 1`,
		},
	} {
		t.Run(name+" on SQLite", func(t *testing.T) {
			t.Parallel()
			w := fleet(t, "acme")
			w.silent(exitPerson, w.leaks(c.up, c.verify))
		})
		t.Run(name+" on PostgreSQL", func(t *testing.T) {
			t.Parallel()
			w := schemas(t, "acme")
			w.silent(exitPerson, w.leaks(c.up, c.verify))
		})
	}
	for name, up := range map[string]string{
		"a trigger that raises":   "CREATE TRIGGER t BEFORE UPDATE ON secret BEGIN SELECT RAISE(ABORT, NEW.v); END;\nUPDATE secret SET n = 2;\n",
		"a path into JSON":        "UPDATE secret SET n = json_extract('{}', v);\n",
		"a value that is no JSON": "UPDATE secret SET n = json_extract(v, '$.a');\n",
		"a strict table":          "CREATE TABLE strict (n integer) STRICT;\nINSERT INTO strict SELECT v FROM secret;\n",
	} {
		t.Run(name+" on SQLite", func(t *testing.T) {
			t.Parallel()
			w := fleet(t, "acme")
			w.silent(exitPerson, w.leaks(up, ""))
		})
	}
	for name, up := range map[string]string{
		"a cast":          "UPDATE secret SET n = v::integer;\n",
		"a raise":         "DO $$ BEGIN RAISE EXCEPTION 'found %', (SELECT v FROM secret); END $$;\n",
		"a raise as code": "DO $$ BEGIN RAISE EXCEPTION 'found %', (SELECT v FROM secret) USING ERRCODE = '23505', DETAIL = 'c4nary-in-a-row'; END $$;\n",
		"a notice":        "DO $$ BEGIN RAISE WARNING 'found %', (SELECT v FROM secret); END $$;\nSELECT 1 / 0;\n",
		"not null":        "ALTER TABLE secret ADD COLUMN m integer;\nALTER TABLE secret ALTER COLUMN m SET NOT NULL;\n",
		"a new type":      "ALTER TABLE secret ALTER COLUMN v TYPE integer USING v::integer;\n",
	} {
		t.Run(name+" on PostgreSQL", func(t *testing.T) {
			t.Parallel()
			w := schemas(t, "acme")
			w.silent(exitPerson, w.leaks(up, ""))
		})
	}
}

// wrongPassword is a PostgreSQL server that asks for a password in clear and refuses every one.
func wrongPassword(t *testing.T) string {
	t.Helper()
	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan struct{})
	go func() {
		defer close(served)
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			if err := refusePassword(conn); err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
				t.Errorf("fake server: %v", err)
			}
			conn.Close()
		}
	}()
	t.Cleanup(func() { listener.Close(); <-served })
	return listener.Addr().String()
}

func refusePassword(conn net.Conn) error {
	server := pgproto3.NewBackend(conn, conn)
	if _, err := server.ReceiveStartupMessage(); err != nil {
		return err
	}
	server.Send(&pgproto3.AuthenticationCleartextPassword{})
	if err := server.Flush(); err != nil {
		return err
	}
	if err := server.SetAuthType(pgproto3.AuthTypeCleartextPassword); err != nil {
		return err
	}
	message, err := server.Receive()
	if err != nil {
		return err
	}
	password, ok := message.(*pgproto3.PasswordMessage)
	if !ok || password.Password != canaryPassword {
		return errors.New("no password came")
	}
	server.Send(&pgproto3.ErrorResponse{
		Severity: "FATAL", SeverityUnlocalized: "FATAL", Code: "28P01", Message: `password authentication failed for user "app"`,
		Detail: "the password was " + password.Password,
	})
	return server.Flush()
}

func TestNoPasswordIsShownWhenAServerRefusesOrIsAway(t *testing.T) {
	t.Setenv("PGPASSWORD", canaryPassword)
	t.Setenv("BELAY_TEST_CANARY", canaryPassword)
	refusing := wrongPassword(t)
	for name, target := range map[string]string{
		"refused, from PGPASSWORD":      "postgres://app@" + refusing + "/x?sslmode=disable",
		"refused, from a variable":      "postgres://app@" + refusing + "/x?sslmode=disable&password_env=BELAY_TEST_CANARY",
		"unreachable, from PGPASSWORD":  "postgres://app@127.0.0.1:1/x?sslmode=disable",
		"unreachable, from a variable":  "postgres://app@127.0.0.1:1/x?sslmode=disable&password_env=BELAY_TEST_CANARY",
		"a host that is no host's name": "postgres://app@host.invalid/x?sslmode=disable",
	} {
		t.Run(name, func(t *testing.T) {
			w := fleet(t)
			r := w.run("tenant", "add", "acme", target, "--log-level", "trace")
			if r.code != exitError {
				t.Errorf("exit code %d", r.code)
			}
			contains(t, r.stderr, "error: tenant acme: ")
			lacks(t, r.stdout+r.stderr, canaryPassword)
			w.register("acme", target)
			w.silent(exitFailed, w.customers("stop"))
			r = w.want(exitError, "status", "--database-url", target, "--log-level", "trace")
			lacks(t, r.stdout+r.stderr, canaryPassword)
		})
	}
	w := newWorld(t)
	for _, url := range []string{"postgres://app:" + canaryPassword + "@db/x", "postgres://db/x?password=" + canaryPassword, canaryPassword + "://x"} {
		for _, args := range [][]string{{"tenant", "add", "acme", url}, {"status", "--database-url", url}, {"init", "--database-url", url}} {
			r := w.want(exitUsage, args...)
			lacks(t, r.stdout+r.stderr, canaryPassword)
		}
	}
}
