package render

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"time"
)

// JSON writes a document, indented, with a line end.
func JSON(w io.Writer, document any) error { return writeJSON(w, document, "  ") }

// JSONLine writes a value on a line of its own, in one write, so that whoever reads along sees whole lines at once.
func JSONLine(w io.Writer, value any) error { return writeJSON(w, value, "") }

func writeJSON(w io.Writer, value any, indent string) error {
	var buf bytes.Buffer
	enc := json.NewEncoder(&buf)
	enc.SetEscapeHTML(false) // "<" is common in SQL and means nothing to a terminal
	enc.SetIndent("", indent)
	if err := enc.Encode(value); err != nil {
		return err
	}
	_, err := w.Write(escapeControls(buf.Bytes()))
	return err
}

// escapeControls escapes the control characters that encoding/json leaves as they are: DEL and U+0080 to U+009F, which
// some terminals obey. They can only stand within strings.
func escapeControls(text []byte) []byte {
	const (
		del  = 0x7f
		lead = 0xc2 // first byte of U+0080 to U+00BF
	)
	var out []byte
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case c == del:
			out = append(out, `\u007f`...)
		case c == lead && i+1 < len(text) && text[i+1] < 0xa0:
			out = fmt.Appendf(out, `\u%04x`, text[i+1])
			i++
		default:
			out = append(out, c)
		}
	}
	return out
}

// timestamp is how documents show an instant: RFC 3339 in UTC with milliseconds; null if there is none.
func timestamp(t time.Time) *string {
	if t.IsZero() {
		return nil
	}
	text := t.UTC().Format("2006-01-02T15:04:05.000Z")
	return &text
}

// optional is null in a document where the value is zero.
func optional[T comparable](v T) *T {
	var zero T
	if v == zero {
		return nil
	}
	return &v
}

// list is never null in a document.
func list[T any](values []T) []T {
	if values == nil {
		return []T{}
	}
	return values
}
