-- The SQL interface: functions for applications in any language, in a transaction of their own. They run with
-- the rights of the tables' owner, so that their callers need no right on a table. A wrong argument is
-- an error (SQLSTATE 22023); every other outcome is a row or a boolean.

-- Refuses a text that is missing, empty, too long or not printable ASCII. The message never shows the text.
CREATE FUNCTION hapax_check_text(part text, given text, most integer, allowed text) RETURNS void
LANGUAGE plpgsql IMMUTABLE
AS $$
BEGIN
    IF given COLLATE "C" ~ allowed AND octet_length(given) <= most THEN
        RETURN;
    END IF;
    RAISE invalid_parameter_value USING MESSAGE = CASE
        WHEN given IS NULL THEN format('%s is NULL; it takes 1 to %s bytes', part, most)
        WHEN given = '' THEN format('%s is empty; it takes 1 to %s bytes', part, most)
        WHEN octet_length(given) > most
            THEN format('%s has %s bytes; it takes 1 to %s', part, octet_length(given), most)
        WHEN part = 'tenant' THEN 'tenant takes printable ASCII (0x21 to 0x7E) without "/"'
        WHEN part = 'operation' THEN 'operation takes printable ASCII and spaces (0x20 to 0x7E)'
        ELSE format('%s takes printable ASCII (0x21 to 0x7E)', part)
    END;
END
$$;

CREATE FUNCTION hapax_check_tenant(tenant text) RETURNS void
LANGUAGE sql IMMUTABLE
AS $$ SELECT hapax_check_text('tenant', tenant, 64, '^[\x21-\x2e\x30-\x7e]+$') $$;

-- A duration in milliseconds, refused where it is out of bounds.
CREATE FUNCTION hapax_millis(part text, given interval, most interval) RETURNS bigint
LANGUAGE plpgsql IMMUTABLE
AS $$
BEGIN
    IF given >= interval '1 millisecond' AND given <= most THEN
        RETURN floor(extract(epoch FROM given) * 1000);
    END IF;
    RAISE invalid_parameter_value
        USING MESSAGE = format('%s takes 1 millisecond to %s', part, most);
END
$$;

-- 128 random bits in hexadecimal: the tokens of every store. A random UUID has only 122.
CREATE FUNCTION hapax_new_token() RETURNS text
LANGUAGE plpgsql
AS $$
BEGIN
    RETURN encode(substr(sha256(uuid_send(gen_random_uuid()) || uuid_send(gen_random_uuid())), 1, 16), 'hex');
END
$$;

-- The stored form of a response: 1, the status (2 bytes), the number of headers (2), for each header the
-- length of its name (2), the name, the length of its value (4) and the value; all big-endian; then the body.
CREATE FUNCTION hapax_encode_response(status integer, headers jsonb, body bytea) RETURNS bytea
LANGUAGE plpgsql IMMUTABLE
AS $$
DECLARE
    encoded bytea := '';
    seen    text[] := '{}';
    count   integer := 0;
    header  record;
    text_of text;
    reason  text;
BEGIN
    IF status IS NULL OR status NOT BETWEEN 100 AND 599 THEN
        RAISE invalid_parameter_value USING MESSAGE = 'status takes 100 to 599';
    ELSIF jsonb_typeof(headers) <> 'object' THEN
        RAISE invalid_parameter_value USING MESSAGE = 'headers takes an object of strings and arrays of strings';
    END IF;
    FOR header IN SELECT h.key, h.value FROM jsonb_each(headers) h ORDER BY h.key COLLATE "C" LOOP
        IF header.key COLLATE "C" !~ '^[!#$%&''*+.^_`|~0-9A-Za-z-]+$' THEN
            reason := 'headers has an invalid name';
        ELSIF lower(header.key) = ANY (seen) THEN
            reason := 'headers has a repeated name; a repeated header is an array';
        ELSIF jsonb_typeof(header.value) = 'string' THEN
            header.value := jsonb_build_array(header.value);
        ELSIF jsonb_typeof(header.value) <> 'array'
              OR header.value @? '$[*] ? (@.type() != "string")' THEN
            reason := 'headers takes strings and arrays of strings';
        END IF;
        EXIT WHEN reason IS NOT NULL;
        seen := seen || lower(header.key);
        FOR text_of IN SELECT jsonb_array_elements_text(header.value) LOOP
            IF text_of COLLATE "C" !~ '^[\x20-\x7e\t]*$' THEN
                reason := 'headers has a value that is not printable ASCII';
            END IF;
            count := count + 1;
            encoded := encoded || int2send(length(header.key)::smallint) || convert_to(header.key, 'UTF8')
                || int4send(length(text_of)) || convert_to(text_of, 'UTF8');
        END LOOP;
        IF count > 256 OR cardinality(seen) > 256 THEN
            reason := 'headers takes at most 256 headers';
        END IF;
        EXIT WHEN reason IS NOT NULL;
    END LOOP;
    encoded := '\x01' || int2send(status::smallint) || int2send(count::smallint) || encoded || body;
    IF reason IS NULL AND length(encoded) > 1048576 THEN
        reason := format('headers and body have %s bytes; an answer takes at most 1048576', length(encoded));
    END IF;
    IF reason IS NOT NULL THEN
        RAISE invalid_parameter_value USING MESSAGE = reason;
    END IF;
    RETURN encoded;
END
$$;

-- Reads the stored form of a response.
CREATE FUNCTION hapax_decode_response(stored bytea, OUT status integer, OUT headers jsonb, OUT body bytea)
LANGUAGE plpgsql IMMUTABLE
AS $$
DECLARE
    place  integer := 6; -- of the next byte, counted from 1
    size   integer;
    name   text;
    given  bytea;
    shown  jsonb;
BEGIN
    IF length(stored) < 5 OR get_byte(stored, 0) <> 1 THEN
        RAISE data_corrupted USING MESSAGE = 'the stored answer was written by another version, or not by hapax';
    END IF;
    status := get_byte(stored, 1) * 256 + get_byte(stored, 2);
    headers := '{}';
    FOR header IN 1 .. get_byte(stored, 3) * 256 + get_byte(stored, 4) LOOP
        size := get_byte(stored, place - 1) * 256 + get_byte(stored, place);
        name := convert_from(substr(stored, place + 2, size), 'UTF8');
        place := place + 2 + size;
        size := ((get_byte(stored, place - 1) * 256 + get_byte(stored, place)) * 256
                 + get_byte(stored, place + 1)) * 256 + get_byte(stored, place + 2);
        given := substr(stored, place + 4, size);
        place := place + 4 + size;
        BEGIN
            shown := to_jsonb(convert_from(given, 'UTF8'));
        EXCEPTION WHEN character_not_in_repertoire OR untranslatable_character THEN
            -- A service behind the proxy may send any bytes.
            shown := to_jsonb(encode(given, 'escape'));
        END;
        headers := headers || jsonb_build_object(name, CASE
            WHEN NOT headers ? name THEN shown
            WHEN jsonb_typeof(headers -> name) = 'array' THEN headers -> name || shown
            ELSE jsonb_build_array(headers -> name, shown)
        END);
    END LOOP;
    body := substr(stored, place);
END
$$;

CREATE FUNCTION hapax_begin(
    operation text, key text, fingerprint text DEFAULT '', tenant text DEFAULT 'default',
    lease interval DEFAULT '30 seconds', retention interval DEFAULT '24 hours', on_unknown text DEFAULT 'refuse',
    wait boolean DEFAULT false, OUT state text, OUT token text, OUT fence bigint, OUT attempt integer,
    OUT status integer, OUT headers jsonb, OUT body bytea, OUT retry_after interval)
LANGUAGE plpgsql SECURITY DEFINER
AS $$
DECLARE
    claimed   record;
    new_token text := hapax_new_token();
BEGIN
    PERFORM hapax_check_tenant(tenant);
    PERFORM hapax_check_text('operation', operation, 255, '^[\x20-\x7e]+$');
    PERFORM hapax_check_text('key', key, 255, '^[\x21-\x7e]+$');
    IF octet_length(fingerprint) > 255 THEN
        RAISE invalid_parameter_value
            USING MESSAGE = format('fingerprint has %s bytes; it takes 0 to 255', octet_length(fingerprint));
    ELSIF on_unknown IS NULL OR on_unknown NOT IN ('refuse', 'rerun') THEN
        RAISE invalid_parameter_value USING MESSAGE = 'on_unknown takes refuse or rerun';
    END IF;
    claimed := hapax_claim_key(
        tenant, 'command', operation, key, hapax_digest(tenant, 'command', operation, key),
        convert_to(new_token, 'UTF8'), convert_to(nullif(fingerprint, ''), 'UTF8'),
        hapax_millis('lease', lease, '1 hour'), hapax_millis('retention', retention, '366 days'),
        on_unknown = 'rerun', coalesce(wait, false), false);
    CASE claimed.answer
        WHEN 'granted' THEN
            state := 'granted';
            token := new_token;
            fence := claimed.fence;
            attempt := claimed.attempt;
        WHEN 'settled' THEN
            state := 'completed';
            SELECT d.status, d.headers, d.body INTO status, headers, body
            FROM hapax_decode_response(claimed.value) d;
        WHEN 'busy' THEN
            state := 'in-progress';
            retry_after := claimed.time_left * interval '1 millisecond';
        WHEN 'mismatch' THEN
            state := 'reused';
        ELSE
            state := 'unknown';
    END CASE;
END
$$;
COMMENT ON FUNCTION hapax_begin IS
'Begins a command in this transaction. state is granted (do the work, then hapax_complete with the token), completed
(status, headers and body are the stored answer), in-progress (ask again after retry_after), reused (the key was used with
another fingerprint) or unknown (an earlier owner may or may not have acted). With wait it waits for the end of
another transaction with this key, bounded by lock_timeout (60 s where that is off).';

CREATE FUNCTION hapax_complete(
    operation text, key text, token text, status integer, headers jsonb DEFAULT '{}', body bytea DEFAULT '',
    tenant text DEFAULT 'default') RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER
AS $$
BEGIN
    PERFORM hapax_check_tenant(tenant);
    PERFORM hapax_check_text('operation', operation, 255, '^[\x20-\x7e]+$');
    PERFORM hapax_check_text('key', key, 255, '^[\x21-\x7e]+$');
    PERFORM hapax_check_text('token', token, 255, '^[\x20-\x7e]+$');
    RETURN 'done' = (hapax_step_key(
        tenant, 'command', operation, key, hapax_digest(tenant, 'command', operation, key),
        convert_to(token, 'UTF8'), 1::smallint, 0,
        hapax_encode_response(status, coalesce(headers, '{}'), coalesce(body, '')), true)).answer;
END
$$;
COMMENT ON FUNCTION hapax_complete IS
'Stores the answer of a command with this transaction. True also for the same completion again; false where the token
does not own the command any more, and nothing was changed: roll back.';

CREATE FUNCTION hapax_fail(operation text, key text, token text, tenant text DEFAULT 'default') RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER
AS $$
BEGIN
    PERFORM hapax_check_tenant(tenant);
    PERFORM hapax_check_text('operation', operation, 255, '^[\x20-\x7e]+$');
    PERFORM hapax_check_text('key', key, 255, '^[\x21-\x7e]+$');
    PERFORM hapax_check_text('token', token, 255, '^[\x20-\x7e]+$');
    RETURN 'done' = (hapax_step_key(
        tenant, 'command', operation, key, hapax_digest(tenant, 'command', operation, key),
        convert_to(token, 'UTF8'), 2::smallint, 0, '', true)).answer;
END
$$;
COMMENT ON FUNCTION hapax_fail IS
'Gives a command back as failed: the next hapax_begin is granted as the next attempt. False where the token does not
own the command any more.';

CREATE FUNCTION hapax_receive(
    consumer text, message_id text, tenant text DEFAULT 'default', retention interval DEFAULT '30 days')
RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER
AS $$
DECLARE
    claimed record;
BEGIN
    PERFORM hapax_check_tenant(tenant);
    PERFORM hapax_check_text('consumer', consumer, 255, '^[\x21-\x7e]+$');
    PERFORM hapax_check_text('message_id', message_id, 255, '^[\x21-\x7e]+$');
    claimed := hapax_claim_key(
        tenant, 'inbox', consumer, message_id, hapax_digest(tenant, 'inbox', consumer, message_id),
        convert_to(hapax_new_token(), 'UTF8'), NULL, 0, hapax_millis('retention', retention, '366 days'),
        true, true, true);
    IF claimed.answer = 'busy' THEN
        -- Neither true nor false: false would make the caller acknowledge a message that has had no effect yet.
        RAISE lock_not_available
            USING MESSAGE = 'another consumer is handling this message; do not acknowledge it, it will be delivered again';
    END IF;
    RETURN claimed.answer = 'granted';
END
$$;
COMMENT ON FUNCTION hapax_receive IS
'Notes a message with this transaction. True for the first delivery: have the effect; false for a duplicate: acknowledge
it. Waits for another open transaction with the same message, bounded by lock_timeout (60 s where that is off), then
raises lock_not_available: do not acknowledge.';

CREATE FUNCTION hapax_enqueue(
    topic text, key text, payload bytea, headers jsonb DEFAULT '{}', queue text DEFAULT 'outbox',
    not_before timestamptz DEFAULT now(), tenant text DEFAULT 'default') RETURNS uuid
LANGUAGE plpgsql SECURITY DEFINER
AS $$
DECLARE
    new_id uuid;
BEGIN
    PERFORM hapax_check_tenant(tenant);
    PERFORM hapax_check_text('queue', queue, 255, '^[\x21-\x7e]+$');
    IF topic IS NULL OR topic = '' THEN
        RAISE invalid_parameter_value USING MESSAGE = 'topic is empty';
    ELSIF payload IS NULL THEN
        RAISE invalid_parameter_value USING MESSAGE = 'payload is NULL; it takes bytes, also none';
    ELSIF jsonb_typeof(headers) <> 'object' THEN
        RAISE invalid_parameter_value USING MESSAGE = 'headers takes an object';
    END IF;
    INSERT INTO hapax_outbox (topic, key, payload, headers, queue, deliver_after, tenant)
    VALUES ($1, $2, $3, coalesce($4, '{}'), $5, CASE WHEN $6 > clock_timestamp() THEN $6 END, $7)
    RETURNING id INTO new_id;
    RETURN new_id;
END
$$;
COMMENT ON FUNCTION hapax_enqueue IS
'Adds a message to the outbox, or to another queue: it is sent if, and only if, this transaction commits. Messages with the
same key are sent in order; NULL for none. Returns the id, which travels as the message id.';

CREATE FUNCTION hapax_lock(
    name text, ttl interval DEFAULT '5 seconds', tenant text DEFAULT 'default', wait boolean DEFAULT false,
    OUT state text, OUT token text, OUT fence bigint, OUT retry_after interval)
LANGUAGE plpgsql SECURITY DEFINER
AS $$
DECLARE
    claimed   record;
    new_token text := hapax_new_token();
BEGIN
    PERFORM hapax_check_tenant(tenant);
    PERFORM hapax_check_text('name', name, 255, '^[\x21-\x7e]+$');
    claimed := hapax_claim_key(
        tenant, 'lock', '', name, hapax_digest(tenant, 'lock', '', name), convert_to(new_token, 'UTF8'), NULL,
        hapax_millis('ttl', ttl, '1 hour'), 0, true, coalesce(wait, false), false);
    IF claimed.answer = 'granted' THEN
        state := 'granted';
        token := new_token;
        fence := claimed.fence;
    ELSE
        state := 'held';
        retry_after := claimed.time_left * interval '1 millisecond';
    END IF;
END
$$;
COMMENT ON FUNCTION hapax_lock IS
'Takes a lock that outlives this transaction: until ttl has passed since this call, or hapax_unlock. state is granted
(with token and fence) or held. A rollback gives it back. For exclusion within one transaction use pg_advisory_xact_lock.';

CREATE FUNCTION hapax_unlock(name text, token text, tenant text DEFAULT 'default') RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER
AS $$
BEGIN
    PERFORM hapax_check_tenant(tenant);
    PERFORM hapax_check_text('name', name, 255, '^[\x21-\x7e]+$');
    PERFORM hapax_check_text('token', token, 255, '^[\x20-\x7e]+$');
    RETURN 'done' = (hapax_step_key(
        tenant, 'lock', '', name, hapax_digest(tenant, 'lock', '', name), convert_to(token, 'UTF8'), 3::smallint,
        0, '', true)).answer;
END
$$;
COMMENT ON FUNCTION hapax_unlock IS
'Releases a lock at the commit of this transaction. False where the token does not own it any more.';

CREATE FUNCTION hapax_record_put(
    key text, value jsonb, expected_version bigint DEFAULT NULL, ttl interval DEFAULT NULL,
    tenant text DEFAULT 'default') RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER
AS $$
BEGIN
    PERFORM hapax_check_tenant(tenant);
    PERFORM hapax_check_text('key', key, 255, '^[\x21-\x7e]+$');
    IF value IS NULL THEN
        RAISE invalid_parameter_value USING MESSAGE = 'value is NULL; it takes JSON, also null';
    ELSIF octet_length(value::text) > 1048576 THEN
        RAISE invalid_parameter_value
            USING MESSAGE = format('value has %s bytes; it takes at most 1048576', octet_length(value::text));
    ELSIF expected_version < 0 THEN
        RAISE invalid_parameter_value USING MESSAGE = 'expected_version takes a version, 0 for none, or NULL for any';
    END IF;
    RETURN (hapax_put_record(
        tenant, 'record', '', key, hapax_digest(tenant, 'record', '', key), convert_to(value::text, 'UTF8'),
        CASE WHEN ttl IS NOT NULL THEN hapax_millis('ttl', ttl, '366 days') END,
        CASE WHEN expected_version = 0 THEN -1 ELSE expected_version END, true)).version;
END
$$;
COMMENT ON FUNCTION hapax_record_put IS
'Writes a record with this transaction and returns its new version; NULL where the stored version is not the expected
one (0: no record; NULL: any), and nothing was changed. Without ttl a new record never expires and a changed one keeps its end.';

CREATE FUNCTION hapax_record_get(key text, tenant text DEFAULT 'default', OUT value jsonb, OUT version bigint)
RETURNS SETOF record
LANGUAGE plpgsql STABLE SECURITY DEFINER
AS $$
BEGIN
    PERFORM hapax_check_tenant(tenant);
    PERFORM hapax_check_text('key', key, 255, '^[\x21-\x7e]+$');
    RETURN QUERY
        SELECT convert_from(r.value, 'UTF8')::jsonb, r.version FROM hapax_records r
        WHERE r.tenant = hapax_record_get.tenant AND r.kind = 'record' AND r.scope = ''
          AND r.name = hapax_record_get.key
          -- The clock is older than the snapshot: a record that is renewed after it has not expired.
          AND (r.expires_at IS NULL OR r.expires_at > floor(extract(epoch FROM transaction_timestamp()) * 1000)::bigint);
END
$$;
COMMENT ON FUNCTION hapax_record_get IS
'Reads a record, as this transaction sees it: its value and version, or no row.';

-- Lets a role use the functions of the SQL interface, and nothing else. The owner of the functions calls it.
CREATE FUNCTION hapax_grant_app(grantee text DEFAULT 'hapax_app') RETURNS void
LANGUAGE plpgsql
AS $$
DECLARE
    found record;
BEGIN
    FOR found IN
        SELECT p.oid::regprocedure AS signature, n.nspname, p.proowner
        FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace
        WHERE p.prosecdef AND p.proname LIKE 'hapax\_%'
          AND p.pronamespace = (SELECT f.pronamespace FROM pg_proc f WHERE f.oid = 'hapax_begin'::regproc)
    LOOP
        -- GRANT itself only warns, and grants nothing.
        IF NOT pg_has_role(found.proowner, 'USAGE') THEN
            RAISE insufficient_privilege
                USING MESSAGE = format('only the owner of the functions, %s, may grant them', found.proowner::regrole);
        END IF;
        IF NOT has_schema_privilege(grantee, found.nspname, 'USAGE') THEN
            EXECUTE format('GRANT USAGE ON SCHEMA %I TO %I', found.nspname, grantee);
        END IF;
        EXECUTE format('GRANT EXECUTE ON FUNCTION %s TO %I', found.signature, grantee);
    END LOOP;
END
$$;
COMMENT ON FUNCTION hapax_grant_app IS
'Grants a role the right to call hapax_begin and the other functions of the SQL interface, and no right on a table.';

-- Pins the search_path of the functions that run with the owner's rights, takes them from PUBLIC, and makes
-- the role `hapax_app` where this role may; elsewhere an administrator makes it and calls hapax_grant_app.
DO $$
DECLARE
    found  record;
    tables pg_class;
BEGIN
    SELECT * INTO tables FROM pg_class WHERE oid = 'hapax_claims'::regclass;
    FOR found IN
        SELECT p.oid::regprocedure AS signature, n.nspname
        FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace
        WHERE p.prosecdef AND p.proname LIKE 'hapax\_%'
          AND p.pronamespace = (SELECT f.pronamespace FROM pg_proc f WHERE f.oid = 'hapax_begin'::regproc)
    LOOP
        -- pg_temp last: otherwise a temporary table of the caller would stand before hapax's.
        EXECUTE format('ALTER FUNCTION %s SET search_path = pg_catalog, %I, %I, pg_temp', found.signature,
                       found.nspname, (SELECT nspname FROM pg_namespace WHERE oid = tables.relnamespace));
        EXECUTE format('REVOKE ALL ON FUNCTION %s FROM PUBLIC', found.signature);
        -- With the rights of the tables' owner, not of a superuser who migrates in the owner's place.
        IF tables.relowner <> (SELECT r.oid FROM pg_roles r WHERE r.rolname = current_user) THEN
            EXECUTE format('ALTER FUNCTION %s OWNER TO %s', found.signature, tables.relowner::regrole);
        END IF;
    END LOOP;
    IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = 'hapax_app') THEN
        BEGIN
            CREATE ROLE hapax_app NOLOGIN;
        EXCEPTION WHEN insufficient_privilege OR duplicate_object OR unique_violation THEN
            NULL;
        END;
    END IF;
    IF EXISTS (SELECT FROM pg_roles WHERE rolname = 'hapax_app') THEN
        PERFORM hapax_grant_app('hapax_app');
    END IF;
END
$$;
