-- The stored format of hapax on SQLite, version 2: logs, and the table of all queues.
--
-- What v1.sql says of tables, times and texts holds here too. hapax_meta has two more names:
--   partitions  how many virtual partitions the logs are divided into; written by the first store that
--               opens the file, and never changed
--   epoch       the last epoch that was given to a log; missing before the first

-- hapax_jobs: one row for each life of a job's log.
--   id          what its entries refer to
--   tenant, domain, name   the job's key
--   live        1 for the one that the key means, 0 for one that was forgotten and waits for the sweep
--   epochs      `7@1,9@42`: epoch 7 from offset 1, epoch 9 from offset 42
--   first       the first offset that is still kept
--   last        the last offset
--   closed      1 where it has had its last event
--   state       the entry with the highest seq, the later one of two that share it
--   state_seq   the seq of that entry
--   expires_at  from then on it is as if it were not there
--   look_at     when the sweep looks at it next; never after expires_at was, when it was written. An
--               index of expires_at itself would be moved by every event
CREATE TABLE hapax_jobs (
    id         INTEGER NOT NULL PRIMARY KEY,
    tenant     TEXT    NOT NULL,
    domain     TEXT    NOT NULL,
    name       TEXT    NOT NULL,
    live       INTEGER NOT NULL,
    epochs     TEXT    NOT NULL,
    first      INTEGER NOT NULL,
    last       INTEGER NOT NULL,
    closed     INTEGER NOT NULL,
    state      INTEGER NOT NULL,
    state_seq  INTEGER NOT NULL,
    expires_at INTEGER NOT NULL,
    look_at    INTEGER NOT NULL
) STRICT;

CREATE UNIQUE INDEX hapax_jobs_key ON hapax_jobs (tenant, domain, name) WHERE live = 1;
CREATE INDEX hapax_jobs_expiry ON hapax_jobs (look_at);

-- hapax_entries: one row for each appended event, for as long as its job lives. There is one writer at
-- a time, so ids grow in the order of the commits: the id is the position in the tail.
--   id           never given out twice, not even when everything is deleted
--   job          whose it is
--   offset       1, 2, 3, … within the job
--   stage, seq   with the job, the identity
--   closes       1 where it closed the job
--   fingerprint  what a repetition is compared with
--   partition    in whose tail it is; NULL once it was trimmed
--   payload      what readers get; NULL once it was trimmed (but the state's is kept)
CREATE TABLE hapax_entries (
    id          INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
    job         INTEGER NOT NULL,
    offset      INTEGER NOT NULL,
    stage       TEXT    NOT NULL,
    seq         INTEGER NOT NULL,
    closes      INTEGER NOT NULL,
    fingerprint TEXT    NOT NULL,
    partition   INTEGER,
    payload     BLOB
) STRICT;

CREATE UNIQUE INDEX hapax_entries_offset ON hapax_entries (job, offset);
CREATE UNIQUE INDEX hapax_entries_identity ON hapax_entries (job, stage, seq);
CREATE INDEX hapax_entries_tail ON hapax_entries (partition) WHERE partition IS NOT NULL;

-- hapax_partitions: one row for each partition that has forgotten something.
--   forgotten  the highest id that was in its tail and is not any more: who has not read as far has
--              missed something
CREATE TABLE hapax_partitions (
    partition INTEGER NOT NULL PRIMARY KEY,
    forgotten INTEGER NOT NULL
) STRICT;

-- hapax_outbox: one row for each item of each queue. Anybody may add one in a transaction of his own:
--
--     INSERT INTO hapax_outbox (topic, key, payload) VALUES ('orders', 'order-1', '{"n":1}')
--
-- What the inserter may give:
--   id             a UUID, unique in its queue; made here where none is given
--   queue          which queue
--   tenant         whose it is
--   topic          where it goes
--   key            items of one tenant with the same key are handed out in order; NULL for no order
--   payload        the bytes, as BLOB or as TEXT
--   content_type   what the bytes are
--   headers        a JSON object of texts
--   deliver_after  not before this time; NULL for at once
-- What is hapax's own:
--   seq          the order of enqueueing; one writer at a time makes it the order of the commits
--   created_at   when it was enqueued. Where the inserter does not say, by SQLite's own clock: shown as
--                an age, and never compared with anything that decides
--   state        0 ready      may be handed out
--                1 later      nothing of its key is before it, but it is not to be handed out before
--                             deliver_after
--                2 behind     an earlier one of its key is in state 0 to 4
--                3 in flight  leased; or lapsed, and nobody has looked since
--                4 dead, and its key waits for an operator
--                5 dead
--                6 done, and remembered until forget_at
--   attempts     how many leases count
--   fence        the number of the last lease
--   token        the secret of the last lease; stays when the lease lapses, goes when it is given up
--   reason       why it failed, a line for each of the last ten times, the newest first
--   ended_at     when it died
--   forget_at    until when a done one is recognised
CREATE TABLE hapax_outbox (
    seq           INTEGER NOT NULL PRIMARY KEY,
    id            TEXT    NOT NULL COLLATE NOCASE
        DEFAULT (lower(hex(randomblob(4)) || '-' || hex(randomblob(2)) || '-4'
            || substr(hex(randomblob(2)), 2) || '-' || substr('89ab', 1 + (random() & 3), 1)
            || substr(hex(randomblob(2)), 2) || '-' || hex(randomblob(6))))
        -- In bytes: GLOB does not see what follows a NUL.
        CHECK (length(CAST(id AS BLOB)) = 36 AND id GLOB '????????-????-????-????-????????????'
            AND length(replace(id, '-', '')) = 32
            AND replace(id, '-', '') NOT GLOB '*[^0-9a-fA-F]*'),
    queue         TEXT    NOT NULL DEFAULT 'outbox'
        CHECK (length(queue) BETWEEN 1 AND 255 AND queue NOT GLOB '*[^!-~]*'),
    tenant        TEXT    NOT NULL DEFAULT 'default'
        CHECK (length(tenant) BETWEEN 1 AND 129 AND tenant NOT GLOB '*[^!-~]*'),
    topic         TEXT    NOT NULL CHECK (topic <> ''),
    key           TEXT,
    payload       ANY     NOT NULL CHECK (typeof(payload) IN ('blob', 'text')),
    content_type  TEXT,
    headers       TEXT
        CHECK (CASE WHEN json_valid(headers) THEN json_type(headers) = 'object'
            ELSE headers IS NULL END),
    deliver_after INTEGER,
    -- Not unixepoch('subsec'): the inserter's SQLite may be older than that.
    created_at    INTEGER NOT NULL
        DEFAULT (CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)),
    state         INTEGER NOT NULL DEFAULT 0 CHECK (state BETWEEN 0 AND 6),
    attempts      INTEGER NOT NULL DEFAULT 0,
    fence         INTEGER NOT NULL DEFAULT 0,
    token         TEXT,
    reason        TEXT,
    ended_at      INTEGER,
    forget_at     INTEGER
) STRICT;

CREATE UNIQUE INDEX hapax_outbox_id ON hapax_outbox (queue, id);
-- For leases (what is ready, oldest first) and for the depth (the rest).
CREATE INDEX hapax_outbox_state ON hapax_outbox (queue, state, seq, tenant) WHERE state <= 5;
-- Who is before and behind whom.
CREATE INDEX hapax_outbox_key ON hapax_outbox (queue, tenant, key, seq)
    WHERE state <= 4 AND key IS NOT NULL;
CREATE INDEX hapax_outbox_later ON hapax_outbox (queue, deliver_after) WHERE state = 1;
CREATE INDEX hapax_outbox_token ON hapax_outbox (token) WHERE state <= 3 AND token IS NOT NULL;
CREATE INDEX hapax_outbox_dead ON hapax_outbox (queue, id) WHERE state BETWEEN 4 AND 5;
CREATE INDEX hapax_outbox_done ON hapax_outbox (forget_at) WHERE state = 6;

-- Order per key is kept by these three, so that it holds whoever writes, in whatever language. Of each
-- key the earliest of those in states 0 to 4 is the front; every other one that waits is behind it, and
-- behind is where no lease looks.
CREATE TRIGGER hapax_outbox_added AFTER INSERT ON hapax_outbox
WHEN NEW.deliver_after IS NOT NULL OR NEW.key IS NOT NULL
BEGIN
    UPDATE hapax_outbox SET state = 1
    WHERE seq = NEW.seq AND state = 0 AND deliver_after IS NOT NULL;
    UPDATE hapax_outbox SET state = 2
    WHERE seq = NEW.seq AND state <= 1 AND EXISTS (
        SELECT 1 FROM hapax_outbox AS earlier
        WHERE earlier.queue = NEW.queue AND earlier.tenant = NEW.tenant
            AND earlier.key = NEW.key AND earlier.state <= 4 AND earlier.seq < NEW.seq);
END;

CREATE TRIGGER hapax_outbox_ended AFTER UPDATE OF state ON hapax_outbox
WHEN OLD.state <= 4 AND NEW.state > 4 AND NEW.key IS NOT NULL
BEGIN
    UPDATE hapax_outbox SET state = (deliver_after IS NOT NULL)
    WHERE state = 2 AND seq = (
        SELECT next.seq FROM hapax_outbox AS next
        WHERE next.queue = NEW.queue AND next.tenant = NEW.tenant AND next.key = NEW.key
            AND next.state <= 4
        ORDER BY next.seq LIMIT 1);
END;

CREATE TRIGGER hapax_outbox_deleted AFTER DELETE ON hapax_outbox
WHEN OLD.state <= 4 AND OLD.key IS NOT NULL
BEGIN
    UPDATE hapax_outbox SET state = (deliver_after IS NOT NULL)
    WHERE state = 2 AND seq = (
        SELECT next.seq FROM hapax_outbox AS next
        WHERE next.queue = OLD.queue AND next.tenant = OLD.tenant AND next.key = OLD.key
            AND next.state <= 4
        ORDER BY next.seq LIMIT 1);
END;

-- hapax_leases: one row for each lease call that still holds something: however much it holds, there is
-- one end to renew.
--   queue, token  whose
--   ends_at       from then on its items may be handed out again
CREATE TABLE hapax_leases (
    queue   TEXT    NOT NULL,
    token   TEXT    NOT NULL,
    ends_at INTEGER NOT NULL,
    PRIMARY KEY (queue, token)
) STRICT, WITHOUT ROWID;

CREATE INDEX hapax_leases_end ON hapax_leases (queue, ends_at);
