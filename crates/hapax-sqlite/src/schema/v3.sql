-- The stored format of hapax on SQLite, version 3: a clock that nobody can set, notes of
-- what changed, and an index of open claims.
--
-- Leases and retentions are measured by the machine's time since boot plus a base, so that all
-- processes agree and no step of the wall clock matters. hapax_meta has four more names:
--   clock_boot  which boot the base belongs to
--   clock_base  what is added to the milliseconds since that boot
--   clock_last  the last known time by this clock, stored about once a second with a write
--   clock_wall  the wall clock at that moment. The next boot goes on from clock_last by as much as the
--               wall clock went on since, and never back
-- The columns created_at and ended_at of hapax_outbox are times of the wall clock: shown, never compared
-- with anything that decides. A foreign program's deliver_after is compared with the clock of the file,
-- which differs from the wall clock by the steps since the boot.

-- hapax_changes: the keys whose waiters a commit wakes, for the processes that did not make it. The last
-- ten thousand or so are kept.
--   id      grows by one with each row
--   digest  of the key, 64 bits; NULL where the commit concerns too many to name
CREATE TABLE hapax_changes (
    id     INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
    digest INTEGER
) STRICT;

-- hapax_arrivals: how many items each queue has got, from whatever program; its waiters are woken when
-- it grows.
CREATE TABLE hapax_arrivals (
    queue TEXT    NOT NULL PRIMARY KEY,
    items INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- Not an UPSERT, because the inserter's SQLite may be older than that.
CREATE TRIGGER hapax_outbox_arrived AFTER INSERT ON hapax_outbox
BEGIN
    INSERT INTO hapax_arrivals (queue, items) SELECT NEW.queue, 0
    WHERE NOT EXISTS (SELECT 1 FROM hapax_arrivals WHERE queue = NEW.queue);
    UPDATE hapax_arrivals SET items = items + 1 WHERE queue = NEW.queue;
END;

-- The claims that are not settled, which are few: for lists of one status, and for counting them.
CREATE INDEX hapax_claims_open ON hapax_claims (kind, tenant, scope, name) WHERE phase <> 1;
