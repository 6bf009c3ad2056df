SELECT now, value, version, expires_at
FROM hapax_records,
     (SELECT floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint AS now OFFSET 0) clock
WHERE tenant = $1 AND kind = $2 AND scope = $3 AND name = $4
  AND (expires_at IS NULL OR expires_at > now)
