-- SKIP LOCKED: a row that is being replaced is left to that transaction.
WITH gone AS (
    DELETE FROM hapax_done
    WHERE ctid = ANY (ARRAY(
        SELECT ctid FROM hapax_done
        WHERE until <= (SELECT clock_timestamp())
        ORDER BY until
        LIMIT $1
        FOR UPDATE SKIP LOCKED
    ))
    RETURNING 1
)
SELECT count(*) AS deleted, count(*) >= $1 AS more FROM gone
