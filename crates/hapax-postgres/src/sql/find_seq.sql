-- The first offset that a job still has, and its entry with the highest seq up to $4 (the first of several).
-- As in attach.sql the clock is older than the snapshot.
SELECT j.epochs, j.first, e.place, e.seq
FROM (SELECT floor(extract(epoch FROM transaction_timestamp()) * 1000)::bigint AS now OFFSET 0) clock
CROSS JOIN hapax_jobs j
LEFT JOIN LATERAL (
    SELECT e.place, e.seq FROM hapax_entries e
    WHERE e.job = j.id AND e.place >= j.first AND e.seq <= $4
    ORDER BY e.seq DESC, e.place
    LIMIT 1
) e ON true
WHERE j.tenant = $1 AND j.domain = $2 AND j.name = $3 AND j.expires_at > now
