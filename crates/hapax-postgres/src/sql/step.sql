-- Many owners' steps at once: 0 extends, 1 settles, 2 gives back as failed, 3 forgets.
--
-- Shows each row as it was, whether its lock was free, and whether the step was done. All four
-- have one condition: the token is the owner's and the claim is still pending and remembered.
WITH clock AS MATERIALIZED (
    SELECT floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint AS now
), asked AS MATERIALIZED (
    SELECT *
    FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::bigint[],
                $6::bytea[], $7::smallint[], $8::bigint[], $9::bytea[])
        WITH ORDINALITY
        AS a (tenant, kind, scope, name, digest, new_token, act, lease, new_value, at)
), tried AS MATERIALIZED (
    SELECT a.*, pg_try_advisory_xact_lock(a.digest) AS mine FROM asked a
), found AS MATERIALIZED (
    SELECT t.at, t.mine, c.*
    FROM tried t
    LEFT JOIN LATERAL (
        SELECT * FROM hapax_claims c
        WHERE c.tenant = t.tenant AND c.kind = t.kind AND c.scope = t.scope AND c.name = t.name
        OFFSET 0
    ) c ON true
), changed AS (
    UPDATE hapax_claims c
    SET phase = t.act,
        lease_end = CASE WHEN t.act = 0 THEN now + t.lease ELSE c.lease_end END,
        expires_at = now + c.retention + CASE WHEN t.act = 0 THEN t.lease ELSE 0 END,
        value = t.new_value
    FROM tried t, clock
    WHERE t.mine AND t.act <> 3
      AND c.tenant = t.tenant AND c.kind = t.kind AND c.scope = t.scope AND c.name = t.name
      AND c.token = t.new_token AND c.phase = 0 AND c.expires_at > now
    RETURNING t.at
), forgotten AS (
    DELETE FROM hapax_claims c
    USING tried t, clock
    WHERE t.mine AND t.act = 3
      AND c.tenant = t.tenant AND c.kind = t.kind AND c.scope = t.scope AND c.name = t.name
      AND c.token = t.new_token AND c.phase = 0 AND c.expires_at > now
    RETURNING t.at
)
SELECT at, now, mine, at IN (SELECT at FROM changed UNION ALL SELECT at FROM forgotten) AS done,
       fence, phase, attempt, granted_at, lease_end, retention, expires_at, token, fingerprint, value
FROM found, clock
