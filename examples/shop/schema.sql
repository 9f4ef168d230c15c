-- The tables that the change expects, with a few rows. For SQLite and PostgreSQL.
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
CREATE TABLE price (sku text PRIMARY KEY, cents integer NOT NULL);
INSERT INTO customer VALUES (1, 'Ada', 'GB'), (2, 'Jean', 'FR');
INSERT INTO orders VALUES (1, 1, '2026-01-02');
INSERT INTO order_line VALUES (1, 'sku-1', 2);
INSERT INTO price VALUES ('sku-1', 1000);
