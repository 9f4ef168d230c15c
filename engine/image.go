package engine

import (
	"context"
	"errors"
	"fmt"

	"github.com/belayhq/belay/plan"
)

// undoable reports whether a step is an action that has something to run on the way down. Such a step always keeps a
// before-image, an empty one for none: one that is missing is then known to be lost, and no undo guesses.
func (o *operation) undoable(s *plan.Step) bool {
	if s.Kind != plan.Action || s.Undo != nil {
		return false
	}
	a, _ := o.engine.config.Actions.lookup(s.Action.Name)
	return a.hasUndo
}

// kept is the before-image that a step keeps.
func (o *operation) kept(s *plan.ProgramStep, image []byte) []byte {
	if image == nil && o.undoable(s.Step) {
		return []byte{}
	}
	return image
}

// image reads the before-image of a step in place or in doubt, as its action gave it.
func (o *operation) image(ctx context.Context, p plan.ID, s *plan.ProgramStep) ([]byte, error) {
	image, err := o.store.Image(ctx, o.tenant.ID, p, s.Ordinal)
	switch {
	case err != nil:
		return nil, err
	case image == nil && o.undoable(s.Step):
		return nil, fmt.Errorf("step %s has none any more: %w", s.Step.ID, ErrImageDamaged)
	case len(image) == 0:
		return nil, nil
	}
	return image, nil
}

// whyNoImages refuses a rollback that would come upon a before-image that is damaged or gone, before its first step is
// touched.
func (o *operation) whyNoImages(ctx context.Context, program *plan.Program, record plan.Record) error {
	for i := range program.Steps {
		s := &program.Steps[i]
		if state := record.State(s.Ordinal); state == "" || state == plan.StepUndone || !o.undoable(s.Step) {
			continue
		}
		_, err := o.image(ctx, record.Plan.ID, s)
		if errors.Is(err, ErrImageDamaged) {
			return &RefusedError{Reason: RefusedImage, Err: fmt.Errorf(
				"step %s of %s cannot be undone: restore what it changed by hand, then resolve the plan: %w", s.Step.ID, record.Plan.Change, err)}
		}
		if err != nil {
			return err
		}
	}
	return nil
}
