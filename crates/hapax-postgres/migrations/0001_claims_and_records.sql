-- Version 1: claims and records.
--
-- All times are milliseconds since the Unix epoch on this server's clock; all durations are
-- milliseconds. Keys compare byte by byte (COLLATE "C"), whatever the database's locale.

-- Facts about this schema: `schema` is the version of the last migration.
CREATE TABLE hapax_meta (
    name  text PRIMARY KEY,
    value text NOT NULL
);

-- Fences and versions. CACHE 1, because a fence must be larger than every earlier one of its key,
-- and a session's private cache would hand out old numbers late.
CREATE SEQUENCE hapax_fence AS bigint CACHE 1;

CREATE TABLE hapax_claims (
    tenant      text COLLATE "C" NOT NULL, -- who is asking
    kind        text COLLATE "C" NOT NULL, -- lock, command, inbox
    scope       text COLLATE "C" NOT NULL, -- the operation or the consumer; may be empty
    name        text COLLATE "C" NOT NULL, -- the caller's own key
    phase       smallint NOT NULL,         -- 0 pending, 1 settled, 2 failed
    attempt     integer  NOT NULL,         -- how many times it was granted since it was vacant
    fence       bigint   NOT NULL,         -- of the last grant, from hapax_fence
    granted_at  bigint   NOT NULL,         -- when the last grant was
    lease_end   bigint   NOT NULL,         -- when the owner stops being believed alive
    retention   bigint   NOT NULL,         -- how long the outcome is remembered
    expires_at  bigint   NOT NULL,         -- from then on the row counts as absent
    token       bytea    NOT NULL,         -- the owner's secret; bytea, because it may be any text
    fingerprint bytea,                     -- a hash of what is asked for
    value       bytea    NOT NULL,         -- what it was settled with; empty before
    PRIMARY KEY (tenant, kind, scope, name)
)
-- Every claim is updated once or twice and then deleted: vacuum by a twentieth, not a fifth.
WITH (autovacuum_vacuum_scale_factor = 0.05, autovacuum_analyze_scale_factor = 0.05);

-- For the sweep.
CREATE INDEX hapax_claims_expires_at ON hapax_claims (expires_at);

CREATE TABLE hapax_records (
    tenant     text COLLATE "C" NOT NULL,
    kind       text COLLATE "C" NOT NULL,
    scope      text COLLATE "C" NOT NULL,
    name       text COLLATE "C" NOT NULL,
    version    bigint NOT NULL,            -- of this value, from hapax_fence
    origin     bigint NOT NULL,            -- the version that created the record
    expires_at bigint,                     -- from then on it counts as absent; NULL for never
    value      bytea  NOT NULL,
    PRIMARY KEY (tenant, kind, scope, name)
)
WITH (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.05, autovacuum_analyze_scale_factor = 0.05);

-- For the sweep; records without an expiry need no entry.
CREATE INDEX hapax_records_expires_at ON hapax_records (expires_at) WHERE expires_at IS NOT NULL;
