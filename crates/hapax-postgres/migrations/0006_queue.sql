-- Version 6. Queues with less work for each row. Nodes of earlier versions that still run call the functions by the same names and
-- arguments; `hapax_resolve` stays for them.

-- Items that are done and still recognised as duplicates. An item is deleted from hapax_outbox when it is done, and noted
-- here: a row of its own costs half of what an update of the item's row does, with its payload and all its indexes.
-- (Rows of phase 5 in hapax_outbox were written by nodes of earlier versions.)
CREATE TABLE IF NOT EXISTS hapax_done (
    id    uuid        NOT NULL,
    queue text COLLATE "C" NOT NULL,
    until timestamptz NOT NULL,                 -- from then on the item may come again
    token bytea       NOT NULL,                 -- whose ack it was
    PRIMARY KEY (id, queue)
)
WITH (autovacuum_vacuum_scale_factor = 0.05, autovacuum_analyze_scale_factor = 0.1);

-- For the sweep.
CREATE INDEX IF NOT EXISTS hapax_done_until ON hapax_done (until);

-- Whoever may end the leases of items needs the same rights here.
DO $$
DECLARE
    who text;
BEGIN
    FOR who IN
        SELECT DISTINCT CASE WHEN a.grantee = 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(a.grantee)) END
        FROM pg_class c CROSS JOIN LATERAL aclexplode(c.relacl) a
        WHERE c.oid = 'hapax_outbox'::regclass AND a.privilege_type = 'DELETE' AND a.grantee <> c.relowner
    LOOP
        EXECUTE 'GRANT SELECT, INSERT, UPDATE, DELETE ON hapax_done TO ' || who;
    END LOOP;
END
$$;

-- The arrays are of numbers that do not compress; trying to costs more than reading and writing them.
ALTER TABLE hapax_leases ALTER seqs SET STORAGE EXTERNAL, ALTER lanes SET STORAGE EXTERNAL;

-- Adds items in order and returns the new ones.
-- A row of NULLs says that an open transaction has an item with one of these ids: nothing was added,
-- and the caller's transaction can go on.
CREATE OR REPLACE FUNCTION hapax_add_items(queues text[], ids uuid[], tenants text[], topics text[],
                                keys text[], payloads bytea[], content_types text[], all_headers text[],
                                delays bigint[])
RETURNS TABLE (queue text, id uuid)
LANGUAGE plpgsql
SET lock_timeout = '100ms'
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off
AS $$
#variable_conflict use_column
DECLARE
    new_queues text[];
    new_ids    uuid[];
BEGIN
    IF EXISTS (SELECT FROM hapax_outbox WHERE phase = 5) THEN
        DELETE FROM hapax_outbox WHERE ctid = ANY (ARRAY(
            SELECT o.place FROM unnest(queues, ids) AS a (queue, id)
            CROSS JOIN LATERAL (
                SELECT o.ctid AS place, o.phase, o.due_at FROM hapax_outbox o
                WHERE o.id = a.id AND o.queue = a.queue
                OFFSET 0
            ) o
            WHERE o.phase = 5 AND o.due_at <= clock_timestamp()));
    END IF;
    WITH added AS (
        INSERT INTO hapax_outbox (queue, id, tenant, topic, key, payload, content_type, headers,
                                  deliver_after)
        SELECT a.queue, a.id, a.tenant, a.topic, a.key, a.payload, a.content_type, a.headers::jsonb,
               clock_timestamp() + a.delay * interval '1 millisecond'
        FROM unnest(queues, ids, tenants, topics, keys, payloads, content_types, all_headers, delays)
            WITH ORDINALITY
            AS a (queue, id, tenant, topic, key, payload, content_type, headers, delay, at)
        ORDER BY a.at
        ON CONFLICT (id, queue) DO NOTHING
        RETURNING queue, id
    )
    SELECT array_agg(queue), array_agg(id) INTO new_queues, new_ids FROM added;
    -- The trigger has dropped those that are done.
    RETURN QUERY
        SELECT a.queue, a.id FROM unnest(new_queues, new_ids) AS a (queue, id)
        WHERE EXISTS (SELECT FROM hapax_outbox o WHERE o.id = a.id AND o.queue = a.queue);
EXCEPTION WHEN lock_not_available OR deadlock_detected THEN
    queue := NULL;
    id := NULL;
    RETURN NEXT;
END
$$;

-- Drops an item that was just added and is done already, also one that plain SQL added. After the insert, because an ack that was
-- under way has deleted the item and noted it as done. The function has the owner's rights: whoever may insert need not be
-- allowed to delete.
CREATE OR REPLACE FUNCTION hapax_drop_done_item() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER
AS $$
BEGIN
    -- The snapshot may be older than an ack that is committed by now: adding the same key is then a serialization
    -- failure, as it was while done items stayed in hapax_outbox.
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        INSERT INTO hapax_done (id, queue, until, token) VALUES (NEW.id, NEW.queue, clock_timestamp(), '')
        ON CONFLICT DO NOTHING;
        DELETE FROM hapax_done WHERE id = NEW.id AND queue = NEW.queue AND token = '';
    END IF;
    IF EXISTS (SELECT FROM hapax_done d
               WHERE d.id = NEW.id AND d.queue = NEW.queue AND d.until > clock_timestamp()) THEN
        DELETE FROM hapax_outbox o WHERE o.id = NEW.id AND o.queue = NEW.queue;
    END IF;
    RETURN NULL;
END
$$;
DO $$
DECLARE
    tables record;
BEGIN
    SELECT c.relowner, n.nspname INTO tables
    FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = 'hapax_outbox'::regclass;
    -- pg_temp last: otherwise a temporary table of the caller would stand before hapax's.
    EXECUTE format('ALTER FUNCTION hapax_drop_done_item() SET search_path = pg_catalog, %I, pg_temp', tables.nspname);
    REVOKE ALL ON FUNCTION hapax_drop_done_item() FROM PUBLIC;
    IF tables.relowner <> (SELECT r.oid FROM pg_roles r WHERE r.rolname = current_user) THEN
        EXECUTE format('ALTER FUNCTION hapax_drop_done_item() OWNER TO %s', tables.relowner::regrole);
    END IF;
END
$$;
DROP TRIGGER IF EXISTS hapax_drop_done_item ON hapax_outbox;
CREATE TRIGGER hapax_drop_done_item AFTER INSERT ON hapax_outbox FOR EACH ROW
    EXECUTE FUNCTION hapax_drop_done_item();

-- The rows at these places, as they are handed out.
CREATE OR REPLACE FUNCTION hapax_handed_out(places tid[], fence bigint)
RETURNS TABLE (seq bigint, id uuid, tenant text, topic text, key text, payload bytea,
               content_type text, headers text, attempt integer, fence bigint, age bigint)
LANGUAGE sql STABLE AS $$
    SELECT o.seq, o.id, o.tenant, o.topic, o.key, o.payload, o.content_type,
           CASE WHEN o.headers <> '{}' THEN o.headers::text END, o.attempts + 1, $2,
           (date_part('epoch', clock_timestamp() - o.enqueued_at) * 1000)::bigint
    FROM hapax_outbox o
    WHERE o.ctid = ANY ($1)
$$;

-- Hands out rows of several shards in one step, where nothing is out of the ordinary: no lapsed lease, nothing parked, few
-- rows that have to be passed over. Other shards come back in `special`, with their locks held. `busy` says that another
-- node was at some shard.
--
-- A row is passed over while an earlier one of its key is in flight, not due, dead or parked.
CREATE OR REPLACE FUNCTION hapax_lease_plain(
    the_queue text, shards smallint[], the_token bytea, the_fence bigint, now_at timestamptz,
    until_at timestamptz, at_most bigint,
    OUT places tid[], OUT special smallint[], OUT busy boolean
)
LANGUAGE plpgsql
AS $$
#variable_conflict use_column
DECLARE
    plain        smallint[];
    lows         bigint[];      -- where the search begins
    fulls        smallint[];    -- the shards that are read from 0, once a minute as in hapax_lease_shard
    flying       bigint[];
    flying_lanes bigint[];
    any_blocks   boolean;
    crowded      smallint[];
    found        smallint[];
    firsts       bigint[];      -- of each shard in `found` the lowest seq
    first_seq    bigint;
BEGIN
    SELECT array_agg(s.shard) FILTER (WHERE s.is_plain),
           array_agg(CASE WHEN s.is_full THEN 0 ELSE s.low END) FILTER (WHERE s.is_plain),
           array_agg(s.shard) FILTER (WHERE s.is_plain AND s.is_full),
           array_agg(s.shard) FILTER (WHERE NOT s.is_plain), count(*) < cardinality(shards)
    INTO plain, lows, fulls, special, busy
    FROM (
        SELECT s.shard, s.low, s.full_at <= now_at - interval '1 minute' AS is_full,
               NOT s.parked AND NOT EXISTS (
                   SELECT FROM hapax_leases l
                   WHERE l.queue = the_queue AND l.shard = s.shard AND l.until <= now_at) AS is_plain
        FROM hapax_shards s WHERE s.queue = the_queue AND s.shard = ANY (shards)
        FOR NO KEY UPDATE SKIP LOCKED
    ) s;
    SELECT array_agg(f.seq), array_agg(f.lane) INTO flying, flying_lanes
    FROM hapax_leases l CROSS JOIN LATERAL unnest(l.seqs, l.lanes) AS f (seq, lane)
    WHERE l.queue = the_queue AND l.shard = ANY (plain);
    any_blocks := EXISTS (
        SELECT FROM hapax_outbox o
        WHERE o.queue = the_queue AND o.lane IS NOT NULL
          AND (o.phase = 1 OR o.phase = 2 OR o.phase = 3
               OR o.phase = 0 AND o.deliver_after IS NOT NULL));
    WITH fresh AS MATERIALIZED (
        SELECT s.shard, o.place, o.seq, o.lane
        FROM unnest(plain, lows) AS s (shard, low)
        CROSS JOIN LATERAL (
            SELECT o.ctid AS place, o.seq, o.lane FROM hapax_outbox o
            WHERE o.queue = the_queue AND o.shard = s.shard AND o.seq >= s.low
              AND o.phase = 0 AND o.deliver_after IS NULL AND o.seq NOT IN (SELECT unnest(flying))
            ORDER BY o.seq LIMIT at_most
        ) o
    ), passed AS MATERIALIZED (
        SELECT c.shard, c.seq FROM (
            SELECT c.shard, c.seq, bool_or(c.shard IS NULL) OVER (PARTITION BY c.lane ORDER BY c.seq) AS waits
            FROM (
                SELECT f.shard, f.seq, f.lane FROM fresh f
                WHERE NOT f.lane NOT IN (SELECT l FROM unnest(flying_lanes) l WHERE l IS NOT NULL)
                UNION ALL
                SELECT NULL, f.seq, f.lane FROM unnest(flying, flying_lanes) AS f (seq, lane)
                WHERE NOT f.lane NOT IN (SELECT lane FROM fresh WHERE lane IS NOT NULL)
            ) c
        ) c
        WHERE c.waits AND c.shard IS NOT NULL
        UNION ALL
        SELECT f.shard, f.seq FROM fresh f
        WHERE any_blocks AND f.lane IS NOT NULL AND EXISTS (
            SELECT FROM hapax_outbox o
            WHERE o.queue = the_queue AND o.lane = f.lane AND o.lane IS NOT NULL AND o.seq < f.seq
              AND (o.phase = 1 OR o.phase = 2 OR o.phase = 3
                   OR o.phase = 0 AND o.deliver_after IS NOT NULL))
    ), crowd AS MATERIALIZED (
        -- hapax_lease_shard parks the rows that it passes over.
        SELECT shard FROM passed GROUP BY shard HAVING count(*) > least(250, at_most / 2)
    ), taken AS MATERIALIZED (
        SELECT f.shard, f.place, f.seq, f.lane FROM fresh f
        WHERE f.seq NOT IN (SELECT seq FROM passed) AND f.shard NOT IN (SELECT shard FROM crowd)
        ORDER BY f.seq LIMIT at_most
    ), leased AS (
        INSERT INTO hapax_leases (fence, until, shard, queue, token, seqs, lanes)
        SELECT the_fence, until_at, t.shard, the_queue, the_token, array_agg(t.seq), array_agg(t.lane)
        FROM taken t GROUP BY t.shard
    )
    SELECT (SELECT array_agg(place) FROM taken), (SELECT array_agg(shard) FROM crowd), array_agg(f.shard),
           array_agg(f.first_seq)
    INTO places, crowded, found, firsts
    FROM (
        SELECT shard, min(seq) AS first_seq FROM fresh
        WHERE shard NOT IN (SELECT shard FROM crowd) GROUP BY shard
    ) f;
    places := coalesce(places, '{}');
    special := special || crowded;
    IF fulls IS NOT NULL THEN
        UPDATE hapax_shards s
        SET full_at = now_at, low = least(s.low, firsts[array_position(found, s.shard)])
        WHERE s.queue = the_queue AND s.shard = ANY (fulls) AND NOT s.shard = ANY (coalesce(crowded, '{}'));
    END IF;
    FOR i IN 1..coalesce(cardinality(found), 0) LOOP
        CONTINUE WHEN found[i] = ANY (fulls) OR firsts[i] - lows[array_position(plain, found[i])] < 16384;
        -- The rows in flight are waiting rows, too: they come back if their lease lapses.
        first_seq := least(firsts[i], (
            SELECT min(f) FROM hapax_leases l CROSS JOIN LATERAL unnest(l.seqs) f
            WHERE l.queue = the_queue AND l.shard = found[i]));
        PERFORM hapax_raise_low(the_queue, found[i], first_seq);
    END LOOP;
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
    plain     smallint[];   -- shards with waiting rows and nothing out of the ordinary, the oldest row first
    special   smallint[];   -- shards with parked rows, or with rows that have come due
    todo      smallint[];
    next      smallint;
    passed    smallint[];
    wanted    bigint := at_most;
    places    tid[];
    others    smallint[];
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
    WITH found AS (
        SELECT s.shard, s.parked OR due.is_due AS is_special,
               -- The oldest row may be in flight, with those behind it: the next one has that many more rows before
               -- it, of this shard and about as many of each other one.
               oldest.seq + 16 * coalesce((
                   SELECT sum(cardinality(l.seqs)) FROM hapax_leases l
                   WHERE l.queue = the_queue AND l.shard = s.shard), 0) AS place
        FROM (
            SELECT s.shard, s.low, s.parked, s.full_at <= now_at - interval '1 minute' AS is_full
            FROM hapax_shards s WHERE s.queue = the_queue
        ) s
        LEFT JOIN LATERAL (
            SELECT o.seq FROM hapax_outbox o
            WHERE o.queue = the_queue AND o.shard = s.shard
              AND o.phase = 0 AND o.deliver_after IS NULL
              AND o.seq >= CASE WHEN s.is_full THEN 0 ELSE s.low END
            ORDER BY o.seq LIMIT 1
        ) oldest ON true
        CROSS JOIN LATERAL (
            SELECT EXISTS (
                SELECT FROM hapax_outbox o
                WHERE o.queue = the_queue AND o.shard = s.shard
                  AND (o.phase = 1 OR o.phase = 0 AND o.deliver_after IS NOT NULL)
                  AND coalesce(o.due_at, o.deliver_after) <= now_at) AS is_due
        ) due
        WHERE oldest.seq IS NOT NULL OR s.parked OR s.is_full OR due.is_due
    )
    SELECT coalesce(array_agg(f.shard ORDER BY f.place NULLS FIRST) FILTER (WHERE NOT f.is_special), '{}'),
           coalesce(array_agg(f.shard ORDER BY f.place NULLS FIRST) FILTER (WHERE f.is_special), '{}'),
           (array_agg(f.is_special ORDER BY f.place NULLS FIRST))[1]
    INTO plain, special, unseen FROM found f;
    -- First the shard with the oldest row alone, because it often has enough. -1 is all other plain shards in one step.
    IF unseen THEN
        todo := special[1] || '{-1}'::smallint[] || special[2:];
    ELSE
        todo := '{-1,-1}'::smallint[] || special;
        others := plain[2:];
        plain := plain[1:1];
    END IF;
    WHILE wanted > 0 AND cardinality(todo) > 0 LOOP
        next := todo[1];
        todo := todo[2:];
        IF next = -1 THEN
            CONTINUE WHEN cardinality(plain) = 0;
            the_fence := coalesce(the_fence, nextval('hapax_fence'));
            SELECT g.places, g.special, g.busy INTO places, passed, unseen
            FROM hapax_lease_plain(the_queue, plain, the_token, the_fence, now_at, until_at, wanted) g;
            todo := todo || passed;
            plain := coalesce(others, '{}');
        ELSE
            PERFORM FROM hapax_shards s WHERE s.queue = the_queue AND s.shard = next
            FOR NO KEY UPDATE SKIP LOCKED;
            IF NOT FOUND THEN
                more := true;
                CONTINUE;
            END IF;
            the_fence := coalesce(the_fence, nextval('hapax_fence'));
            SELECT g.places, g.more INTO places, unseen
            FROM hapax_lease_shard(the_queue, next, the_token, the_fence, now_at, until_at, wanted) g;
        END IF;
        RETURN QUERY SELECT * FROM hapax_handed_out(places, the_fence);
        wanted := wanted - cardinality(places);
        more := more OR unseen;
    END LOOP;
    IF more AND wanted = at_most THEN
        RETURN NEXT;
    END IF;
END
$$;

-- Ends leases, each with its own outcome; whether it was the token's to end. `owners` are places in `queues` and `tokens`,
-- which have each pair once; each pair of owner and id comes once. Kinds and times are those of hapax_resolve.
CREATE OR REPLACE FUNCTION hapax_end_leases(queues text[], tokens bytea[], owners integer[], ids uuid[], kinds smallint[],
                                 times bigint[], reasons text[])
RETURNS boolean[]
LANGUAGE plpgsql
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off
SET enable_bitmapscan = off SET jit = off SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
DECLARE
    now_at      timestamptz := clock_timestamp();
    leases      tid[];
    held        bigint[];
    held_owners bigint[];
    done        bigint[];   -- places in `ids`
    done_seqs   bigint[];
BEGIN
    -- Locked first, so that nobody hands out at the same time what is ended here.
    PERFORM FROM unnest(queues, tokens) AS a (queue, token)
    CROSS JOIN LATERAL (
        SELECT FROM hapax_leases l WHERE l.queue = a.queue AND l.token = a.token
        ORDER BY l.fence, l.shard FOR UPDATE
    ) l;
    SELECT array_agg(DISTINCT l.ctid), array_agg(s), array_agg(a.owner) INTO leases, held, held_owners
    FROM unnest(queues, tokens) WITH ORDINALITY AS a (queue, token, owner)
    JOIN hapax_leases l ON l.queue = a.queue AND l.token = a.token
    CROSS JOIN LATERAL unnest(l.seqs) s;

    WITH mine AS MATERIALIZED (
        SELECT a.*, queues[a.owner] AS queue, o.place, o.seq
        FROM unnest(owners, ids, kinds, times, reasons) WITH ORDINALITY AS a (owner, id, kind, time, reason, at)
        CROSS JOIN LATERAL (
            SELECT o.ctid AS place, o.seq FROM hapax_outbox o
            WHERE o.queue = queues[a.owner] AND o.id = a.id
            OFFSET 0
        ) o
        WHERE NOT (a.owner::bigint, o.seq) NOT IN (
            SELECT h.owner, h.seq FROM unnest(held_owners, held) AS h (owner, seq))
    ), forgotten AS (
        DELETE FROM hapax_outbox o USING mine m WHERE o.ctid = m.place AND m.kind < 2
        RETURNING m.at, m.seq, m.kind, m.id, m.queue, m.time, m.owner
    ), noted AS (
        INSERT INTO hapax_done (id, queue, until, token)
        SELECT f.id, f.queue, now_at + f.time * interval '1 millisecond', tokens[f.owner]
        FROM forgotten f WHERE f.kind = 1
        -- The item came again after its retention was over.
        ON CONFLICT (id, queue) DO UPDATE SET until = excluded.until, token = excluded.token
    ), changed AS (
        UPDATE hapax_outbox o
        SET phase = (ARRAY[5, 1, 1, 3, 4, 1, 1])[m.kind],
            due_at = now_at + m.time * interval '1 millisecond',
            attempts = o.attempts + CASE WHEN m.kind IN (3, 7) THEN 0 ELSE 1 END,
            key = CASE WHEN m.kind < 6 THEN o.key END,
            reason = m.reason
        FROM mine m
        WHERE o.ctid = m.place AND m.kind > 1
        RETURNING m.at, m.seq
    )
    SELECT array_agg(d.at), array_agg(d.seq) INTO done, done_seqs
    FROM (SELECT at, seq FROM forgotten UNION ALL SELECT at, seq FROM changed) d;

    IF cardinality(done_seqs) = cardinality(held) THEN
        DELETE FROM hapax_leases l WHERE l.ctid = ANY (leases);
    ELSIF done_seqs IS NOT NULL THEN
        PERFORM hapax_let_go(leases, done_seqs);
    END IF;
    IF cardinality(done) = cardinality(ids) THEN
        RETURN array_fill(true, ARRAY[cardinality(ids)]);
    END IF;
    RETURN ARRAY(
        SELECT CASE
            WHEN NOT a.at NOT IN (SELECT unnest(done)) THEN true
            -- An ack that its holder repeats.
            ELSE a.kind < 2 AND (EXISTS (
                SELECT FROM hapax_done d
                WHERE d.id = a.id AND d.queue = queues[a.owner] AND d.token = tokens[a.owner] AND d.until > now_at)
            OR EXISTS (
                SELECT FROM hapax_outbox o
                WHERE o.queue = queues[a.owner] AND o.id = a.id
                  AND o.phase = 5 AND o.token = tokens[a.owner] AND o.due_at > now_at))
            END
        FROM unnest(owners, ids, kinds) WITH ORDINALITY AS a (owner, id, kind, at)
        ORDER BY a.at);
END
$$;

-- Takes rows out of leases, and deletes those that have none left. Leases are updated in place:
-- whoever waits for one must find what it still holds.
CREATE OR REPLACE FUNCTION hapax_let_go(leases tid[], gone bigint[]) RETURNS void
LANGUAGE plpgsql
AS $$
#variable_conflict use_column
BEGIN
    WITH rest AS MATERIALIZED (
        SELECT l.ctid AS place, r.seqs, r.lanes, r.lost
        FROM hapax_leases l
        CROSS JOIN LATERAL (
            SELECT array_agg(f.seq) FILTER (WHERE f.stays) AS seqs,
                   array_agg(f.lane) FILTER (WHERE f.stays) AS lanes, NOT bool_and(f.stays) AS lost
            FROM (
                SELECT f.seq, f.lane, f.seq NOT IN (SELECT unnest(gone)) AS stays
                FROM unnest(l.seqs, l.lanes) AS f (seq, lane)
            ) f
        ) r
        WHERE l.ctid = ANY (leases)
    ), ended AS (
        DELETE FROM hapax_leases l USING rest r WHERE l.ctid = r.place AND r.seqs IS NULL
    )
    UPDATE hapax_leases l SET seqs = r.seqs, lanes = r.lanes
    FROM rest r WHERE l.ctid = r.place AND r.lost AND r.seqs IS NOT NULL;
END
$$;
