-- Stores a new message of an inbox as settled at once. Kept simple, because in a transaction of the
-- caller nothing is prepared and each statement is parsed and planned again. No row: the message is
-- or was known, or another transaction holds its lock; receive.sql tells which.
INSERT INTO hapax_claims (tenant, kind, scope, name, phase, attempt, fence, granted_at, lease_end,
                          retention, expires_at, token, value)
SELECT $1, $2, $3, $4, 1, 1, nextval('hapax_fence'), now, now, $6, now + $6, $7, ''
FROM (SELECT floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint AS now) clock
WHERE pg_try_advisory_xact_lock($5)
ON CONFLICT (tenant, kind, scope, name) DO NOTHING
RETURNING 1
