-- The head of a job with a page of entries after $4: up to $5 of them, and up to $6 bytes of payload but at
-- least one entry; and its latest state if $7. One row with the head alone if there is neither.
-- The clock is that of the transaction's start, before any snapshot: a job that gets an event after the snapshot would
-- otherwise seem to be forgotten.
SELECT j.epochs, j.first, j.last, j.closed, j.expires_at - now AS time_left,
       e.is_state, e.place, e.stage, e.seq, e.closes, e.payload
FROM (SELECT floor(extract(epoch FROM transaction_timestamp()) * 1000)::bigint AS now OFFSET 0) clock
CROSS JOIN hapax_jobs j
LEFT JOIN LATERAL (
    (SELECT false AS is_state, p.place, p.stage, p.seq, p.closes, p.payload
     FROM (
         -- Lengths are known without reading payloads that are stored apart.
         SELECT e.*, sum(octet_length(e.payload)) OVER w AS bytes, row_number() OVER w AS nth
         FROM (
             SELECT e.place, e.stage, e.seq, e.closes, e.payload FROM hapax_entries e
             WHERE e.job = j.id AND e.place >= greatest($4::bigint + 1, j.first)
             ORDER BY e.place
             LIMIT $5
         ) e
         WINDOW w AS (ORDER BY e.place)
     ) p
     WHERE p.nth = 1 OR p.bytes <= $6::bigint
     ORDER BY p.place)
    UNION ALL
    SELECT true, e.place, e.stage, e.seq, e.closes, e.payload FROM hapax_entries e
    WHERE $7 AND e.job = j.id AND e.place = j.state_place
) e ON true
WHERE j.tenant = $1 AND j.domain = $2 AND j.name = $3 AND j.expires_at > now
