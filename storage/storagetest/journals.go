package storagetest

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/belayhq/belay/engine"
	"github.com/belayhq/belay/plan"
)

var journals = []test{
	{"a journal row moves only where plan says it can", func(t *testing.T, d *database) {
		states := []plan.StepState{"", plan.StepIntent, plan.StepDone, plan.StepUndoIntent, plan.StepUndone}
		s := d.site(t)
		x := s.begin(t, apply(change("0001-first", len(states)*len(states))))
		ordinal := 0
		for _, from := range states {
			for _, to := range states[1:] {
				s.journal(t, x.claimed.Plan.ID, ordinal, from)
				group := x.group(x.step(ordinal, to, fmt.Sprintf("INSERT INTO %s VALUES (%d, 'effect')", s.table, ordinal)))
				if to == plan.StepIntent || to == plan.StepUndoIntent {
					group.Steps[0] = recorded(ordinal, to)
				}
				if to == plan.StepUndone || to == plan.StepUndoIntent {
					group.Direction = plan.Down
				}
				t.Logf("%q to %q", from, to)
				if from.CanBecome(to) {
					x.checkpoint(t, group)
				} else {
					x.fails(t, group)
				}
				ordinal++
			}
		}
	}},
	{"one illegal row in a group stops all of it", func(t *testing.T, d *database) {
		s := d.site(t)
		x := s.begin(t, apply(change("0001-first", 3)))
		x.checkpoint(t, x.group(x.put(1)))
		x.fails(t, x.group(x.put(0), x.step(1, plan.StepDone), x.put(2)))
	}},
	{"a step that is said to be new is refused where it has a row", func(t *testing.T, d *database) {
		for _, state := range []plan.StepState{plan.StepIntent, plan.StepDone, plan.StepUndoIntent, plan.StepUndone} {
			s := d.site(t)
			x := s.begin(t, apply(change("0001-first", 2)))
			s.journal(t, x.claimed.Plan.ID, 1, state)
			group := x.group(x.put(0), x.put(1))
			group.Steps[0].New, group.Steps[1].New = true, true
			err := x.failure(t, group)
			if group.Steps[1].New = false; state == plan.StepDone && err.Error() != x.failure(t, group).Error() {
				t.Errorf("got %v, want %v, as where it is not said to be new", err, x.failure(t, group))
			}
			group.Steps = group.Steps[:1]
			x.checkpoint(t, group)
		}
	}},
	{"no row is written for a plan that is not in flight", func(t *testing.T, d *database) {
		s := d.site(t)
		x := s.begin(t, apply(change("0001-first", 2)))
		x.claimed.Plan.ID = plan.NewID()
		for _, isNew := range []bool{false, true} {
			group := x.group(x.put(0))
			group.Steps[0].New = isNew
			x.fails(t, group)
		}
	}},
	{"an intent runs nothing", func(t *testing.T, d *database) {
		s := d.site(t)
		x := s.begin(t, apply(change("0001-first", 1)))
		x.checkpoint(t, x.group(recorded(0, plan.StepIntent)))
		if e := s.plan(t, change("0001-first", 1)).Journal[0]; e.State != plan.StepIntent || e.Attempt != 1 || s.rows(t) != "0" {
			t.Errorf("entry %+v", e)
		}
	}},
	{"attempts of a step are counted per direction", func(t *testing.T, d *database) {
		s := d.site(t)
		c := change("0001-first", 1)
		x := s.begin(t, apply(c))
		for i, want := range []struct {
			state   plan.StepState
			attempt int
		}{
			{plan.StepIntent, 1},
			{plan.StepIntent, 2},
			{plan.StepIntent, 3},
			{plan.StepUndoIntent, 1},
			{plan.StepUndoIntent, 2},
			{plan.StepUndone, 2},
			{plan.StepIntent, 1},
			{plan.StepDone, 1},
			{plan.StepUndoIntent, 1},
		} {
			x.checkpoint(t, x.group(recorded(0, want.state)))
			if e := s.plan(t, c).Journal[0]; e.State != want.state || e.Attempt != want.attempt {
				t.Errorf("write %d: entry %+v, want %+v", i, e, want)
			}
		}
	}},
	{"the next holder is told how long an effect in doubt may still be running", func(t *testing.T, d *database) {
		s := d.site(t)
		c := change("0001-first", 3)
		x := s.begin(t, apply(c))
		short, long := recorded(0, plan.StepIntent), recorded(1, plan.StepIntent)
		short.Timeout, long.Timeout = time.Millisecond, time.Hour
		x.checkpoint(t, x.group(short, long, x.put(2)))
		s.expire(t)
		next := s.begin(t, apply(c))
		left := []time.Duration{}
		for _, e := range next.claimed.Journal {
			left = append(left, e.WaitLeft)
		}
		if len(left) != 3 || left[0] > time.Millisecond || left[1] < 59*time.Minute || left[1] > time.Hour || left[2] != 0 {
			t.Errorf("left to wait: %v", left)
		}
	}},
	{"a holder does not wait for its own intents", func(t *testing.T, d *database) {
		s := d.site(t)
		req := s.request(apply(change("0001-first", 1)))
		grant, err := d.db.Acquire(t.Context(), req)
		if err != nil {
			t.Fatal(err)
		}
		x := term{site: s, held: grant.Held, claimed: *grant.Claimed, direction: plan.Up}
		x.checkpoint(t, x.group(recorded(0, plan.StepIntent)))
		if grant, err = d.db.Acquire(t.Context(), req); err != nil || grant.Claimed == nil {
			t.Fatalf("grant %+v, error %v", grant, err)
		}
		if e := grant.Claimed.Journal[0]; e.WaitLeft != 0 || e.State != plan.StepIntent {
			t.Errorf("entry %+v", e)
		}
	}},
	{"the rows of the next cycle say so", func(t *testing.T, d *database) {
		s := d.site(t)
		c := change("0001-first", 1)
		x := s.begin(t, apply(c))
		x.succeed(t, x.put(0))
		x = s.begin(t, rollback(c))
		x.succeed(t, x.take(0))
		x = s.begin(t, apply(c))
		x.succeed(t, x.put(0))
		if e := s.plan(t, c).Journal[0]; e.Cycle != 2 || e.Fence != 3 || e.State != plan.StepDone {
			t.Errorf("entry %+v", e)
		}
	}},
}

// journal writes a journal row behind Belay's back; none for the empty state.
func (s *site) journal(t *testing.T, id plan.ID, ordinal int, state plan.StepState) {
	t.Helper()
	if state == "" {
		return
	}
	s.Exec(t, "", fmt.Sprintf(`INSERT INTO %s (tenant_id, plan_id, ordinal, step_id, state, fence, cycle, updated_at)
		VALUES ('%s', '%s', %d, '%s', '%s', 1, 1, 1)`, s.Table("journal"), s.id, id, ordinal, stepID(ordinal), state))
}

// image reads the before-image of a step.
func (x term) image(t *testing.T, ordinal int) []byte {
	t.Helper()
	image, err := x.db.Image(t.Context(), x.id, x.claimed.Plan.ID, ordinal)
	if err != nil {
		t.Fatalf("image: %v", err)
	}
	return image
}

// withImage is a step that brings a before-image.
func withImage(step engine.GroupStep, image string) engine.GroupStep {
	step.Image = []byte(image)
	return step
}

var images = []test{
	{"an intent stores its before-image, once", func(t *testing.T, d *database) {
		s := d.site(t)
		x := s.begin(t, apply(change("0001-first", 2)))
		x.checkpoint(t, x.group(withImage(recorded(0, plan.StepIntent), "before"), recorded(1, plan.StepIntent)))
		x.checkpoint(t, x.group(withImage(recorded(0, plan.StepIntent), "its own effect")))
		x.checkpoint(t, x.group(withImage(recorded(0, plan.StepDone), "its own effect")))
		if got := x.image(t, 0); string(got) != "before" {
			t.Errorf("image %q", got)
		}
		if got := x.image(t, 1); got != nil {
			t.Errorf("a step without an image has %q", got)
		}
	}},
	{"an action's before-image commits with its effect", func(t *testing.T, d *database) {
		s := d.site(t)
		x := s.begin(t, apply(change("0001-first", 1)))
		step := s.action(0, func(tx *actionTx) {
			tx.image = []byte("before\x00\xff")
			tx.exec("INSERT INTO " + s.table + " VALUES (1, 'one')")
		})
		x.failsIn(t, 1, x.group(step, x.step(1, plan.StepDone, "INSERT INTO nowhere VALUES (1)")))
		if got := x.image(t, 0); got != nil {
			t.Errorf("image %q of a group that failed", got)
		}
		x.checkpoint(t, x.group(step))
		if got := x.image(t, 0); string(got) != "before\x00\xff" {
			t.Errorf("image %q", got)
		}
	}},
	{"a re-run under another holder keeps the first image", func(t *testing.T, d *database) {
		s := d.site(t)
		c := change("0001-first", 1)
		x := s.begin(t, apply(c))
		x.checkpoint(t, x.group(withImage(recorded(0, plan.StepIntent), "before")))
		s.expire(t)
		next := s.begin(t, apply(c))
		next.succeed(t, s.action(0, func(tx *actionTx) { tx.image = []byte("its own effect") }))
		if got := next.image(t, 0); string(got) != "before" {
			t.Errorf("image %q", got)
		}
	}},
	{"an image is dropped when its step is undone, and a new cycle stores a new one", func(t *testing.T, d *database) {
		s := d.site(t)
		c := change("0001-first", 1)
		s.begin(t, apply(c)).succeed(t, withImage(recorded(0, plan.StepDone), "first"))
		x := s.begin(t, rollback(c))
		x.checkpoint(t, x.group(recorded(0, plan.StepUndoIntent)))
		if got := x.image(t, 0); string(got) != "first" {
			t.Errorf("image %q while the undo is in doubt", got)
		}
		x.succeed(t, recorded(0, plan.StepUndone))
		if got := x.image(t, 0); got != nil {
			t.Errorf("image %q after the undo", got)
		}
		s.begin(t, apply(c)).succeed(t, withImage(recorded(0, plan.StepDone), "second"))
		if got := x.image(t, 0); string(got) != "second" {
			t.Errorf("image %q in the second cycle", got)
		}
	}},
	{"a large image comes back as it went in", func(t *testing.T, d *database) {
		s := d.site(t)
		x := s.begin(t, apply(change("0001-first", 1)))
		source := rand.NewChaCha8([32]byte{1})
		large := make([]byte, 3<<20)
		if _, err := source.Read(large); err != nil {
			t.Fatal(err)
		}
		x.checkpoint(t, x.group(withImage(recorded(0, plan.StepIntent), string(large))))
		if got := x.image(t, 0); !bytes.Equal(got, large) {
			t.Errorf("an image of %d bytes came back with %d", len(large), len(got))
		}
	}},
	{"a damaged image is noticed", func(t *testing.T, d *database) {
		s := d.site(t)
		x := s.begin(t, apply(change("0001-first", 1)))
		x.checkpoint(t, x.group(withImage(recorded(0, plan.StepIntent), "before")))
		d.Exec(t, "", "UPDATE "+d.Table("before_image")+" SET body = checksum")
		if got, err := d.db.Image(t.Context(), s.id, x.claimed.Plan.ID, 0); !errors.Is(err, engine.ErrImageDamaged) {
			t.Errorf("image %q, error %v, want ErrImageDamaged", got, err)
		}
	}},
}
