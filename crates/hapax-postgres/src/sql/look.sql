-- The clock is that of the transaction's start, before any snapshot: a lease that is renewed after the snapshot would
-- otherwise seem to have run out. (The snapshot of a SELECT is older than its statement_timestamp.)
SELECT now, fence, phase, attempt, granted_at, lease_end, retention, expires_at, token,
       fingerprint, value
FROM hapax_claims,
     (SELECT floor(extract(epoch FROM transaction_timestamp()) * 1000)::bigint AS now OFFSET 0) clock
WHERE tenant = $1 AND kind = $2 AND scope = $3 AND name = $4
