package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// cpu is processor time. On few cores it is what limits everybody, and it hardly changes when the machine is busy with
// other things.
type cpu struct{ client, server time.Duration }

// since is what was used after begin was taken, for each of count units.
func (c cpu) since(begin cpu, count int) cpu {
	n := time.Duration(max(1, count))
	return cpu{client: (c.client - begin.client) / n, server: (c.server - begin.server) / n}
}

// clientCPU is what this process has used so far.
func clientCPU() time.Duration {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		return 0
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

// serverCPU is what the server's processes that are alive have used so far; 0 where the system has no /proc.
func (w *world) serverCPU() time.Duration {
	var sum time.Duration
	stats, _ := filepath.Glob("/proc/[0-9]*/stat") // the pattern is well-formed
	for _, path := range stats {
		stat, err := os.ReadFile(path)
		if err != nil || parentOf(string(stat)) != w.postmaster {
			continue // a process that has ended meanwhile has no parent either
		}
		schedule, err := os.ReadFile(filepath.Join(filepath.Dir(path), "schedstat"))
		if err != nil {
			continue
		}
		on, _, _ := strings.Cut(string(schedule), " ")
		ns, err := strconv.ParseInt(on, 10, 64)
		if err == nil {
			sum += time.Duration(ns)
		}
	}
	return sum
}

// findPostmaster looks up the parent of a backend; 0 where the system has no /proc.
func (w *world) findPostmaster(ctx context.Context) error {
	var backend int
	if err := w.admin.QueryRow(ctx, `SELECT pg_backend_pid()`).Scan(&backend); err != nil {
		return err
	}
	if stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", backend)); err == nil {
		w.postmaster = parentOf(string(stat))
	}
	return nil
}

// parentOf reads a line of /proc/PID/stat: the name, in parentheses, may hold anything. It returns -1 if it cannot.
func parentOf(stat string) int {
	fields := strings.Fields(stat[strings.LastIndexByte(stat, ')')+1:])
	if len(fields) < 2 {
		return -1
	}
	parent, err := strconv.Atoi(fields[1])
	if err != nil {
		return -1
	}
	return parent
}
