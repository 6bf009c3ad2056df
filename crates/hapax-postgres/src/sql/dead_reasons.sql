-- Counts dead letters by their newest reason, which is the first line; of the first $4 by id.
SELECT d.reason, d.letters, d.first_at, d.last_at
FROM (
    SELECT split_part(coalesce(o.reason, ''), E'\n', 1) AS reason, count(*) AS letters,
           floor(extract(epoch FROM min(o.due_at)) * 1000)::bigint AS first_at,
           floor(extract(epoch FROM max(o.due_at)) * 1000)::bigint AS last_at
    FROM (
        SELECT o.reason, o.due_at, o.tenant FROM hapax_outbox o
        WHERE o.queue = $1 AND (o.phase = 3 OR o.phase = 4)
        ORDER BY o.id LIMIT $4
    ) o
    WHERE $2 IS NULL OR o.tenant = $2
    GROUP BY 1
) d
ORDER BY d.letters DESC, d.reason COLLATE "C"
LIMIT $3
