-- For each partition its last position, and up to $3 entries after the given position.
SELECT q.at, p.epochs, p.last, p.floor, e.position, e.place, e.tenant, e.domain, e.name
FROM unnest($1::integer[], $2::bigint[]) WITH ORDINALITY AS q (partition, after, at)
CROSS JOIN LATERAL (
    SELECT * FROM hapax_partitions p WHERE p.partition = q.partition OFFSET 0
) p
LEFT JOIN LATERAL (
    SELECT e.position, e.place, j.tenant, j.domain, j.name
    FROM hapax_entries e
    CROSS JOIN LATERAL (SELECT * FROM hapax_jobs j WHERE j.id = e.job OFFSET 0) j
    WHERE e.partition = q.partition AND e.position > q.after
    ORDER BY e.position
    LIMIT $3
) e ON true
ORDER BY q.at, e.position
