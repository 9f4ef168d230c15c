-- SQLite cannot add a NOT NULL column with a foreign key in its place, so the table is built anew. Its order lines refer
-- to it all the while.
CREATE TABLE orders_new (
    id          integer PRIMARY KEY,
    customer_id integer NOT NULL REFERENCES customer (id),
    placed_on   text    NOT NULL,
    currency    text    NOT NULL DEFAULT 'EUR'
);
INSERT INTO orders_new (id, customer_id, placed_on) SELECT id, customer_id, placed_on FROM orders;
DROP TABLE orders;
ALTER TABLE orders_new RENAME TO orders;
CREATE INDEX orders_customer ON orders (customer_id);
