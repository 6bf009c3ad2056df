-- Moves the rows of Bento's table `idempotency` into hapax, so that commands that were done before
-- the move are answered as before, and none of them runs a second time.
--
--   hapax migrate --store postgres://…       makes hapax's tables
--   psql --set ON_ERROR_STOP=1 --file bento_idempotency.sql postgres://…
--
-- COMPLETED becomes settled with the stored answer, FAILED becomes failed (a retry is attempt 2),
-- PENDING becomes unknown. Rows that have expired stay behind.
--
-- It takes effect as a whole or not at all, changes nothing in `idempotency`, and may be run again:
-- what was PENDING and is done by then is brought up to date, everything else stays as it is. So run
-- it while the old service is at work, and again when that has been stopped.

-- One line for each old row. Where tenants or operations have other names in hapax, say so here.
CREATE OR REPLACE TEMPORARY VIEW hapax_moving AS
WITH named AS (
    SELECT tenant_id AS tenant,
           operation AS scope,
           idempotency_key AS name,
           COALESCE(state, 'PENDING') AS old_state,
           COALESCE(status_code, 200) AS status,
           COALESCE(response::text, 'null') AS response,
           request_hash,
           LEAST(created_at, now()) AS created, -- now() where there is none
           -- What never expires is kept as long as the server keeps anything.
           CASE WHEN expires_at IS NULL OR expires_at = 'infinity' THEN now() + interval '366 days'
                ELSE expires_at END AS expires
    FROM idempotency
), answered AS (
    SELECT *,
           -- The number of headers, and each with its lengths; then the body.
           CASE WHEN status IN (204, 205, 304) THEN '\x0000'::bytea
                ELSE '\x0001'::bytea
                     || int2send(12::int2) || convert_to('content-type', 'UTF8')
                     || int4send(16) || convert_to('application/json', 'UTF8')
                     || convert_to(response, 'UTF8')
           END AS headers_and_body
    FROM named
)
SELECT tenant, scope, name, old_state, status, created, expires, headers_and_body,
       convert_to(request_hash, 'UTF8') AS fingerprint,
       expires > now() AS is_live,
       tenant COLLATE "C" ~ '^[!-.0-~]{1,64}$' -- printable, without a slash
           AND scope COLLATE "C" ~ '^[ -~]{1,255}$'
           AND name COLLATE "C" ~ '^[!-~]{1,255}$'
           AND status BETWEEN 200 AND 599
           AND old_state IN ('PENDING', 'COMPLETED', 'FAILED')
           AND octet_length(COALESCE(request_hash, '')) <= 255 AS fits
FROM answered;

BEGIN;

-- What is left behind could run a second time: better nothing is moved than some of it.
DO $$
DECLARE
    unfit bigint := (SELECT count(*) FROM hapax_moving WHERE is_live AND NOT fits);
BEGIN
    IF unfit > 0 THEN
        RAISE EXCEPTION '% row(s) have a tenant, operation, key, status or state that hapax does not take', unfit
            USING HINT = 'SELECT * FROM hapax_moving WHERE is_live AND NOT fits';
    END IF;
END $$;

INSERT INTO hapax_claims AS claim
       (tenant, kind, scope, name, phase, attempt, fence, granted_at, lease_end, retention,
        expires_at, token, fingerprint, value)
SELECT tenant, 'command', scope, name,
       CASE old_state WHEN 'PENDING' THEN 0 WHEN 'COMPLETED' THEN 1 WHEN 'FAILED' THEN 2 END,
       1, nextval('hapax_fence'), created_ms, created_ms, GREATEST(expires_ms - created_ms, 0), expires_ms,
       convert_to('bento:' || gen_random_uuid(), 'UTF8'), -- nobody presents it, and nobody can guess it
       fingerprint,
       CASE old_state WHEN 'COMPLETED'
            THEN '\x01'::bytea || int2send(status::int2) || headers_and_body
            ELSE '' END
FROM hapax_moving,
     LATERAL (SELECT floor(extract(epoch FROM created) * 1000)::bigint AS created_ms,
                     floor(extract(epoch FROM expires) * 1000)::bigint AS expires_ms) AS times
WHERE is_live AND fits
ON CONFLICT (tenant, kind, scope, name) DO UPDATE
   SET phase = excluded.phase, value = excluded.value,
       retention = excluded.retention, expires_at = excluded.expires_at
 -- Only what came from here as PENDING and was neither ruled on nor taken over since.
 WHERE claim.phase = 0 AND excluded.phase <> 0
   AND substr(claim.token, 1, 6) = convert_to('bento:', 'UTF8');

COMMIT;

SELECT count(*) FILTER (WHERE is_live AND old_state = 'COMPLETED') AS completed,
       count(*) FILTER (WHERE is_live AND old_state = 'FAILED') AS failed,
       count(*) FILTER (WHERE is_live AND old_state = 'PENDING') AS unknown,
       count(*) FILTER (WHERE NOT is_live) AS expired
FROM hapax_moving;
