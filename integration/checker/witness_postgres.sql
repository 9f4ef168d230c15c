CREATE SCHEMA IF NOT EXISTS witness;
CREATE TABLE IF NOT EXISTS witness.moment (
    n     bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    tx    xid8   NOT NULL DEFAULT pg_current_xact_id(),
    at    bigint NOT NULL DEFAULT belay.now_ms(),
    scope text   NOT NULL,
    kind  text   NOT NULL,
    was   jsonb,
    now   jsonb
);
CREATE OR REPLACE FUNCTION witness.note() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO witness.moment (scope, kind, was, now)
    VALUES (TG_TABLE_SCHEMA, TG_TABLE_NAME, pg_catalog.to_jsonb(OLD), pg_catalog.to_jsonb(NEW));
    RETURN NULL;
END $$;
