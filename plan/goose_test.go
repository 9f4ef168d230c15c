package plan

import (
	"errors"
	"strings"
	"testing"

	"github.com/belayhq/belay/tenant"
)

const gooseUsers = `-- Users, and who they are.
-- +goose Up
CREATE TABLE users (id integer PRIMARY KEY, name text); -- one; line
-- +goose StatementBegin
CREATE FUNCTION hello() RETURNS text AS $$
BEGIN
  RETURN 'hello; you';
END;
$$ LANGUAGE plpgsql;
-- +goose StatementEnd
INSERT INTO users VALUES (1, '--
+goose Down');

-- +goose Down
DROP FUNCTION hello();
DROP TABLE users;
`

// gooseChange loads a change with one step that is a goose migration.
func gooseChange(t *testing.T, more string, files map[string]string) (*Change, error) {
	t.Helper()
	files["change.yaml"] = "version: 1\nid: history\nsteps:\n  - id: users\n    sql: { goose: 1_users.sql }\n" + more
	return Load(write(t, files))
}

// places lists statements as "line: first word".
func places(statements []Statement) string {
	words := make([]string, len(statements))
	for i, s := range statements {
		verb, rest, _ := strings.Cut(s.SQL, " ")
		object, _, _ := strings.Cut(rest, " ")
		words[i] = string(rune('0'+s.Line/10)) + string(rune('0'+s.Line%10)) + ":" + verb + " " + object
	}
	return strings.Join(words, ", ")
}

func TestAGooseMigrationIsBothScriptsOfItsStep(t *testing.T) {
	t.Parallel()
	c, err := gooseChange(t, "", map[string]string{"1_users.sql": gooseUsers})
	if err != nil {
		t.Fatal(err)
	}
	p, err := c.Compile(tenant.Postgres)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := places(p.Steps[0].Up), "03:CREATE TABLE, 05:CREATE FUNCTION, 11:INSERT INTO"; got != want {
		t.Errorf("up %s, want %s", got, want)
	}
	if got, want := places(p.Steps[0].Down), "15:DROP FUNCTION, 16:DROP TABLE"; got != want {
		t.Errorf("down %s, want %s", got, want)
	}
	if sql := p.Steps[0].Up[2].SQL; sql != "INSERT INTO users VALUES (1, '--\n+goose Down')" {
		t.Errorf("the text was changed: %q", sql)
	}
}

func TestTheDigestOfAGooseStepCoversBothSectionsAndStaysInTheDatabasesForm(t *testing.T) {
	t.Parallel()
	digest := func(text string) Digest {
		c, err := gooseChange(t, "", map[string]string{"1_users.sql": text})
		if err != nil {
			t.Fatal(err)
		}
		again, err := DecodeChange(c.Encode())
		if err != nil || again.Digest() != c.Digest() {
			t.Errorf("it does not come back as it was: %v", err)
		}
		return c.Digest()
	}
	first := digest(gooseUsers)
	for _, edit := range []string{"text);", "DROP TABLE users"} {
		if digest(strings.Replace(gooseUsers, edit, strings.Replace(edit, "e", "e ", 1), 1)) == first {
			t.Errorf("an edit of %q has the same digest", edit)
		}
	}
	if digest(strings.ReplaceAll(gooseUsers, "\n", "\r\n")) != first {
		t.Error("line endings change the digest")
	}
}

func TestAGooseMigrationMayHaveAVariantForADatabase(t *testing.T) {
	t.Parallel()
	c, err := gooseChange(t, "", map[string]string{
		"1_users.sql":          "-- +goose NO TRANSACTION\n-- +goose Up\nCREATE INDEX CONCURRENTLY i ON a (b);\n-- +goose Down\nDROP INDEX i;\n",
		"1_users.postgres.sql": "-- +goose Up\nCREATE INDEX i ON a (b);\n-- +goose Down\nDROP INDEX i;\n",
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Compile(tenant.Postgres); err != nil {
		t.Error(err)
	}
	c, err = gooseChange(t, "", map[string]string{
		"1_users.sql": "-- +goose NO TRANSACTION\n-- +goose Up\nCREATE INDEX CONCURRENTLY i ON a (b);\n-- +goose Down\nDROP INDEX i;\n",
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Compile(tenant.Postgres); err == nil || !strings.Contains(err.Error(), "1_users.sql:3:1: ") {
		t.Errorf("CONCURRENTLY is not refused at its place: %v", err)
	}
}

func TestWhatIsWrongWithAGooseMigrationIsFoundAtItsPlace(t *testing.T) {
	t.Parallel()
	const up, down = "-- +goose Up\nSELECT 1;\n", "-- +goose Down\nSELECT 2;\n"
	for _, tt := range []struct{ name, text, more, want string }{
		{"no annotation", "SELECT 1;\n", "", "1_users.sql:1:1: a statement before -- +goose Up|1_users.sql:1:1: this is no goose migration"},
		{"empty", "", "", "1_users.sql:1:1: this is no goose migration"},
		{"before up", "SELECT 1;\n" + up + down, "", "1_users.sql:1:1: a statement before"},
		{"twice up", up + up + down, "", "1_users.sql:3:1: a second"},
		{"twice down", up + down + down, "", "1_users.sql:5:1: -- +goose Down stands once"},
		{"down first", down, "", "1_users.sql:1:1: -- +goose Down stands once|1_users.sql:1:1: this is no goose|1_users.sql:2:1: a statement before"},
		{"not ended", up + "-- +goose StatementBegin\nSELECT 1;\n" + down, "", "1_users.sql:3:1: this StatementBegin has no StatementEnd"},
		{"not ended at all", up + down + "-- +goose StatementBegin\nSELECT 1;\n", "", "1_users.sql:5:1: this StatementBegin has no StatementEnd"},
		{"not begun", up + "-- +goose StatementEnd\n" + down, "", "1_users.sql:3:1: this StatementEnd has no"},
		{"nested", up + "-- +goose StatementBegin\n-- +goose StatementBegin\n-- +goose StatementEnd\n" + down, "", "1_users.sql:4:1: this StatementBegin stands in no section"},
		{"variables", "-- +goose ENVSUB ON\n" + up + down, "", "1_users.sql:1:1: goose would put environment variables"},
		{"misspelt", up + "-- +goose Dwon\nSELECT 2;\n", "", "1_users.sql:3:1: +goose Dwon is none of Up, Down, StatementBegin, StatementEnd and NO TRANSACTION"},
		{"indented", up + "  -- +goose Down\nSELECT 2;\n", "", "1_users.sql:3:1: goose reads an annotation only"},
		{"no way back", up, "", "change.yaml:5:19: the Down section has no statement"},
		{"empty way back", up + "-- +goose Down\n-- nothing\n", "", "change.yaml:5:19: the Down section has no statement"},
		{"two ways back", up + down, "    undo: { none: because }\n", "change.yaml:6:11: the file has a Down section with statements"},
		{"why no way back", up, "    undo: { irreversible: because }\n", ""},
	} {
		_, err := gooseChange(t, tt.more, map[string]string{"1_users.sql": tt.text})
		var got []string
		if invalid, ok := errors.AsType[*InvalidError](err); ok {
			for _, p := range invalid.Problems {
				got = append(got, p.String()[strings.LastIndex(p.File, "/")+1:])
			}
		}
		want := strings.Split(tt.want, "|")
		if tt.want == "" {
			want = nil
		}
		for i := 0; len(want) == len(got) && i < len(got); i++ {
			if !strings.HasPrefix(got[i], want[i]) {
				t.Errorf("%s: %s, want %s", tt.name, got[i], want[i])
			}
		}
		if len(want) != len(got) {
			t.Errorf("%s: got %q, want %q", tt.name, got, want)
		}
	}
	_, err := Load(write(t, map[string]string{
		"change.yaml": "version: 1\nid: x\nsteps:\n  - id: a\n    sql: { goose: 1.sql, down: 2.sql }\n", "1.sql": up + down, "2.sql": "",
	}))
	if err == nil || !strings.Contains(err.Error(), "not both") {
		t.Errorf("goose and down: %v", err)
	}
}
