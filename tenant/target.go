package tenant

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"unicode"
	"unicode/utf8"
)

const (
	schemeSQLite = "sqlite://"

	// maxSchemaBytes is PostgreSQL's limit; it cuts longer identifiers silently, which would make two tenants one.
	maxSchemaBytes = 63
)

// ParseTarget reads the URL of a target.
//
// sqlite://PATH names a file: the rest is a path as it stands (nothing is URL-decoded), a relative one is taken from
// baseDir, and the result is absolute and clean.
//
// postgres://… and postgresql://… follow libpq, several hosts included. Two parameters are Belay's own and are not part
// of Database: schema (the scope, "public" when missing) and password_env. Only parameters that say how to connect are
// accepted, so that a misspelt schema is an error and not another tenant's data.
//
// A target holds no password. No error of ParseTarget contains one, also when the URL cannot be read.
func ParseTarget(raw, baseDir string) (Target, error) {
	t, err := parseTarget(raw, baseDir)
	if err != nil {
		return Target{}, fmt.Errorf("target: %w", err)
	}
	return t, nil
}

// ParseDatabase reads the URL of a control database by the rules of ParseTarget. It has no scope: a schema parameter is
// refused, and Scope is empty.
func ParseDatabase(raw, baseDir string) (Target, error) {
	t, err := parseDatabase(raw, baseDir)
	if err != nil {
		return Target{}, fmt.Errorf("database URL: %w", err)
	}
	return t, nil
}

// String returns the canonical URL, which ParseTarget (without a scope: ParseDatabase) reads back as the same target. It
// never contains a password: a PostgreSQL Database that these two would refuse is not shown.
func (t Target) String() string {
	if t.Dialect == SQLite {
		return schemeSQLite + t.Database
	}
	rest, ok := cutPostgresScheme(t.Database)
	if !ok {
		return string(t.Dialect) + ":(unreadable)"
	}
	u, err := parsePostgresURL(rest)
	if err != nil {
		return string(t.Dialect) + ":(unreadable)"
	}
	if t.Scope != "" {
		u.params[paramSchema] = t.Scope
	}
	if t.PasswordEnv != "" {
		u.params[paramPasswordEnv] = t.PasswordEnv
	}
	return u.String()
}

func parseTarget(raw, baseDir string) (Target, error) {
	if rest, ok := cutPostgresScheme(raw); ok {
		u, err := parsePostgresURL(rest)
		if err != nil {
			return Target{}, err
		}
		schema, ok := u.take(paramSchema)
		if !ok {
			schema = "public"
		}
		if err := validateSchema(schema); err != nil {
			return Target{}, err
		}
		return u.target(schema)
	}
	return parseSQLite(raw, baseDir)
}

func parseDatabase(raw, baseDir string) (Target, error) {
	if rest, ok := cutPostgresScheme(raw); ok {
		u, err := parsePostgresURL(rest)
		if err != nil {
			return Target{}, err
		}
		if _, ok := u.take(paramSchema); ok {
			return Target{}, errors.New(`parameter "schema" is refused: a control database has no scope`)
		}
		return u.target("")
	}
	return parseSQLite(raw, baseDir)
}

// target makes the Target of a URL whose schema has been taken out.
func (u postgresURL) target(scope string) (Target, error) {
	passwordEnv, ok := u.take(paramPasswordEnv)
	if ok && !validEnvName(passwordEnv) {
		// The value is not shown: people put the password itself here.
		return Target{}, errors.New("password_env must name an environment variable (letters, digits and _)")
	}
	return Target{Dialect: Postgres, Database: u.String(), Scope: scope, PasswordEnv: passwordEnv}, nil
}

// parseSQLite is also where a URL of an unknown kind ends; it is not quoted, because it may hold a password.
func parseSQLite(raw, baseDir string) (Target, error) {
	path, ok := strings.CutPrefix(raw, schemeSQLite)
	if !ok {
		return Target{}, errors.New("URL must begin with sqlite://, postgres:// or postgresql://")
	}
	switch {
	case path == "":
		return Target{}, errors.New("sqlite path is empty")
	case strings.HasPrefix(strings.ToLower(path), ":memory:"):
		return Target{}, errors.New("an in-memory database keeps nothing: name a file")
	case strings.HasPrefix(strings.ToLower(path), "file:"):
		return Target{}, errors.New(`"file:" is refused: sqlite:// is followed by a plain path`)
	case namesDirectory(path):
		return Target{}, errors.New("sqlite path names a directory, not a file")
	}
	if !filepath.IsAbs(path) {
		path = filepath.Join(baseDir, path)
	}
	path, err := filepath.Abs(path)
	if err != nil {
		return Target{}, fmt.Errorf("make sqlite path absolute: %w", err)
	}
	if strings.Contains(path, "?") {
		return Target{}, errors.New(`sqlite path contains "?": query parameters are not accepted`)
	}
	if err := validateText(path); err != nil {
		return Target{}, fmt.Errorf("sqlite path %w", err)
	}
	return Target{Dialect: SQLite, Database: path}, nil
}

// namesDirectory tells paths that cleaning would turn into another name ("data/" into a file "data").
func namesDirectory(path string) bool {
	last := filepath.Base(path)
	return last == "." || last == ".." || strings.HasSuffix(path, "/") || strings.HasSuffix(path, string(filepath.Separator))
}

// validateSchema checks a decoded parameter, which is therefore valid text.
func validateSchema(s string) error {
	switch {
	case s == "":
		return errors.New("schema is empty")
	case len(s) > maxSchemaBytes:
		return fmt.Errorf("schema %s has %d bytes, at most %d are possible", quote(s), len(s), maxSchemaBytes)
	case s == "belay":
		return errors.New(`schema "belay" is Belay's own`)
	case s == "information_schema" || strings.HasPrefix(s, "pg_"):
		return fmt.Errorf("schema %s belongs to PostgreSQL", quote(s))
	case s == "$user":
		// In search_path PostgreSQL replaces it by the role's name, even when it is quoted.
		return errors.New(`schema "$user" means the role's own schema in search_path: name that schema`)
	}
	return nil
}

// validateText refuses what no database name, path or schema may hold: it would break logs and terminals, or end a C
// string early. The error continues a sentence whose subject the caller gives.
func validateText(s string) error {
	switch {
	case !utf8.ValidString(s):
		return errors.New("is not valid UTF-8")
	case strings.ContainsFunc(s, unicode.IsControl):
		return errors.New("contains a control character")
	}
	return nil
}

func validEnvName(s string) bool {
	if s == "" || isDigit(rune(s[0])) {
		return false
	}
	return !strings.ContainsFunc(s, func(r rune) bool { return !isWord(r) })
}
