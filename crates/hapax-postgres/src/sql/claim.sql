-- Many claims at once: grants what is vacant, and shows the rest as it is.
--
-- Nothing waits here. A vacant key is granted only under its advisory lock, which a claim in
-- another open transaction holds to its end; where the lock is taken, `fence` comes back empty.
-- Where no key is vacant, nothing is written, so that a replay costs no durable commit.
--
-- The clock is that of the statement's arrival, before its snapshot was taken: a lease that is renewed after the
-- snapshot would otherwise seem to have run out.
WITH clock AS MATERIALIZED (
    SELECT floor(extract(epoch FROM statement_timestamp()) * 1000)::bigint AS now
), found AS MATERIALIZED (
    SELECT a.*, c.phase, c.attempt, c.fence, c.granted_at, c.lease_end, c.retention, c.expires_at,
           c.token, c.fingerprint, c.value,
           -- The fence is drawn under the lock, so that the fences of a key grow in the order of its grants.
           CASE WHEN c.fence IS NULL AND pg_try_advisory_xact_lock(a.digest)
                THEN nextval('hapax_fence') END AS new_fence
    FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::bigint[],
                $6::bytea[], $7::bytea[], $8::bigint[], $9::bigint[])
        WITH ORDINALITY
        AS a (tenant, kind, scope, name, digest, new_token, new_fingerprint, lease, new_retention, at)
    -- OFFSET 0 keeps the planner from turning look-ups by key into a join over the whole table.
    LEFT JOIN LATERAL (
        SELECT * FROM hapax_claims c
        WHERE c.tenant = a.tenant AND c.kind = a.kind AND c.scope = a.scope AND c.name = a.name
        OFFSET 0
    ) c ON true
), granted AS (
    INSERT INTO hapax_claims (tenant, kind, scope, name, phase, attempt, fence, granted_at,
                              lease_end, retention, expires_at, token, fingerprint, value)
    SELECT tenant, kind, scope, name, 0, 1, new_fence, now,
           now + lease, new_retention, now + lease + new_retention, new_token, new_fingerprint, ''
    FROM (SELECT f.*, (SELECT now FROM clock) AS now FROM found f WHERE new_fence IS NOT NULL) vacant
    ON CONFLICT DO NOTHING
    RETURNING fence
)
-- Neither known nor granted although locked: it was committed after this statement began.
SELECT at, (SELECT now FROM clock) AS now, fence IS NOT NULL AS known,
       new_fence IN (SELECT fence FROM granted) AS granted, coalesce(fence, new_fence) AS fence,
       phase, attempt, granted_at, lease_end, retention, expires_at, token, fingerprint, value
FROM found
