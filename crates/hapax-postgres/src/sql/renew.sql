-- Grants rows that are there already, each only if it is still what was read: expired, failed and
-- unknown ones anew (`fresh`), and the asker's own with the lease anew.
WITH clock AS MATERIALIZED (
    SELECT floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint AS now
), asked AS MATERIALIZED (
    SELECT *
    FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::bigint[],
                $6::smallint[], $7::bigint[], $8::bigint[], $9::boolean[],
                $10::integer[], $11::bytea[], $12::bytea[], $13::bigint[], $14::bigint[])
        WITH ORDINALITY
        AS a (tenant, kind, scope, name, digest, old_phase, old_fence, old_lease_end, fresh,
              attempt, token, fingerprint, lease, retention, at)
), locked AS MATERIALIZED (
    SELECT a.*, CASE WHEN pg_try_advisory_xact_lock(a.digest)
                THEN CASE WHEN a.fresh THEN nextval('hapax_fence') ELSE a.old_fence END
                END AS new_fence
    FROM asked a
)
UPDATE hapax_claims c
SET phase = 0,
    attempt = l.attempt,
    fence = l.new_fence,
    granted_at = CASE WHEN l.fresh THEN now ELSE c.granted_at END,
    lease_end = now + l.lease,
    retention = l.retention,
    expires_at = now + l.lease + l.retention,
    token = l.token,
    fingerprint = l.fingerprint,
    value = ''
FROM locked l, clock
WHERE l.new_fence IS NOT NULL
  AND c.tenant = l.tenant AND c.kind = l.kind AND c.scope = l.scope AND c.name = l.name
  AND c.phase = l.old_phase AND c.fence = l.old_fence AND c.lease_end = l.old_lease_end
  AND (l.fresh OR c.expires_at > now)
RETURNING l.at, c.fence
