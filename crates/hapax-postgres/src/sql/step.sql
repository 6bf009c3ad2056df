-- Many steps at once: 0 extends, 1 settles, 2 gives back as failed, 3 deletes.
--
-- Returns each row as it was, whether its lock was free, and whether the step was done. All four
-- steps have one condition: the token is the owner's and the claim is pending and not expired.
-- Leases ($8) and values ($9) are taken from the parameters when they are written, so that large
-- values are not carried along.
-- As in claim.sql the clock is older than the snapshot: an owner whose lease is renewed after it has not lost it.
WITH clock AS MATERIALIZED (
    SELECT floor(extract(epoch FROM statement_timestamp()) * 1000)::bigint AS now
), asked AS MATERIALIZED (
    SELECT *
    FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::bigint[],
                $6::bytea[], $7::smallint[])
        WITH ORDINALITY AS a (tenant, kind, scope, name, digest, new_token, act, at)
), tried AS MATERIALIZED (
    SELECT a.*, pg_try_advisory_xact_lock(a.digest) AS mine FROM asked a
), found AS MATERIALIZED (
    SELECT t.at, t.mine, t.act, c.*, t.mine AND c.token = t.new_token AS owned
    FROM tried t
    -- OFFSET 0 keeps the planner from turning look-ups by key into a join over the whole table.
    LEFT JOIN LATERAL (
        SELECT c.ctid AS place, * FROM hapax_claims c
        WHERE c.tenant = t.tenant AND c.kind = t.kind AND c.scope = t.scope AND c.name = t.name
        OFFSET 0
    ) c ON true
), changed AS (
    UPDATE hapax_claims c
    SET phase = f.act,
        lease_end = CASE WHEN f.act = 0 THEN now + ($8::bigint[])[f.at] ELSE c.lease_end END,
        expires_at = now + c.retention + ($8::bigint[])[f.at],
        value = ($9::bytea[])[f.at]
    FROM found f, clock
    -- By place, and `+ 0` against the index for the sweep: that leaves the planner no choice. A
    -- fence has one row and one token.
    WHERE f.owned AND f.act <> 3
      AND c.ctid = f.place AND c.fence = f.fence AND c.phase = 0 AND c.expires_at + 0 > now
    RETURNING f.at
), forgotten AS (
    DELETE FROM hapax_claims c
    USING found f, clock
    WHERE f.owned AND f.act = 3
      AND c.ctid = f.place AND c.fence = f.fence AND c.phase = 0 AND c.expires_at + 0 > now
    RETURNING f.at
)
SELECT at, now, mine, at IN (SELECT at FROM changed UNION ALL SELECT at FROM forgotten) AS done,
       fence, phase, attempt, granted_at, lease_end, retention, expires_at, token, fingerprint, value
FROM found, clock
