-- Many records at once, of those that live. Clocks as in get.sql.
--
-- Values come back until they are 4 MiB together: a row without its value is asked for again, so that a batch of
-- large records is no answer of any size.
SELECT at, now, version, expires_at,
       CASE WHEN sum(octet_length(value)) OVER (ORDER BY at) - octet_length(value) < 4194304 THEN value END AS value
FROM (
    SELECT a.at, r.*, clock.now
    FROM (SELECT floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint AS now,
                 floor(extract(epoch FROM transaction_timestamp()) * 1000)::bigint AS began OFFSET 0) clock
    CROSS JOIN unnest($1::text[], $2::text[], $3::text[], $4::text[])
        WITH ORDINALITY AS a (tenant, kind, scope, name, at)
    -- OFFSET 0 keeps the planner from turning look-ups by key into a join over the whole table.
    CROSS JOIN LATERAL (
        SELECT r.version, r.expires_at, r.value FROM hapax_records r
        WHERE r.tenant = a.tenant AND r.kind = a.kind AND r.scope = a.scope AND r.name = a.name
        OFFSET 0
    ) r
    WHERE r.expires_at IS NULL OR r.expires_at > clock.began
) found
