package tenant

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// Belay's own parameters of a PostgreSQL URL. They never reach the server.
const (
	paramSchema      = "schema"
	paramPasswordEnv = "password_env"
)

// connectParams are the parameters that say how to connect. Anything else would be sent as a setting in the start-up
// packet, which a pooler refuses or drops.
var connectParams = []string{
	"application_name", "channel_binding", "connect_timeout", "dbname", "host", "krbspn", "krbsrvname",
	"max_protocol_version", "min_protocol_version", "passfile", "port", "require_auth", "service", "servicefile",
	"sslcert", "sslcertmode", "sslkey", "sslmode", "sslnegotiation", "sslrootcert", "sslsni", "target_session_attrs",
	"user",
}

const passwordAdvice = "use a passfile, a service file, the environment (PGPASSWORD) or password_env=NAME"

var (
	errPassword = errors.New("a password in the URL is refused: " + passwordAdvice)
	errStrayAt  = errors.New(`"@" is out of place: write it %40; for a password ` + passwordAdvice)
)

// postgresURL is a connection URL as libpq understands it, every part decoded. net/url does not serve: it knows one
// host only, reads "+" as a space, and quotes its input, password included, in errors.
type postgresURL struct {
	user     string
	hosts    []hostPort
	database string
	params   map[string]string
}

// hostPort is one server: a host name, address or socket directory, and a port. Both may be empty.
type hostPort struct{ host, port string }

func cutPostgresScheme(raw string) (rest string, ok bool) {
	if rest, ok = strings.CutPrefix(raw, "postgres://"); ok {
		return rest, true
	}
	return strings.CutPrefix(raw, "postgresql://")
}

// parsePostgresURL reads what follows the scheme. The order of its checks matters: whatever may be a password, or a
// piece of one that holds "@" or "/", is refused first, so that no later error can quote it.
func parsePostgresURL(rest string) (postgresURL, error) {
	var u postgresURL
	if i := strings.IndexAny(rest, "@/"); i >= 0 && rest[i] == '@' {
		user, password, _ := strings.Cut(rest[:i], ":")
		if password != "" {
			return u, errPassword
		}
		if strings.Contains(user, "?") { // libpq would take a whole query, and a password in it, for the user
			return u, errStrayAt
		}
		var err error
		if u.user, err = decode(user); err != nil {
			return u, fmt.Errorf("user %w", err)
		}
		rest = rest[i+1:]
	}
	if strings.Contains(rest, "@") {
		return u, errStrayAt
	}

	rest, query, _ := strings.Cut(rest, "?")
	authority, database, _ := strings.Cut(rest, "/")
	var err error
	if u.params, err = parseParams(query); err != nil {
		return u, err
	}
	if u.hosts, err = parseHosts(authority); err != nil {
		return u, err
	}
	if u.database, err = decode(database); err != nil {
		return u, fmt.Errorf("database name %w", err)
	}
	return u, u.checkParams()
}

// parseParams reads the query. No error shows a value.
func parseParams(query string) (map[string]string, error) {
	params := map[string]string{}
	if query == "" {
		return params, nil
	}
	pairs := strings.Split(query, "&")
	for _, pair := range pairs {
		rawKey, _, _ := strings.Cut(pair, "=")
		// All of them before anything else: a password that holds "&" goes on in what look like other parameters.
		switch key, _ := decode(rawKey); key {
		case "password":
			return nil, errPassword
		case "sslpassword":
			return nil, errors.New(`parameter "sslpassword" is refused: use the environment (PGSSLPASSWORD)`)
		}
	}
	for _, pair := range pairs {
		rawKey, rawValue, ok := strings.Cut(pair, "=")
		if !ok || strings.Contains(rawValue, "=") {
			return nil, errors.New(`each parameter must be one key=value ("=" in a value is written %3D)`)
		}
		key, err := decode(rawKey)
		if err != nil {
			return nil, fmt.Errorf("parameter name %w", err)
		}
		if err := checkParamName(key); err != nil {
			return nil, err
		}
		value, err := decode(rawValue)
		if err != nil {
			return nil, fmt.Errorf("parameter %q %w", key, err)
		}
		if _, twice := params[key]; twice {
			return nil, fmt.Errorf("parameter %q is given twice", key)
		}
		params[key] = value
	}
	return params, nil
}

func checkParamName(key string) error {
	switch {
	case key == paramSchema || key == paramPasswordEnv || slices.Contains(connectParams, key):
		return nil
	case key == "options":
		return errors.New(`parameter "options" is refused: settings in the start-up packet do not survive a pooler`)
	case key == "" || strings.ContainsFunc(key, func(r rune) bool { return !isWord(r) }):
		// Not shown: it may be a mangled "password=…".
		return errors.New("unknown parameter")
	}
	return fmt.Errorf("unknown parameter %q: only parameters that say how to connect, schema and password_env are accepted", key)
}

// checkParams puts parameters into canonical form and refuses those that say again what the rest of the URL says; libpq
// would let one of the two win.
func (u postgresURL) checkParams() error {
	hasHost := slices.ContainsFunc(u.hosts, func(h hostPort) bool { return h.host != "" })
	hasPort := slices.ContainsFunc(u.hosts, func(h hostPort) bool { return h.port != "" })
	for _, c := range []struct {
		param string
		given bool
	}{{"user", u.user != ""}, {"host", hasHost}, {"port", hasPort}, {"dbname", u.database != ""}} {
		if _, ok := u.params[c.param]; ok && c.given {
			return fmt.Errorf("parameter %q is given twice: it is also in the URL's main part", c.param)
		}
	}
	if ports, ok := u.params["port"]; ok {
		list := strings.Split(ports, ",")
		for i := range list {
			var err error
			if list[i], err = canonicalPort(list[i]); err != nil {
				return err
			}
		}
		u.params["port"] = strings.Join(list, ",")
	}
	if hosts, ok := u.params["host"]; ok {
		list := strings.Split(hosts, ",")
		for i := range list {
			list[i] = canonicalHost(list[i])
		}
		u.params["host"] = strings.Join(list, ",")
	}
	return nil
}

func parseHosts(authority string) ([]hostPort, error) {
	if authority == "" {
		return nil, nil
	}
	var hosts []hostPort
	for item := range strings.SplitSeq(authority, ",") {
		host, port, err := splitHostPort(item)
		if err != nil {
			return nil, err
		}
		if host, err = decode(host); err != nil {
			return nil, fmt.Errorf("host %w", err)
		}
		if strings.Contains(host, ",") {
			return nil, errors.New("host contains a comma")
		}
		if port, err = canonicalPort(port); err != nil {
			return nil, err
		}
		hosts = append(hosts, hostPort{canonicalHost(host), port})
	}
	return hosts, nil
}

// splitHostPort splits host:port and [IPv6]:port; the port may be missing.
func splitHostPort(item string) (host, port string, err error) {
	inner, bracketed := strings.CutPrefix(item, "[")
	if !bracketed {
		host, port, _ = strings.Cut(item, ":")
		return host, port, nil
	}
	host, after, closed := strings.Cut(inner, "]")
	port, hasPort := strings.CutPrefix(after, ":")
	if !closed || host == "" || after != "" && !hasPort {
		return "", "", errors.New("IPv6 address must be written [address] or [address]:port")
	}
	return host, port, nil
}

// canonicalHost folds the case of host names; socket directories keep theirs.
func canonicalHost(host string) string {
	if strings.HasPrefix(host, "/") {
		return host
	}
	return strings.Map(func(r rune) rune {
		if isUpper(r) {
			return r - 'A' + 'a'
		}
		return r
	}, host)
}

// canonicalPort accepts an empty port. The error does not show it: a password with "/" in it lands here.
func canonicalPort(port string) (string, error) {
	if port == "" {
		return "", nil
	}
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil || n == 0 {
		return "", errors.New("port must be a number from 1 to 65535")
	}
	return strconv.FormatUint(n, 10), nil
}

// take removes a parameter and returns its value.
func (u postgresURL) take(param string) (value string, ok bool) {
	value, ok = u.params[param]
	delete(u.params, param)
	return value, ok
}

// String returns the one spelling of the URL: parameters sorted, every part escaped the same way.
func (u postgresURL) String() string {
	var b strings.Builder
	b.WriteString("postgres://")
	if u.user != "" {
		b.WriteString(encode(u.user, "") + "@")
	}
	for i, h := range u.hosts {
		if i > 0 {
			b.WriteByte(',')
		}
		if strings.Contains(h.host, ":") {
			b.WriteString("[" + encode(h.host, ":") + "]")
		} else {
			b.WriteString(encode(h.host, ""))
		}
		if h.port != "" {
			b.WriteString(":" + h.port)
		}
	}
	b.WriteString("/" + encode(u.database, ""))
	separator := byte('?')
	for _, key := range slices.Sorted(maps.Keys(u.params)) {
		b.WriteByte(separator)
		b.WriteString(key + "=" + encode(u.params[key], "/:,"))
		separator = '&'
	}
	return b.String()
}

// decode resolves percent escapes. Like libpq it leaves "+" alone. Its errors continue a sentence and show nothing of s.
func decode(s string) (string, error) {
	if strings.Contains(s, " ") {
		return "", errors.New("contains a space (write %20)")
	}
	var b strings.Builder
	for {
		plain, after, found := strings.Cut(s, "%")
		b.WriteString(plain)
		if !found {
			break
		}
		if len(after) < 2 || !isHex(after[0]) || !isHex(after[1]) {
			return "", errors.New(`contains "%" without two hexadecimal digits (a plain one is written %25)`)
		}
		n, _ := strconv.ParseUint(after[:2], 16, 8) // the digits were just checked
		b.WriteByte(byte(n))
		s = after[2:]
	}
	if err := validateText(b.String()); err != nil {
		return "", err
	}
	return b.String(), nil
}

// encode escapes all bytes but letters, digits, "-._~" and those of keep.
func encode(s, keep string) string {
	var b strings.Builder
	for i := range len(s) {
		if c := s[i]; isAlnum(rune(c)) || strings.IndexByte("-._~", c) >= 0 || strings.IndexByte(keep, c) >= 0 {
			b.WriteByte(c)
		} else {
			fmt.Fprintf(&b, "%%%02X", c)
		}
	}
	return b.String()
}

func isHex(c byte) bool {
	return isDigit(rune(c)) || 'a' <= c && c <= 'f' || 'A' <= c && c <= 'F'
}
