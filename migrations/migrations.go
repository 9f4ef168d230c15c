// Package migrations holds Belay's own tables, for each database in files of the same numbers and names. The storage
// packages run them; a database that has a higher number than the newest file here belongs to a newer Belay.
package migrations

import (
	"embed"
	"fmt"
	"io/fs"
	"slices"
	"strconv"
	"strings"

	"github.com/belayhq/belay/tenant"
)

//go:embed postgres/*.sql sqlite/*.sql
var files embed.FS

// Migration is one file.
type Migration struct {
	Version int
	Name    string
	SQL     string
}

// For returns the migrations of a database in the order in which they run: versions 1, 2, 3 and so on. It panics if
// the files of the package are not numbered so, which a test excludes.
func For(d tenant.Dialect) []Migration {
	entries, err := fs.ReadDir(files, string(d))
	if err != nil {
		panic(fmt.Sprintf("migrations for %s: %v", d, err))
	}
	all := make([]Migration, 0, len(entries))
	for _, e := range entries {
		number, name, _ := strings.Cut(strings.TrimSuffix(e.Name(), ".sql"), "_")
		version, err := strconv.Atoi(number)
		if err != nil {
			panic(fmt.Sprintf("migration %s: %v", e.Name(), err))
		}
		text, err := files.ReadFile(string(d) + "/" + e.Name())
		if err != nil {
			panic(fmt.Sprintf("migration %s: %v", e.Name(), err))
		}
		all = append(all, Migration{Version: version, Name: name, SQL: string(text)})
	}
	slices.SortFunc(all, func(a, b Migration) int { return a.Version - b.Version })
	for i, m := range all {
		if m.Version != i+1 {
			panic(fmt.Sprintf("migration %d of %s is numbered %d", i+1, d, m.Version))
		}
	}
	return all
}
