SELECT now, fence, phase, attempt, granted_at, lease_end, retention, expires_at, token,
       fingerprint, value
FROM hapax_claims,
     (SELECT floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint AS now OFFSET 0) clock
WHERE tenant = $1 AND kind = $2 AND scope = $3 AND name = $4
