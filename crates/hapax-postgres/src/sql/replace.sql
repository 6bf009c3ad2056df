-- Stores a record only over the expected version ($8).
WITH clock AS MATERIALIZED (
    SELECT floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint AS now
), lock AS MATERIALIZED (
    SELECT pg_try_advisory_xact_lock($5::bigint) AS mine
), stored AS (
    UPDATE hapax_records r
    SET value = $6::bytea,
        version = nextval('hapax_fence'),
        expires_at = coalesce(now + $7::bigint, r.expires_at)
    FROM lock, clock
    WHERE mine
      AND r.tenant = $1 AND r.kind = $2 AND r.scope = $3 AND r.name = $4
      AND r.version = $8::bigint AND (r.expires_at IS NULL OR r.expires_at > now)
    RETURNING r.version, false AS created
)
SELECT mine, version, created FROM lock LEFT JOIN stored ON true
