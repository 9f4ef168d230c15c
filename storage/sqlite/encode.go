package sqlite

import (
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/belayhq/belay/plan"
)

// encode makes the JSON text of plain values: lists for json_each, and what is kept as JSON.
func encode(v any) string {
	text, err := json.Marshal(v)
	if err != nil {
		panic("sqlite: plain values did not encode: " + err.Error())
	}
	return string(text)
}

// timeOf and millisOf convert times of people's interest, such as a process's start. No decision rests on them.
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

// nullable is the value of a column in which zero is NULL.
func nullable(seq int64) sql.NullInt64 { return sql.NullInt64{Int64: seq, Valid: seq != 0} }

func decodeFailure(text string) (*plan.Failure, error) {
	if text == "" {
		return nil, nil
	}
	f := &plan.Failure{}
	if err := json.Unmarshal([]byte(text), f); err != nil {
		return nil, fmt.Errorf("decode failure: %w", err)
	}
	return f, nil
}

func encodeFailure(f *plan.Failure) sql.NullString {
	if f == nil {
		return sql.NullString{}
	}
	return sql.NullString{String: encode(f), Valid: true}
}

// found turns the absence of a row into want.
func found(err, want error) error {
	if errors.Is(err, sql.ErrNoRows) {
		return want
	}
	return translate(err)
}
