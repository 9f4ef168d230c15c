-- Belay's own tables. Every key begins with tenant_id, so that one database serves many tenants and can be sharded by
-- them. Times are integer milliseconds UTC of the database's clock.

CREATE FUNCTION belay.now_ms() RETURNS bigint LANGUAGE sql VOLATILE
    AS $$ SELECT (pg_catalog.date_part('epoch', pg_catalog.clock_timestamp()) * 1000)::bigint $$;

-- No lease, whatever its holder asked for, counts as live longer ahead than this: a row left by a clock that ran ahead
-- must not lock a tenant for ever. An operator's hold is exempt.
CREATE FUNCTION belay.max_lease_ms() RETURNS bigint LANGUAGE sql IMMUTABLE
    AS $$ SELECT 3600000::bigint $$;

-- One row per tenant, never deleted: release keeps the fence, because a fence that restarts would let a stalled former
-- holder match again.
CREATE TABLE belay.site_lock (
    tenant_id     uuid    PRIMARY KEY,
    scope         text    NOT NULL,
    fence         bigint  NOT NULL CHECK (fence >= 0),
    holder        uuid,
    host          text    NOT NULL DEFAULT '',
    pid           integer NOT NULL DEFAULT 0,
    started_at    bigint  NOT NULL DEFAULT 0,
    operation     text    NOT NULL DEFAULT '',
    plan_id       uuid,
    reason        text    NOT NULL DEFAULT '',
    acquired_at   bigint  NOT NULL DEFAULT 0,
    expires_at    bigint  NOT NULL DEFAULT 0,
    removed_at    bigint,
    -- The proof locks the row FOR KEY SHARE. Only because the fence is part of a unique key does a change of custody wait
    -- for that lock, while a renewal, which changes no key, passes.
    CONSTRAINT site_lock_fence_key UNIQUE (tenant_id, fence)
);
-- Two registrations of one site would have two locks.
CREATE UNIQUE INDEX site_lock_scope_key ON belay.site_lock (scope) WHERE removed_at IS NULL;

-- Whole changes by content, so that rollback works when the files are gone. Shared by all tenants of the database.
CREATE TABLE belay.change (
    digest     text   PRIMARY KEY,
    change_id  text   NOT NULL,
    body       bytea  NOT NULL,
    created_at bigint NOT NULL
);
CREATE INDEX change_id_idx ON belay.change (change_id, created_at);

CREATE TABLE belay.plan (
    tenant_id    uuid    NOT NULL,
    plan_id      uuid    NOT NULL,
    change_id    text    NOT NULL,
    digest       text    NOT NULL,
    status       text    NOT NULL CHECK (status IN ('pending', 'applying', 'applied', 'rolling_back')),
    claimed_from text    CHECK (claimed_from IN ('pending', 'applied')),
    fence        bigint,
    outcome      text    NOT NULL CHECK (outcome IN
                 ('never_run', 'interrupted', 'failed', 'rolled_back', 'applied', 'quarantined', 'resolved')),
    attempts     integer NOT NULL DEFAULT 0,
    applied_seq  bigint,
    cycle        integer NOT NULL DEFAULT 0,
    steps_total  integer NOT NULL,
    format       integer NOT NULL,
    last_error   text,
    created_at   bigint  NOT NULL,
    updated_at   bigint  NOT NULL,
    PRIMARY KEY (tenant_id, plan_id),
    CONSTRAINT plan_change_key UNIQUE (tenant_id, change_id),
    CONSTRAINT plan_in_flight_has_fence CHECK ((status IN ('applying', 'rolling_back')) = (fence IS NOT NULL)),
    CONSTRAINT plan_claimed_in_flight CHECK (claimed_from IS NULL OR fence IS NOT NULL),
    -- Keeps site_lock_fence_key in place, and is a second wall: nobody can commit a plan in flight under a fence that the
    -- lock row no longer has.
    CONSTRAINT plan_fence_fkey FOREIGN KEY (tenant_id, fence) REFERENCES belay.site_lock (tenant_id, fence)
        DEFERRABLE INITIALLY DEFERRED
);
CREATE UNIQUE INDEX plan_one_in_flight ON belay.plan (tenant_id) WHERE status IN ('applying', 'rolling_back');
-- Only such plans can be partial; the index keeps the search for them short.
CREATE INDEX plan_unsettled ON belay.plan (tenant_id) WHERE outcome IN ('interrupted', 'failed', 'quarantined');
CREATE INDEX plan_applied_seq_idx ON belay.plan (tenant_id, applied_seq) WHERE applied_seq IS NOT NULL;

-- No foreign key to the plan: every transaction that writes a row demands its plan, which is never deleted.
CREATE TABLE belay.journal (
    tenant_id   uuid    NOT NULL,
    plan_id     uuid    NOT NULL,
    ordinal     integer NOT NULL,
    step_id     text    NOT NULL,
    state       text    NOT NULL CHECK (state IN ('intent', 'done', 'undo_intent', 'undone')),
    fence       bigint  NOT NULL,
    cycle       integer NOT NULL,
    attempt     integer NOT NULL DEFAULT 0,
    deadline_at bigint  NOT NULL DEFAULT 0,
    updated_at  bigint  NOT NULL,
    PRIMARY KEY (tenant_id, plan_id, ordinal)
);

CREATE TABLE belay.before_image (
    tenant_id  uuid    NOT NULL,
    plan_id    uuid    NOT NULL,
    ordinal    integer NOT NULL,
    part       integer NOT NULL,
    cycle      integer NOT NULL,
    fence      bigint  NOT NULL,
    body       bytea   NOT NULL,
    checksum   bytea   NOT NULL,
    created_at bigint  NOT NULL,
    PRIMARY KEY (tenant_id, plan_id, ordinal, part)
);

CREATE TABLE belay.event (
    tenant_id   uuid    NOT NULL,
    seq         bigint  GENERATED ALWAYS AS IDENTITY,
    at          bigint  NOT NULL,
    fence       bigint  NOT NULL,
    plan_id     uuid,
    change_id   text    NOT NULL DEFAULT '',
    kind        text    NOT NULL,
    status_from text    NOT NULL DEFAULT '',
    status_to   text    NOT NULL DEFAULT '',
    outcome     text    NOT NULL DEFAULT '',
    operation   text    NOT NULL DEFAULT '',
    holder      uuid,
    host        text    NOT NULL DEFAULT '',
    pid         integer NOT NULL DEFAULT 0,
    reason      text    NOT NULL DEFAULT '',
    failure     text,
    PRIMARY KEY (tenant_id, seq)
);

-- The registry of tenants and the named leases: used in the control database only.
CREATE TABLE belay.tenant (
    tenant_id  uuid    PRIMARY KEY,
    name       text    NOT NULL,
    target     jsonb   NOT NULL,
    labels     jsonb   NOT NULL DEFAULT '{}',
    disabled   boolean NOT NULL DEFAULT false,
    created_at bigint  NOT NULL,
    removed_at bigint
);
CREATE UNIQUE INDEX tenant_name_key ON belay.tenant (name COLLATE "C") WHERE removed_at IS NULL;
-- Where a target's password comes from does not make it another one.
CREATE UNIQUE INDEX tenant_target_key ON belay.tenant ((target ->> 'dialect'), (target ->> 'database'), (target ->> 'scope'))
    WHERE removed_at IS NULL;

CREATE TABLE belay.lease (
    name        text    PRIMARY KEY,
    holder      uuid,
    fence       bigint  NOT NULL,
    host        text    NOT NULL DEFAULT '',
    pid         integer NOT NULL DEFAULT 0,
    started_at  bigint  NOT NULL DEFAULT 0,
    acquired_at bigint  NOT NULL DEFAULT 0,
    expires_at  bigint  NOT NULL DEFAULT 0,
    CONSTRAINT lease_fence_key UNIQUE (name, fence)
);

-- Ends the transaction with an error. Statements call it where something is not as it has to be, so that in a pipeline
-- nothing behind them, COMMIT least of all, takes effect.
CREATE FUNCTION belay.refuse(code text, why text) RETURNS text LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    RAISE EXCEPTION '%', why USING ERRCODE = code;
END $$;

-- Demands that a step stayed away from other tenants' schemas. names are what stood before a dot in its statements: most
-- are aliases, so where one is also another tenant's schema, the transaction's locks tell whether it was used as that. A
-- statement that does more than read and write rows may have dropped what it locked, and must not name one at all; public,
-- where extensions are, is the exception.
CREATE FUNCTION belay.demand_own_scope(own text, names text[], rows_only boolean) RETURNS void LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    foreign_scopes text[] := ARRAY(SELECT l.scope FROM belay.site_lock l
        WHERE l.scope = ANY (names) AND l.scope <> own AND l.removed_at IS NULL);
BEGIN
    IF pg_catalog.cardinality(foreign_scopes) = 0 THEN
        RETURN;
    END IF;
    IF NOT rows_only AND NOT (pg_catalog.cardinality(foreign_scopes) = 1 AND foreign_scopes[1] = 'public'::text) OR EXISTS (
        SELECT FROM pg_catalog.pg_locks l
        JOIN pg_catalog.pg_class c ON c.oid = l.relation
        JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
        WHERE l.locktype = 'relation' AND l.pid = pg_catalog.pg_backend_pid() AND n.nspname = ANY (foreign_scopes)) THEN
        RAISE EXCEPTION 'step reached into the schema of another tenant' USING ERRCODE = 'BY006';
    END IF;
END $$;

-- Takes back, in the transaction that a step ran in, what its statements may have set or locked for their session.
CREATE FUNCTION belay.clean_session() RETURNS void LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    PERFORM pg_catalog.pg_advisory_unlock_all();
    RESET ALL;
END $$;

-- Whether a step of a plan is in place or in doubt, how many are in place, and the place behind all plans of a tenant.
-- Statements ask this of few plans. As functions they cost nothing where they are not asked; written out, the server would get
-- them ready each time.
CREATE FUNCTION belay.touched(tenant uuid, plan uuid) RETURNS boolean LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN EXISTS (SELECT FROM belay.journal j WHERE j.tenant_id = tenant AND j.plan_id = plan AND j.state <> 'undone');
END $$;

CREATE FUNCTION belay.in_place(tenant uuid, plan uuid) RETURNS bigint LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN (SELECT count(*) FROM belay.journal j WHERE j.tenant_id = tenant AND j.plan_id = plan AND j.state = 'done');
END $$;

CREATE FUNCTION belay.next_applied_seq(tenant uuid) RETURNS bigint LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN (SELECT COALESCE(max(p.applied_seq), 0) + 1 FROM belay.plan p WHERE p.tenant_id = tenant);
END $$;
