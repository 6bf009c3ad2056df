-- Deletes the expected version, or any ($6 is null), and returns the version that was found.
-- As in claim.sql the clock is older than the snapshot: a record that is renewed after it is not missing.
WITH clock AS MATERIALIZED (
    SELECT floor(extract(epoch FROM statement_timestamp()) * 1000)::bigint AS now
), lock AS MATERIALIZED (
    SELECT pg_try_advisory_xact_lock($5::bigint) AS mine
), found AS MATERIALIZED (
    SELECT version
    FROM hapax_records, clock
    WHERE tenant = $1 AND kind = $2 AND scope = $3 AND name = $4
      AND (expires_at IS NULL OR expires_at > now)
), gone AS (
    DELETE FROM hapax_records r
    USING lock, clock
    WHERE mine
      AND r.tenant = $1 AND r.kind = $2 AND r.scope = $3 AND r.name = $4
      AND ($6::bigint IS NULL OR r.version = $6::bigint)
      AND (r.expires_at IS NULL OR r.expires_at > now)
    RETURNING r.version
)
SELECT mine, found.version AS found, EXISTS (SELECT FROM gone) AS gone
FROM lock LEFT JOIN found ON true
