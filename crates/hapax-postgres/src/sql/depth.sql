-- Counts one queue ($1). Rows that wait are counted in their index, shard by shard, up to $2 of them; what lies behind
-- those is estimated at a cost that does not grow with it. Rows are read only for the age of the oldest, where numbers
-- alone do not tell which that is.
WITH shards AS MATERIALIZED (
    -- A drained backlog leaves index entries that nobody can remove beside an old snapshot: the count begins behind them,
    -- at the shard's `low`. As for a lease, `low` holds only while relays read the shard from its start now and then, which
    -- finds rows that somebody put back by hand. They do so every minute; after two, none is at work.
    SELECT n::smallint AS shard,
           coalesce((SELECT s.low FROM hapax_shards s
                     WHERE s.queue = $1 AND s.shard = n::smallint
                       AND s.full_at > clock_timestamp() - interval '2 minutes'), 0) AS low
    FROM generate_series(0, 15) n
), head AS MATERIALIZED (
    -- One more than the limit tells that the limit was reached.
    SELECT o.shard, count(*) AS counted, max(o.seq) AS last_seq
    FROM (
        SELECT o.shard, o.seq FROM shards s
        CROSS JOIN LATERAL (
            SELECT o.shard, o.seq FROM hapax_outbox o
            WHERE o.queue = $1 AND o.shard = s.shard AND o.seq >= s.low
              AND o.phase = 0 AND o.deliver_after IS NULL
            ORDER BY o.seq LIMIT $2::bigint + 1
        ) o
        LIMIT $2::bigint + 1
    ) o
    GROUP BY o.shard
), uncounted AS MATERIALIZED (
    -- The range of each shard, behind what was counted; none below the limit.
    SELECT u.shard, u.after_seq, u.last_seq, (u.last_seq - u.after_seq) / 32 + 1 AS width
    FROM (
        SELECT s.shard,
               coalesce(
                   (SELECT h.last_seq FROM head h WHERE h.shard = s.shard),
                   (SELECT o.seq - 1 FROM hapax_outbox o
                    WHERE o.queue = $1 AND o.shard = s.shard AND o.seq >= s.low
                      AND o.phase = 0 AND o.deliver_after IS NULL
                    ORDER BY o.seq LIMIT 1)) AS after_seq,
               (SELECT o.seq FROM hapax_outbox o
                WHERE o.queue = $1 AND o.shard = s.shard AND o.seq >= s.low
                  AND o.phase = 0 AND o.deliver_after IS NULL
                ORDER BY o.seq DESC LIMIT 1) AS last_seq
        FROM shards s
        WHERE (SELECT sum(h.counted) FROM head h) > $2
    ) u
    WHERE u.last_seq > u.after_seq
), pieces AS (
    -- Each range in 33 pieces, because rows may be dense in one place and sparse in another: at the front most may be taken,
    -- and other queues draw from the same numbers. The pieces begin elsewhere in each shard, so that together the shards
    -- look at 512 places.
    SELECT u.shard,
           greatest(u.after_seq, u.after_seq + u.width * (n - 1) + u.width * (u.shard + 1) / 16) AS after_seq,
           least(u.last_seq, u.after_seq + u.width * n + u.width * (u.shard + 1) / 16) AS last_seq
    FROM uncounted u CROSS JOIN generate_series(0, 32) n
), estimated AS (
    -- The first rows of a piece are counted; if there are more, the rest of the piece is taken to be as dense as they are.
    SELECT f.counted
         + CASE WHEN f.counted = 64
                THEN (p.last_seq - f.last_seq) * 63.0 / (f.last_seq - p.after_seq - 1) ELSE 0 END AS number
    FROM pieces p
    CROSS JOIN LATERAL (
        SELECT count(*) AS counted, max(o.seq) AS last_seq
        FROM (
            SELECT o.seq FROM hapax_outbox o
            WHERE o.queue = $1 AND o.shard = p.shard AND o.seq > p.after_seq AND o.seq <= p.last_seq
              AND o.phase = 0 AND o.deliver_after IS NULL
            ORDER BY o.seq LIMIT 64
        ) o
    ) f
    WHERE p.last_seq > p.after_seq
), oldest AS (
    SELECT (SELECT o.enqueued_at FROM hapax_outbox o
            WHERE o.queue = $1 AND o.shard = s.shard AND o.seq >= s.low
              AND o.phase = 0 AND o.deliver_after IS NULL
            ORDER BY o.seq LIMIT 1) AS enqueued_at
    FROM shards s
    UNION ALL
    SELECT min(o.enqueued_at) FROM (
        SELECT o.enqueued_at FROM hapax_outbox o
        WHERE o.queue = $1 AND (o.phase = 1 OR o.phase = 0 AND o.deliver_after IS NOT NULL)
        LIMIT $2
    ) o
    UNION ALL
    SELECT min(o.enqueued_at) FROM (
        SELECT o.enqueued_at FROM hapax_outbox o WHERE o.queue = $1 AND o.phase = 2 LIMIT $2
    ) o
)
SELECT ((SELECT coalesce(sum(h.counted), 0) FROM head h)
        + (SELECT coalesce(round(sum(e.number)), 0) FROM estimated e)
        + (SELECT count(*) FROM hapax_outbox o
           WHERE o.queue = $1 AND (o.phase = 1 OR o.phase = 0 AND o.deliver_after IS NOT NULL))
        + (SELECT count(*) FROM hapax_outbox o WHERE o.queue = $1 AND o.phase = 2))::bigint AS here,
       (SELECT (extract(epoch FROM clock_timestamp() - min(enqueued_at)) * 1000)::bigint FROM oldest)
           AS oldest,
       (SELECT count(*) FROM hapax_outbox o
        WHERE o.queue = $1 AND (o.phase = 3 OR o.phase = 4)) AS dead,
       (SELECT coalesce(sum(cardinality(l.seqs)), 0)::bigint FROM hapax_leases l
        WHERE l.queue = $1 AND l.until > clock_timestamp()) AS in_flight
