-- The oldest rows that wait or are in flight. Each part is read along its own index, no more than $4 rows of it. The
-- shards are spelled out, so that the planner merges them in their order and reads few rows of each. Rows that wait for
-- a time, or behind another row, have no index in the order of enqueueing.
WITH begins AS MATERIALIZED (
    -- As in depth.sql: each shard is read from behind the entries of rows that were delivered.
    SELECT ARRAY(
        SELECT coalesce((SELECT s.low FROM hapax_shards s
                         WHERE s.queue = $1 AND s.shard = n::smallint
                           AND s.full_at > clock_timestamp() - interval '2 minutes'), 0)
        FROM generate_series(0, 15) n ORDER BY n) AS low
), held AS MATERIALIZED (
    SELECT unnest(l.seqs) AS seq, l.until > clock_timestamp() AS is_alive FROM hapax_leases l WHERE l.queue = $1
), found AS (
    (SELECT o.seq, o.place FROM (
        SELECT * FROM (
            (SELECT o.seq, o.tenant, o.ctid AS place FROM hapax_outbox o
             WHERE o.queue = $1 AND o.shard = 0::smallint AND o.phase = 0 AND o.deliver_after IS NULL
               AND o.seq >= (SELECT b.low[1] FROM begins b)
             ORDER BY o.seq LIMIT $4)
            UNION ALL
            (SELECT o.seq, o.tenant, o.ctid AS place FROM hapax_outbox o
             WHERE o.queue = $1 AND o.shard = 1::smallint AND o.phase = 0 AND o.deliver_after IS NULL
               AND o.seq >= (SELECT b.low[2] FROM begins b)
             ORDER BY o.seq LIMIT $4)
            UNION ALL
            (SELECT o.seq, o.tenant, o.ctid AS place FROM hapax_outbox o
             WHERE o.queue = $1 AND o.shard = 2::smallint AND o.phase = 0 AND o.deliver_after IS NULL
               AND o.seq >= (SELECT b.low[3] FROM begins b)
             ORDER BY o.seq LIMIT $4)
            UNION ALL
            (SELECT o.seq, o.tenant, o.ctid AS place FROM hapax_outbox o
             WHERE o.queue = $1 AND o.shard = 3::smallint AND o.phase = 0 AND o.deliver_after IS NULL
               AND o.seq >= (SELECT b.low[4] FROM begins b)
             ORDER BY o.seq LIMIT $4)
            UNION ALL
            (SELECT o.seq, o.tenant, o.ctid AS place FROM hapax_outbox o
             WHERE o.queue = $1 AND o.shard = 4::smallint AND o.phase = 0 AND o.deliver_after IS NULL
               AND o.seq >= (SELECT b.low[5] FROM begins b)
             ORDER BY o.seq LIMIT $4)
            UNION ALL
            (SELECT o.seq, o.tenant, o.ctid AS place FROM hapax_outbox o
             WHERE o.queue = $1 AND o.shard = 5::smallint AND o.phase = 0 AND o.deliver_after IS NULL
               AND o.seq >= (SELECT b.low[6] FROM begins b)
             ORDER BY o.seq LIMIT $4)
            UNION ALL
            (SELECT o.seq, o.tenant, o.ctid AS place FROM hapax_outbox o
             WHERE o.queue = $1 AND o.shard = 6::smallint AND o.phase = 0 AND o.deliver_after IS NULL
               AND o.seq >= (SELECT b.low[7] FROM begins b)
             ORDER BY o.seq LIMIT $4)
            UNION ALL
            (SELECT o.seq, o.tenant, o.ctid AS place FROM hapax_outbox o
             WHERE o.queue = $1 AND o.shard = 7::smallint AND o.phase = 0 AND o.deliver_after IS NULL
               AND o.seq >= (SELECT b.low[8] FROM begins b)
             ORDER BY o.seq LIMIT $4)
            UNION ALL
            (SELECT o.seq, o.tenant, o.ctid AS place FROM hapax_outbox o
             WHERE o.queue = $1 AND o.shard = 8::smallint AND o.phase = 0 AND o.deliver_after IS NULL
               AND o.seq >= (SELECT b.low[9] FROM begins b)
             ORDER BY o.seq LIMIT $4)
            UNION ALL
            (SELECT o.seq, o.tenant, o.ctid AS place FROM hapax_outbox o
             WHERE o.queue = $1 AND o.shard = 9::smallint AND o.phase = 0 AND o.deliver_after IS NULL
               AND o.seq >= (SELECT b.low[10] FROM begins b)
             ORDER BY o.seq LIMIT $4)
            UNION ALL
            (SELECT o.seq, o.tenant, o.ctid AS place FROM hapax_outbox o
             WHERE o.queue = $1 AND o.shard = 10::smallint AND o.phase = 0 AND o.deliver_after IS NULL
               AND o.seq >= (SELECT b.low[11] FROM begins b)
             ORDER BY o.seq LIMIT $4)
            UNION ALL
            (SELECT o.seq, o.tenant, o.ctid AS place FROM hapax_outbox o
             WHERE o.queue = $1 AND o.shard = 11::smallint AND o.phase = 0 AND o.deliver_after IS NULL
               AND o.seq >= (SELECT b.low[12] FROM begins b)
             ORDER BY o.seq LIMIT $4)
            UNION ALL
            (SELECT o.seq, o.tenant, o.ctid AS place FROM hapax_outbox o
             WHERE o.queue = $1 AND o.shard = 12::smallint AND o.phase = 0 AND o.deliver_after IS NULL
               AND o.seq >= (SELECT b.low[13] FROM begins b)
             ORDER BY o.seq LIMIT $4)
            UNION ALL
            (SELECT o.seq, o.tenant, o.ctid AS place FROM hapax_outbox o
             WHERE o.queue = $1 AND o.shard = 13::smallint AND o.phase = 0 AND o.deliver_after IS NULL
               AND o.seq >= (SELECT b.low[14] FROM begins b)
             ORDER BY o.seq LIMIT $4)
            UNION ALL
            (SELECT o.seq, o.tenant, o.ctid AS place FROM hapax_outbox o
             WHERE o.queue = $1 AND o.shard = 14::smallint AND o.phase = 0 AND o.deliver_after IS NULL
               AND o.seq >= (SELECT b.low[15] FROM begins b)
             ORDER BY o.seq LIMIT $4)
            UNION ALL
            (SELECT o.seq, o.tenant, o.ctid AS place FROM hapax_outbox o
             WHERE o.queue = $1 AND o.shard = 15::smallint AND o.phase = 0 AND o.deliver_after IS NULL
               AND o.seq >= (SELECT b.low[16] FROM begins b)
             ORDER BY o.seq LIMIT $4)
        ) o
        ORDER BY o.seq LIMIT $4
    ) o
    WHERE $2 IS NULL OR o.tenant = $2
    LIMIT $3)
    UNION ALL
    SELECT o.seq, o.place FROM (
        SELECT o.seq, o.tenant, o.ctid AS place FROM hapax_outbox o
        WHERE o.queue = $1 AND (o.phase = 1 OR o.phase = 0 AND o.deliver_after IS NOT NULL)
        LIMIT $4
    ) o
    WHERE $2 IS NULL OR o.tenant = $2
    UNION ALL
    SELECT o.seq, o.place FROM (
        SELECT o.seq, o.tenant, o.ctid AS place FROM hapax_outbox o
        WHERE o.queue = $1 AND o.phase = 2
        LIMIT $4
    ) o
    WHERE $2 IS NULL OR o.tenant = $2
)
SELECT o.id, o.topic, o.key, o.reason,
       (extract(epoch FROM clock_timestamp() - o.enqueued_at) * 1000)::bigint AS age,
       -- The double negations make the planner hash them. A lease counts as an attempt when it ends.
       o.attempts + (NOT o.seq NOT IN (SELECT h.seq FROM held h))::int AS attempts,
       NOT o.seq NOT IN (SELECT h.seq FROM held h WHERE h.is_alive) AS in_flight
FROM hapax_outbox o
WHERE o.ctid = ANY (ARRAY(SELECT f.place FROM found f ORDER BY f.seq LIMIT $3))
ORDER BY o.seq
