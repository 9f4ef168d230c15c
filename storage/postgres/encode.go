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
	all := make([]byte, 0, 40*len(args)+1) // holds most of them; what it holds stays where it is when it grows
	for i, arg := range args {
		formats[i] = text
		from := len(all)
		switch arg := arg.(type) {
		case nil:
			continue
		case []byte:
			values[i], formats[i] = arg, binary
			if arg == nil {
				values[i] = []byte{}
			}
			continue
		case string:
			all = append(all, arg...)
		case tenant.ID:
			all = append(all, arg...)
		case plan.ID:
			all = append(all, arg...)
		case plan.Digest:
			all = append(all, arg...)
		case sitelock.HolderID:
			all = append(all, arg...)
		case int:
			all = strconv.AppendInt(all, int64(arg), 10)
		case int64:
			all = strconv.AppendInt(all, arg, 10)
		case plan.Fence:
			all = strconv.AppendInt(all, int64(arg), 10)
		case bool:
			all = strconv.AppendBool(all, arg)
		case []string:
			all = appendTexts(all, arg)
		case []int64:
			all = appendIntegers(all, arg)
		default:
			panic(fmt.Sprintf("postgres: no encoding for a bind value of type %T", arg))
		}
		values[i] = all[from:len(all):len(all)]
	}
	return values, formats
}

var escape = strings.NewReplacer(`\`, `\\`, `"`, `\"`)

func appendTexts(out []byte, items []string) []byte {
	out = append(out, '{')
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

func appendIntegers(out []byte, items []int64) []byte {
	out = append(out, '{')
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
