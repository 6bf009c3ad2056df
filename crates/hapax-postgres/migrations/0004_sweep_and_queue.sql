-- Version 4. Nodes of version 3 that still run call the functions by the same names and arguments.

-- Deletes entries of forgotten logs, of many logs at once; how many, and whether more may be left.
CREATE FUNCTION hapax_sweep_entries(at_most bigint, OUT deleted bigint, OUT more boolean)
LANGUAGE plpgsql
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off
AS $$
#variable_conflict use_column
DECLARE
    -- SKIP LOCKED: two nodes share the work.
    logs bigint[] := ARRAY(
        SELECT job FROM hapax_forgotten ORDER BY job LIMIT at_most FOR UPDATE SKIP LOCKED);
BEGIN
    DELETE FROM hapax_entries WHERE ctid = ANY (ARRAY(
        SELECT e.place FROM unnest(logs) l (job)
        CROSS JOIN LATERAL (
            SELECT ctid AS place FROM hapax_entries WHERE job = l.job LIMIT at_most
        ) e
        LIMIT at_most));
    GET DIAGNOSTICS deleted = ROW_COUNT;
    DELETE FROM hapax_forgotten f
    WHERE f.job = ANY (logs) AND NOT EXISTS (SELECT FROM hapax_entries e WHERE e.job = f.job);
    more := deleted >= at_most OR cardinality(logs) >= at_most;
END
$$;

-- The claims that are not settled, which are few: for lists of one status, and for counting them.
CREATE INDEX hapax_claims_open ON hapax_claims (kind, tenant, scope, name) WHERE phase <> 1;

-- One page of claims of a tenant and its scopes, in the order of their keys, after the given one.
-- It goes from scope to scope, so that it reads no rows of other tenants and kinds. After 1000 scopes
-- it ends with a row without a phase, whose tenant is the next scope. Values are left out, because
-- they may be large.
CREATE FUNCTION hapax_list_claims(mine text, the_kind text, after_tenant text, after_scope text,
                                  after_name text, at_most bigint, open_only boolean)
RETURNS TABLE (now bigint, fence bigint, phase smallint, attempt integer, granted_at bigint,
               lease_end bigint, retention bigint, expires_at bigint, token bytea, fingerprint bytea,
               value bytea, tenant text, kind text, scope text, name text)
LANGUAGE plpgsql STABLE
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET jit = off
SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
DECLARE
    -- Of the transaction's start, before any snapshot: a lease that is renewed meanwhile has not run out.
    now_ms bigint := floor(extract(epoch FROM transaction_timestamp()) * 1000);
    is_later boolean := after_tenant >= mine COLLATE "C";
    whose  text COLLATE "C" := CASE WHEN is_later THEN after_tenant ELSE mine END;
    from_scope text COLLATE "C" := CASE WHEN is_later THEN after_scope ELSE '' END;
    from_name  text COLLATE "C" := CASE WHEN is_later THEN after_name ELSE '' END;
    wanted bigint := at_most;
    found  bigint;
BEGIN
    FOR visited IN 1..1000 LOOP
        IF (whose = mine OR starts_with(whose, mine || '/')) AND open_only THEN
            RETURN QUERY
                SELECT now_ms, c.fence, c.phase, c.attempt, c.granted_at, c.lease_end, c.retention,
                       c.expires_at, c.token, c.fingerprint, ''::bytea, c.tenant::text, c.kind::text,
                       c.scope::text, c.name::text
                FROM hapax_claims c
                WHERE c.phase <> 1 AND c.tenant = whose AND c.kind = the_kind
                  AND (c.scope, c.name) > (from_scope, from_name)
                ORDER BY c.kind, c.tenant, c.scope, c.name LIMIT wanted;
            GET DIAGNOSTICS found = ROW_COUNT;
            wanted := wanted - found;
        ELSIF whose = mine OR starts_with(whose, mine || '/') THEN
            RETURN QUERY
                SELECT now_ms, c.fence, c.phase, c.attempt, c.granted_at, c.lease_end, c.retention,
                       c.expires_at, c.token, c.fingerprint, ''::bytea, c.tenant::text, c.kind::text,
                       c.scope::text, c.name::text
                FROM hapax_claims c
                WHERE c.tenant = whose AND c.kind = the_kind
                  AND (c.scope, c.name) > (from_scope, from_name)
                ORDER BY c.tenant, c.kind, c.scope, c.name LIMIT wanted;
            GET DIAGNOSTICS found = ROW_COUNT;
            wanted := wanted - found;
        END IF;
        -- `0` follows `/`, so the range covers the scopes of the tenant.
        IF open_only THEN
            whose := (SELECT c.tenant FROM hapax_claims c
                      WHERE c.phase <> 1 AND c.kind = the_kind
                        AND c.tenant > greatest(whose, mine || '/') AND c.tenant < mine || '0'
                      ORDER BY c.kind, c.tenant LIMIT 1);
        ELSE
            whose := (SELECT c.tenant FROM hapax_claims c
                      WHERE c.tenant > greatest(whose, mine || '/') AND c.tenant < mine || '0'
                      ORDER BY c.tenant LIMIT 1);
        END IF;
        from_scope := '';
        from_name := '';
        IF wanted <= 0 OR whose IS NULL THEN
            RETURN;
        END IF;
    END LOOP;
    tenant := whose;
    kind := the_kind;
    scope := '';
    name := '';
    RETURN NEXT;
END
$$;

-- Adds items in order and returns the new ones. Done items whose retention is over are deleted first.
-- A row of NULLs says that an open transaction has an item with one of these ids: nothing was added,
-- and the caller's transaction can go on.
CREATE FUNCTION hapax_add_items(queues text[], ids uuid[], tenants text[], topics text[], keys text[],
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
    WHERE o.queue = a.queue AND o.id = a.id AND o.phase = 5 AND o.due_at <= clock_timestamp();
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

-- Hints for waiters, of nodes behind a transaction pooler, which receive no notifications. A row
-- without a digest is for all waiters.
CREATE UNLOGGED TABLE hapax_wakes (
    id     bigint GENERATED ALWAYS AS IDENTITY,
    at     timestamptz NOT NULL DEFAULT clock_timestamp(),
    digest bigint
);
CREATE INDEX hapax_wakes_at ON hapax_wakes (at);

-- No row of the shard waits below `low`. `mark` is the next value of it: rows with a smaller seq that
-- cannot be seen yet are of transactions in `holders`.
ALTER TABLE hapax_shards
    ADD low     bigint      NOT NULL DEFAULT 0,
    ADD mark    bigint      NOT NULL DEFAULT 0,
    ADD holders text[]      NOT NULL DEFAULT '{}',
    ADD full_at timestamptz NOT NULL DEFAULT '-infinity'; -- when the shard was last read from 0

-- Moves the `low` of a shard, whose lock the caller holds, up to the last mark, once nobody can add a
-- row below that; then sets the next mark at `first_seq`, the lowest that was found waiting.
--
-- Whoever adds a row locks the table first and draws the row's seq then, and keeps the lock to the end
-- of the transaction. So every row below a mark was drawn by a transaction that held the lock when the
-- mark was set, or by one that was over by then.
CREATE FUNCTION hapax_raise_low(the_queue text, the_shard smallint, first_seq bigint) RETURNS void
LANGUAGE plpgsql
AS $$
#variable_conflict use_column
DECLARE
    stored hapax_shards;
    now_holding text[];
    new_low bigint;
BEGIN
    SELECT s.* INTO stored FROM hapax_shards s WHERE s.queue = the_queue AND s.shard = the_shard;
    -- In strides, because each leaves an old version of the shard's row. And only where each statement
    -- has a snapshot of its own: the search below must see what was committed before pg_locks was read.
    IF first_seq - greatest(stored.low, stored.mark) < 16384
       OR current_setting('transaction_isolation') <> 'read committed' THEN
        RETURN;
    END IF;
    now_holding := ARRAY(
        SELECT l.virtualtransaction FROM pg_locks l
        WHERE l.locktype = 'relation' AND l.relation = 'hapax_outbox'::regclass
          AND l.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())
          AND l.mode = 'RowExclusiveLock' AND l.pid IS DISTINCT FROM pg_backend_pid());
    new_low := stored.low;
    IF stored.mark > stored.low AND NOT stored.holders && now_holding THEN
        new_low := least(stored.mark, (
            SELECT o.seq FROM hapax_outbox o
            WHERE o.queue = the_queue AND o.shard = the_shard
              AND o.phase = 0 AND o.deliver_after IS NULL AND o.seq >= stored.low
            ORDER BY o.seq LIMIT 1));
    END IF;
    UPDATE hapax_shards s SET low = new_low, mark = first_seq, holders = now_holding
    WHERE s.queue = the_queue AND s.shard = the_shard;
END
$$;

DROP FUNCTION hapax_unpark;

-- Lets rows wait again that were parked behind something which is out of the way now: a batch of
-- each key. Holds the shard's lock. Returns the lowest seq of those rows.
CREATE FUNCTION hapax_unpark(the_queue text, the_shard smallint, flying bigint[], at_most bigint)
RETURNS bigint
LANGUAGE plpgsql
AS $$
#variable_conflict use_column
DECLARE
    seen  bigint[];
    start bigint := (SELECT lane FROM hapax_shards s WHERE s.queue = the_queue AND s.shard = the_shard);
    ready bigint[];
    first bigint;
BEGIN
    -- From key to key, not from row to row: one key may have very many.
    WITH RECURSIVE step (lane, nth) AS (
        (SELECT o.lane, 1 FROM hapax_outbox o
         WHERE o.queue = the_queue AND o.shard = the_shard AND o.phase = 2
           AND (start IS NULL OR o.lane > start)
         ORDER BY o.lane LIMIT 1)
        UNION ALL
        SELECT n.lane, s.nth + 1
        FROM step s
        CROSS JOIN LATERAL (
            SELECT o.lane FROM hapax_outbox o
            WHERE o.queue = the_queue AND o.shard = the_shard AND o.phase = 2 AND o.lane > s.lane
            ORDER BY o.lane LIMIT 1
        ) n
        WHERE s.nth < 500
    )
    SELECT array_agg(lane) INTO seen FROM step;

    ready := ARRAY(
        SELECT l FROM unnest(seen) l
        WHERE l NOT IN (SELECT f FROM unnest(flying) f WHERE f IS NOT NULL)
          AND 2 = (SELECT o.phase FROM hapax_outbox o
                   WHERE o.queue = the_queue AND o.lane = l AND o.lane IS NOT NULL
                     AND (o.phase = 1 OR o.phase = 2 OR o.phase = 3
                          OR o.phase = 0 AND o.deliver_after IS NOT NULL)
                   ORDER BY o.seq LIMIT 1)
    );
    WITH unparked AS (
        UPDATE hapax_outbox SET phase = 0 WHERE ctid = ANY (ARRAY(
            SELECT place FROM unnest(ready) l
            CROSS JOIN LATERAL (
                SELECT o.ctid AS place FROM hapax_outbox o
                WHERE o.queue = the_queue AND o.shard = the_shard AND o.phase = 2 AND o.lane = l
                ORDER BY o.seq LIMIT at_most
            ) o
        ))
        RETURNING seq
    )
    SELECT min(seq) INTO first FROM unparked;
    UPDATE hapax_shards s
    SET lane = CASE WHEN cardinality(seen) = 500 THEN seen[500] END,
        parked = seen IS NOT NULL OR start IS NOT NULL
    WHERE s.queue = the_queue AND s.shard = the_shard
      AND (seen IS NULL OR cardinality(seen) = 500 OR start IS NOT NULL);
    RETURN first;
END
$$;

-- Hands out rows of one shard, whose lock the caller holds, and says in `more` whether it stopped
-- before it had seen everything.
--
-- It goes through the waiting rows in their order, window by window. A row is passed over while an
-- earlier one of its key is in flight, not due, dead or parked. Where many were passed over they are
-- parked, so that the next call need not pass them over again.
--
-- It begins at the shard's `low`, because the index still has an entry for every row that was deleted
-- since the oldest open snapshot was taken. Once a minute it begins at 0, for rows below `low` that
-- somebody's own UPDATE let wait again.
CREATE OR REPLACE FUNCTION hapax_lease_shard(
    the_queue text, the_shard smallint, the_token bytea, the_fence bigint, now_at timestamptz,
    until_at timestamptz, at_most bigint,
    OUT places tid[], OUT more boolean
)
LANGUAGE plpgsql
AS $$
#variable_conflict use_column
DECLARE
    lapsed     tid[];
    flying     bigint[];
    flying_lanes bigint[];
    low        bigint;      -- where this call begins
    is_full    boolean;     -- whether it begins at 0
    is_parked  boolean;
    returned   bigint;      -- the lowest seq of rows that wait again
    first_seq  bigint;      -- the lowest seq that it found
    after_seq  bigint;
    width      bigint;
    seqs       bigint[] := '{}';
    lanes      bigint[] := '{}';
    passed     tid[];
    due        tid[];
    any_blocks boolean;
    win_places tid[];
    win_seqs   bigint[];
    win_lanes  bigint[];
    win_passed tid[];
    win_end    bigint;
    scanned    bigint := 0;
BEGIN
    places := '{}';
    passed := '{}';
    more := false;
    SELECT s.low, s.full_at <= now_at - interval '1 minute', s.parked INTO low, is_full, is_parked
    FROM hapax_shards s WHERE s.queue = the_queue AND s.shard = the_shard;
    -- A lapsed lease whose holder is just resolving it counts as alive.
    lapsed := ARRAY(SELECT l.ctid FROM hapax_leases l
                    WHERE l.queue = the_queue AND l.shard = the_shard AND l.until <= now_at
                    FOR UPDATE SKIP LOCKED);
    SELECT array_agg(f.seq), array_agg(f.lane) INTO flying, flying_lanes
    FROM hapax_leases l CROSS JOIN LATERAL unnest(l.seqs, l.lanes) AS f (seq, lane)
    WHERE l.queue = the_queue AND l.shard = the_shard AND NOT l.ctid = ANY (lapsed);
    -- What has come due waits like any other, so that it neither overtakes an earlier row of its key
    -- nor stands in anybody's way where it has to wait for one.
    due := ARRAY(
        SELECT o.ctid FROM hapax_outbox o
        WHERE o.queue = the_queue AND o.shard = the_shard
          AND (o.phase = 1 OR o.phase = 0 AND o.deliver_after IS NOT NULL)
          AND coalesce(o.due_at, o.deliver_after) <= now_at
        ORDER BY coalesce(o.due_at, o.deliver_after) LIMIT at_most + 1000);
    IF cardinality(due) > 0 THEN
        WITH waits AS (
            UPDATE hapax_outbox o SET phase = 0, due_at = NULL, deliver_after = NULL
            WHERE o.ctid = ANY (due)
            RETURNING o.seq
        )
        SELECT min(seq) INTO returned FROM waits;
        more := cardinality(due) = at_most + 1000;
    END IF;
    IF is_parked THEN
        returned := least(returned, hapax_unpark(the_queue, the_shard, flying_lanes, at_most));
    END IF;
    IF returned < low THEN
        low := returned;
        UPDATE hapax_shards s SET low = returned WHERE s.queue = the_queue AND s.shard = the_shard;
    END IF;
    after_seq := CASE WHEN is_full THEN 0 ELSE low - 1 END;
    any_blocks := EXISTS (
        SELECT FROM hapax_outbox o
        WHERE o.queue = the_queue AND o.lane IS NOT NULL
          AND (o.phase = 1 OR o.phase = 2 OR o.phase = 3
               OR o.phase = 0 AND o.deliver_after IS NOT NULL));
    LOOP
        width := at_most - cardinality(seqs) + coalesce(cardinality(flying), 0) + 500;
        WITH fresh AS MATERIALIZED (
            SELECT o.ctid AS place, o.seq, o.lane FROM hapax_outbox o
            WHERE o.queue = the_queue AND o.shard = the_shard AND o.seq > after_seq
              AND o.phase = 0 AND o.deliver_after IS NULL
            ORDER BY o.seq LIMIT width
        ), win AS MATERIALIZED (
            SELECT CASE WHEN count(*) = width THEN max(seq) END AS last_seq FROM fresh
        ), candidates AS (
            SELECT *, row_number() OVER (PARTITION BY lane ORDER BY seq) AS nth
            FROM (
                SELECT * FROM fresh WHERE seq NOT IN (SELECT unnest(flying))
                UNION ALL
                SELECT NULL, f.seq, f.lane FROM unnest(flying, flying_lanes) AS f (seq, lane)
                WHERE f.lane IS NOT NULL
            ) c
        ), judged AS (
            SELECT *, coalesce(seq < max(stop) OVER of_lane, true)
                      AND NOT bool_or(place IS NULL) OVER of_lane AS free
            FROM (
                SELECT *, CASE WHEN any_blocks AND nth = 1 AND lane IS NOT NULL THEN (
                    SELECT o.seq FROM hapax_outbox o
                    WHERE o.queue = the_queue AND o.lane = c.lane AND o.lane IS NOT NULL
                      AND (o.phase = 1 OR o.phase = 2 OR o.phase = 3
                           OR o.phase = 0 AND o.deliver_after IS NOT NULL)
                    ORDER BY o.seq LIMIT 1
                ) END AS stop
                FROM candidates c
            ) c
            WINDOW of_lane AS (PARTITION BY lane ORDER BY seq)
        ), sorted AS (
            SELECT *, count(*) FILTER (WHERE free) OVER (ORDER BY seq ROWS UNBOUNDED PRECEDING) AS rank
            FROM judged
        )
        SELECT array_agg(place) FILTER (WHERE taken), array_agg(seq) FILTER (WHERE taken),
               array_agg(lane) FILTER (WHERE taken),
               array_agg(place) FILTER (WHERE NOT free AND place IS NOT NULL),
               (SELECT last_seq FROM win), coalesce(first_seq, (SELECT min(seq) FROM fresh))
        INTO win_places, win_seqs, win_lanes, win_passed, win_end, first_seq
        FROM (SELECT *, free AND rank <= at_most - cardinality(seqs) AS taken FROM sorted) s;

        places := places || win_places;
        seqs := seqs || win_seqs;
        lanes := lanes || win_lanes;
        passed := passed || win_passed;
        scanned := scanned + width;
        EXIT WHEN win_end IS NULL OR cardinality(seqs) >= at_most;
        IF scanned > 5000 + 2 * at_most THEN
            more := true;
            EXIT;
        END IF;
        after_seq := win_end;
    END LOOP;

    IF is_full THEN
        UPDATE hapax_shards s SET full_at = now_at, low = least(s.low, first_seq)
        WHERE s.queue = the_queue AND s.shard = the_shard;
    ELSIF first_seq > low THEN
        PERFORM hapax_raise_low(the_queue, the_shard, first_seq);
    END IF;
    IF cardinality(passed) > 250 THEN
        UPDATE hapax_outbox SET phase = 2 WHERE ctid = ANY (passed);
        UPDATE hapax_shards s SET parked = true
        WHERE s.queue = the_queue AND s.shard = the_shard AND NOT s.parked;
    END IF;
    IF cardinality(seqs) = 0 THEN
        RETURN;
    END IF;
    IF cardinality(lapsed) > 0 THEN
        places := hapax_take_over(lapsed, seqs, places);
    END IF;
    INSERT INTO hapax_leases (fence, until, shard, queue, token, seqs, lanes)
    VALUES (the_fence, until_at, the_shard, the_queue, the_token, seqs, lanes);
END
$$;

-- Hands out what is due, oldest first as far as keys and shards allow. A token that still holds rows
-- gets those again. One empty row says that nothing was found although there may be something:
-- another node was just at it, or many rows had to be parked first.
CREATE OR REPLACE FUNCTION hapax_lease(the_queue text, the_token bytea, at_most bigint, lease bigint)
RETURNS TABLE (seq bigint, id uuid, tenant text, topic text, key text, payload bytea,
               content_type text, headers text, attempt integer, fence bigint, age bigint)
LANGUAGE plpgsql
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off
SET enable_bitmapscan = off SET jit = off SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
DECLARE
    now_at    timestamptz;
    until_at  timestamptz;
    the_fence bigint;
    the_shard smallint;
    wanted    bigint := at_most;
    places    tid[];
    unseen    boolean;
    more      boolean := false;
BEGIN
    -- The same question may have been asked before and still be under way.
    PERFORM pg_advisory_xact_lock(1751216240, hashtext(encode(the_token, 'hex')));
    now_at := clock_timestamp();
    until_at := now_at + lease * interval '1 millisecond';
    IF EXISTS (SELECT FROM hapax_leases l
               WHERE l.queue = the_queue AND l.token = the_token AND l.until > now_at) THEN
        RETURN QUERY SELECT * FROM hapax_lease_again(the_queue, the_token, now_at, until_at);
        RETURN;
    END IF;
    IF NOT EXISTS (SELECT FROM hapax_shards s WHERE s.queue = the_queue) THEN
        INSERT INTO hapax_shards (queue, shard) SELECT the_queue, n FROM generate_series(0, 15) n
        ON CONFLICT DO NOTHING;
    END IF;
    FOR the_shard IN
        SELECT s.shard FROM hapax_shards s
        LEFT JOIN LATERAL (
            SELECT o.seq FROM hapax_outbox o
            WHERE o.queue = the_queue AND o.shard = s.shard
              AND o.phase = 0 AND o.deliver_after IS NULL
              AND o.seq >= CASE WHEN s.full_at > now_at - interval '1 minute' THEN s.low ELSE 0 END
            ORDER BY o.seq LIMIT 1
        ) oldest ON true
        WHERE s.queue = the_queue
          AND (oldest.seq IS NOT NULL OR s.parked OR s.full_at <= now_at - interval '1 minute'
            OR EXISTS (
              SELECT FROM hapax_outbox o
              WHERE o.queue = the_queue AND o.shard = s.shard
                AND (o.phase = 1 OR o.phase = 0 AND o.deliver_after IS NOT NULL)
                AND coalesce(o.due_at, o.deliver_after) <= now_at))
        ORDER BY oldest.seq NULLS FIRST
    LOOP
        PERFORM FROM hapax_shards s WHERE s.queue = the_queue AND s.shard = the_shard
        FOR NO KEY UPDATE SKIP LOCKED;
        IF NOT FOUND THEN
            more := true;
            CONTINUE;
        END IF;
        the_fence := coalesce(the_fence, nextval('hapax_fence'));
        SELECT g.places, g.more INTO places, unseen
        FROM hapax_lease_shard(the_queue, the_shard, the_token, the_fence, now_at, until_at, wanted) g;
        RETURN QUERY SELECT * FROM hapax_handed_out(places, the_fence);
        wanted := wanted - cardinality(places);
        more := more OR unseen;
        EXIT WHEN wanted <= 0;
    END LOOP;
    IF more AND wanted = at_most THEN
        RETURN NEXT;
    END IF;
END
$$;

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
