-- Many steps at once: 0 extends, 1 settles, 2 gives back as failed, 3 deletes.
--
-- Returns the fence of each step that was done, and no fence where another transaction holds the key's lock. All
-- four steps have one condition: the token is the owner's and the claim is pending and not expired. A step
-- that is not returned did not meet it; step_found.sql shows why.
-- Values ($9) are taken from the parameter when they are written, so that large ones are not carried along.
-- As in claim.sql the clock is older than the snapshot: an owner whose lease is renewed after it has not lost it.
WITH clock AS MATERIALIZED (
    SELECT floor(extract(epoch FROM statement_timestamp()) * 1000)::bigint AS now
), found AS MATERIALIZED (
    SELECT t.at, t.act, t.lease, t.mine, c.place, c.fence
    FROM (
        SELECT a.*, pg_try_advisory_xact_lock(a.digest) AS mine
        FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::bigint[],
                    $6::bytea[], $7::smallint[], $8::bigint[])
            WITH ORDINALITY AS a (tenant, kind, scope, name, digest, new_token, act, lease, at)
        OFFSET 0
    ) t
    -- OFFSET 0 keeps the planner from turning look-ups by key into a join over the whole table.
    LEFT JOIN LATERAL (
        SELECT c.ctid AS place, c.fence, c.token FROM hapax_claims c
        WHERE c.tenant = t.tenant AND c.kind = t.kind AND c.scope = t.scope AND c.name = t.name
        OFFSET 0
    ) c ON t.mine AND c.token = t.new_token
), changed AS (
    UPDATE hapax_claims c
    SET phase = f.act,
        lease_end = CASE WHEN f.act = 0 THEN (SELECT now FROM clock) + f.lease ELSE c.lease_end END,
        expires_at = (SELECT now FROM clock) + c.retention + f.lease,
        value = ($9::bytea[])[f.at]
    FROM found f
    -- By place, and `+ 0` against the indexes for the sweep and for open claims: that leaves the planner no choice. A
    -- fence has one row and one token.
    WHERE f.act <> 3
      AND c.ctid = f.place AND c.fence = f.fence AND c.phase + 0 = 0
      AND c.expires_at + 0 > (SELECT now FROM clock)
    RETURNING f.at, c.fence
), forgotten AS (
    DELETE FROM hapax_claims c
    USING found f
    WHERE f.act = 3
      AND c.ctid = f.place AND c.fence = f.fence AND c.phase + 0 = 0
      AND c.expires_at + 0 > (SELECT now FROM clock)
    RETURNING f.at, c.fence
)
SELECT at, fence FROM changed
UNION ALL
SELECT at, fence FROM forgotten
UNION ALL
SELECT at, NULL FROM found WHERE NOT mine
