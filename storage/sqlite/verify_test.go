package sqlite

import (
	"errors"
	"testing"
	"time"

	"github.com/belayhq/belay/engine"
	"github.com/belayhq/belay/plan"
)

func TestAVerifyQueryOnlyReads(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	for _, text := range []string{
		"DELETE FROM item RETURNING 1", "INSERT INTO item VALUES (9, '') RETURNING 0", "CREATE TABLE x (k)", "SELECT count(*) FROM belay_plan",
		"PRAGMA query_only = 0", "ATTACH ':memory:' AS b", "COMMIT", "SELECT 1; SELECT 1", "SELECT * FROM nowhere",
	} {
		v := plan.Verify{Query: text}
		step := sqlStep(0)
		step.Verify = &v
		if f := failure(t, s.run(step)); !errors.Is(f, engine.ErrVerifyUnable) {
			t.Errorf("%s in a step: got %v", text, f)
		}
		if err := s.Verify(t.Context(), "", v, time.Minute); !errors.Is(err, engine.ErrVerifyUnable) {
			t.Errorf("%s: got %v", text, err)
		}
	}
	s.want("SELECT count(*) FROM item", "1")
}

func TestAVerifyComparesByType(t *testing.T) {
	t.Parallel()
	s := newSite(t, "CREATE TABLE d (at DATETIME, day DATE, ok BOOLEAN)", "INSERT INTO d VALUES ('2024-05-06 07:08:09', '2024-05-06', 1)")
	for _, test := range []struct {
		query, expect string
		ok            bool
	}{
		{"SELECT 0", "0", true},
		{"SELECT 0", "00", false},
		{"SELECT 1.5", "1.5", true},
		{"SELECT 2.0", "2.0", true},
		{"SELECT 2.0", "2", true},
		{"SELECT 'x'", "x", true},
		{"SELECT CAST('x' AS BLOB)", "x", true},
		{"SELECT ok FROM d", "true", true},
		{"SELECT ok FROM d", "1", false},
		{"SELECT at FROM d", "2024-05-06 07:08:09", true},
		{"SELECT day FROM d", "2024-05-06", true},
		{"SELECT day FROM d", "2024-05-07", false},
		{"SELECT NULL", "NULL", false},
		{"SELECT NULL", "", false},
		{"SELECT 1 WHERE 0", "1", false},
		{"SELECT 1 UNION ALL SELECT 1", "1", false},
		{"SELECT 1, 1", "1", false},
		{"PRAGMA table_info(nowhere)", "0", false},
	} {
		err := s.Verify(t.Context(), "", plan.Verify{Query: test.query, Expect: &test.expect}, time.Minute)
		if test.ok && err != nil || !test.ok && !errors.Is(err, engine.ErrVerifyNo) {
			t.Errorf("%s = %q: %v", test.query, test.expect, err)
		}
	}
}
