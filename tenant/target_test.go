package tenant_test

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/belayhq/belay/tenant"
)

const canary = "hunter2canary"

func postgres(database, scope, passwordEnv string) tenant.Target {
	return tenant.Target{Dialect: tenant.Postgres, Database: database, Scope: scope, PasswordEnv: passwordEnv}
}

func sqlite(path string) tenant.Target {
	return tenant.Target{Dialect: tenant.SQLite, Database: path}
}

func TestATargetIsReadIntoItsCanonicalForm(t *testing.T) {
	t.Parallel()
	for raw, want := range map[string]tenant.Target{
		"sqlite://data/a.db":       sqlite("/base/data/a.db"),
		"sqlite://./x/../a.db":     sqlite("/base/a.db"),
		"sqlite:///var//lib/a.db":  sqlite("/var/lib/a.db"),
		"sqlite://../a.db":         sqlite("/a.db"),
		"sqlite://a%20b%00#+&=.db": sqlite("/base/a%20b%00#+&=.db"),
		"sqlite://größe.db":        sqlite("/base/größe.db"),
		"sqlite://a b.db":          sqlite("/base/a b.db"),

		"postgres://h":                       postgres("postgres://h/", "public", ""),
		"postgresql://h/db":                  postgres("postgres://h/db", "public", ""),
		"postgres://u@H.Example:05432/db":    postgres("postgres://u@h.example:5432/db", "public", ""),
		"postgres://u:@h/db":                 postgres("postgres://u@h/db", "public", ""),
		"postgres://@h/db?":                  postgres("postgres://h/db", "public", ""),
		"postgres://h/db?schema=acme":        postgres("postgres://h/db", "acme", ""),
		"postgres://h/db?schema=a%22b":       postgres("postgres://h/db", `a"b`, ""),
		"postgres://h/db?schema=gr%C3%B6%25": postgres("postgres://h/db", "grö%", ""),
		"postgres://h/db?schema=a+b":         postgres("postgres://h/db", "a+b", ""),
		"postgres://h/db?sslmode=verify-full&schema=acme&password_env=ACME_PW&connect_timeout=5": postgres(
			"postgres://h/db?connect_timeout=5&sslmode=verify-full", "acme", "ACME_PW"),
		"postgres://a:5432,B,[::1]:5433/db?target_session_attrs=read-write": postgres(
			"postgres://a:5432,b,[::1]:5433/db?target_session_attrs=read-write", "public", ""),
		"postgres:///db?host=/run/PG,H2&port=05432,5433": postgres("postgres:///db?host=/run/PG,h2&port=5432,5433", "public", ""),
		"postgres://%2Frun%2FPG/db":                      postgres("postgres://%2Frun%2FPG/db", "public", ""),
		"postgres://[fe80::1%25eth0]/db":                 postgres("postgres://[fe80::1%25eth0]/db", "public", ""),
		"postgres://:5433/a%2Fb#c":                       postgres("postgres://:5433/a%2Fb%23c", "public", ""),
		"postgres://u%40corp@h/a/b":                      postgres("postgres://u%40corp@h/a%2Fb", "public", ""),
		"postgres://?service=acme&passfile=%2Fetc%2Fpw":  postgres("postgres:///?passfile=/etc/pw&service=acme", "public", ""),
	} {
		got, err := tenant.ParseTarget(raw, "/base")
		if err != nil || got != want {
			t.Errorf("ParseTarget(%q) = %#v, %v; want %#v", raw, got, err, want)
			continue
		}
		if back, err := tenant.ParseTarget(got.String(), "/elsewhere"); err != nil || back != want {
			t.Errorf("ParseTarget(%q) = %#v, %v; want the same target again", got.String(), back, err)
		}
	}
}

func TestARelativeBaseDirectoryStillGivesAnAbsolutePath(t *testing.T) {
	t.Parallel()
	want, err := filepath.Abs("conf/a.db")
	if err != nil {
		t.Fatal(err)
	}
	if got, err := tenant.ParseTarget("sqlite://a.db", "conf"); err != nil || got.Database != want {
		t.Errorf("got %q, %v; want %q", got.Database, err, want)
	}
}

func TestTheCanonicalURLNamesScopeAndPasswordVariable(t *testing.T) {
	t.Parallel()
	got, err := tenant.ParseTarget("postgresql://u@h/db?sslmode=require&schema=a%26b&password_env=PW", "")
	if err != nil {
		t.Fatal(err)
	}
	if want := "postgres://u@h/db?password_env=PW&schema=a%26b&sslmode=require"; got.String() != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestAHandmadeTargetDoesNotShowItsPassword(t *testing.T) {
	t.Parallel()
	for _, database := range []string{"postgres://u:" + canary + "@h/db", "host=h password=" + canary, "postgres://h/?password=" + canary} {
		if got := postgres(database, "public", "").String(); strings.Contains(got, canary) {
			t.Errorf("String shows the password: %s", got)
		}
	}
}

func TestABadTargetIsRefused(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", 64)
	for raw, want := range map[string]string{
		"":                                             "must begin with sqlite://",
		"mysql://h/db":                                 "must begin with sqlite://",
		"POSTGRES://h/db":                              "must begin with sqlite://",
		"host=h dbname=db":                             "must begin with sqlite://",
		"sqlite:a.db":                                  "must begin with sqlite://",
		" sqlite://a.db":                               "must begin with sqlite://",
		"sqlite://":                                    "path is empty",
		"sqlite://:memory:":                            "in-memory",
		"sqlite://:MEMORY:":                            "in-memory",
		"sqlite://file:a.db":                           `"file:" is refused`,
		"sqlite://a.db?mode=ro":                        "query parameters",
		"sqlite://a\x00.db":                            "control character",
		"sqlite://a\n.db":                              "control character",
		"sqlite://a\xff.db":                            "UTF-8",
		"sqlite://data/":                               "directory",
		"sqlite:///":                                   "directory",
		"sqlite://.":                                   "directory",
		"sqlite://data/..":                             "directory",
		"postgres://h/db?schema=":                      "schema is empty",
		"postgres://h/db?schema=%00":                   "control character",
		"postgres://h/db?schema=%FF":                   "UTF-8",
		"postgres://h/db?schema=%0a":                   "control character",
		"postgres://h/db?schema=" + long:               "64 bytes",
		"postgres://h/db?schema=belay":                 "Belay's own",
		"postgres://h/db?schema=pg_x":                  "belongs to PostgreSQL",
		"postgres://h/db?schema=information_schema":    "belongs to PostgreSQL",
		"postgres://h/db?schema=$user":                 "role's own schema",
		"postgres://h/db?schema=a&schema=b":            `"schema" is given twice`,
		"postgres://h/db?shcema=acme":                  `unknown parameter "shcema"`,
		"postgres://h/db?search_path=acme":             `unknown parameter "search_path"`,
		"postgres://h/db?options=-csearch_path%3Dacme": "pooler",
		"postgres://h/db?password_env=":                "must name an environment variable",
		"postgres://h/db?password_env=1A":              "must name an environment variable",
		"postgres://h/db?password_env=A%3DB":           "must name an environment variable",
		"postgres://h/db?sslmode":                      "key=value",
		"postgres://h/db?sslmode=a=b":                  "key=value",
		"postgres://h/db?sslmode=a&":                   "key=value",
		"postgres://h/db?sslmode=%zz":                  "hexadecimal",
		"postgres://h/db?%zz=1":                        "hexadecimal",
		"postgres://h/db%":                             "hexadecimal",
		"postgres://h /db":                             "%20",
		"postgres://h/d\x00b":                          "control character",
		"postgres://u@h/db?user=v":                     `"user" is given twice`,
		"postgres://h/db?host=i":                       `"host" is given twice`,
		"postgres://h:1/db?port=2":                     `"port" is given twice`,
		"postgres://h/db?dbname=x":                     `"dbname" is given twice`,
		"postgres://h:0/db":                            "port must be",
		"postgres://h:65536/db":                        "port must be",
		"postgres:///db?port=1,x":                      "port must be",
		"postgres://::1/db":                            "port must be",
		"postgres://[::1/db":                           "IPv6",
		"postgres://[]/db":                             "IPv6",
		"postgres://[::1]x/db":                         "IPv6",
		"postgres://a%2Cb/db":                          "comma",
		"postgres://u@v@h/db":                          "out of place",
		"postgres://h?user=a@b":                        "out of place",
	} {
		got, err := tenant.ParseTarget(raw, "/base")
		if err == nil {
			t.Errorf("ParseTarget(%q) = %#v; want an error with %q", raw, got, want)
		} else if !strings.Contains(err.Error(), want) {
			t.Errorf("ParseTarget(%q): %v; want %q in it", raw, err, want)
		}
	}
}

func TestASchemaOf63BytesIsAccepted(t *testing.T) {
	t.Parallel()
	if _, err := tenant.ParseTarget("postgres://h/db?schema="+strings.Repeat("x", 63), ""); err != nil {
		t.Error(err)
	}
}

func TestAPasswordIsRefusedWithAdviceAndNeverShown(t *testing.T) {
	t.Parallel()
	for _, raw := range []string{
		"postgres://u:" + canary + "@h/db",
		"postgres://:" + canary + "@h/db",
		"postgres://u:" + canary + "@h:port/db",
		"postgres://u:" + canary + "@[::1/db?%zz",
		"postgres://u:%zz" + canary + "@h/db",
		"postgres://u:" + canary + " x@h/db",
		"postgres://u:x@" + canary + "@h/db",
		"postgres://u:x/" + canary + "@h/db",
		"postgres://u:12/" + canary + "@h/db",
		"postgres://u:12/?" + canary + "=x@h/db",
		"postgres://u:x?" + canary + "@h/db",
		"postgres://h?user=u&password=" + canary + "@x",
		"postgres://h/db?password=" + canary,
		"postgres://h/db?pass%77ord=" + canary,
		"postgres://h/db?sslmode=x&password=a&" + canary + "=b",
	} {
		for _, parse := range []func(_, _ string) (tenant.Target, error){tenant.ParseTarget, tenant.ParseDatabase} {
			_, err := parse(raw, "/base")
			if err == nil {
				t.Errorf("%q is accepted", raw)
				continue
			}
			if strings.Contains(err.Error(), canary) {
				t.Errorf("the error shows the password: %v", err)
			}
			for _, advice := range []string{"passfile", "service file", "PGPASSWORD", "password_env=NAME"} {
				if !strings.Contains(err.Error(), advice) {
					t.Errorf("%q: %v; want the advice %q", raw, err, advice)
				}
			}
		}
	}
}

func TestNoOtherSecretIsShownEither(t *testing.T) {
	t.Parallel()
	for _, raw := range []string{
		"mysql://u:" + canary + "@h/db",
		"host=h password=" + canary,
		"sqlite://u:" + canary + "@h/?x",
		"postgres://h/db?sslpassword=" + canary,
		"postgres://h/db?passwrod=" + canary,
		"postgres://h/db?pwd%3D" + canary + "=x",
		"postgres://h/db?" + canary,
		"postgres://h/db?password_env=" + canary + "!",
	} {
		if _, err := tenant.ParseTarget(raw, "/base"); err == nil || strings.Contains(err.Error(), canary) {
			t.Errorf("ParseTarget(%q): %v; want an error without the secret", raw, err)
		}
	}
}

func TestAControlDatabaseHasNoScope(t *testing.T) {
	t.Parallel()
	for raw, want := range map[string]tenant.Target{
		"sqlite://.belay/control.db":          sqlite("/base/.belay/control.db"),
		"postgresql://h/db?password_env=PW":   postgres("postgres://h/db", "", "PW"),
		"postgres://a,b/db?sslmode=disable":   postgres("postgres://a,b/db?sslmode=disable", "", ""),
		"postgres://h/db?application_name=bé": postgres("postgres://h/db?application_name=b%C3%A9", "", ""),
	} {
		got, err := tenant.ParseDatabase(raw, "/base")
		if err != nil || got != want {
			t.Errorf("ParseDatabase(%q) = %#v, %v; want %#v", raw, got, err, want)
			continue
		}
		if back, err := tenant.ParseDatabase(got.String(), ""); err != nil || back != want {
			t.Errorf("ParseDatabase(%q) = %#v, %v; want the same again", got.String(), back, err)
		}
	}
	for raw, want := range map[string]string{
		"postgres://h/db?schema=acme":    "no scope",
		"postgres://h/db?options=x":      "pooler",
		"postgres://h/db?password_env=-": "environment variable",
		"sqlite://:memory:":              "in-memory",
	} {
		if _, err := tenant.ParseDatabase(raw, "/base"); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("ParseDatabase(%q): %v; want %q", raw, err, want)
		}
	}
}

// The canonical URL must lead pgx to the same servers, user, database and settings as the one that was written.
func TestPgxReadsTheCanonicalURLLikeTheOriginal(t *testing.T) {
	for _, raw := range []string{
		"postgresql://u@H1:5433,h2,[::1]:5434/db?sslmode=disable",
		"postgres://u%40corp@h/a%2Fb%23c?sslmode=disable",
		"postgres://u@h/a/b#c?sslmode=disable",
		"postgres://%2Frun%2Fpg:6000/d+b?application_name=a+b%20c",
		"postgres:///db?host=/run/pg,h2&port=5432,5433&sslmode=disable&user=u",
		"postgres://:6000/?host=h&dbname=x%26y&user=u&sslmode=disable",
		"postgres://[fe80::1%25eth0]:7000/db?sslmode=disable",
	} {
		got, err := tenant.ParseTarget(raw, "")
		if err != nil {
			t.Errorf("%q: %v", raw, err)
			continue
		}
		before, err := pgconn.ParseConfig(raw)
		if err != nil {
			t.Errorf("pgx refuses %q: %v", raw, err)
			continue
		}
		after, err := pgconn.ParseConfig(got.Database)
		if err != nil {
			t.Errorf("pgx refuses %q: %v", got.Database, err)
			continue
		}
		if a, b := describeConfig(before), describeConfig(after); !strings.EqualFold(a, b) {
			t.Errorf("%q reads as %s, its canonical form %q as %s", raw, a, got.Database, b)
		}
	}
}

// describeConfig is where a configuration leads, without what every one of them shares.
func describeConfig(c *pgconn.Config) string {
	servers := []string{pgServer(c.Host, c.Port)}
	for _, f := range c.Fallbacks {
		servers = append(servers, pgServer(f.Host, f.Port))
	}
	return fmt.Sprint(servers, c.User, c.Database, c.RuntimeParams)
}

func pgServer(host string, port uint16) string { return fmt.Sprintf("%s|%d", host, port) }

func FuzzParseTarget(f *testing.F) {
	for _, raw := range []string{
		"sqlite://a.db", "sqlite://../x y%00.db", "sqlite://:memory:", "postgres://h", "postgresql://u@h:1,[::1]:2/db?schema=a&sslmode=x",
		"postgres:///db?host=/run&password_env=A&port=1,2", "postgres://u:p@h/db", "postgres://h/db?password=x", "postgres://%zz@[/?=&%", "1/", "@h/", "&schema=",
	} {
		f.Add(raw, "/base", "")
	}
	f.Fuzz(func(t *testing.T, raw, baseDir, after string) {
		if got, err := tenant.ParseTarget(raw, baseDir); err == nil {
			if back, err := tenant.ParseTarget(got.String(), "/elsewhere"); err != nil || back != got {
				t.Errorf("%q is %#v, which reads back as %#v, %v", raw, got, back, err)
			}
			if got.Dialect == tenant.SQLite && !filepath.IsAbs(got.Database) {
				t.Errorf("%q is not absolute", got.Database)
			}
		}
		for _, secret := range []string{
			"postgres://u:" + raw + canary + after + "@h/db",
			"postgres://h/db?" + raw + "&password=" + canary + after,
		} {
			got, err := tenant.ParseTarget(secret, baseDir)
			if err == nil {
				t.Errorf("%q is accepted as %#v", secret, got)
			} else if strings.Contains(err.Error(), canary) && !strings.Contains(raw+after, canary) {
				t.Errorf("%q: the error shows the password: %v", secret, err)
			}
		}
	})
}
