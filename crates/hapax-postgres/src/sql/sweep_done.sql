-- SKIP LOCKED: a row that is being replaced is left to that transaction.
DELETE FROM hapax_outbox
WHERE ctid = ANY (ARRAY(
    SELECT ctid FROM hapax_outbox
    WHERE phase = 5 AND due_at <= (SELECT clock_timestamp())
    ORDER BY due_at
    LIMIT $1
    FOR UPDATE SKIP LOCKED
))
RETURNING 1
