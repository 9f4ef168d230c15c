package sitesync

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/belayhq/belay/engine"
)

// batch is how many rows one statement reads or writes.
const batch = 500

// Page is one page of a site.
type Page struct {
	Slug  string `json:"slug"`
	Title string `json:"title"`
	Body  string `json:"body"`
}

// Setting is one setting of a site.
type Setting struct {
	Key   string `json:"key"`
	Value string `json:"value"`
}

// Delta is what has to happen to one table.
type Delta[R comparable] struct {
	Put    []R      `json:"put,omitempty"`    // insert, or overwrite what has the same key
	Delete []string `json:"delete,omitempty"` // keys
}

// Difference is what has to happen to a site.
type Difference struct {
	// NoTables says that the site's tables have to be made first.
	NoTables bool           `json:"no_tables,omitempty"`
	Pages    Delta[Page]    `json:"pages"`
	Settings Delta[Setting] `json:"settings"`
}

// Empty reports whether nothing has to happen.
func (d Difference) Empty() bool {
	return !d.NoTables && d.Pages.size() == 0 && d.Settings.size() == 0
}

func (d Delta[R]) size() int { return len(d.Put) + len(d.Delete) }

// contents is a whole site by key.
type contents struct {
	made     bool // the tables are there
	pages    map[string]Page
	settings map[string]Setting
}

func difference(wanted, present contents) Difference {
	return Difference{
		NoTables: !present.made,
		Pages:    delta(wanted.pages, present.pages),
		Settings: delta(wanted.settings, present.settings),
	}
}

// delta is sorted: the same difference has to make the same change.
func delta[R comparable](wanted, present map[string]R) Delta[R] {
	var d Delta[R]
	for _, key := range slices.Sorted(maps.Keys(wanted)) {
		if row, ok := present[key]; !ok || row != wanted[key] {
			d.Put = append(d.Put, wanted[key])
		}
	}
	for _, key := range slices.Sorted(maps.Keys(present)) {
		if _, ok := wanted[key]; !ok {
			d.Delete = append(d.Delete, key)
		}
	}
	return d
}

// table is how rows of one kind are read and written. Names are unqualified: the search path says whose site it is.
type table[R comparable] struct {
	name                     string
	key                      func(R) string
	all, some, put, takeAway string
}

var pages = table[Page]{
	name: "pages",
	key:  func(p Page) string { return p.Slug },
	all:  `SELECT to_json(p)::text FROM pages p`,
	some: `SELECT to_json(p)::text FROM pages p WHERE slug = ANY ($1::text[]) ORDER BY slug`,
	put: `
INSERT INTO pages (slug, title, body)
SELECT slug, title, body FROM json_to_recordset($1::json) AS r (slug text, title text, body text)
ON CONFLICT (slug) DO UPDATE SET title = excluded.title, body = excluded.body`,
	takeAway: `DELETE FROM pages WHERE slug = ANY ($1::text[])`,
}

var settings = table[Setting]{
	name: "settings",
	key:  func(s Setting) string { return s.Key },
	all:  `SELECT to_json(s)::text FROM settings s`,
	some: `SELECT to_json(s)::text FROM settings s WHERE key = ANY ($1::text[]) ORDER BY key`,
	put: `
INSERT INTO settings (key, value)
SELECT key, value FROM json_to_recordset($1::json) AS r (key text, value text)
ON CONFLICT (key) DO UPDATE SET value = excluded.value`,
	takeAway: `DELETE FROM settings WHERE key = ANY ($1::text[])`,
}

// lockSQL keeps other writers out until the transaction ends, so that the rows in the before-image are the rows that are
// overwritten, those not there yet included. Readers pass.
const lockSQL = `LOCK TABLE pages, settings IN SHARE ROW EXCLUSIVE MODE`

// putRows carries out a difference and returns the one that leads back.
func putRows(ctx context.Context, tx engine.Tx, call engine.ActionCall[Difference]) (before []byte, err error) {
	if _, err := tx.Exec(ctx, lockSQL); err != nil {
		return nil, err
	}
	var back Difference
	if back.Pages, err = pages.write(ctx, tx, call.Args.Pages); err != nil {
		return nil, err
	}
	if back.Settings, err = settings.write(ctx, tx, call.Args.Settings); err != nil {
		return nil, err
	}
	return json.Marshal(back)
}

// takeRowsBack carries out the difference that putRows returned, unless somebody has edited what it would overwrite.
func takeRowsBack(ctx context.Context, tx engine.Tx, call engine.ActionCall[Difference]) error {
	var back Difference
	if err := json.Unmarshal(call.Before, &back); err != nil {
		return fmt.Errorf("before-image: %w", err)
	}
	if _, err := tx.Exec(ctx, lockSQL); err != nil {
		return err
	}
	if err := call.Args.unedited(ctx, tx); err != nil {
		return err
	}
	if _, err := pages.write(ctx, tx, back.Pages); err != nil {
		return err
	}
	_, err := settings.write(ctx, tx, back.Settings)
	return err
}

// querier is the reading half of [engine.Tx].
type querier interface {
	Query(ctx context.Context, sql string, args []any, row func(scan func(dest ...any) error) error) error
}

// unedited returns an error that names the rows which are not as the difference left them.
func (d Difference) unedited(ctx context.Context, q querier) error {
	return errors.Join(pages.unedited(ctx, q, d.Pages), settings.unedited(ctx, q, d.Settings))
}

// write carries a delta out and returns the one that leads back.
func (t table[R]) write(ctx context.Context, tx engine.Tx, d Delta[R]) (back Delta[R], err error) {
	touched := t.keys(d)
	before, err := t.at(ctx, tx, touched)
	if err != nil {
		return back, err
	}
	for _, key := range touched {
		if row, ok := before[key]; ok {
			back.Put = append(back.Put, row)
		} else {
			back.Delete = append(back.Delete, key)
		}
	}
	for rows := range slices.Chunk(d.Put, batch) {
		text, err := json.Marshal(rows)
		if err != nil {
			return back, err
		}
		if _, err := tx.Exec(ctx, t.put, string(text)); err != nil {
			return back, err
		}
	}
	for keys := range slices.Chunk(d.Delete, batch) {
		if _, err := tx.Exec(ctx, t.takeAway, keys); err != nil {
			return back, err
		}
	}
	return back, nil
}

func (t table[R]) unedited(ctx context.Context, q querier, d Delta[R]) error {
	written := make(map[string]R, len(d.Put))
	for _, row := range d.Put {
		written[t.key(row)] = row
	}
	present, err := t.at(ctx, q, t.keys(d))
	if err != nil {
		return err
	}
	if edited := t.keys(delta(written, present)); len(edited) > 0 {
		return fmt.Errorf("%s edited since: %s", t.name, strings.Join(edited[:min(len(edited), 20)], ", "))
	}
	return nil
}

// keys lists the rows that a delta is about.
func (t table[R]) keys(d Delta[R]) []string {
	keys := make([]string, 0, d.size())
	for _, row := range d.Put {
		keys = append(keys, t.key(row))
	}
	return append(keys, d.Delete...)
}

// at reads those of the rows that are there.
func (t table[R]) at(ctx context.Context, q querier, keys []string) (map[string]R, error) {
	found := make(map[string]R, len(keys))
	for some := range slices.Chunk(keys, batch) {
		if err := t.collect(ctx, q, found, t.some, some); err != nil {
			return nil, err
		}
	}
	return found, nil
}

func (t table[R]) collect(ctx context.Context, q querier, into map[string]R, sql string, args ...any) error {
	return q.Query(ctx, sql, args, func(scan func(dest ...any) error) error {
		var text string
		var row R
		if err := scan(&text); err != nil {
			return err
		}
		if err := json.Unmarshal([]byte(text), &row); err != nil {
			return err
		}
		into[t.key(row)] = row
		return nil
	})
}

// reader reads sites outside the engine.
type reader struct{ tx pgx.Tx }

// Query makes a reader a querier.
func (r reader) Query(ctx context.Context, sql string, args []any, row func(scan func(dest ...any) error) error) error {
	rows, err := r.tx.Query(ctx, sql, args...)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		if err := row(rows.Scan); err != nil {
			return err
		}
	}
	return rows.Err()
}

// enter makes a schema the one that unqualified names mean.
func (r reader) enter(ctx context.Context, schema string) error {
	_, err := r.tx.Exec(ctx, `SELECT set_config('search_path', $1, true)`, pgx.Identifier{schema}.Sanitize())
	return err
}

// contents reads a whole site.
func (r reader) contents(ctx context.Context, schema string) (contents, error) {
	c := contents{pages: map[string]Page{}, settings: map[string]Setting{}}
	if err := r.enter(ctx, schema); err != nil {
		return c, err
	}
	const madeSQL = `SELECT current_schema() IS NOT NULL, to_regclass('pages') IS NOT NULL`
	var exists bool
	if err := r.tx.QueryRow(ctx, madeSQL).Scan(&exists, &c.made); err != nil {
		return c, err
	}
	if !exists {
		return c, fmt.Errorf("no schema %s", schema)
	}
	if !c.made {
		return c, nil
	}
	if err := pages.collect(ctx, r, c.pages, pages.all); err != nil {
		return c, err
	}
	return c, settings.collect(ctx, r, c.settings, settings.all)
}
