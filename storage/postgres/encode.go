package postgres

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/belayhq/belay/plan"
	"github.com/belayhq/belay/sitelock"
	"github.com/belayhq/belay/tenant"
)

// encode makes bind values as text, and bytes as they are: every parameter has a cast in its statement, so that it means
// the same whether the statement is prepared or not.
func encode(args []any) (values [][]byte, formats []int16) {
	const text, binary = 0, 1
	values, formats = make([][]byte, len(args)), make([]int16, len(args))
	for i, arg := range args {
		formats[i] = text
		switch arg := arg.(type) {
		case nil:
		case []byte:
			values[i], formats[i] = arg, binary
			if arg == nil {
				values[i] = []byte{}
			}
		case string:
			values[i] = []byte(arg)
		case tenant.ID:
			values[i] = []byte(arg)
		case plan.ID:
			values[i] = []byte(arg)
		case plan.Digest:
			values[i] = []byte(arg)
		case sitelock.HolderID:
			values[i] = []byte(arg)
		case int:
			values[i] = strconv.AppendInt(nil, int64(arg), 10)
		case int64:
			values[i] = strconv.AppendInt(nil, arg, 10)
		case plan.Fence:
			values[i] = strconv.AppendInt(nil, int64(arg), 10)
		case bool:
			values[i] = strconv.AppendBool(nil, arg)
		case []string:
			values[i] = array(arg)
		case []int64:
			values[i] = integers(arg)
		default:
			panic(fmt.Sprintf("postgres: no encoding for a bind value of type %T", arg))
		}
	}
	return values, formats
}

var escape = strings.NewReplacer(`\`, `\\`, `"`, `\"`)

func array(items []string) []byte {
	out := []byte{'{'}
	for i, item := range items {
		if i > 0 {
			out = append(out, ',')
		}
		out = append(out, '"')
		out = append(out, escape.Replace(item)...)
		out = append(out, '"')
	}
	return append(out, '}')
}

func integers(items []int64) []byte {
	out := []byte{'{'}
	for i, item := range items {
		if i > 0 {
			out = append(out, ',')
		}
		out = strconv.AppendInt(out, item, 10)
	}
	return append(out, '}')
}

// orNull makes NULL of an empty text.
func orNull[T ~string](s T) any {
	if s == "" {
		return nil
	}
	return string(s)
}

// millis is how settings and durations are bound.
func millis(d time.Duration) int64 { return d.Milliseconds() }

// limitMillis is a limit that the server enforces; 0 is none, so that a shorter one than a millisecond becomes one.
func limitMillis(d time.Duration) int64 {
	if d <= 0 {
		return 0
	}
	return max(1, d.Milliseconds())
}

// timeOf makes a time of the database's milliseconds; zero for 0.
func timeOf(ms int64) time.Time {
	if ms == 0 {
		return time.Time{}
	}
	return time.UnixMilli(ms).UTC()
}

func millisOf(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixMilli()
}

// quoteIdent quotes a name as an SQL identifier.
func quoteIdent(name string) string { return `"` + strings.ReplaceAll(name, `"`, `""`) + `"` }
