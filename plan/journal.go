package plan

// CanBecome reports whether the journal row of a step may move from s to next. The empty state is a step without a
// row.
//
//	            ┌────────── intent ◀──────────┐
//	            ▼              │   (again)    │
//	"" ──────▶ done            ▼              │
//	undone ─▶  └────────▶ undo_intent ──────▶ undone
//
// A transactional step goes straight to done, and straight from done to undone: its row commits with its effect. An
// external step passes an intent each way. From either intent it may also be found done or be turned back, because it
// is in doubt: a later holder, or a person who looked, says which.
func (s StepState) CanBecome(next StepState) bool {
	switch next {
	case StepIntent:
		return s == "" || s == StepUndone || s == StepUndoIntent || s == StepIntent
	case StepDone:
		return s == "" || s == StepUndone || s == StepIntent || s == StepUndoIntent
	case StepUndoIntent:
		return s == StepDone || s == StepIntent || s == StepUndoIntent
	case StepUndone:
		return s == StepDone || s == StepIntent || s == StepUndoIntent
	}
	return false
}

// Next returns the entry as it is once its step has moved to state. Attempt counts the intents of one direction: an
// outcome keeps the number of its intents, and turning back starts anew. Whether the move is legal is
// [StepState.CanBecome]'s to say.
func (e Entry) Next(state StepState) Entry {
	begun := StepIntent
	if state == StepUndoIntent || state == StepUndone {
		begun = StepUndoIntent
	}
	if e.State != begun {
		e.Attempt = 0
	}
	if state == begun {
		e.Attempt++
	}
	e.State = state
	return e
}
