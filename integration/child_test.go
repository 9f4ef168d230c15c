package integration

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/belayhq/belay/internal/failpoint"
)

// report is what testchild prints.
type report struct {
	Verdict   string `json:"verdict"`
	StepsDone int    `json:"steps_done"`
	Recovered int    `json:"recovered"`
	Error     string `json:"error"`
	Lost      bool   `json:"lost"`
	Busy      bool   `json:"busy"`
}

// child is a process that works on a tenant and may stop at a failpoint.
type child struct {
	t              *testing.T
	cmd            *exec.Cmd
	stdout, stderr output
	at             *bufio.Reader
	orders         *os.File
	exited         chan struct{}
	waitErr        error
}

// hang is how long a test waits for a process before it calls it hung.
const hang = 60 * time.Second

// startChild starts testchild with arguments; point, if not empty, names the failpoint at which it stops.
func startChild(t *testing.T, point string, args ...string) *child {
	t.Helper()
	path, err := testchild()
	check(t, err)
	return start(t, point, exec.Command(path, args...))
}

func start(t *testing.T, point string, cmd *exec.Cmd) *child {
	t.Helper()
	c := &child{t: t, cmd: cmd, exited: make(chan struct{})}
	outR, outW, err := os.Pipe()
	check(t, err)
	inR, inW, err := os.Pipe()
	check(t, err)
	cmd.ExtraFiles = []*os.File{outW, inR}
	if cmd.Env == nil {
		cmd.Env = os.Environ()
	}
	cmd.Env = append(cmd.Env, failpoint.Env+"="+point)
	cmd.Stdout, cmd.Stderr = &c.stdout, &c.stderr
	check(t, cmd.Start())
	check(t, outW.Close())
	check(t, inR.Close())
	c.at, c.orders = bufio.NewReader(outR), inW
	go func() {
		c.waitErr = cmd.Wait()
		close(c.exited)
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGCONT)
		_ = cmd.Process.Kill()
		<-c.exited
		_ = outR.Close()
		_ = inW.Close()
	})
	return c
}

// reached waits until the child stops at its failpoint; false if it ended without.
func (c *child) reached() bool {
	c.t.Helper()
	_, ok := c.passed()
	return ok
}

// passed waits for the next point at which the child tells that it is; false if it ended before.
func (c *child) passed() (point string, ok bool) {
	c.t.Helper()
	said := make(chan error, 1)
	go func() {
		line, err := c.at.ReadString('\n')
		point = strings.TrimPrefix(strings.TrimSuffix(line, "\n"), "at ")
		said <- err
	}()
	select {
	case err := <-said:
		if err != nil && !errors.Is(err, io.EOF) {
			c.t.Fatal(err)
		}
		return point, err == nil
	case <-time.After(hang):
		c.t.Fatalf("process hangs\n%s", c.stderr.String())
	}
	return "", false
}

// order lets a stopped child go on.
func (c *child) order(what string) {
	c.t.Helper()
	_, err := c.orders.WriteString(what + "\n")
	check(c.t, err)
}

func (c *child) kill() {
	c.t.Helper()
	check(c.t, c.cmd.Process.Kill())
	<-c.exited
}

func (c *child) signal(s os.Signal) {
	c.t.Helper()
	check(c.t, c.cmd.Process.Signal(s))
}

// wait waits for the end of the child and returns what it printed.
func (c *child) wait() report {
	c.t.Helper()
	c.ended()
	var r report
	if err := json.Unmarshal([]byte(c.stdout.String()), &r); err != nil {
		c.t.Fatalf("child printed %q: %v\n%s", c.stdout.String(), err, c.stderr.String())
	}
	return r
}

// ended waits for the end of the process and returns its exit code.
func (c *child) ended() int {
	c.t.Helper()
	select {
	case <-c.exited:
	case <-time.After(hang):
		c.t.Fatalf("process hangs\n%s", c.stderr.String())
	}
	return c.cmd.ProcessState.ExitCode()
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func equal(t *testing.T, what, got, want string) {
	t.Helper()
	if got != want {
		t.Fatalf("%s:\n%s\nwant:\n%s", what, got, want)
	}
}

func contains(t *testing.T, what, text, part string) {
	t.Helper()
	if !strings.Contains(text, part) {
		t.Fatalf("%s does not contain %q:\n%s", what, part, text)
	}
}

// numbered names the n-th passage of a failpoint.
func numbered(point string, n int) string { return fmt.Sprintf("%s#%d", point, n) }

// sees waits until the process has written something to standard error.
func (c *child) sees(part string) {
	c.t.Helper()
	timeout := time.After(hang)
	for {
		grown := c.stderr.grown() // before the look, or a write between the two is missed
		if strings.Contains(c.stderr.String(), part) {
			return
		}
		select {
		case <-grown:
		case <-c.exited:
			// Wait returns behind the last write.
			contains(c.t, "what the process said before it ended", c.stderr.String(), part)
			return
		case <-timeout:
			c.t.Fatalf("the process never said %q:\n%s", part, c.stderr.String())
		}
	}
}

// output is a buffer that may be read while a process writes to it.
type output struct {
	mu   sync.Mutex
	buf  bytes.Buffer
	next chan struct{}
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.next != nil {
		close(o.next)
		o.next = nil
	}
	return o.buf.Write(p)
}

// grown is closed at the next write.
func (o *output) grown() <-chan struct{} {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.next == nil {
		o.next = make(chan struct{})
	}
	return o.next
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.String()
}
