-- SKIP LOCKED: a row that is being taken over is left to that transaction.
WITH gone AS (
    DELETE FROM hapax_claims
    WHERE ctid = ANY (ARRAY(
        SELECT ctid FROM hapax_claims
        WHERE expires_at <= (SELECT floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint)
        ORDER BY expires_at
        LIMIT $1
        FOR UPDATE SKIP LOCKED
    ))
    RETURNING 1
)
SELECT count(*) AS deleted, count(*) >= $1 AS more FROM gone
