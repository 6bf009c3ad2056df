-- Version 5: claims, steps, messages and records as functions, for callers in any language and for
-- the Rust library in a transaction of its caller. Nodes of version 4 that still run need none of them.
--
-- First the inner functions, which run with the rights of their caller. The functions of the SQL
-- interface (`hapax_begin` and so on, from "The SQL interface" on) check their arguments and call them.
-- No function takes or returns a row of a table, because the table could then not be dropped without it.

-- Tables that were restored from a backup of version 4 may stand beside functions of version 5.
DO $$
DECLARE
    old text;
BEGIN
    FOR old IN
        SELECT p.oid::regprocedure FROM pg_proc p
        WHERE p.pronamespace = quote_ident(current_schema())::regnamespace
          AND p.proname IN (
              'hapax_digest', 'hapax_judge_claim', 'hapax_wait_for_lock', 'hapax_claim_key', 'hapax_step_key',
              'hapax_put_record', 'hapax_check_text', 'hapax_check_tenant', 'hapax_millis', 'hapax_new_token',
              'hapax_encode_response', 'hapax_decode_response', 'hapax_begin', 'hapax_complete', 'hapax_fail',
              'hapax_receive', 'hapax_enqueue', 'hapax_lock', 'hapax_unlock', 'hapax_record_put',
              'hapax_record_get', 'hapax_grant_app')
    LOOP
        EXECUTE 'DROP FUNCTION ' || old;
    END LOOP;
END
$$;

-- FNV-1a of the canonical key, in two halves of 32 bits because a bigint must not overflow: the number of
-- the key's advisory lock and of its wake-ups. The same as `Key::digest` in hapax-core.
CREATE FUNCTION hapax_digest(the_tenant text, the_kind text, the_scope text, the_name text) RETURNS bigint
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE
AS $$
DECLARE
    canonical text := '';
    part      text;
    bytes     bytea;
    high      bigint := 3421674724;
    low       bigint := 2216829733;
BEGIN
    FOREACH part IN ARRAY ARRAY[the_tenant, the_kind, the_scope, the_name] LOOP
        part := replace(replace(replace(replace(part, '%', '%25'), ':', '%3A'), '{', '%7B'), '}', '%7D');
        canonical := canonical || ':' || part;
    END LOOP;
    bytes := convert_to(substr(canonical, 2), 'UTF8');
    FOR place IN 0 .. length(bytes) - 1 LOOP
        low := low # get_byte(bytes, place);
        -- Times 2^40 + 435.
        high := (high * 435 + (low * 435 >> 32) + (low << 8)) & 4294967295;
        low := low * 435 & 4294967295;
    END LOOP;
    RETURN (high << 32) | low;
END
$$;

-- Decides a claim, as `claim_rules::claim` in hapax-core does: grant, regrant (to the owner, whose lease
-- starts again), or an answer that changes nothing.
CREATE FUNCTION hapax_judge_claim(
    phase smallint, expires_at bigint, lease_end bigint, token bytea, fingerprint bytea,
    now_ms bigint, the_token bytea, the_fingerprint bytea, take_over boolean) RETURNS text
LANGUAGE plpgsql IMMUTABLE
AS $$
BEGIN
    RETURN CASE
        WHEN phase IS NULL OR expires_at <= now_ms THEN 'grant'
        WHEN fingerprint IS DISTINCT FROM the_fingerprint THEN 'mismatch'
        WHEN phase = 1 THEN 'settled'
        WHEN phase = 2 THEN 'grant'
        WHEN token = the_token THEN 'regrant'
        WHEN lease_end > now_ms THEN 'busy'
        WHEN take_over THEN 'grant'
        ELSE 'unknown'
    END;
END
$$;

-- Waits for the end of the transaction that holds a key's lock: as long as `lock_timeout` allows, or a minute
-- where that is off. Raises lock_not_available after that.
CREATE FUNCTION hapax_wait_for_lock(digest bigint) RETURNS void
LANGUAGE plpgsql
AS $$
BEGIN
    IF pg_try_advisory_xact_lock(digest) THEN
        RETURN;
    ELSIF current_setting('lock_timeout') <> '0' THEN
        PERFORM pg_advisory_xact_lock(digest);
        RETURN;
    END IF;
    PERFORM set_config('lock_timeout', '60s', true);
    PERFORM pg_advisory_xact_lock(digest);
    PERFORM set_config('lock_timeout', '0', true);
END
$$;

-- Claims one key. `answer` is granted (with fence and attempt), busy, settled (with the value), mismatch or
-- unknown; `time_left` is, in milliseconds, the rest of the lease, the rest of the retention, or for how long
-- the outcome has been unknown. A message of an inbox is stored as settled at once (`settle`).
--
-- Every writer of a key holds its advisory lock to the end of the transaction. Without `may_wait` a key whose
-- lock is taken is busy; nothing waits. The clock is read before the row: a lease that is renewed between
-- the two would otherwise seem to have run out.
CREATE FUNCTION hapax_claim_key(
    the_tenant text, the_kind text, the_scope text, the_name text, digest bigint, the_token bytea,
    the_fingerprint bytea, the_lease bigint, the_retention bigint, take_over boolean, may_wait boolean,
    settle boolean, OUT answer text, OUT fence bigint, OUT attempt integer, OUT time_left bigint, OUT value bytea)
LANGUAGE plpgsql
-- A sequential scan would make every other key a conflict of a serializable transaction.
SET enable_seqscan = off SET enable_bitmapscan = off
AS $$
#variable_conflict use_column
DECLARE
    -- The snapshot of such a transaction may be older than the lock: what it shows may have changed since.
    is_snapshot_old boolean := current_setting('transaction_isolation') IN ('repeatable read', 'serializable');
    now_ms  bigint := floor(extract(epoch FROM clock_timestamp()) * 1000);
    stored  hapax_claims;
    verdict text;
BEGIN
    SELECT c.* INTO stored FROM hapax_claims c
    WHERE c.tenant = the_tenant AND c.kind = the_kind AND c.scope = the_scope AND c.name = the_name;
    verdict := hapax_judge_claim(stored.phase, stored.expires_at, stored.lease_end, stored.token,
                                 stored.fingerprint, now_ms, the_token, the_fingerprint, take_over);

    -- A settled claim is final. Another answer without a change is, too, unless the snapshot is old or the
    -- caller would rather wait for a transaction that is about to change it.
    IF verdict <> 'settled' AND (is_snapshot_old OR verdict IN ('grant', 'regrant')
                                 OR may_wait AND verdict <> 'mismatch') THEN
        -- A subtransaction, because a rollback to its start gives the lock back: the owner of the claim needs it.
        BEGIN
            IF may_wait THEN
                PERFORM hapax_wait_for_lock(digest);
            ELSIF NOT pg_try_advisory_xact_lock(digest) THEN
                RAISE SQLSTATE '55P03';
            END IF;
            now_ms := floor(extract(epoch FROM clock_timestamp()) * 1000);
            IF is_snapshot_old THEN
                -- FOR UPDATE raises serialization_failure where the row has changed since the snapshot.
                SELECT c.* INTO stored FROM hapax_claims c
                WHERE c.tenant = the_tenant AND c.kind = the_kind AND c.scope = the_scope AND c.name = the_name
                FOR UPDATE;
            ELSE
                SELECT c.* INTO stored FROM hapax_claims c
                WHERE c.tenant = the_tenant AND c.kind = the_kind AND c.scope = the_scope AND c.name = the_name;
            END IF;
            verdict := hapax_judge_claim(stored.phase, stored.expires_at, stored.lease_end, stored.token,
                                 stored.fingerprint, now_ms, the_token, the_fingerprint, take_over);
            IF verdict NOT IN ('grant', 'regrant') THEN
                RAISE SQLSTATE 'HPX00';
            END IF;
        EXCEPTION
            WHEN SQLSTATE 'HPX00' THEN
                NULL;
            WHEN lock_not_available OR deadlock_detected THEN
                verdict := 'locked';
        END;
    END IF;

    answer := verdict;
    CASE verdict
        WHEN 'grant', 'regrant' THEN
            answer := 'granted';
        WHEN 'locked' THEN
            -- The other transaction's lease cannot be seen yet: ask again soon.
            answer := 'busy';
            time_left := least(100, the_lease);
            RETURN;
        WHEN 'busy' THEN
            time_left := stored.lease_end - now_ms;
            RETURN;
        WHEN 'settled' THEN
            time_left := stored.expires_at - now_ms;
            value := stored.value;
            RETURN;
        WHEN 'unknown' THEN
            time_left := now_ms - stored.lease_end;
            RETURN;
        ELSE
            RETURN;
    END CASE;

    IF verdict = 'regrant' THEN
        fence := stored.fence;
        attempt := stored.attempt;
        the_retention := stored.retention;
    ELSE
        fence := nextval('hapax_fence');
        attempt := CASE WHEN stored.expires_at > now_ms THEN least(stored.attempt, 2147483646) + 1 ELSE 1 END;
        stored.granted_at := now_ms;
    END IF;
    IF settle THEN
        the_lease := 0;
    END IF;
    -- Raises serialization_failure where the snapshot is old and the key is not vacant any more.
    INSERT INTO hapax_claims AS c (tenant, kind, scope, name, phase, attempt, fence, granted_at, lease_end,
                                   retention, expires_at, token, fingerprint, value)
    VALUES (the_tenant, the_kind, the_scope, the_name, settle::integer, attempt, fence, stored.granted_at,
            now_ms + the_lease, the_retention, now_ms + the_lease + the_retention, the_token, the_fingerprint, '')
    ON CONFLICT ON CONSTRAINT hapax_claims_pkey DO UPDATE
    SET phase = excluded.phase, attempt = excluded.attempt, fence = excluded.fence,
        granted_at = excluded.granted_at, lease_end = excluded.lease_end, retention = excluded.retention,
        expires_at = excluded.expires_at, token = excluded.token, fingerprint = excluded.fingerprint, value = '';
END
$$;

-- A step of a claim's owner: 0 extends, 1 settles, 2 gives back as failed, 3 deletes. `answer` is done, lost, or,
-- without `may_wait`, locked: another open transaction has written the key.
--
-- Waiters of a claim that was granted before this transaction began are notified at its commit. Those of a claim
-- that was begun and ended in one transaction ask again every 100 ms: a notification would make the
-- commits of all transactions wait for each other.
CREATE FUNCTION hapax_step_key(
    the_tenant text, the_kind text, the_scope text, the_name text, digest bigint, the_token bytea, act smallint,
    the_lease bigint, the_value bytea, may_wait boolean, OUT answer text, OUT fence bigint)
LANGUAGE plpgsql
SET enable_seqscan = off SET enable_bitmapscan = off
AS $$
#variable_conflict use_column
DECLARE
    is_snapshot_old boolean := current_setting('transaction_isolation') IN ('repeatable read', 'serializable');
    now_ms bigint;
    stored hapax_claims;
BEGIN
    FOR is_locked IN 0 .. 1 LOOP
        BEGIN
            IF is_locked = 0 AND is_snapshot_old THEN
                CONTINUE;
            ELSIF is_locked = 1 AND may_wait THEN
                PERFORM hapax_wait_for_lock(digest);
            ELSIF is_locked = 1 AND NOT pg_try_advisory_xact_lock(digest) THEN
                answer := 'locked';
                RETURN;
            END IF;
            now_ms := floor(extract(epoch FROM clock_timestamp()) * 1000);
            IF is_snapshot_old THEN
                -- FOR UPDATE raises serialization_failure where the row has changed since the snapshot, and the
                -- insert, which is rolled back, where there was none.
                SELECT c.* INTO stored FROM hapax_claims c
                WHERE c.tenant = the_tenant AND c.kind = the_kind AND c.scope = the_scope AND c.name = the_name
                FOR UPDATE;
                IF NOT FOUND THEN
                    INSERT INTO hapax_claims VALUES (the_tenant, the_kind, the_scope, the_name, 0, 0, 0, 0, 0, 0, 0, '', NULL, '')
                    ON CONFLICT DO NOTHING;
                END IF;
            ELSE
                SELECT c.* INTO stored FROM hapax_claims c
                WHERE c.tenant = the_tenant AND c.kind = the_kind AND c.scope = the_scope AND c.name = the_name;
            END IF;
            -- As `claim_rules::step` in hapax-core.
            answer := CASE
                WHEN stored.fence IS NULL OR stored.expires_at <= now_ms OR stored.token <> the_token THEN 'lost'
                WHEN stored.phase = 0 THEN NULL
                WHEN stored.phase = 1 AND act = 1 AND stored.value = the_value THEN 'done'
                WHEN stored.phase = 2 AND act = 2 THEN 'done'
                ELSE 'lost'
            END;
            -- The rollback gives the lock back: the key belongs to somebody else, or nothing is to be changed.
            IF answer IS NOT NULL THEN
                RAISE SQLSTATE 'HPX00';
            END IF;
        EXCEPTION WHEN SQLSTATE 'HPX00' THEN
            fence := CASE WHEN answer = 'done' THEN stored.fence END;
            RETURN;
        END;
    END LOOP;

    IF act = 3 THEN
        DELETE FROM hapax_claims c
        WHERE c.tenant = the_tenant AND c.kind = the_kind AND c.scope = the_scope AND c.name = the_name
          AND c.fence = stored.fence;
    ELSE
        UPDATE hapax_claims c
        SET phase = act,
            lease_end = CASE WHEN act = 0 THEN now_ms + the_lease ELSE c.lease_end END,
            expires_at = now_ms + c.retention + CASE WHEN act = 0 THEN the_lease ELSE 0 END,
            value = CASE WHEN act = 1 THEN the_value ELSE '' END
        WHERE c.tenant = the_tenant AND c.kind = the_kind AND c.scope = the_scope AND c.name = the_name
          AND c.fence = stored.fence;
    END IF;
    -- No row: the sweep deleted it, because it expired in this moment.
    answer := CASE WHEN FOUND THEN 'done' ELSE 'lost' END;
    fence := CASE WHEN FOUND THEN stored.fence END;
    IF FOUND AND act > 0 AND stored.granted_at < floor(extract(epoch FROM transaction_timestamp()) * 1000) THEN
        PERFORM pg_notify('hapax_wake', to_hex(digest));
    END IF;
END
$$;

-- Stores a record: over any version (`expected` is NULL), where there is none (-1), or over one version. An
-- expired record counts as none. Without a time to live a new record never expires, and a changed one keeps its end.
-- `is_locked`: another open transaction has written the key; nothing was done.
CREATE FUNCTION hapax_put_record(
    the_tenant text, the_kind text, the_scope text, the_name text, digest bigint, the_value bytea, ttl bigint,
    expected bigint, may_wait boolean, OUT is_locked boolean, OUT version bigint, OUT created boolean)
LANGUAGE plpgsql
SET enable_seqscan = off SET enable_bitmapscan = off
AS $$
#variable_conflict use_column
DECLARE
    now_ms bigint;
BEGIN
    is_locked := false;
    IF may_wait THEN
        PERFORM hapax_wait_for_lock(digest);
    ELSIF NOT pg_try_advisory_xact_lock(digest) THEN
        is_locked := true;
        RETURN;
    END IF;
    now_ms := floor(extract(epoch FROM clock_timestamp()) * 1000);
    IF expected >= 0 THEN
        UPDATE hapax_records r
        SET value = the_value, version = nextval('hapax_fence'), expires_at = coalesce(now_ms + ttl, r.expires_at)
        WHERE r.tenant = the_tenant AND r.kind = the_kind AND r.scope = the_scope AND r.name = the_name
          AND r.version = expected AND (r.expires_at IS NULL OR r.expires_at > now_ms)
        RETURNING r.version, false INTO version, created;
        RETURN;
    END IF;
    version := nextval('hapax_fence');
    INSERT INTO hapax_records AS r (tenant, kind, scope, name, value, version, origin, expires_at)
    VALUES (the_tenant, the_kind, the_scope, the_name, the_value, version, version, now_ms + ttl)
    ON CONFLICT ON CONSTRAINT hapax_records_pkey DO UPDATE
    SET value = excluded.value,
        version = excluded.version,
        origin = CASE WHEN r.expires_at <= now_ms THEN excluded.origin ELSE r.origin END,
        expires_at = CASE WHEN ttl IS NULL AND r.expires_at > now_ms THEN r.expires_at ELSE excluded.expires_at END
    WHERE expected IS NULL OR r.expires_at <= now_ms
    RETURNING r.version, r.version = r.origin INTO version, created;
END
$$;
