package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Every contender of every work does its work, on few tenants.
func TestEveryContenderDoesItsWork(t *testing.T) {
	written := filepath.Join(t.TempDir(), "performance.md")
	err := run(t.Context(), []string{"-tenants", "20", "-schemas", "20", "-rounds", "1", "-workers", "4", "-write", written})
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(written)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if strings.Contains(line, "| failed |") {
			t.Error(line)
		}
	}
	for _, work := range []string{"**a: ", "**b: ", "**e: ", "**f: ", "**a, SQLite: "} {
		if !strings.Contains(string(text), work) {
			t.Errorf("no work %s", work)
		}
	}
}
