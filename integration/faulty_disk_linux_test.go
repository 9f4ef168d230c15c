package integration

import (
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
)

// fault is what a disk does to a process at one of its calls.
type fault string

const (
	// diesThere ends the process in the middle of the call: a write is half done, anything else not begun.
	diesThere fault = "kill"
	// failsOnce fails one call, with an error of the disk.
	failsOnce fault = "eio"
	// isFull fails one call, because there is no space.
	isFull fault = "enospc"
	// isFullAWhile fails that call and the next seven.
	isFullAWhile fault = "enospc for 8"
	// staysFull fails that call and all that follow.
	staysFull fault = "enospc for good"
)

// calls is how many calls in a row fail.
func (f fault) calls() int {
	switch f {
	case isFullAWhile:
		return 8
	case staysFull:
		return math.MaxInt32
	}
	return 1
}

// diskCall is a kind of call at which a disk may fail: those that make durable what is written, and those that write or cut
// a file.
type diskCall string

const (
	anySync  diskCall = "sync"
	anyWrite diskCall = "write"
)

// startOnFaultyDisk starts testchild with a disk that fails at the n-th call of a kind to the database's files, whichever
// thread makes it. The child's reached says whether it came to that.
func startOnFaultyDisk(w *world, f fault, c diskCall, n int, args ...string) *child {
	w.t.Helper()
	path, err := testchild()
	check(w.t, err)
	library, err := faultyDisk()
	check(w.t, err)
	cmd := exec.Command(path, args...)
	cmd.Env = append(os.Environ(), "LD_PRELOAD="+library, "FAULT="+string(f), "FAULT_CALLS="+string(c), fmt.Sprint("FAULT_AT=", n), fmt.Sprint("FAULT_FOR=", f.calls()), "FAULT_FILE="+w.path)
	return start(w.t, "", cmd)
}

// faultyDisk builds a library that comes before C's own, with the calls by which SQLite changes a file. It says on the pipe
// to the parent that a fault has happened.
var faultyDisk = sync.OnceValues(func() (string, error) {
	const text = `#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static long passed;

static int fails(int fd, const char *call) {
	char link[64], file[4096];
	snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
	ssize_t n = readlink(link, file, sizeof file - 1);
	if (n < 0 || strcmp(call, getenv("FAULT_CALLS"))) return 0;
	file[n] = 0;
	const char *of = getenv("FAULT_FILE"), *fault = getenv("FAULT");
	if (strncmp(file, of, strlen(of))) return 0;
	long at = atol(getenv("FAULT_AT")), now = __atomic_add_fetch(&passed, 1, __ATOMIC_SEQ_CST);
	if (now < at || now - at >= atol(getenv("FAULT_FOR"))) return 0;
	if (now == at) dprintf(3, "%s of %s\n", fault, file);
	errno = strcmp(fault, "eio") ? ENOSPC : EIO;
	return 1;
}

static void dies(void) {
	if (strcmp(getenv("FAULT"), "kill")) return;
	kill(getpid(), SIGKILL);
	for (;;) pause();
}

#define PASS(type, name, arguments) \
	static type (*real) arguments; \
	if (!real) real = (type (*) arguments) dlsym(RTLD_NEXT, name)

#define SYNC(name) int name(int fd) { \
	PASS(int, #name, (int)); \
	if (!fails(fd, "sync")) return real(fd); \
	dies(); \
	return -1; \
}
SYNC(fsync)
SYNC(fdatasync)

#define CUT(name) int name(int fd, off_t length) { \
	PASS(int, #name, (int, off_t)); \
	if (!fails(fd, "write")) return real(fd, length); \
	dies(); \
	return -1; \
}
CUT(ftruncate)
CUT(ftruncate64)

#define WRITE(name) ssize_t name(int fd, const void *data, size_t size, off_t at) { \
	PASS(ssize_t, #name, (int, const void *, size_t, off_t)); \
	if (!fails(fd, "write")) return real(fd, data, size, at); \
	int failed = errno; \
	real(fd, data, size / 2, at); \
	dies(); \
	errno = failed; \
	return -1; \
}
WRITE(pwrite)
WRITE(pwrite64)
`
	source, library := filepath.Join(binaries, "disk.c"), filepath.Join(binaries, "disk.so")
	if err := os.WriteFile(source, []byte(text), 0o600); err != nil {
		return "", err
	}
	return library, run("cc", "-shared", "-fPIC", "-o", library, source)
})
