-- The oldest rows that wait or are in flight. Each part is read along its own index, no more than $4 rows of it. Those
-- that wait for a time or behind another row are not in the order of enqueueing there.
WITH held AS MATERIALIZED (
    SELECT unnest(l.seqs) AS seq, l.until > clock_timestamp() AS is_alive FROM hapax_leases l WHERE l.queue = $1
), found AS (
    SELECT w.seq, w.place FROM generate_series(0, 15) n
    CROSS JOIN LATERAL (
        SELECT o.seq, o.place FROM (
            SELECT o.seq, o.tenant, o.ctid AS place FROM hapax_outbox o
            WHERE o.queue = $1 AND o.shard = n::smallint AND o.phase = 0 AND o.deliver_after IS NULL
            ORDER BY o.seq LIMIT $4
        ) o
        WHERE $2 IS NULL OR o.tenant = $2
        LIMIT $3
    ) w
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
