-- The head of a job with up to $5 entries after $4, and its latest state.
SELECT j.epochs, j.first, j.last, j.closed, j.expires_at - now AS time_left,
       e.is_state, e.place, e.epoch, e.stage, e.seq, e.closes, e.payload
FROM (SELECT floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint AS now OFFSET 0) clock
CROSS JOIN hapax_jobs j
CROSS JOIN LATERAL (
    (SELECT false AS is_state, e.* FROM hapax_entries e
     WHERE e.job = j.id AND e.place >= greatest($4::bigint + 1, j.first)
     ORDER BY e.place
     LIMIT $5)
    UNION ALL
    SELECT true, e.* FROM hapax_entries e WHERE e.job = j.id AND e.place = j.state_place
) e
WHERE j.tenant = $1 AND j.domain = $2 AND j.name = $3 AND j.expires_at > now
