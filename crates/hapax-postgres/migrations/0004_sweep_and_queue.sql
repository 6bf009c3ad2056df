-- Version 4: changes to functions of earlier versions, which nodes of those versions may still call.

-- Ends leases, each with its own outcome; whether it was the token's to end. No id comes twice.
-- Kinds: 0 done, 1 done and remembered, 2 retry, 3 retry that does not count, 4 dead and blocks,
-- 5 dead; 6 and 7 are 2 and 3 of a row that leaves its key, so that later rows of the key need not
-- wait for it. `times` are milliseconds from now.
CREATE OR REPLACE FUNCTION hapax_resolve(the_queue text, the_token bytea, ids uuid[], kinds smallint[],
                              times bigint[], reasons text[])
RETURNS boolean[]
LANGUAGE plpgsql
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off
SET enable_bitmapscan = off SET jit = off SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
DECLARE
    now_at    timestamptz := clock_timestamp();
    leases    tid[];
    held      bigint[];
    done_ids  uuid[];
    done_seqs bigint[];
BEGIN
    -- Locked first, so that nobody hands out at the same time what is ended here.
    PERFORM FROM hapax_leases l WHERE l.queue = the_queue AND l.token = the_token
    ORDER BY l.fence, l.shard FOR UPDATE;
    SELECT array_agg(DISTINCT l.ctid), array_agg(s) INTO leases, held
    FROM hapax_leases l CROSS JOIN LATERAL unnest(l.seqs) s
    WHERE l.queue = the_queue AND l.token = the_token;

    WITH forgotten AS (
        DELETE FROM hapax_outbox o
        WHERE o.queue = the_queue
          AND o.id = ANY (ARRAY(SELECT a.id FROM unnest(ids, kinds) AS a (id, kind) WHERE a.kind = 0))
          AND NOT o.seq NOT IN (SELECT unnest(held))
        RETURNING o.id, o.seq
    ), changed AS (
        UPDATE hapax_outbox o
        SET phase = (ARRAY[5, 1, 1, 3, 4, 1, 1])[a.kind],
            due_at = now_at + a.time * interval '1 millisecond',
            attempts = o.attempts + CASE WHEN a.kind IN (3, 7) THEN 0 ELSE 1 END,
            key = CASE WHEN a.kind < 6 THEN o.key END,
            reason = a.reason,
            token = CASE WHEN a.kind = 1 THEN the_token END
        FROM unnest(ids, kinds, times, reasons) AS a (id, kind, time, reason)
        WHERE a.kind > 0 AND o.queue = the_queue AND o.id = a.id
          AND NOT o.seq NOT IN (SELECT unnest(held))
        RETURNING o.id, o.seq
    )
    SELECT array_agg(id), array_agg(seq) INTO done_ids, done_seqs
    FROM (SELECT * FROM forgotten UNION ALL SELECT * FROM changed) d;

    IF cardinality(done_seqs) = cardinality(held) THEN
        DELETE FROM hapax_leases l WHERE l.ctid = ANY (leases);
    ELSIF done_seqs IS NOT NULL THEN
        PERFORM hapax_let_go(leases, done_seqs);
    END IF;
    RETURN ARRAY(
        SELECT CASE
            WHEN NOT a.id NOT IN (SELECT unnest(done_ids)) THEN true
            -- An ack that its holder repeats.
            ELSE a.kind < 2 AND EXISTS (
                SELECT FROM hapax_outbox o
                WHERE o.queue = the_queue AND o.id = a.id
                  AND o.phase = 5 AND o.token = the_token AND o.due_at > now_at)
            END
        FROM unnest(ids, kinds) WITH ORDINALITY AS a (id, kind, at)
        ORDER BY a.at);
END
$$;
