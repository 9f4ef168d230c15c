package main

import (
	"crypto/sha256"
	"database/sql"
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"sort"
	"strings"
)

const shopSchema = `
CREATE TABLE customer (id integer PRIMARY KEY, name text NOT NULL, country text NOT NULL);
CREATE TABLE orders (
    id          integer PRIMARY KEY,
    customer_id integer NOT NULL REFERENCES customer (id),
    placed_on   text    NOT NULL
);
CREATE INDEX orders_customer ON orders (customer_id);
CREATE TABLE order_line (
    order_id integer NOT NULL REFERENCES orders (id) ON DELETE CASCADE,
    sku      text    NOT NULL,
    quantity integer NOT NULL,
    PRIMARY KEY (order_id, sku)
);
CREATE TABLE price (sku text PRIMARY KEY, cents integer NOT NULL);`

const (
	customers = 2000
	orders    = 3000
	prices    = 2000
)

// fillShop gives a new tenant a few thousand rows, the same ones for the same seed.
func fillShop(path string, seed uint64) error {
	db, err := sql.Open("sqlite3", "file:"+path+"?_journal_mode=WAL&_synchronous=OFF")
	if err != nil {
		return err
	}
	defer db.Close()
	tx, err := db.Begin()
	if err != nil {
		return err
	}
	defer tx.Rollback()
	if _, err := tx.Exec(shopSchema); err != nil {
		return err
	}
	random := rand.New(rand.NewPCG(seed, 1))
	countries := []string{"DE", "FR", "GB", "IE"}
	for i := range customers {
		if _, err := tx.Exec("INSERT INTO customer VALUES (?, ?, ?)", i+1, fmt.Sprintf("Customer %d", random.IntN(1e6)),
			countries[random.IntN(len(countries))]); err != nil {
			return err
		}
	}
	for i := range orders {
		if _, err := tx.Exec("INSERT INTO orders VALUES (?, ?, ?)", i+1, random.IntN(customers)+1,
			fmt.Sprintf("2026-%02d-%02d", random.IntN(12)+1, random.IntN(28)+1)); err != nil {
			return err
		}
		if _, err := tx.Exec("INSERT INTO order_line VALUES (?, ?, ?)", i+1, sku(random.IntN(prices)), random.IntN(5)+1); err != nil {
			return err
		}
	}
	for i := range prices {
		if _, err := tx.Exec("INSERT INTO price VALUES (?, ?)", sku(i), random.IntN(10000)+100); err != nil {
			return err
		}
	}
	return tx.Commit()
}

func sku(n int) string { return fmt.Sprintf("sku-%05d", n) }

// schemaQuery lists what the schema means: columns, foreign keys and indexes. The text in sqlite_schema would not do: a table
// built anew has its name in quotes there.
const schemaQuery = `
SELECT m.name, x.cid, x.name, x.type, x."notnull", x.dflt_value, x.pk FROM sqlite_schema m, pragma_table_xinfo(m.name) x
  WHERE m.type = 'table' AND m.name NOT LIKE 'belay%' AND m.name NOT LIKE 'sqlite%'
UNION ALL
SELECT m.name, f.id, f."from", f."table", f."to", f.on_delete, f.on_update FROM sqlite_schema m, pragma_foreign_key_list(m.name) f
  WHERE m.type = 'table' AND m.name NOT LIKE 'belay%'
UNION ALL
SELECT m.name, i.origin, i.name, i."unique", i.partial, '', '' FROM sqlite_schema m, pragma_index_list(m.name) i
  WHERE m.type = 'table' AND m.name NOT LIKE 'belay%'`

// contentHash is a digest of a tenant's schema and rows, in an order of its own: the same content gives the same digest
// however it came about. Belay's own tables are left out.
func contentHash(path string) (string, error) {
	db, err := sql.Open("sqlite3", "file:"+path+"?mode=ro&_busy_timeout=5000")
	if err != nil {
		return "", err
	}
	defer db.Close()
	schema, err := lines(db, schemaQuery)
	if err != nil {
		return "", err
	}
	tables, err := lines(db, `SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'belay%' AND name NOT LIKE 'sqlite%'`)
	if err != nil {
		return "", err
	}
	hash := sha256.New()
	fmt.Fprintln(hash, strings.Join(schema, "\n"))
	for _, table := range tables {
		rows, err := lines(db, `SELECT * FROM "`+table+`"`)
		if err != nil {
			return "", err
		}
		fmt.Fprintln(hash, table, strings.Join(rows, "\n"))
	}
	return hex.EncodeToString(hash.Sum(nil))[:16], nil
}

// lines returns the rows of a query as sorted text.
func lines(db *sql.DB, query string) ([]string, error) {
	rows, err := db.Query(query)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	columns, err := rows.Columns()
	if err != nil {
		return nil, err
	}
	var all []string
	for rows.Next() {
		cells := make([]sql.NullString, len(columns))
		into := make([]any, len(columns))
		for i := range cells {
			into[i] = &cells[i]
		}
		if err := rows.Scan(into...); err != nil {
			return nil, err
		}
		texts := make([]string, len(cells))
		for i, c := range cells {
			texts[i] = c.String
			if !c.Valid {
				texts[i] = "NULL"
			}
		}
		all = append(all, strings.Join(texts, "|"))
	}
	sort.Strings(all)
	return all, rows.Err()
}
