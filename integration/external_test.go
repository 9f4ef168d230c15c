package integration

import (
	"context"

	"github.com/belayhq/belay/engine"
)

// doNothing is the Do of a transactional action that has no effect.
func doNothing[A any](context.Context, engine.Tx, engine.ActionCall[A]) ([]byte, error) { return nil, nil }
