-- Belay's own tables. Every key begins with tenant_id, as on PostgreSQL. Times are integer milliseconds UTC of the
-- writing process's clock, which is what SQLite calls now. No foreign keys hold them together, as they do on PostgreSQL:
-- steps run with foreign keys off, and what a fence protects there, the one open write transaction protects here.
--
-- What a plan costs here is pages: each that a transaction touches is written to the log and copied again when the file is
-- closed. So tables are their own index where they can be. Longer lists are not written with IN, for which SQLite opens a
-- temporary table each time.

-- One row: no lease counts as live longer ahead than max_lease_ms, whatever its holder asked for.
CREATE TABLE belay_setting (
    one          INTEGER PRIMARY KEY CHECK (one = 1),
    max_lease_ms INTEGER NOT NULL
) STRICT;
INSERT INTO belay_setting (one, max_lease_ms) VALUES (1, 3600000);

-- One row per tenant, never deleted: release keeps the fence, because a fence that restarts would let a stalled former
-- holder match again.
CREATE TABLE belay_site_lock (
    tenant_id     TEXT    PRIMARY KEY,
    scope         TEXT    NOT NULL,
    fence         INTEGER NOT NULL CHECK (fence >= 0),
    holder        TEXT,
    host          TEXT    NOT NULL DEFAULT '',
    pid           INTEGER NOT NULL DEFAULT 0,
    started_at    INTEGER NOT NULL DEFAULT 0,
    operation     TEXT    NOT NULL DEFAULT '',
    plan_id       TEXT,
    reason        TEXT    NOT NULL DEFAULT '',
    acquired_at   INTEGER NOT NULL DEFAULT 0,
    expires_at    INTEGER NOT NULL DEFAULT 0,
    removed_at    INTEGER
) STRICT, WITHOUT ROWID;
CREATE UNIQUE INDEX belay_site_lock_scope_key ON belay_site_lock (scope) WHERE removed_at IS NULL;

CREATE TABLE belay_change (
    digest     TEXT    PRIMARY KEY,
    change_id  TEXT    NOT NULL,
    body       BLOB    NOT NULL,
    created_at INTEGER NOT NULL
) STRICT;
CREATE INDEX belay_change_id_idx ON belay_change (change_id, created_at);

CREATE TABLE belay_plan (
    tenant_id    TEXT    NOT NULL,
    plan_id      TEXT    NOT NULL,
    change_id    TEXT    NOT NULL,
    digest       TEXT    NOT NULL,
    status       TEXT    NOT NULL CHECK (status = 'pending' OR status = 'applying' OR status = 'applied' OR status = 'rolling_back'),
    claimed_from TEXT    CHECK (claimed_from IN ('pending', 'applied')),
    fence        INTEGER,
    outcome      TEXT    NOT NULL CHECK (outcome = 'never_run' OR outcome = 'interrupted' OR outcome = 'failed' OR
                 outcome = 'rolled_back' OR outcome = 'applied' OR outcome = 'quarantined' OR outcome = 'resolved'),
    attempts     INTEGER NOT NULL DEFAULT 0,
    applied_seq  INTEGER,
    cycle        INTEGER NOT NULL DEFAULT 0,
    steps_total  INTEGER NOT NULL,
    format       INTEGER NOT NULL,
    last_error   TEXT,
    created_at   INTEGER NOT NULL,
    updated_at   INTEGER NOT NULL,
    PRIMARY KEY (tenant_id, plan_id),
    CONSTRAINT plan_change_key UNIQUE (tenant_id, change_id),
    CONSTRAINT plan_in_flight_has_fence CHECK ((status IN ('applying', 'rolling_back')) = (fence IS NOT NULL)),
    CONSTRAINT plan_claimed_in_flight CHECK (claimed_from IS NULL OR fence IS NOT NULL)
) STRICT, WITHOUT ROWID;
CREATE UNIQUE INDEX belay_plan_one_in_flight ON belay_plan (tenant_id) WHERE status IN ('applying', 'rolling_back');
CREATE INDEX belay_plan_unsettled ON belay_plan (tenant_id) WHERE outcome = 'interrupted' OR outcome = 'failed' OR outcome = 'quarantined';
CREATE INDEX belay_plan_applied_seq_idx ON belay_plan (tenant_id, applied_seq) WHERE applied_seq IS NOT NULL;

CREATE TABLE belay_journal (
    tenant_id   TEXT    NOT NULL,
    plan_id     TEXT    NOT NULL,
    ordinal     INTEGER NOT NULL,
    step_id     TEXT    NOT NULL,
    state       TEXT    NOT NULL CHECK (state = 'intent' OR state = 'done' OR state = 'undo_intent' OR state = 'undone'),
    fence       INTEGER NOT NULL,
    cycle       INTEGER NOT NULL,
    attempt     INTEGER NOT NULL DEFAULT 0,
    deadline_at INTEGER NOT NULL DEFAULT 0,
    updated_at  INTEGER NOT NULL,
    PRIMARY KEY (tenant_id, plan_id, ordinal)
) STRICT, WITHOUT ROWID;

CREATE TABLE belay_before_image (
    tenant_id  TEXT    NOT NULL,
    plan_id    TEXT    NOT NULL,
    ordinal    INTEGER NOT NULL,
    part       INTEGER NOT NULL,
    cycle      INTEGER NOT NULL,
    fence      INTEGER NOT NULL,
    body       BLOB    NOT NULL,
    checksum   BLOB    NOT NULL,
    created_at INTEGER NOT NULL,
    PRIMARY KEY (tenant_id, plan_id, ordinal, part)
) STRICT;

CREATE TABLE belay_event (
    tenant_id   TEXT    NOT NULL,
    seq         INTEGER NOT NULL,
    at          INTEGER NOT NULL,
    fence       INTEGER NOT NULL,
    plan_id     TEXT,
    change_id   TEXT    NOT NULL DEFAULT '',
    kind        TEXT    NOT NULL,
    status_from TEXT    NOT NULL DEFAULT '',
    status_to   TEXT    NOT NULL DEFAULT '',
    outcome     TEXT    NOT NULL DEFAULT '',
    operation   TEXT    NOT NULL DEFAULT '',
    holder      TEXT,
    host        TEXT    NOT NULL DEFAULT '',
    pid         INTEGER NOT NULL DEFAULT 0,
    reason      TEXT    NOT NULL DEFAULT '',
    failure     TEXT,
    PRIMARY KEY (tenant_id, seq)
) STRICT, WITHOUT ROWID;

-- The registry of tenants and the named leases: used in the control database only.
CREATE TABLE belay_tenant (
    tenant_id  TEXT    PRIMARY KEY,
    name       TEXT    NOT NULL,
    target     TEXT    NOT NULL,
    labels     TEXT    NOT NULL DEFAULT '{}',
    disabled   INTEGER NOT NULL DEFAULT 0,
    created_at INTEGER NOT NULL,
    removed_at INTEGER
) STRICT;
CREATE UNIQUE INDEX belay_tenant_name_key ON belay_tenant (name) WHERE removed_at IS NULL;
-- A target is JSON. Where its password comes from does not make it another one.
CREATE UNIQUE INDEX belay_tenant_target_key ON belay_tenant (target ->> 'dialect', target ->> 'database', target ->> 'scope')
    WHERE removed_at IS NULL;

CREATE TABLE belay_lease (
    name        TEXT    PRIMARY KEY,
    holder      TEXT,
    fence       INTEGER NOT NULL,
    host        TEXT    NOT NULL DEFAULT '',
    pid         INTEGER NOT NULL DEFAULT 0,
    started_at  INTEGER NOT NULL DEFAULT 0,
    acquired_at INTEGER NOT NULL DEFAULT 0,
    expires_at  INTEGER NOT NULL DEFAULT 0,
    CONSTRAINT lease_fence_key UNIQUE (name, fence)
) STRICT;
