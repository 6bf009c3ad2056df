-- Version 6: items of queues are found by their ids, whatever the planner knows of the table. Nothing else changes, so
-- nodes of version 5 may go on.
--
-- A session keeps the plans that it made while the table was small. Until the table is analysed, hapax_add_items then read
-- every done item of all queues, and hapax_resolve every item of its queue, for each item of a call. What the functions do is described in version 4.

-- `+ 0` against the index for the sweep, which is of all done items.
CREATE OR REPLACE FUNCTION hapax_add_items(queues text[], ids uuid[], tenants text[], topics text[], keys text[],
                                payloads bytea[], content_types text[], all_headers text[],
                                delays bigint[])
RETURNS TABLE (queue text, id uuid)
LANGUAGE plpgsql
SET lock_timeout = '100ms'
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off
AS $$
#variable_conflict use_column
BEGIN
    DELETE FROM hapax_outbox o
    USING unnest(queues, ids) AS a (queue, id)
    WHERE o.queue = a.queue AND o.id = a.id AND o.id = ANY (ids)
      AND o.phase + 0 = 5 AND o.due_at <= clock_timestamp();
    RETURN QUERY
        INSERT INTO hapax_outbox (queue, id, tenant, topic, key, payload, content_type, headers,
                                  deliver_after)
        SELECT a.queue, a.id, a.tenant, a.topic, a.key, a.payload, a.content_type, a.headers::jsonb,
               clock_timestamp() + a.delay * interval '1 millisecond'
        FROM unnest(queues, ids, tenants, topics, keys, payloads, content_types, all_headers, delays)
            WITH ORDINALITY
            AS a (queue, id, tenant, topic, key, payload, content_type, headers, delay, at)
        ORDER BY a.at
        ON CONFLICT (id, queue) DO NOTHING
        RETURNING hapax_outbox.queue::text, hapax_outbox.id;
EXCEPTION WHEN lock_not_available OR deadlock_detected THEN
    queue := NULL;
    id := NULL;
    RETURN NEXT;
END
$$;

-- OFFSET 0 keeps the planner from turning the look-ups by id into a join with all items of the queue, and an update by place
-- (ctid) leaves it no other way. hapax changes no item that somebody else has leased. If an UPDATE of somebody's own changes
-- one at the same moment, its outcome counts as lost, and it is handed out again when the lease has lapsed.
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
        CROSS JOIN LATERAL (
            SELECT found.ctid AS place FROM hapax_outbox found
            WHERE found.queue = the_queue AND found.id = a.id
            OFFSET 0
        ) f
        WHERE a.kind > 0 AND o.ctid = f.place
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
                  AND o.phase + 0 = 5 AND o.token = the_token AND o.due_at > now_at
                OFFSET 0)
            END
        FROM unnest(ids, kinds) WITH ORDINALITY AS a (id, kind, at)
        ORDER BY a.at);
END
$$;
