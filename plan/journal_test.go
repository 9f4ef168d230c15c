package plan

import "testing"

func TestAttemptsCountTheIntentsOfOneDirection(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		states []StepState
		want   int
	}{
		{[]StepState{StepDone}, 0},
		{[]StepState{StepIntent}, 1},
		{[]StepState{StepIntent, StepIntent, StepIntent}, 3},
		{[]StepState{StepIntent, StepIntent, StepDone}, 2},
		{[]StepState{StepIntent, StepDone, StepUndoIntent}, 1},
		{[]StepState{StepIntent, StepIntent, StepUndoIntent, StepUndoIntent, StepUndone}, 2},
		{[]StepState{StepIntent, StepDone, StepUndone}, 0},
		{[]StepState{StepUndoIntent, StepUndoIntent, StepIntent}, 1},
	} {
		e := Entry{Ordinal: 3, Step: "third", Cycle: 2, Fence: 7}
		for _, state := range test.states {
			e = e.Next(state)
		}
		want := Entry{Ordinal: 3, Step: "third", Cycle: 2, Fence: 7, State: test.states[len(test.states)-1], Attempt: test.want}
		if e != want {
			t.Errorf("%v: %+v, want %+v", test.states, e, want)
		}
	}
}
