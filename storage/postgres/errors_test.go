package postgres

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/belayhq/belay/engine"
	"github.com/belayhq/belay/sitelock"
)

func TestErrorsAreTranslatedByCode(t *testing.T) {
	t.Parallel()
	held := sitelock.Held{Tenant: "t", Holder: "h", Fence: 7}
	for code, want := range map[string]struct {
		reaction reaction
		locking  error // what acquire and break say
		holding  error // what a holder's transaction says
	}{
		"40001": {runAgain, sitelock.ErrContended, engine.ErrRetryTransaction},
		"40P01": {runAgain, sitelock.ErrContended, engine.ErrRetryTransaction},
		"55P03": {contention, sitelock.ErrContended, engine.ErrRetryTransaction},
		"53300": {contention, sitelock.ErrContended, engine.ErrRetryTransaction},
		"57P03": {contention, sitelock.ErrContended, engine.ErrRetryTransaction},
		"57P01": {reconnect, nil, nil},
		"57P02": {reconnect, nil, nil},
		"25P03": {reconnect, nil, nil},
		"08006": {reconnect, nil, nil},
		"08P01": {noStatements, nil, nil},
		"26000": {noStatements, nil, nil},
		"42P05": {noStatements, nil, nil},
		"42P01": {missing, nil, nil},
		"3F000": {missing, nil, nil},
		"25006": {giveUp, errReadOnly, errReadOnly},
		"23505": {giveUp, nil, nil},
		"57014": {giveUp, nil, nil},
		"BY002": {giveUp, nil, nil},
		"BY004": {giveUp, nil, engine.ErrBudgetSpent},
	} {
		err := fmt.Errorf("outer: %w", withoutValues(&pgconn.PgError{Code: code, Message: "some text"}))
		if got := reactTo(err); got != want.reaction {
			t.Errorf("%s: reaction %d, want %d", code, got, want.reaction)
		}
		for what, translated := range map[string][2]error{"locking": {lockError(err), want.locking}, "holding": {heldError(held, err), want.holding}} {
			got, wanted := translated[0], translated[1]
			if wanted == nil && got.Error() != err.Error() || wanted != nil && !errors.Is(got, wanted) {
				t.Errorf("%s, %s: got %v, want %v", code, what, got, wanted)
			}
		}
	}
	lost, ok := errors.AsType[*sitelock.LockLostError](heldError(held, withoutValues(&pgconn.PgError{Code: "BY001"})))
	if !ok || lost.Held != held {
		t.Errorf("BY001 is %v", lost)
	}
}

func TestNoErrorShowsARow(t *testing.T) {
	t.Parallel()
	const canary = "canary-4711"
	for _, raw := range []*pgconn.PgError{
		{Code: "22P02", Message: `invalid input syntax for type integer: "` + canary + `"`, TableName: "t", ColumnName: "c"},
		{Code: "22999", Message: canary},
		{Code: "23505", Message: `duplicate key value violates unique constraint "u"`, Detail: "Key (v)=(" + canary + ") already exists."},
		{Code: "23514", Message: `new row for relation "t" violates check constraint "c"`, Detail: "Failing row contains (" + canary + ").", Where: canary},
	} {
		clean := withoutValues(raw)
		for _, text := range []string{clean.Error(), fmt.Sprintf("%+v", clean), scrub(fmt.Errorf("outer: %w", raw)).Error()} {
			if strings.Contains(text, canary) {
				t.Errorf("%s: %s", raw.Code, text)
			}
		}
		if errors.Is(scrub(raw), raw) {
			t.Errorf("%s: the driver's error is still within reach", raw.Code)
		}
	}
}
