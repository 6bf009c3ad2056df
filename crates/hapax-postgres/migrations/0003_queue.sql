-- Version 3: queues. All of them share one table, which any language may write to:
--
--     INSERT INTO hapax_outbox (topic, key, payload) VALUES ('orders', 'order-1', '{"n":1}'::bytea)
--
-- Handing out and acknowledging change no row of it but to delete it: who holds what stands in
-- hapax_leases, one row for a whole batch. That is what makes it fast.

CREATE TABLE hapax_outbox (
    seq           bigint GENERATED ALWAYS AS IDENTITY,  -- the order of enqueueing
    enqueued_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    deliver_after timestamptz,                          -- not before
    due_at        timestamptz, -- phase 1: when it is due again; 3 and 4: when it died; 5: until when
                               -- it is remembered
    lane          bigint GENERATED ALWAYS AS (          -- its ordering key as a number; NULL for none
        hashtextextended(key, hashtextextended(tenant, 0))
    ) STORED,
    id            uuid     NOT NULL DEFAULT gen_random_uuid(),
    attempts      integer  NOT NULL DEFAULT 0           -- leases that came to nothing; a number that
        CHECK (attempts BETWEEN 0 AND 1000000000),      -- cannot be counted on would stop its queue
    phase         smallint NOT NULL DEFAULT 0,  -- 0 waits, 1 waits for its retry, 2 parked (waits behind
                                                -- another of its key), 3 dead and blocks, 4 dead, 5 done
    shard         smallint GENERATED ALWAYS AS (
        CASE WHEN key IS NULL THEN uuid_hash_extended(id, 0)
             ELSE hashtextextended(key, hashtextextended(tenant, 0)) END & 15
    ) STORED,
    queue         text COLLATE "C" NOT NULL DEFAULT 'outbox',
    tenant        text COLLATE "C" NOT NULL DEFAULT 'default',
    topic         text     NOT NULL,
    key           text COLLATE "C",             -- those with the same one are handed out in order
    content_type  text,
    headers       jsonb    NOT NULL DEFAULT '{}' CHECK (jsonb_typeof(headers) = 'object'),
    reason        text,                         -- why it failed, for operators
    token         bytea,                        -- whose ack it was, once it is done
    payload       bytea    NOT NULL,
    PRIMARY KEY (id, queue)
)
-- Rows come and go: vacuum often, so that scans from the oldest row meet few dead ones.
WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 2000,
      autovacuum_vacuum_cost_delay = 0, autovacuum_analyze_scale_factor = 0.1);

-- A row that waits stands in the first index alone; every other one has only what is out of the
-- ordinary. The statements below repeat the conditions word by word.
CREATE INDEX hapax_outbox_waiting ON hapax_outbox (queue, shard, seq)
    WHERE phase = 0 AND deliver_after IS NULL;
CREATE INDEX hapax_outbox_timed ON hapax_outbox (queue, shard, coalesce(due_at, deliver_after))
    WHERE phase = 1 OR phase = 0 AND deliver_after IS NOT NULL;
-- What later rows of the same key may have to wait for.
CREATE INDEX hapax_outbox_blocking ON hapax_outbox (queue, lane, seq)
    WHERE lane IS NOT NULL
      AND (phase = 1 OR phase = 2 OR phase = 3 OR phase = 0 AND deliver_after IS NOT NULL);
CREATE INDEX hapax_outbox_parked ON hapax_outbox (queue, shard, lane, seq) WHERE phase = 2;
CREATE INDEX hapax_outbox_dead ON hapax_outbox (queue, id) WHERE phase = 3 OR phase = 4;
CREATE INDEX hapax_outbox_done ON hapax_outbox (due_at) WHERE phase = 5;

-- Sixteen for each queue, made by its first lease. The row's lock is held while rows of the shard
-- are handed out, and by nobody else.
CREATE TABLE hapax_shards (
    queue  text COLLATE "C" NOT NULL,
    shard  smallint NOT NULL,
    parked boolean  NOT NULL DEFAULT false,     -- whether rows of it may be parked
    lane   bigint,                              -- where to go on looking at those
    PRIMARY KEY (queue, shard)
)
WITH (fillfactor = 20, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000);

-- What is in flight: the rows of one shard that one call was given.
CREATE TABLE hapax_leases (
    fence bigint      NOT NULL,
    until timestamptz NOT NULL,
    shard smallint    NOT NULL,
    queue text COLLATE "C" NOT NULL,
    token bytea       NOT NULL,
    seqs  bigint[]    NOT NULL,
    lanes bigint[]    NOT NULL,                 -- of each of them
    PRIMARY KEY (queue, token, fence, shard)
)
WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000,
      autovacuum_vacuum_cost_delay = 0);

CREATE INDEX hapax_leases_shard ON hapax_leases (queue, shard);

-- The rows at these places, as they are handed out.
CREATE FUNCTION hapax_handed_out(places tid[], fence bigint)
RETURNS TABLE (seq bigint, id uuid, tenant text, topic text, key text, payload bytea,
               content_type text, headers text, attempt integer, fence bigint, age bigint)
LANGUAGE sql STABLE AS $$
    SELECT o.seq, o.id, o.tenant, o.topic, o.key, o.payload, o.content_type,
           CASE WHEN o.headers <> '{}' THEN o.headers::text END, o.attempts + 1, $2,
           (extract(epoch FROM clock_timestamp() - o.enqueued_at) * 1000)::bigint
    FROM hapax_outbox o
    WHERE o.ctid = ANY ($1)
$$;

-- Lets rows wait again that were parked behind something which is out of the way now: a batch of
-- each key. Holds the shard's lock.
CREATE FUNCTION hapax_unpark(the_queue text, the_shard smallint, flying bigint[], at_most bigint)
RETURNS void
LANGUAGE plpgsql
AS $$
#variable_conflict use_column
DECLARE
    seen  bigint[];
    start bigint := (SELECT lane FROM hapax_shards s WHERE s.queue = the_queue AND s.shard = the_shard);
    ready bigint[];
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
    UPDATE hapax_outbox SET phase = 0 WHERE ctid = ANY (ARRAY(
        SELECT place FROM unnest(ready) l
        CROSS JOIN LATERAL (
            SELECT o.ctid AS place FROM hapax_outbox o
            WHERE o.queue = the_queue AND o.shard = the_shard AND o.phase = 2 AND o.lane = l
            ORDER BY o.seq LIMIT at_most
        ) o
    ));
    UPDATE hapax_shards s
    SET lane = CASE WHEN cardinality(seen) = 500 THEN seen[500] END,
        parked = seen IS NOT NULL OR start IS NOT NULL
    WHERE s.queue = the_queue AND s.shard = the_shard
      AND (seen IS NULL OR cardinality(seen) = 500 OR start IS NOT NULL);
END
$$;

-- Takes rows out of leases, and deletes those that have none left. Leases are updated in place:
-- whoever waits for one must find what it still holds.
CREATE FUNCTION hapax_let_go(leases tid[], gone bigint[]) RETURNS void
LANGUAGE plpgsql
AS $$
#variable_conflict use_column
BEGIN
    DELETE FROM hapax_leases l
    WHERE l.ctid = ANY (leases)
      AND NOT EXISTS (SELECT FROM unnest(l.seqs) s WHERE s NOT IN (SELECT unnest(gone)));
    UPDATE hapax_leases l
    SET (seqs, lanes) = (
        SELECT array_agg(f.seq), array_agg(f.lane) FROM unnest(l.seqs, l.lanes) AS f (seq, lane)
        WHERE f.seq NOT IN (SELECT unnest(gone)))
    WHERE l.ctid = ANY (leases)
      AND EXISTS (SELECT FROM unnest(l.seqs) s WHERE NOT s NOT IN (SELECT unnest(gone)));
END
$$;

-- Takes rows out of lapsed leases, whose attempts count. Returns where the rows are then.
CREATE FUNCTION hapax_take_over(lapsed tid[], taken bigint[], places tid[]) RETURNS tid[]
LANGUAGE plpgsql
AS $$
#variable_conflict use_column
DECLARE
    again bigint[] := ARRAY(
        SELECT s FROM hapax_leases l CROSS JOIN LATERAL unnest(l.seqs) s
        WHERE l.ctid = ANY (lapsed) AND NOT s NOT IN (SELECT unnest(taken)));
    moved tid[];
BEGIN
    IF cardinality(again) = 0 THEN
        RETURN places;
    END IF;
    WITH counted AS (
        UPDATE hapax_outbox o SET attempts = o.attempts + 1
        WHERE o.ctid = ANY (places) AND NOT o.seq NOT IN (SELECT unnest(again))
        RETURNING o.ctid AS place
    )
    SELECT array_agg(place) INTO moved FROM counted;
    PERFORM hapax_let_go(lapsed, again);
    RETURN ARRAY(
        SELECT t.place FROM unnest(places, taken) AS t (place, seq)
        WHERE t.seq NOT IN (SELECT unnest(again))
    ) || moved;
END
$$;

-- Hands out rows of one shard, whose lock the caller holds, and says in `more` whether it stopped
-- before it had seen everything.
--
-- It goes through the waiting rows in their order, window by window. A row is passed over while an
-- earlier one of its key is in flight, not due, dead or parked. Where many were passed over they are
-- parked, so that the next call need not pass them over again.
CREATE FUNCTION hapax_lease_shard(
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
    after_seq  bigint := 0;
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
        UPDATE hapax_outbox o SET phase = 0, due_at = NULL, deliver_after = NULL
        WHERE o.ctid = ANY (due);
        more := cardinality(due) = at_most + 1000;
    END IF;
    IF (SELECT s.parked FROM hapax_shards s WHERE s.queue = the_queue AND s.shard = the_shard) THEN
        PERFORM hapax_unpark(the_queue, the_shard, flying_lanes, at_most);
    END IF;
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
               (SELECT last_seq FROM win)
        INTO win_places, win_seqs, win_lanes, win_passed, win_end
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
CREATE FUNCTION hapax_lease(the_queue text, the_token bytea, at_most bigint, lease bigint)
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
            ORDER BY o.seq LIMIT 1
        ) oldest ON true
        WHERE s.queue = the_queue
          AND (oldest.seq IS NOT NULL OR s.parked OR EXISTS (
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

-- What a token holds, with the lease anew.
CREATE FUNCTION hapax_lease_again(the_queue text, the_token bytea, now_at timestamptz, until_at timestamptz)
RETURNS TABLE (seq bigint, id uuid, tenant text, topic text, key text, payload bytea,
               content_type text, headers text, attempt integer, fence bigint, age bigint)
LANGUAGE plpgsql
AS $$
#variable_conflict use_column
DECLARE
    held hapax_leases;
BEGIN
    FOR held IN
        UPDATE hapax_leases l SET until = until_at
        WHERE l.queue = the_queue AND l.token = the_token AND l.until > now_at
        RETURNING l.*
    LOOP
        RETURN QUERY SELECT * FROM hapax_handed_out(
            ARRAY(SELECT o.ctid FROM hapax_outbox o
                  WHERE o.queue = the_queue AND o.shard = held.shard
                    AND o.phase = 0 AND o.deliver_after IS NULL
                    AND o.seq = ANY (held.seqs))
            || ARRAY(SELECT o.ctid FROM hapax_outbox o
                  WHERE o.queue = the_queue AND o.shard = held.shard
                    AND (o.phase = 1 OR o.phase = 0 AND o.deliver_after IS NOT NULL)
                    AND o.seq = ANY (held.seqs)),
            held.fence);
    END LOOP;
END
$$;

-- Ends leases, each with its own outcome; whether it was the token's to end. No id comes twice.
-- Kinds: 0 done, 1 done and remembered, 2 retry, 3 retry that does not count, 4 dead and blocks,
-- 5 dead. `times` are milliseconds from now.
CREATE FUNCTION hapax_resolve(the_queue text, the_token bytea, ids uuid[], kinds smallint[],
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
        SET phase = (ARRAY[5, 1, 1, 3, 4])[a.kind],
            due_at = now_at + a.time * interval '1 millisecond',
            attempts = o.attempts + CASE WHEN a.kind = 3 THEN 0 ELSE 1 END,
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
