-- Counts one queue. Each part is counted in its own index; rows are read only for the age of the
-- oldest, where numbers alone do not tell which that is.
WITH parts AS (
    SELECT (SELECT count(*) FROM hapax_outbox o
            WHERE o.queue = $1 AND o.phase = 0 AND o.deliver_after IS NULL)
         + (SELECT count(*) FROM hapax_outbox o
            WHERE o.queue = $1 AND (o.phase = 1 OR o.phase = 0 AND o.deliver_after IS NOT NULL))
         + (SELECT count(*) FROM hapax_outbox o WHERE o.queue = $1 AND o.phase = 2) AS here
), oldest AS (
    SELECT first.enqueued_at FROM generate_series(0, 15) n
    CROSS JOIN LATERAL (
        SELECT o.enqueued_at FROM hapax_outbox o
        WHERE o.queue = $1 AND o.shard = n::smallint AND o.phase = 0 AND o.deliver_after IS NULL
        ORDER BY o.seq LIMIT 1
    ) first
    UNION ALL
    SELECT min(o.enqueued_at) FROM hapax_outbox o
    WHERE o.queue = $1 AND (o.phase = 1 OR o.phase = 0 AND o.deliver_after IS NOT NULL)
    UNION ALL
    SELECT min(o.enqueued_at) FROM hapax_outbox o WHERE o.queue = $1 AND o.phase = 2
)
SELECT here,
       (SELECT (extract(epoch FROM clock_timestamp() - min(enqueued_at)) * 1000)::bigint FROM oldest)
           AS oldest,
       (SELECT count(*) FROM hapax_outbox o
        WHERE o.queue = $1 AND (o.phase = 3 OR o.phase = 4)) AS dead,
       (SELECT coalesce(sum(cardinality(l.seqs)), 0)::bigint FROM hapax_leases l
        WHERE l.queue = $1 AND l.until > clock_timestamp()) AS in_flight
FROM parts
