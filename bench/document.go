package main

import (
	"bufio"
	_ "embed"
	"fmt"
	"io"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"text/template"
	"time"

	"github.com/mattn/go-sqlite3"
)

//go:embed performance.md.tmpl
var performance string

// document is what performance.md.tmpl shows.
type document struct {
	Date, Belay, Go, Postgres, SQLite string
	Machine, System                   string
	CPUs, Rounds, Tenants             int
	Works                             []documentWork
	Losses                            []string
	Modules                           []string
}

type documentWork struct {
	Name, Unit string
	Rows       []string
}

// peers are the modules whose versions matter.
var peers = []string{
	"github.com/jackc/pgx/v5", "github.com/mattn/go-sqlite3", "github.com/dbos-inc/dbos-transact-golang", "github.com/riverqueue/river",
	"github.com/pressly/goose/v3", "github.com/golang-migrate/migrate/v4",
}

// write fills the template in.
func write(path string, all []measured, w *world, o options) error {
	sqliteVersion, _, _ := sqlite3.Version()
	d := document{
		Date: time.Now().UTC().Format(time.DateOnly), Belay: revision(), Go: runtime.Version(), Postgres: w.version, SQLite: sqliteVersion,
		Machine: processor(), System: runtime.GOOS + "/" + runtime.GOARCH, CPUs: runtime.NumCPU(), Rounds: o.rounds, Tenants: o.tenants,
		Losses: losses(all), Modules: versions(),
	}
	for _, r := range rows(all) {
		if len(d.Works) == 0 || d.Works[len(d.Works)-1].Name != r.work {
			d.Works = append(d.Works, documentWork{Name: r.work, Unit: r.unit})
		}
		last := &d.Works[len(d.Works)-1]
		last.Rows = append(last.Rows, r.markdown())
	}
	t, err := template.New("performance").Parse(performance)
	if err != nil {
		return err
	}
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	if err := t.Execute(file, d); err != nil {
		return err
	}
	return file.Close()
}

func (r row) markdown() string {
	if r.broken != nil {
		return fmt.Sprintf("| %s | failed | | | | | |", r.contender)
	}
	return fmt.Sprintf("| %s | %s | %s-%s | %.2f | %s | %s | %s |", r.contender, number(r.median), number(r.lowest), number(r.highest), r.ratio,
		micros(r.cpu.client), micros(r.cpu.server), megabytes(r.peak))
}

// micros writes processor time; nothing where it is not known.
func micros(d time.Duration) string {
	if d <= 0 {
		return ""
	}
	return number(float64(d.Nanoseconds()) / 1000)
}

// megabytes writes memory; nothing where it is not known.
func megabytes(bytes float64) string {
	if bytes <= 0 {
		return ""
	}
	return number(bytes / 1e6)
}

func versions() []string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return nil
	}
	var lines []string
	for _, m := range info.Deps {
		if slices.Contains(peers, m.Path) {
			lines = append(lines, m.Path+" "+m.Version)
		}
	}
	return lines
}

// revision is the commit that the program was built from.
func revision() string {
	info, _ := debug.ReadBuildInfo()
	if info != nil {
		for _, s := range info.Settings {
			if s.Key == "vcs.revision" {
				return s.Value[:min(12, len(s.Value))]
			}
		}
	}
	return "(development)"
}

// processor is what Linux calls it; the system's name elsewhere.
func processor() string {
	file, err := os.Open("/proc/cpuinfo")
	if err != nil {
		return runtime.GOOS
	}
	defer file.Close()
	return modelName(file)
}

func modelName(r io.Reader) string {
	for lines := bufio.NewScanner(r); lines.Scan(); {
		if name, value, ok := strings.Cut(lines.Text(), ":"); ok && strings.TrimSpace(name) == "model name" {
			return strings.TrimSpace(value)
		}
	}
	return runtime.GOARCH
}
