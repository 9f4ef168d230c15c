package render

import (
	"io"
	"strings"
	"unicode/utf8"
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

// Write writes the table in one write; one without rows writes nothing.
func (t *Table) Write(w io.Writer) error {
	if len(t.rows) == 0 {
		return nil
	}
	rows := [][]string{t.head}
	for _, row := range t.rows {
		cells := make([]string, len(row))
		for i, cell := range row {
			if cells[i] = Clean(cell); cell == "" {
				cells[i] = "-"
			}
		}
		rows = append(rows, cells)
	}
	widths := make([]int, len(t.head))
	for _, row := range rows {
		for i, cell := range row {
			widths[i] = max(widths[i], utf8.RuneCountInString(cell))
		}
	}
	var b strings.Builder
	for _, row := range rows {
		for i, cell := range row[:len(row)-1] {
			b.WriteString(cell)
			b.WriteString(strings.Repeat(" ", widths[i]-utf8.RuneCountInString(cell)+gap))
		}
		b.WriteString(row[len(row)-1] + "\n")
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// gap is the space between two columns.
const gap = 2
