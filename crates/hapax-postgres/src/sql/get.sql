-- Whether a record lives is decided by the clock of the transaction's start, before any snapshot: a record that is
-- renewed after the snapshot would otherwise seem to have expired.
SELECT floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint AS now, value, version, expires_at
FROM hapax_records,
     (SELECT floor(extract(epoch FROM transaction_timestamp()) * 1000)::bigint AS began OFFSET 0) clock
WHERE tenant = $1 AND kind = $2 AND scope = $3 AND name = $4
  AND (expires_at IS NULL OR expires_at > began)
