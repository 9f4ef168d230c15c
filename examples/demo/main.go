// Command demo shows what Belay is for, on 25 small shops in SQLite files: it applies a change of four steps to all of them,
// kills the process half-way, shows what is in place, runs the same command again, and rolls one shop back.
//
//	demo PATH-TO-BELAY [PATH-TO-CHANGE]
package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	_ "github.com/mattn/go-sqlite3"
)

const (
	shops = 25
	lease = 3 * time.Second
)

func main() {
	if len(os.Args) < 2 {
		fmt.Fprintln(os.Stderr, "usage: demo PATH-TO-BELAY [PATH-TO-CHANGE]")
		os.Exit(64)
	}
	change := "examples/shop"
	if len(os.Args) > 2 {
		change = os.Args[2]
	}
	if err := run(os.Args[1], change); err != nil {
		fmt.Fprintln(os.Stderr, "demo:", err)
		os.Exit(1)
	}
}

// demo runs belay in a folder of its own.
type demo struct {
	belay, dir, change string
}

func run(belay, change string) error {
	dir, err := os.MkdirTemp("", "belay-demo-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	d := &demo{dir: dir}
	if d.belay, err = filepath.Abs(belay); err != nil {
		return err
	}
	if d.change, err = filepath.Abs(change); err != nil {
		return err
	}
	began := time.Now()
	for _, step := range []func() error{d.prepare, d.applyAndKill, d.look, d.applyAgain, d.rollBackOne} {
		if err := step(); err != nil {
			return err
		}
	}
	say("Done in %s. The four steps are in place exactly once in each of the other %d shops.", time.Since(began).Round(time.Second), shops-1)
	return nil
}

// prepare makes the shops and registers them.
func (d *demo) prepare() error {
	say("%d shops, each a SQLite file with %d customers, %d orders and %d prices.", shops, customers, orders, prices)
	if err := d.show("init", "."); err != nil {
		return err
	}
	var list bytes.Buffer
	list.WriteString("name,target,labels\n")
	for i := range shops {
		if err := fillShop(d.file(i), uint64(i)); err != nil {
			return fmt.Errorf("shop %s: %w", name(i), err)
		}
		fmt.Fprintf(&list, "%s,sqlite://%s.db,ring=%s\n", name(i), name(i), ring(i))
	}
	if err := os.WriteFile(filepath.Join(d.dir, "shops.csv"), list.Bytes(), 0o600); err != nil {
		return err
	}
	return d.show("tenant", "import", "shops.csv")
}

// applyAndKill starts the apply and kills it when the tenth shop has two of its four steps in place.
func (d *demo) applyAndKill() error {
	say("Apply the change to all of them, two at a time, and kill the process when the tenth shop has two steps in place:")
	cmd := d.command(d.applyArgs("-o", "jsonl")...)
	cmd.Stderr = nil
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	victim, err := tenthAtStepTwo(out)
	killErr := cmd.Process.Kill()
	waitErr := cmd.Wait()
	switch {
	case err != nil:
		return err
	case killErr != nil:
		return killErr
	case cmd.ProcessState.Exited():
		return fmt.Errorf("the process had ended before it was killed: %w", waitErr)
	}
	say("SIGKILL: %s had two of four steps in place. Nobody cleans up. This is what is there now:", victim)
	return nil
}

// event is what the demo reads of a line of the stream.
type event struct {
	Type      string `json:"type"`
	Kind      string `json:"kind"`
	Tenant    string `json:"tenant"`
	StepsDone int    `json:"steps_done"`
}

// tenthAtStepTwo reads the stream until the tenth shop to be claimed reports its second step.
func tenthAtStepTwo(stream interface{ Read([]byte) (int, error) }) (string, error) {
	claimed := make(map[string]int)
	lines := bufio.NewScanner(stream)
	for lines.Scan() {
		var e event
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			return "", fmt.Errorf("read the stream: %w", err)
		}
		if e.Type != "event" {
			continue
		}
		if _, seen := claimed[e.Tenant]; !seen {
			claimed[e.Tenant] = len(claimed) + 1
		}
		if e.Kind == "step_done" && e.StepsDone == 2 && claimed[e.Tenant] == 10 {
			return e.Tenant, nil
		}
	}
	return "", errors.Join(errors.New("the stream ended before the tenth shop had two steps in place"), lines.Err())
}

// look shows the status twice, while the dead process's leases still live and when they have lapsed, and demands that the
// kill hit something.
func (d *demo) look() error {
	if err := d.show("status", "--all"); err != nil {
		return err
	}
	say("The shops that it had in hand are kept for it, for it might still be alive. Their leases lapse a moment later:")
	hit, err := d.untilLapsed()
	if err != nil {
		return err
	}
	if hit == 0 {
		return errors.New("the kill hit nothing: no shop is half-way")
	}
	return d.show("status", "--all")
}

// untilLapsed waits until no lock is live any more, and returns the number of tenants whose plan was interrupted.
func (d *demo) untilLapsed() (int, error) {
	for deadline := time.Now().Add(5 * lease); time.Now().Before(deadline); <-time.After(lease / 10) {
		out, err := d.command("status", "--all", "-o", "json").Output()
		if err != nil {
			return 0, fmt.Errorf("belay status: %w", err)
		}
		var status struct {
			Summary struct {
				Running     int `json:"running"`
				Interrupted int `json:"interrupted"`
			} `json:"summary"`
		}
		if err := json.Unmarshal(out, &status); err != nil {
			return 0, fmt.Errorf("read the status: %w", err)
		}
		if status.Summary.Running == 0 {
			return status.Summary.Interrupted, nil
		}
	}
	return 0, errors.New("the leases did not lapse")
}

func (d *demo) applyAgain() error {
	say("The same command again. It recovers the dead process's plans, and goes on where they stopped:")
	return d.show(d.applyArgs()...)
}

// rollBackOne rolls one shop back and compares its content with that of the day it was made.
func (d *demo) rollBackOne() error {
	const i = 9
	say("Roll one shop back, and compare its content with the shop as it was made:")
	if err := d.show("rollback", "0001-customer-locale", "-t", name(i), "-y"); err != nil {
		return err
	}
	fresh := filepath.Join(d.dir, "fresh.db")
	if err := fillShop(fresh, i); err != nil {
		return err
	}
	want, err := contentHash(fresh)
	if err != nil {
		return err
	}
	got, err := contentHash(d.file(i))
	if err != nil {
		return err
	}
	if got != want {
		return fmt.Errorf("%s has content %s after the rollback, not %s", name(i), got, want)
	}
	say("%s: content %s, before and after.", name(i), got)
	return nil
}

func (d *demo) applyArgs(more ...string) []string {
	return append([]string{"apply", d.change, "--all", "-p", "2", "-y"}, more...)
}

func (d *demo) command(args ...string) *exec.Cmd {
	cmd := exec.Command(d.belay, args...)
	cmd.Dir = d.dir
	cmd.Env = append(os.Environ(), "BELAY_LEASE="+lease.String())
	return cmd
}

// show prints a command and runs it, with its output cut short where all is well.
func (d *demo) show(args ...string) error {
	fmt.Print("\n$ belay")
	for _, a := range args {
		if a == d.change {
			a = "examples/shop"
		}
		fmt.Print(" ", a)
	}
	fmt.Println()
	cmd := d.command(args...)
	out := &brief{to: os.Stdout}
	cmd.Stdout, cmd.Stderr = out, out
	if err := cmd.Run(); err != nil {
		return errors.Join(fmt.Errorf("belay %s: %w", args[0], err), out.end())
	}
	return out.end()
}

func (d *demo) file(i int) string { return filepath.Join(d.dir, name(i)+".db") }

func name(i int) string { return fmt.Sprintf("shop-%02d", i+1) }

func ring(i int) string {
	if i < 3 {
		return "canary"
	}
	return "main"
}

func say(format string, args ...any) { fmt.Printf("\n"+format+"\n", args...) }
