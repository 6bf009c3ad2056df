-- Many puts at once, with the rules of hapax_put_record: over any version (`expected` is NULL), where there is no
-- record (-1), or over one version. Of several puts of one key only the first one `writes`.
--
-- A key that another transaction writes is not `mine`. A put that is neither stored nor refused nor locked met a
-- change since this statement's snapshot, or does not write: it is asked again. As in claim.sql the clock is older
-- than the snapshot: a record that is renewed after it has not expired.
WITH clock AS MATERIALIZED (
    SELECT floor(extract(epoch FROM statement_timestamp()) * 1000)::bigint AS now
), asked AS MATERIALIZED (
    SELECT a.*, pg_try_advisory_xact_lock(a.digest) AS mine
    FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::bigint[], $6::bigint[], $7::bigint[],
                $8::boolean[])
        WITH ORDINALITY AS a (tenant, kind, scope, name, digest, ttl, expected, writes, at)
), found AS MATERIALIZED (
    SELECT a.*, r.place, r.version, r.living,
           -- The version is drawn under the lock, so that the versions of a key grow.
           CASE WHEN a.mine AND a.writes AND (a.expected IS NULL OR a.expected = coalesce(r.living, -1))
                THEN nextval('hapax_fence') END AS new_version
    FROM asked a
    -- OFFSET 0 keeps the planner from turning look-ups by key into a join over the whole table.
    LEFT JOIN LATERAL (
        SELECT r.ctid AS place, r.version,
               CASE WHEN r.expires_at IS NULL OR r.expires_at > (SELECT now FROM clock) THEN r.version END AS living
        FROM hapax_records r
        WHERE r.tenant = a.tenant AND r.kind = a.kind AND r.scope = a.scope AND r.name = a.name
        OFFSET 0
    ) r ON true
), changed AS (
    -- By place: that leaves the planner no choice. A version has one row.
    UPDATE hapax_records r
    SET value = ($9::bytea[])[f.at],
        version = f.new_version,
        origin = CASE WHEN f.living IS NULL THEN f.new_version ELSE r.origin END,
        expires_at = CASE WHEN f.living IS NOT NULL AND f.ttl IS NULL THEN r.expires_at
                          ELSE (SELECT now FROM clock) + f.ttl END
    FROM found f
    WHERE f.new_version IS NOT NULL AND r.ctid = f.place AND r.version = f.version
    RETURNING f.at, r.version, r.version = r.origin AS created
), added AS (
    INSERT INTO hapax_records (tenant, kind, scope, name, value, version, origin, expires_at)
    SELECT tenant, kind, scope, name, ($9::bytea[])[at], new_version, new_version, (SELECT now FROM clock) + ttl
    FROM found
    WHERE new_version IS NOT NULL AND place IS NULL
    ON CONFLICT DO NOTHING
    RETURNING version
)
SELECT at, true AS mine, version, created FROM changed
UNION ALL
SELECT at, true, new_version, true FROM found
WHERE place IS NULL AND new_version IN (SELECT version FROM added)
UNION ALL
SELECT at, mine, NULL, NULL FROM found
WHERE NOT mine OR expected <> coalesce(living, -1)
