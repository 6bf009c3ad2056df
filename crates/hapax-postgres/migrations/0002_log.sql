-- Version 2: logs of jobs.
--
-- An append locks the rows of its partitions first, in order, and holds them to its commit: the
-- positions of a partition become visible in the order in which they were given, so that a reader of
-- its tail never passes one that commits late. The same lock serialises all appends of one job.

-- One row per partition. Filled by the store, which also writes their number to hapax_meta.
CREATE TABLE hapax_partitions (
    partition integer PRIMARY KEY,
    last      bigint  NOT NULL,  -- the last position given
    floor     bigint  NOT NULL,  -- whoever has not read as far has missed entries that are forgotten
    epoch     bigint  NOT NULL,  -- of what is appended now
    epochs    text    NOT NULL,  -- which positions have which epoch: `7@1,9@42`
    line      text    NOT NULL   -- the server's line of history when it was last written
)
-- Written by every append: few rows to a page, so that old versions are pruned on the spot.
WITH (fillfactor = 20, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000);

CREATE SEQUENCE hapax_job_ids AS bigint CACHE 1;

CREATE TABLE hapax_jobs (
    id          bigint  NOT NULL UNIQUE, -- of this life of the log; a later life has another one
    first       bigint  NOT NULL,        -- the first offset that is still kept
    last        bigint  NOT NULL,        -- the last offset
    epoch       bigint  NOT NULL,        -- of what is appended now
    state_place bigint  NOT NULL,        -- the entry with the highest seq; kept for as long as it is
    state_seq   bigint  NOT NULL,
    position    bigint  NOT NULL,        -- of the last entry, in its partition
    expires_at  bigint  NOT NULL,        -- from then on the job counts as absent
    sweep_at    bigint  NOT NULL,        -- when the sweep looks at it; not moved by appends, since it
                                         -- is indexed and they are to change no index
    partition   integer NOT NULL,
    closed      boolean NOT NULL,
    tenant      text COLLATE "C" NOT NULL,
    domain      text COLLATE "C" NOT NULL,
    name        text COLLATE "C" NOT NULL,
    epochs      text    NOT NULL,        -- which offsets have which epoch: `7@1,9@42`
    line        text    NOT NULL,        -- the server's line of history when it was last written
    PRIMARY KEY (tenant, domain, name)
)
WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.05, autovacuum_analyze_scale_factor = 0.05);

CREATE INDEX hapax_jobs_sweep_at ON hapax_jobs (sweep_at);

-- Entries, and at the same time what is known about identities: a trimmed entry loses its payload
-- and stays until its job is forgotten.
CREATE TABLE hapax_entries (
    job         bigint  NOT NULL,
    place       bigint  NOT NULL,        -- its offset
    position    bigint  NOT NULL,        -- its place in the partition's tail
    seq         bigint  NOT NULL,        -- the producer's own number
    epoch       bigint  NOT NULL,
    partition   integer NOT NULL,
    closes      boolean NOT NULL,
    stage       text COLLATE "C" NOT NULL,
    fingerprint bytea   NOT NULL,
    payload     bytea,                   -- NULL where it was trimmed
    PRIMARY KEY (job, place),
    UNIQUE (job, stage, seq)
)
WITH (autovacuum_vacuum_scale_factor = 0.05, autovacuum_analyze_scale_factor = 0.05);

CREATE INDEX hapax_entries_tail ON hapax_entries (partition, position);

-- Logs that nobody can reach any more, whose entries the sweep deletes little by little.
CREATE TABLE hapax_forgotten (
    job bigint PRIMARY KEY
);

-- The server's line of history. After a failover or a restore acknowledged entries may be gone:
-- another timeline, or another cluster, is another line.
CREATE FUNCTION hapax_line() RETURNS text
LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN (SELECT system_identifier FROM pg_control_system()) || '/'
        || substr(pg_walfile_name(pg_current_wal_insert_lsn()), 1, 8);
END
$$;

-- Goes on under another epoch from this place; sixteen are remembered.
CREATE FUNCTION hapax_turn(epochs text, epoch bigint, place bigint) RETURNS text
LANGUAGE sql IMMUTABLE AS $$
    SELECT string_agg(span, ',' ORDER BY nth)
    FROM (
        SELECT span, nth
        FROM unnest(string_to_array($1, ',') || ($2 || '@' || $3)) WITH ORDINALITY AS s (span, nth)
        WHERE split_part(span, '@', 2)::bigint < $3 OR nth > cardinality(string_to_array($1, ','))
        ORDER BY nth DESC
        LIMIT 16
    ) spans
$$;

-- Appends many events, in their order: one answer each (0 published, 1 duplicate, 2 conflict,
-- 3 closed), with epoch and offset. No identity may come twice in one call. `job_firsts` is the
-- number of the first event of the same job; it stands for the job.
--
-- A function, because what follows the locks must see what was committed while they were waited for,
-- and only a new statement does. Its settings leave the planner no choice but the look-ups by key,
-- whatever the statistics of a young table say.
CREATE FUNCTION hapax_append(
    tenants text[], domains text[], names text[], partitions integer[], job_firsts bigint[],
    stages text[], seqs bigint[], fingerprints bytea[], payloads bytea[], closings boolean[],
    lifetimes bigint[], keeps bigint[],
    OUT outcomes smallint[], OUT entry_epochs bigint[], OUT places bigint[]
)
LANGUAGE plpgsql
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off
SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
DECLARE
    now_us  bigint;
    now_ms  bigint;
    here    text;
    shorter bigint[];
    from_place bigint[];
    old_state  bigint[];
BEGIN
    PERFORM FROM hapax_partitions p WHERE p.partition = ANY ($4) ORDER BY p.partition
    FOR NO KEY UPDATE;

    now_us := floor(extract(epoch FROM clock_timestamp()) * 1000000);
    now_ms := now_us / 1000;
    here := hapax_line();

    WITH asked AS (
        SELECT a.*, j.id IS NOT NULL AND j.expires_at > now_ms AS live, j.id, j.closed,
               CASE WHEN j.expires_at > now_ms THEN j.id
                    WHEN a.at = a.job_first THEN nextval('hapax_job_ids') END AS this_id,
               CASE WHEN j.expires_at > now_ms THEN j.last ELSE 0 END AS base,
               CASE WHEN j.expires_at > now_ms THEN j.first ELSE 1 END AS old_first,
               CASE WHEN j.expires_at > now_ms AND j.line = here THEN j.epoch
                    ELSE greatest(now_us, j.epoch + 1) END AS epoch,
               CASE WHEN j.expires_at > now_ms THEN
                    CASE WHEN j.line = here THEN j.epochs
                         ELSE hapax_turn(j.epochs, greatest(now_us, j.epoch + 1), j.last + 1) END
                    ELSE greatest(now_us, j.epoch + 1) || '@1' END AS epochs,
               CASE WHEN j.expires_at > now_ms THEN j.state_seq ELSE -1 END AS old_seq,
               j.state_place AS old_place, j.position AS old_position, j.sweep_at AS old_sweep,
               p.last AS tip,
               e.place AS known, e.epoch AS known_epoch, e.fingerprint AS known_fingerprint
        FROM unnest($1, $2, $3, $4, $5, $6, $7, $8, $10, $11, $12) WITH ORDINALITY
            AS a (tenant, domain, name, partition, job_first, stage, seq, fingerprint, closes,
                  lifetime, keep, at)
        CROSS JOIN LATERAL (
            SELECT p.last FROM hapax_partitions p WHERE p.partition = a.partition OFFSET 0
        ) p
        LEFT JOIN LATERAL (
            SELECT * FROM hapax_jobs j
            WHERE j.tenant = a.tenant AND j.domain = a.domain AND j.name = a.name
            OFFSET 0
        ) j ON true
        LEFT JOIN LATERAL (
            SELECT e.place, e.epoch, e.fingerprint FROM hapax_entries e
            WHERE e.job = j.id AND j.expires_at > now_ms AND e.stage = a.stage AND e.seq = a.seq
            OFFSET 0
        ) e ON true
    ), numbered AS (
        SELECT *,
               first_value(this_id) OVER (
                   PARTITION BY job_first ORDER BY at ROWS UNBOUNDED PRECEDING) AS job,
               live AND closed OR coalesce(bool_or(known IS NULL AND closes) OVER (
                   PARTITION BY job_first ORDER BY at ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
               ), false) AS shut
        FROM asked
    ), judged AS MATERIALIZED (
        SELECT *, known IS NULL AND NOT shut AS taken,
               base + count(*) FILTER (WHERE known IS NULL AND NOT shut) OVER (
                   PARTITION BY job_first ORDER BY at ROWS UNBOUNDED PRECEDING) AS place,
               tip + count(*) FILTER (WHERE known IS NULL AND NOT shut) OVER (
                   PARTITION BY partition ORDER BY at ROWS UNBOUNDED PRECEDING) AS position
        FROM numbered
    ), written AS (
        -- Payloads are fetched here, so that they are not carried through the sorts above.
        INSERT INTO hapax_entries (job, place, position, seq, epoch, partition, closes, stage,
                                   fingerprint, payload)
        SELECT job, place, position, seq, epoch, partition, closes, stage, fingerprint, ($9)[at]
        FROM judged
        WHERE taken
    ), grown AS MATERIALIZED (
        SELECT min(job) AS job, min(tenant) AS tenant, min(domain) AS domain, min(name) AS name,
               min(partition) AS partition, min(epoch) AS epoch, min(epochs) AS epochs,
               max(place) AS last, max(position) AS position,
               bool_or(closes) AS closed,
               min(old_first) AS old_first, bool_or(live) AS live, min(id) AS id,
               min(old_position) AS old_position, min(old_sweep) AS old_sweep,
               min(old_place) FILTER (WHERE live) AS old_place, min(old_seq) AS old_seq,
               max(seq) AS top_seq,
               (array_agg(place ORDER BY seq DESC, at DESC))[1] AS top_place,
               now_ms + (array_agg(lifetime ORDER BY at DESC))[1] AS expires_at,
               greatest(min(old_first), max(place) + 1 - (array_agg(keep ORDER BY at DESC))[1])
                   AS first
        FROM judged
        WHERE taken
        GROUP BY job_first
    ), kept AS (
        INSERT INTO hapax_jobs (id, first, last, epoch, state_place, state_seq, position, expires_at,
                                sweep_at, partition, closed, tenant, domain, name, epochs, line)
        SELECT job, first, last, epoch,
               CASE WHEN top_seq >= old_seq THEN top_place ELSE old_place END,
               greatest(top_seq, old_seq), position, expires_at,
               CASE WHEN live THEN least(old_sweep, expires_at) ELSE expires_at END,
               partition, closed, tenant, domain, name, epochs, here
        FROM grown
        ON CONFLICT (tenant, domain, name) DO UPDATE
        SET id = excluded.id, first = excluded.first, last = excluded.last, epoch = excluded.epoch,
            state_place = excluded.state_place, state_seq = excluded.state_seq,
            position = excluded.position, expires_at = excluded.expires_at,
            sweep_at = excluded.sweep_at, closed = excluded.closed, epochs = excluded.epochs,
            line = excluded.line
    ), gone AS (
        INSERT INTO hapax_forgotten (job) SELECT id FROM grown WHERE NOT live AND id IS NOT NULL
    ), moved AS (
        UPDATE hapax_partitions p
        SET last = g.tip,
            floor = greatest(p.floor, g.lost),
            epoch = CASE WHEN p.line = here THEN p.epoch ELSE greatest(now_us, p.epoch + 1) END,
            epochs = CASE WHEN p.line = here THEN p.epochs
                     ELSE hapax_turn(p.epochs, greatest(now_us, p.epoch + 1), p.last + 1) END,
            line = here
        FROM (
            SELECT partition, max(position) AS tip, max(old_position) FILTER (WHERE NOT live) AS lost
            FROM grown GROUP BY partition
        ) g
        WHERE p.partition = g.partition
    )
    SELECT array_agg(outcome ORDER BY at), array_agg(at_epoch ORDER BY at),
           array_agg(at_place ORDER BY at),
           (SELECT array_agg(job) FROM grown WHERE first > old_first),
           (SELECT array_agg(old_first) FROM grown WHERE first > old_first),
           (SELECT array_agg(old_place) FROM grown WHERE first > old_first)
    INTO outcomes, entry_epochs, places, shorter, from_place, old_state
    FROM (
        SELECT at, CASE WHEN taken THEN 0 WHEN known IS NULL THEN 3
                        WHEN known_fingerprint = fingerprint THEN 1 ELSE 2 END::smallint AS outcome,
               coalesce(known_epoch, epoch) AS at_epoch, coalesce(known, place) AS at_place
        FROM judged
    ) answers;

    IF shorter IS NOT NULL THEN
        UPDATE hapax_entries e
        SET payload = NULL
        FROM unnest(shorter, from_place, old_state) AS t (job, from_place, old_state)
        CROSS JOIN LATERAL (SELECT * FROM hapax_jobs j WHERE j.id = t.job OFFSET 0) j
        CROSS JOIN LATERAL (
            SELECT generate_series(t.from_place, j.first - 1) UNION SELECT t.old_state
        ) AS old (place)
        WHERE e.job = t.job AND e.place = old.place
          AND e.place < j.first AND e.place <> j.state_place;
    END IF;
END
$$;

-- Forgets jobs that have expired; how many, and how many it looked at. Those that were appended to
-- meanwhile are looked at again when they will have expired.
CREATE FUNCTION hapax_forget_jobs(at_most bigint, OUT forgotten bigint, OUT looked_at bigint)
LANGUAGE plpgsql
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off
AS $$
#variable_conflict use_column
DECLARE
    now_ms bigint := floor(extract(epoch FROM clock_timestamp()) * 1000);
    due    bigint[];
BEGIN
    due := ARRAY(SELECT id FROM hapax_jobs WHERE sweep_at <= now_ms ORDER BY sweep_at LIMIT at_most);
    looked_at := cardinality(due);
    -- As for an append: the partitions first.
    PERFORM FROM hapax_partitions p
    WHERE p.partition = ANY (ARRAY(SELECT j.partition FROM hapax_jobs j WHERE j.id = ANY (due)))
    ORDER BY p.partition FOR NO KEY UPDATE;

    UPDATE hapax_jobs SET sweep_at = expires_at WHERE id = ANY (due) AND expires_at > now_ms;
    WITH gone AS (
        DELETE FROM hapax_jobs WHERE id = ANY (due) AND expires_at <= now_ms
        RETURNING id, partition, position
    ), kept AS (
        INSERT INTO hapax_forgotten (job) SELECT id FROM gone
    ), raised AS (
        UPDATE hapax_partitions p SET floor = greatest(p.floor, g.lost)
        FROM (SELECT partition, max(position) AS lost FROM gone GROUP BY partition) g
        WHERE p.partition = g.partition
    )
    SELECT count(*) INTO forgotten FROM gone;
END
$$;

-- Deletes entries of forgotten logs; how many.
CREATE FUNCTION hapax_forget_entries(at_most bigint) RETURNS bigint
LANGUAGE plpgsql
SET enable_seqscan = off SET jit = off
AS $$
DECLARE
    victim  bigint;
    deleted bigint;
BEGIN
    SELECT job INTO victim FROM hapax_forgotten ORDER BY job LIMIT 1 FOR UPDATE SKIP LOCKED;
    IF victim IS NULL THEN
        RETURN 0;
    END IF;
    DELETE FROM hapax_entries WHERE ctid = ANY (ARRAY(
        SELECT ctid FROM hapax_entries WHERE job = victim LIMIT at_most
    ));
    GET DIAGNOSTICS deleted = ROW_COUNT;
    IF deleted < at_most THEN
        DELETE FROM hapax_forgotten WHERE job = victim;
    END IF;
    RETURN greatest(deleted, 1);
END
$$;
