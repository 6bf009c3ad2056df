-- Adds items in order and returns the new ones. Done items whose retention is over are deleted first.
WITH forgotten AS (
    DELETE FROM hapax_outbox o
    USING unnest($1::text[], $2::uuid[]) AS a (queue, id)
    WHERE o.queue = a.queue AND o.id = a.id AND o.phase = 5 AND o.due_at <= clock_timestamp()
    RETURNING 1
)
INSERT INTO hapax_outbox (queue, id, tenant, topic, key, payload, content_type, headers, deliver_after)
SELECT queue, id, tenant, topic, key, payload, content_type, headers::jsonb,
       clock_timestamp() + delay * interval '1 millisecond'
FROM unnest($1::text[], $2::uuid[], $3::text[], $4::text[], $5::text[], $6::bytea[], $7::text[],
            $8::text[], $9::bigint[]) WITH ORDINALITY
    AS a (queue, id, tenant, topic, key, payload, content_type, headers, delay, at)
-- The subquery makes the deletion run first.
WHERE (SELECT count(*) FROM forgotten) >= 0
ORDER BY at
ON CONFLICT (id, queue) DO NOTHING
RETURNING queue, id
