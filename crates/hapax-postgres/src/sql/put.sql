-- Stores a record: over any ($8), or only if there is none. An expired record counts as none.
WITH clock AS MATERIALIZED (
    SELECT floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint AS now
), lock AS MATERIALIZED (
    SELECT pg_try_advisory_xact_lock($5::bigint) AS mine
), stored AS (
    INSERT INTO hapax_records AS r (tenant, kind, scope, name, value, version, origin, expires_at)
    SELECT $1, $2, $3, $4, $6::bytea, v.version, v.version, now + $7::bigint
    FROM lock, clock, (SELECT nextval('hapax_fence') AS version OFFSET 0) v
    WHERE mine
    ON CONFLICT (tenant, kind, scope, name) DO UPDATE
    SET value = excluded.value,
        version = excluded.version,
        origin = CASE WHEN r.expires_at <= (SELECT now FROM clock) THEN excluded.origin ELSE r.origin END,
        expires_at = CASE
            WHEN $7::bigint IS NULL AND r.expires_at > (SELECT now FROM clock) THEN r.expires_at
            ELSE excluded.expires_at
        END
    WHERE $8::boolean OR r.expires_at <= (SELECT now FROM clock)
    RETURNING version, version = origin AS created
)
SELECT mine, version, created FROM lock LEFT JOIN stored ON true
