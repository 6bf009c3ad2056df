-- Values are left out, because they may be large. `0` follows `/`, so the range covers the tenant's
-- own rows and those of its scopes.
SELECT now, fence, phase, attempt, granted_at, lease_end, retention, expires_at, token,
       fingerprint, ''::bytea AS value, tenant, kind, scope, name
FROM hapax_claims,
     (SELECT floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint AS now OFFSET 0) clock
WHERE (tenant = $1 OR (tenant > $1 || '/' AND tenant < $1 || '0')) AND kind = $2
  AND (tenant, kind, scope, name) > ($3, $2, $4, $5)
ORDER BY tenant, kind, scope, name
LIMIT $6
