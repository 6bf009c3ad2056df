-- Dead letters in the order of their ids. The newest reason is the first line.
SELECT o.id, o.topic, o.key, o.attempts, o.reason, floor(extract(epoch FROM o.due_at) * 1000)::bigint AS died_at
FROM hapax_outbox o
WHERE o.queue = $1 AND (o.phase = 3 OR o.phase = 4) AND ($2 IS NULL OR o.tenant = $2)
  AND ($3::uuid IS NULL OR o.id > $3)
  AND ($5 IS NULL OR split_part(coalesce(o.reason, ''), E'\n', 1) = $5)
ORDER BY o.id
LIMIT $4
