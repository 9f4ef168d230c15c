-- Orders and their audit trail; this comment has a semicolon; and a quote: it's fine.
/* A block comment; with /* a nested one; */ and a "quote */
CREATE TABLE customer_order (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    note text DEFAULT 'nothing; yet', -- a column; with a comment
    state text NOT NULL CHECK (state IN ('open', 'it''s closed;')),
    "odd;name" integer
);

CREATE OR REPLACE FUNCTION touch_order() RETURNS trigger LANGUAGE plpgsql
SET search_path FROM CURRENT
AS $body$
DECLARE
    text_with_quotes text := $q$it's; $ here$q$;
BEGIN
    -- inside; the body
    IF NEW.state = 'open' THEN NEW.note := E'line\'s end;\n'; END IF;
    RETURN NEW;
END;
$body$;

CREATE TRIGGER order_touched BEFORE UPDATE ON customer_order FOR EACH ROW EXECUTE FUNCTION touch_order();

DO $$
BEGIN
    IF NOT EXISTS (SELECT 1 FROM pg_type WHERE typname = 'mood') THEN
        CREATE TYPE mood AS ENUM ('sad', 'ok;ish');
    END IF;
END
$$;

CREATE FUNCTION order_label(n integer) RETURNS text LANGUAGE sql
BEGIN ATOMIC
    SELECT CASE WHEN n > 1 THEN CASE n WHEN 2 THEN 'two;' ELSE 'many' END ELSE 'one' END AS end;
    SELECT t.end FROM (SELECT 1 AS "end") t; SELECT 'last;';
END;

CREATE PROCEDURE sweep() BEGIN ATOMIC DELETE FROM customer_order WHERE state = E'\\'; END;

CREATE RULE keep AS ON DELETE TO customer_order DO INSTEAD (UPDATE customer_order SET state = 'open'; NOTIFY gone);

INSERT INTO customer_order (note, state) VALUES (E'it\'s ' -- goes on
    'a \'; string', 'open'), (U&'\0041;', $$;$$);
;;
SELECT $1::text, a$b$c, 1.5e3 FROM customer_order /* the end; */ ;
-- nothing more;
