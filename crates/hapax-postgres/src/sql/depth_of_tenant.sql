-- Counts one queue for one tenant. Each part has its own index.
WITH here AS (
    SELECT o.seq, o.enqueued_at FROM hapax_outbox o
    WHERE o.queue = $1 AND o.phase = 0 AND o.deliver_after IS NULL AND o.tenant = $2
    UNION ALL
    SELECT o.seq, o.enqueued_at FROM hapax_outbox o
    WHERE o.queue = $1 AND (o.phase = 1 OR o.phase = 0 AND o.deliver_after IS NOT NULL)
      AND o.tenant = $2
    UNION ALL
    SELECT o.seq, o.enqueued_at FROM hapax_outbox o
    WHERE o.queue = $1 AND o.phase = 2 AND o.tenant = $2
), flying AS (
    SELECT unnest(l.seqs) AS seq FROM hapax_leases l
    WHERE l.queue = $1 AND l.until > clock_timestamp()
)
SELECT (SELECT count(*) FROM here) AS here,
       (SELECT (extract(epoch FROM clock_timestamp() - min(enqueued_at)) * 1000)::bigint FROM here)
           AS oldest,
       (SELECT count(*) FROM hapax_outbox o
        WHERE o.queue = $1 AND (o.phase = 3 OR o.phase = 4) AND o.tenant = $2) AS dead,
       -- The double negation makes the planner hash it.
       (SELECT count(*) FROM here WHERE NOT seq NOT IN (SELECT f.seq FROM flying f)) AS in_flight
