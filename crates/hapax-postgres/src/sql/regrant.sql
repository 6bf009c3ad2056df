-- Grants existing rows again, each only if it is unchanged since it was read: expired, failed and
-- unknown ones as a new grant (`fresh`), the caller's own with a renewed lease.
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
), found AS MATERIALIZED (
    SELECT l.*, c.place
    FROM locked l
    CROSS JOIN LATERAL (
        SELECT c.ctid AS place FROM hapax_claims c
        WHERE c.tenant = l.tenant AND c.kind = l.kind AND c.scope = l.scope AND c.name = l.name
        OFFSET 0
    ) c
    WHERE l.new_fence IS NOT NULL
)
UPDATE hapax_claims c
SET phase = 0,
    attempt = f.attempt,
    fence = f.new_fence,
    granted_at = CASE WHEN f.fresh THEN now ELSE c.granted_at END,
    lease_end = now + f.lease,
    retention = f.retention,
    expires_at = now + f.lease + f.retention,
    token = f.token,
    fingerprint = f.fingerprint,
    value = ''
FROM found f, clock
-- By place, and `+ 0` against the index for the sweep: that leaves the planner no choice. A fence
-- has one row.
WHERE c.ctid = f.place
  AND c.fence = f.old_fence AND c.phase = f.old_phase AND c.lease_end = f.old_lease_end
  AND (f.fresh OR c.expires_at + 0 > now)
RETURNING f.at, c.fence
