package soak

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"

	"github.com/belayhq/belay/integration/checker"
	"github.com/belayhq/belay/internal/failpoint"
)

// process is a worker. What it prints is in files, which outlive it.
type process struct {
	cmd            *exec.Cmd
	stdout, stderr string
	// at gets a value when the process stops at its failpoint, and orders lets it go on.
	at     chan struct{}
	orders *os.File
	// exited is closed when it has ended.
	exited chan struct{}
	// doomed says that somebody killed it.
	doomed bool
}

// spawn starts a worker; point, if not empty, is where it stops.
func (s *soak) spawn(point string, args ...string) *process {
	s.t.Helper()
	s.spawned++
	name := filepath.Join(s.dir, fmt.Sprintf("worker-%d", s.spawned))
	p := &process{stdout: name + ".out", stderr: name + ".err", at: make(chan struct{}, 1), exited: make(chan struct{})}
	args = append([]string{"-brief", s.brief, "-seed", strconv.FormatUint(s.random.Uint64(), 10)}, args...)
	p.cmd = exec.Command(s.worker, args...)
	stdout, err := os.Create(p.stdout)
	check(s.t, err)
	defer stdout.Close()
	stderr, err := os.Create(p.stderr)
	check(s.t, err)
	defer stderr.Close()
	reached, atW, err := os.Pipe()
	check(s.t, err)
	inR, orders, err := os.Pipe()
	check(s.t, err)
	p.orders = orders
	p.cmd.Stdout, p.cmd.Stderr, p.cmd.ExtraFiles = stdout, stderr, []*os.File{atW, inR}
	p.cmd.Env = append(os.Environ(), failpoint.Env+"="+point)
	check(s.t, p.cmd.Start())
	_, _ = atW.Close(), inR.Close()
	s.running.Go(func() {
		defer reached.Close()
		if _, err := bufio.NewReader(reached).ReadString('\n'); err == nil {
			p.at <- struct{}{}
		}
		_ = p.cmd.Wait() // how it ended is in its state
		_ = orders.Close()
		close(p.exited)
	})
	s.all = append(s.all, p)
	return p
}

func (p *process) signal(sig syscall.Signal) { _ = p.cmd.Process.Signal(sig) } // it may have ended

func (p *process) kill() {
	p.doomed = true
	p.signal(syscall.SIGKILL)
}

// alive says that the process has not ended.
func (p *process) alive() bool {
	select {
	case <-p.exited:
		return false
	default:
		return true
	}
}

// said reads what the process printed. The last line of one that was killed may be cut off.
func (p *process) said() ([]checker.Said, error) {
	raw, err := os.ReadFile(p.stdout)
	if err != nil {
		return nil, err
	}
	var all []checker.Said
	for line := range bytes.Lines(raw) {
		var s checker.Said
		if err := json.Unmarshal(line, &s); err != nil {
			if p.doomed && !bytes.HasSuffix(line, []byte("\n")) {
				break
			}
			return nil, fmt.Errorf("%s: %w", p.stdout, err)
		}
		all = append(all, s)
	}
	return all, nil
}
