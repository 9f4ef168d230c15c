package main

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

// row is one line of the table.
type row struct {
	work, unit, contender string
	// median, lowest and highest are rates, in units per second.
	median, lowest, highest float64
	// ratio is the median over the rounds of this contender's rate by the first one's.
	ratio float64
	// cpu is the median of what a unit of work uses.
	cpu cpu
	// peak is the median of the most memory at once, in bytes.
	peak   float64
	broken error
}

// rows makes the table of what was measured.
func rows(all []measured) []row {
	var table []row
	for _, m := range all {
		for i, c := range m.work.contenders {
			r := row{work: m.work.name, unit: m.work.unit, contender: c.name, broken: m.broken[i]}
			if len(m.laps[i]) > 0 {
				rates := of(m.laps[i], func(l lap) float64 { return l.rate })
				r.median, r.lowest, r.highest = median(rates), slices.Min(rates), slices.Max(rates)
				r.ratio = m.ratio(i, 0)
				r.cpu.client = time.Duration(median(of(m.laps[i], func(l lap) float64 { return float64(l.cpu.client) })))
				r.peak = median(of(m.laps[i], func(l lap) float64 { return float64(l.peak) }))
				r.cpu.server = time.Duration(median(of(m.laps[i], func(l lap) float64 { return float64(l.cpu.server) })))
			}
			table = append(table, r)
		}
	}
	return table
}

// ratio compares two contenders round by round, because a slow minute of the machine slows both.
func (m *measured) ratio(a, b int) float64 {
	n := min(len(m.laps[a]), len(m.laps[b]))
	if n == 0 {
		return 0
	}
	ratios := make([]float64, n)
	for i := range ratios {
		ratios[i] = m.laps[a][i].rate / m.laps[b][i].rate
	}
	return median(ratios)
}

func of(laps []lap, number func(lap) float64) []float64 {
	numbers := make([]float64, len(laps))
	for i, l := range laps {
		numbers[i] = number(l)
	}
	return numbers
}

func median(values []float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	n := len(sorted)
	return (sorted[(n-1)/2] + sorted[n/2]) / 2
}

// show writes the table for a terminal.
func show(out io.Writer, table []row) error {
	var text strings.Builder
	last := ""
	for _, r := range table {
		if r.work != last {
			fmt.Fprintf(&text, "\n%s\t%s/s\tspread\tratio\tclient µs\tserver µs\tMB\n", r.work, r.unit)
			last = r.work
		}
		if r.broken != nil {
			fmt.Fprintf(&text, "  %s\tfailed: %v\n", r.contender, r.broken)
			continue
		}
		fmt.Fprintf(&text, "  %s\t%s\t%s-%s\t%.2f\t%s\t%s\t%s\n", r.contender, number(r.median), number(r.lowest), number(r.highest), r.ratio,
			micros(r.cpu.client), micros(r.cpu.server), megabytes(r.peak))
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	if _, err := io.WriteString(w, text.String()); err != nil {
		return err
	}
	return w.Flush()
}

// number writes a rate with as many digits as mean something, and commas.
func number(rate float64) string {
	if rate < 10 {
		return fmt.Sprintf("%.1f", rate)
	}
	digits := fmt.Sprintf("%.0f", rate)
	for i := len(digits) - 3; i > 0; i -= 3 {
		digits = digits[:i] + "," + digits[i:]
	}
	return digits
}

// losses lists in sentences where a rival was faster than Belay, and which goals were missed.
func losses(all []measured) []string {
	var lines []string
	for _, m := range all {
		index := func(name string) int {
			return slices.IndexFunc(m.work.contenders, func(c contender) bool { return c.name == name })
		}
		for _, g := range m.work.goals {
			mine, rival := index(g.contender), index(g.rival)
			if mine < 0 || rival < 0 {
				continue
			}
			got := m.ratio(mine, rival)
			if got > 0 && got < g.atLeast {
				lines = append(lines, fmt.Sprintf("%s: %s is %.2f times %s; the goal is %.2f.", m.work.name, g.contender, got, g.rival, g.atLeast))
			}
		}
		for i, c := range m.work.contenders {
			best := bestBelay(&m)
			if best < 0 || isBelay(c.name) {
				continue
			}
			if got := m.ratio(best, i); got > 0 && got < 1 {
				lines = append(lines, fmt.Sprintf("%s: %s does %.2f times what the faster Belay does.", m.work.name, c.name, 1/got))
			}
		}
	}
	return lines
}

func isBelay(name string) bool { return strings.HasPrefix(name, "Belay") }

// bestBelay is the index of the Belay contender with the highest median; -1 if there is none.
func bestBelay(m *measured) int {
	best := -1
	for i, c := range m.work.contenders {
		if isBelay(c.name) && len(m.laps[i]) > 0 && (best < 0 || m.ratio(i, best) > 1) {
			best = i
		}
	}
	return best
}
