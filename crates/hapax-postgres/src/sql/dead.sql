-- Dead letters in the order of their ids. The newest reason is the first line. The inner limit, which is out of reach,
-- makes the planner read along the index and not sort all of them.
SELECT o.id, o.topic, o.key, o.attempts, o.reason, floor(extract(epoch FROM o.due_at) * 1000)::bigint AS died_at
FROM (
    SELECT o.id, o.topic, o.key, o.attempts, o.reason, o.due_at, o.tenant FROM hapax_outbox o
    WHERE o.queue = $1 AND (o.phase = 3 OR o.phase = 4)
      AND o.id >= coalesce($3, '00000000-0000-0000-0000-000000000000')
    ORDER BY o.id LIMIT $6
) o
WHERE ($2 IS NULL OR o.tenant = $2) AND ($3 IS NULL OR o.id > $3)
  AND ($5 IS NULL OR split_part(coalesce(o.reason, ''), E'\n', 1) = $5)
LIMIT $4
