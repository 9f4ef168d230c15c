CREATE TABLE pages (
    slug  text PRIMARY KEY,
    title text NOT NULL,
    body  text NOT NULL
);

CREATE TABLE settings (
    key   text PRIMARY KEY,
    value text NOT NULL
);
