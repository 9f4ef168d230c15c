CREATE TABLE orders_old (
    id          integer PRIMARY KEY,
    customer_id integer NOT NULL REFERENCES customer (id),
    placed_on   text    NOT NULL
);
INSERT INTO orders_old (id, customer_id, placed_on) SELECT id, customer_id, placed_on FROM orders;
DROP TABLE orders;
ALTER TABLE orders_old RENAME TO orders;
CREATE INDEX orders_customer ON orders (customer_id);
