-- The stored format of hapax on SQLite, version 1.
--
-- All tables are STRICT and carry the prefix hapax_, so that they may live beside a user's own
-- tables in the user's own file. Times are milliseconds since the Unix epoch (from version 3 on by
-- the clock of the file, which v3.sql describes), durations are milliseconds; what is too far away to count is 2^63 - 1. Texts are ASCII.
--
-- Claims and records have a rowid although they have a key of their own: their values reach 1 MiB,
-- and in a WITHOUT ROWID table those would crowd the inner pages and the whole key would be
-- repeated in the index of expiries.

-- hapax_meta: one number for each name.
--   schema    the version of this format; a reader that knows only lower ones must not touch the file
--   sequence  the last fence or record version that was given out; never set back, not even when
--             everything else is deleted
--   probe     0 or 1, changed to see whether the file takes writes; may be missing
CREATE TABLE hapax_meta (
    name  TEXT    NOT NULL PRIMARY KEY,
    value INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- hapax_claims: one row for each claim that is not vacant.
--   tenant       who asked
--   kind         'lock', 'command' or 'inbox'
--   scope        the operation of a command, the consumer of an inbox, '' otherwise
--   name         the caller's own key
--   phase        0 pending, 1 settled, 2 failed (given back, but remembered)
--   fence        the number of the last grant
--   attempt      how many times it was granted since it was last vacant
--   token        the secret of the last grant
--   fingerprint  what it is about; NULL where none was given
--   granted_at   when it was last granted
--   lease_end    when a pending one becomes unknown
--   retention    how long the outcome is remembered, counted from the outcome
--   expires_at   from then on the row is as if it were not there, and may be deleted
--   value        what it was settled with; empty before
CREATE TABLE hapax_claims (
    tenant      TEXT    NOT NULL,
    kind        TEXT    NOT NULL,
    scope       TEXT    NOT NULL,
    name        TEXT    NOT NULL,
    phase       INTEGER NOT NULL,
    fence       INTEGER NOT NULL,
    attempt     INTEGER NOT NULL,
    token       TEXT    NOT NULL,
    fingerprint TEXT,
    granted_at  INTEGER NOT NULL,
    lease_end   INTEGER NOT NULL,
    retention   INTEGER NOT NULL,
    expires_at  INTEGER NOT NULL,
    value       BLOB    NOT NULL,
    PRIMARY KEY (tenant, kind, scope, name)
) STRICT;

-- For the sweep, which deletes what has expired.
CREATE INDEX hapax_claims_expiry ON hapax_claims (expires_at);

-- hapax_records: one row for each record.
--   tenant, kind, scope, name   as above; kind is 'record', scope is ''
--   version      which value it is, from the sequence; its decimal text is the ETag
--   expires_at   from then on the record is absent; NULL where it does not expire
--   value        the bytes as they were put
CREATE TABLE hapax_records (
    tenant     TEXT    NOT NULL,
    kind       TEXT    NOT NULL,
    scope      TEXT    NOT NULL,
    name       TEXT    NOT NULL,
    version    INTEGER NOT NULL,
    expires_at INTEGER,
    value      BLOB    NOT NULL,
    PRIMARY KEY (tenant, kind, scope, name)
) STRICT;

-- For the sweep; most records never expire and are not in it.
CREATE INDEX hapax_records_expiry ON hapax_records (expires_at) WHERE expires_at IS NOT NULL;

INSERT INTO hapax_meta (name, value) VALUES ('schema', 1), ('sequence', 0);
