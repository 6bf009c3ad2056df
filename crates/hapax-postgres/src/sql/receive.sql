-- Stores a message of an inbox as settled at once: its effect commits with it. A message whose owner
-- gave it back or whose lease ran out is taken over. $6 is the retention, $7 any token.
--
-- As for claims nothing waits here: where the advisory lock is taken, `mine` says so.
WITH clock AS MATERIALIZED (
    SELECT floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint AS now
), lock AS MATERIALIZED (
    SELECT pg_try_advisory_xact_lock($5::bigint) AS mine
), found AS MATERIALIZED (
    SELECT c.phase FROM hapax_claims c, clock
    WHERE c.tenant = $1 AND c.kind = $2 AND c.scope = $3 AND c.name = $4 AND c.expires_at > now
      AND (c.phase = 1 OR c.phase = 0 AND c.lease_end > now)
), stored AS (
    INSERT INTO hapax_claims AS c (tenant, kind, scope, name, phase, attempt, fence, granted_at,
                                   lease_end, retention, expires_at, token, fingerprint, value)
    SELECT $1, $2, $3, $4, 1, 1, nextval('hapax_fence'), now, now, $6::bigint, now + $6::bigint,
           $7::bytea, NULL, ''
    FROM lock, clock
    WHERE mine AND NOT EXISTS (SELECT FROM found)
    ON CONFLICT (tenant, kind, scope, name) DO UPDATE
    SET phase = 1, attempt = c.attempt + 1, fence = excluded.fence, granted_at = excluded.granted_at,
        lease_end = excluded.lease_end, retention = excluded.retention,
        expires_at = excluded.expires_at, token = excluded.token, fingerprint = NULL, value = ''
    WHERE c.expires_at <= (SELECT now FROM clock) OR c.phase = 2
       OR c.phase = 0 AND c.lease_end <= (SELECT now FROM clock)
    RETURNING 1
)
SELECT mine, (SELECT phase FROM found) AS phase, EXISTS (SELECT FROM stored) AS first FROM lock
