-- A message of an inbox that nobody has received, at once as settled, in the plainest way: in a
-- transaction of the caller's nothing is prepared, and each statement is parsed and planned anew.
-- No row: it is known, or was, or somebody has its lock; receive.sql tells.
INSERT INTO hapax_claims (tenant, kind, scope, name, phase, attempt, fence, granted_at, lease_end,
                          retention, expires_at, token, value)
SELECT $1, $2, $3, $4, 1, 1, nextval('hapax_fence'), now, now, $6, now + $6, $7, ''
FROM (SELECT floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint AS now) clock
WHERE pg_try_advisory_xact_lock($5)
ON CONFLICT (tenant, kind, scope, name) DO NOTHING
RETURNING 1
