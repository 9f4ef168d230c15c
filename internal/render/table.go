package render

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
)

// Table is columns of text with a heading each.
type Table struct {
	head []string
	rows [][]string
}

// NewTable returns a table without rows.
func NewTable(head ...string) *Table { return &Table{head: head} }

// Add appends a row, as many cells as the table has columns. An empty cell is shown as "-".
func (t *Table) Add(cells ...string) { t.rows = append(t.rows, cells) }

// Len returns the number of rows.
func (t *Table) Len() int { return len(t.rows) }

// Write writes the table; one without rows writes nothing.
func (t *Table) Write(w io.Writer) error {
	if len(t.rows) == 0 {
		return nil
	}
	const gap = 2
	aligned := tabwriter.NewWriter(w, 0, 0, gap, ' ', 0)
	fmt.Fprintln(aligned, strings.Join(t.head, "\t"))
	for _, row := range t.rows {
		cells := make([]string, len(row))
		for i, cell := range row {
			if cells[i] = Clean(cell); cell == "" {
				cells[i] = "-"
			}
		}
		fmt.Fprintln(aligned, strings.Join(cells, "\t"))
	}
	return aligned.Flush() // an error of the lines above comes back here
}
