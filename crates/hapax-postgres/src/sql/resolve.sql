-- Adds the reason of each failure before the earlier ones, as `queue::reasons` describes it, and ends the leases. Until
-- then nobody but the holder changes the reasons of a row that is in flight.
SELECT hapax_resolve($1, $2, $3, $4, $5, ARRAY(
    SELECT CASE
        WHEN a.reason IS NULL THEN NULL
        WHEN coalesce(o.reason, '') = '' THEN nullif(a.reason, '')
        WHEN a.reason = '' OR a.kind IN (3, 7) AND split_part(o.reason, E'\n', 1) = a.reason THEN o.reason
        ELSE array_to_string((string_to_array(a.reason || E'\n' || o.reason, E'\n'))[1:10], E'\n')
        END
    FROM unnest($3, $4, $6) WITH ORDINALITY AS a (id, kind, reason, at)
    -- OFFSET 0 keeps the planner from turning look-ups by id into a join with all items of the queue.
    LEFT JOIN LATERAL (
        SELECT o.reason FROM hapax_outbox o WHERE o.queue = $1 AND o.id = a.id OFFSET 0
    ) o ON true
    ORDER BY a.at
)) AS done
