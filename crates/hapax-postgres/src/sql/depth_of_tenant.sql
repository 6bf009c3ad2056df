-- Counts one queue ($1) for one tenant ($2). As in depth.sql up to $3 of the rows that wait are looked at, and what lies
-- behind those is estimated; but rows of all tenants are looked at, because no index tells the tenant. They are read in the
-- order of enqueueing, in which they lie in the table, so that each of its pages is read once. The shards are spelled out,
-- so that the planner merges them in that order.
WITH begins AS MATERIALIZED (
    SELECT ARRAY(
        SELECT coalesce((SELECT s.low FROM hapax_shards s
                         WHERE s.queue = $1 AND s.shard = n::smallint
                           AND s.full_at > clock_timestamp() - interval '2 minutes'), 0)
        FROM generate_series(0, 15) n ORDER BY n) AS low
), head AS MATERIALIZED (
    -- One more than the limit tells that the limit was reached.
    SELECT count(*) AS counted, max(o.seq) AS last_seq,
           count(*) FILTER (WHERE o.tenant = $2) AS own,
           min(o.enqueued_at) FILTER (WHERE o.tenant = $2) AS oldest
    FROM (
        SELECT * FROM (
            (SELECT o.seq, o.tenant, o.enqueued_at FROM hapax_outbox o
             WHERE o.queue = $1 AND o.shard = 0::smallint AND o.phase = 0 AND o.deliver_after IS NULL
               AND o.seq >= (SELECT b.low[1] FROM begins b)
             ORDER BY o.seq LIMIT $3::bigint + 1)
            UNION ALL
            (SELECT o.seq, o.tenant, o.enqueued_at FROM hapax_outbox o
             WHERE o.queue = $1 AND o.shard = 1::smallint AND o.phase = 0 AND o.deliver_after IS NULL
               AND o.seq >= (SELECT b.low[2] FROM begins b)
             ORDER BY o.seq LIMIT $3::bigint + 1)
            UNION ALL
            (SELECT o.seq, o.tenant, o.enqueued_at FROM hapax_outbox o
             WHERE o.queue = $1 AND o.shard = 2::smallint AND o.phase = 0 AND o.deliver_after IS NULL
               AND o.seq >= (SELECT b.low[3] FROM begins b)
             ORDER BY o.seq LIMIT $3::bigint + 1)
            UNION ALL
            (SELECT o.seq, o.tenant, o.enqueued_at FROM hapax_outbox o
             WHERE o.queue = $1 AND o.shard = 3::smallint AND o.phase = 0 AND o.deliver_after IS NULL
               AND o.seq >= (SELECT b.low[4] FROM begins b)
             ORDER BY o.seq LIMIT $3::bigint + 1)
            UNION ALL
            (SELECT o.seq, o.tenant, o.enqueued_at FROM hapax_outbox o
             WHERE o.queue = $1 AND o.shard = 4::smallint AND o.phase = 0 AND o.deliver_after IS NULL
               AND o.seq >= (SELECT b.low[5] FROM begins b)
             ORDER BY o.seq LIMIT $3::bigint + 1)
            UNION ALL
            (SELECT o.seq, o.tenant, o.enqueued_at FROM hapax_outbox o
             WHERE o.queue = $1 AND o.shard = 5::smallint AND o.phase = 0 AND o.deliver_after IS NULL
               AND o.seq >= (SELECT b.low[6] FROM begins b)
             ORDER BY o.seq LIMIT $3::bigint + 1)
            UNION ALL
            (SELECT o.seq, o.tenant, o.enqueued_at FROM hapax_outbox o
             WHERE o.queue = $1 AND o.shard = 6::smallint AND o.phase = 0 AND o.deliver_after IS NULL
               AND o.seq >= (SELECT b.low[7] FROM begins b)
             ORDER BY o.seq LIMIT $3::bigint + 1)
            UNION ALL
            (SELECT o.seq, o.tenant, o.enqueued_at FROM hapax_outbox o
             WHERE o.queue = $1 AND o.shard = 7::smallint AND o.phase = 0 AND o.deliver_after IS NULL
               AND o.seq >= (SELECT b.low[8] FROM begins b)
             ORDER BY o.seq LIMIT $3::bigint + 1)
            UNION ALL
            (SELECT o.seq, o.tenant, o.enqueued_at FROM hapax_outbox o
             WHERE o.queue = $1 AND o.shard = 8::smallint AND o.phase = 0 AND o.deliver_after IS NULL
               AND o.seq >= (SELECT b.low[9] FROM begins b)
             ORDER BY o.seq LIMIT $3::bigint + 1)
            UNION ALL
            (SELECT o.seq, o.tenant, o.enqueued_at FROM hapax_outbox o
             WHERE o.queue = $1 AND o.shard = 9::smallint AND o.phase = 0 AND o.deliver_after IS NULL
               AND o.seq >= (SELECT b.low[10] FROM begins b)
             ORDER BY o.seq LIMIT $3::bigint + 1)
            UNION ALL
            (SELECT o.seq, o.tenant, o.enqueued_at FROM hapax_outbox o
             WHERE o.queue = $1 AND o.shard = 10::smallint AND o.phase = 0 AND o.deliver_after IS NULL
               AND o.seq >= (SELECT b.low[11] FROM begins b)
             ORDER BY o.seq LIMIT $3::bigint + 1)
            UNION ALL
            (SELECT o.seq, o.tenant, o.enqueued_at FROM hapax_outbox o
             WHERE o.queue = $1 AND o.shard = 11::smallint AND o.phase = 0 AND o.deliver_after IS NULL
               AND o.seq >= (SELECT b.low[12] FROM begins b)
             ORDER BY o.seq LIMIT $3::bigint + 1)
            UNION ALL
            (SELECT o.seq, o.tenant, o.enqueued_at FROM hapax_outbox o
             WHERE o.queue = $1 AND o.shard = 12::smallint AND o.phase = 0 AND o.deliver_after IS NULL
               AND o.seq >= (SELECT b.low[13] FROM begins b)
             ORDER BY o.seq LIMIT $3::bigint + 1)
            UNION ALL
            (SELECT o.seq, o.tenant, o.enqueued_at FROM hapax_outbox o
             WHERE o.queue = $1 AND o.shard = 13::smallint AND o.phase = 0 AND o.deliver_after IS NULL
               AND o.seq >= (SELECT b.low[14] FROM begins b)
             ORDER BY o.seq LIMIT $3::bigint + 1)
            UNION ALL
            (SELECT o.seq, o.tenant, o.enqueued_at FROM hapax_outbox o
             WHERE o.queue = $1 AND o.shard = 14::smallint AND o.phase = 0 AND o.deliver_after IS NULL
               AND o.seq >= (SELECT b.low[15] FROM begins b)
             ORDER BY o.seq LIMIT $3::bigint + 1)
            UNION ALL
            (SELECT o.seq, o.tenant, o.enqueued_at FROM hapax_outbox o
             WHERE o.queue = $1 AND o.shard = 15::smallint AND o.phase = 0 AND o.deliver_after IS NULL
               AND o.seq >= (SELECT b.low[16] FROM begins b)
             ORDER BY o.seq LIMIT $3::bigint + 1)
        ) o
        ORDER BY o.seq LIMIT $3::bigint + 1
    ) o
), uncounted AS MATERIALIZED (
    SELECT u.shard, u.after_seq, u.last_seq, (u.last_seq - u.after_seq) / 32 + 1 AS width
    FROM (
        SELECT n::smallint AS shard, h.last_seq AS after_seq,
               (SELECT o.seq FROM hapax_outbox o
                WHERE o.queue = $1 AND o.shard = n::smallint AND o.seq > h.last_seq
                  AND o.phase = 0 AND o.deliver_after IS NULL
                ORDER BY o.seq DESC LIMIT 1) AS last_seq
        FROM head h CROSS JOIN generate_series(0, 15) n
        WHERE h.counted > $3
    ) u
    WHERE u.last_seq > u.after_seq
), pieces AS (
    SELECT u.shard,
           greatest(u.after_seq, u.after_seq + u.width * (n - 1) + u.width * (u.shard + 1) / 16) AS after_seq,
           least(u.last_seq, u.after_seq + u.width * n + u.width * (u.shard + 1) / 16) AS last_seq
    FROM uncounted u CROSS JOIN generate_series(0, 32) n
), estimated AS MATERIALIZED (
    -- The rest of a piece is taken to be as dense as its first rows, and to be the tenant's in the same proportion.
    SELECT f.own
         + CASE WHEN f.counted = 64
                THEN (p.last_seq - f.last_seq) * 63.0 / (f.last_seq - p.after_seq - 1) * f.own / 64
                ELSE 0 END AS number,
           f.oldest
    FROM pieces p
    CROSS JOIN LATERAL (
        SELECT count(*) AS counted, max(o.seq) AS last_seq,
               count(*) FILTER (WHERE o.tenant = $2) AS own,
               min(o.enqueued_at) FILTER (WHERE o.tenant = $2) AS oldest
        FROM (
            SELECT o.seq, o.tenant, o.enqueued_at FROM hapax_outbox o
            WHERE o.queue = $1 AND o.shard = p.shard AND o.seq > p.after_seq AND o.seq <= p.last_seq
              AND o.phase = 0 AND o.deliver_after IS NULL
            ORDER BY o.seq LIMIT 64
        ) o
    ) f
    WHERE p.last_seq > p.after_seq
), others AS MATERIALIZED (
    SELECT count(*) AS own, min(o.enqueued_at) AS oldest FROM hapax_outbox o
    WHERE o.queue = $1 AND (o.phase = 1 OR o.phase = 0 AND o.deliver_after IS NOT NULL)
      AND o.tenant = $2
    UNION ALL
    SELECT count(*), min(o.enqueued_at) FROM hapax_outbox o
    WHERE o.queue = $1 AND o.phase = 2 AND o.tenant = $2
), oldest AS (
    SELECT oldest FROM head UNION ALL SELECT oldest FROM estimated UNION ALL SELECT oldest FROM others
)
SELECT ((SELECT coalesce(sum(h.own), 0) FROM head h)
        + (SELECT coalesce(round(sum(e.number)), 0) FROM estimated e)
        + (SELECT sum(o.own) FROM others o))::bigint AS here,
       (SELECT (extract(epoch FROM clock_timestamp() - min(oldest)) * 1000)::bigint FROM oldest)
           AS oldest,
       (SELECT count(*) FROM hapax_outbox o
        WHERE o.queue = $1 AND (o.phase = 3 OR o.phase = 4) AND o.tenant = $2) AS dead,
       -- A row in flight stays among those that wait, where its lease has its number.
       (SELECT count(*) FROM hapax_leases l
        CROSS JOIN LATERAL unnest(l.seqs) AS f (seq)
        CROSS JOIN LATERAL (
            SELECT o.tenant FROM hapax_outbox o
            WHERE o.queue = $1 AND o.shard = l.shard AND o.seq = f.seq
              AND o.phase = 0 AND o.deliver_after IS NULL
            LIMIT 1
        ) o
        WHERE l.queue = $1 AND l.until > clock_timestamp() AND o.tenant = $2) AS in_flight
