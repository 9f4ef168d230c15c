//go:build failpoints

package failpoint

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
)

// ErrInjected is what Hit returns when the parent orders "fail".
var ErrInjected = errors.New("injected failure")

var armed = parse(os.Getenv(Env))

type point struct {
	mu   sync.Mutex
	name string
	nth  int
	hits int
	out  *os.File
	in   *bufio.Reader
}

func parse(s string) *point {
	if s == "" {
		return nil
	}
	name, number, numbered := strings.Cut(s, "#")
	p := &point{name: name, nth: 1, out: os.NewFile(3, "failpoint-out"), in: bufio.NewReader(os.NewFile(4, "failpoint-in"))}
	if numbered {
		nth, err := strconv.Atoi(number)
		if err != nil {
			panic("failpoint: " + Env + " is " + s)
		}
		p.nth = nth
	}
	return p
}

// Hit stops here if the process was told to.
func Hit(name string) error {
	if !slices.Contains(Points(), name) {
		panic("failpoint: " + name + " is none of Points")
	}
	if armed == nil || armed.name != name && armed.name != Every {
		return nil
	}
	armed.mu.Lock()
	defer armed.mu.Unlock()
	if armed.hits++; armed.hits != armed.nth && armed.name != Every {
		return nil
	}
	fmt.Fprintf(armed.out, "at %s\n", name)
	if armed.name == Every {
		return nil
	}
	order, err := armed.in.ReadString('\n')
	if err == nil && order == "fail\n" {
		return ErrInjected
	}
	return nil
}
