-- Adds one item. Kept simple, because in a transaction of the caller nothing is prepared and each
-- statement is parsed and planned again. No row: its id is or was known.
INSERT INTO hapax_outbox (queue, id, tenant, topic, key, payload, content_type, headers, deliver_after)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8::jsonb, clock_timestamp() + $9 * interval '1 millisecond')
ON CONFLICT (id, queue) DO NOTHING
RETURNING 1
