-- Moves the rows of Bento's table `idempotency` into hapax, so that commands which were done before
-- the move are still answered from it, and none runs a second time.
--
--   hapax doctor --migrate --store postgres://…       makes hapax's tables
--   psql --set ON_ERROR_STOP=1 --file bento_idempotency.sql postgres://…
--
-- COMPLETED becomes settled with the stored answer, FAILED failed (a retry is attempt 2), PENDING
-- unknown. Rows that have expired stay behind. It takes effect as a whole or not at all, changes
-- nothing in `idempotency`, and may be run again: what was PENDING and is done by then is brought up
-- to date, everything else stays as it is. So run it once while the old service is at work, and
-- again when that has been stopped.

-- One line for each old row. Where your tenants or operations have other names in hapax, say so here.
CREATE OR REPLACE TEMPORARY VIEW hapax_moving AS
WITH named AS (
    SELECT i.*,
           i.tenant_id AS tenant,
           i.operation AS scope,
           i.idempotency_key AS name,
           COALESCE(i.state, 'PENDING') AS old_state,
           COALESCE(i.status_code, 200) AS status,
           COALESCE(i.created_at, now()) AS created,
           -- A row that never expires is kept as long as hapax keeps anything.
           CASE WHEN isfinite(i.expires_at) THEN i.expires_at ELSE now() + interval '366 days' END AS expires
    FROM idempotency i
)
SELECT tenant, scope, name, old_state, status, created, expires,
       convert_to(request_hash, 'UTF8') AS fingerprint,
       convert_to(COALESCE(response::text, 'null'), 'UTF8') AS body,
       expires > now() AS is_live,
       tenant COLLATE "C" ~ '^[!-.0-~]{1,64}$' -- printable, without a slash
           AND scope COLLATE "C" ~ '^[ -~]{1,255}$'
           AND name COLLATE "C" ~ '^[!-~]{1,255}$'
           AND status BETWEEN 200 AND 599
           AND old_state IN ('PENDING', 'COMPLETED', 'FAILED')
           AND octet_length(COALESCE(request_hash, '')) <= 255 AS fits
FROM named;

BEGIN;

-- What is left behind could run a second time: better nothing is moved than some of it.
DO $$
DECLARE
    unfit bigint := (SELECT count(*) FROM hapax_moving WHERE is_live AND NOT fits);
BEGIN
    IF unfit > 0 THEN
        RAISE EXCEPTION '% row(s) have a tenant, key, status or state that hapax cannot have', unfit
            USING HINT = 'SELECT * FROM hapax_moving WHERE is_live AND NOT fits; shows them';
    END IF;
END $$;

INSERT INTO hapax_claims AS claim
       (tenant, kind, scope, name, phase, attempt, fence, granted_at, lease_end, retention,
        expires_at, token, fingerprint, value)
SELECT tenant, 'command', scope, name,
       CASE old_state WHEN 'PENDING' THEN 0 WHEN 'COMPLETED' THEN 1 ELSE 2 END,
       1, nextval('hapax_fence'), ms(created), ms(created), ms(expires) - ms(created),
       ms(expires), convert_to('bento:' || gen_random_uuid(), 'UTF8'), fingerprint,
       CASE WHEN old_state = 'COMPLETED' THEN answer ELSE '' END
FROM hapax_moving,
     LATERAL (SELECT 1) one
WHERE is_live AND fits
ON CONFLICT (tenant, kind, scope, name) DO UPDATE
   SET phase = excluded.phase, value = excluded.value,
       retention = excluded.retention, expires_at = excluded.expires_at
 WHERE claim.phase = 0 AND excluded.phase <> 0
   AND substr(claim.token, 1, 6) = 'bento:';

COMMIT;
