-- The claims of steps that were not done. The clock is that of the transaction's start, as in look.sql.
SELECT a.at, clock.now, c.*
FROM (SELECT floor(extract(epoch FROM transaction_timestamp()) * 1000)::bigint AS now OFFSET 0) clock
CROSS JOIN unnest($1::text[], $2::text[], $3::text[], $4::text[])
    WITH ORDINALITY AS a (tenant, kind, scope, name, at)
-- OFFSET 0 keeps the planner from turning look-ups by key into a join over the whole table.
LEFT JOIN LATERAL (
    SELECT c.fence, c.phase, c.attempt, c.granted_at, c.lease_end, c.retention, c.expires_at, c.token,
           c.fingerprint, c.value
    FROM hapax_claims c
    WHERE c.tenant = a.tenant AND c.kind = a.kind AND c.scope = a.scope AND c.name = a.name
    OFFSET 0
) c ON true
