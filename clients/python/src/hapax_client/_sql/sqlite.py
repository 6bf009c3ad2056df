"""The statements of each call on SQLite; docs/sql.md explains them.

The caller's transaction takes the write lock before anything is read, so that decisions are made on
the stored rows and not on an old snapshot.
"""

from __future__ import annotations

import json
import secrets
import uuid
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from typing import Any, Optional

from ..errors import Busy
from .drive import Steps
from .driver_errors import LOCKED_RETRY_AFTER, MIGRATE_SQLITE, SchemaMismatch
from .file_clock import file_time, wall_ms
from .response import decode_response, encode_response
from .values import BeginRequest, BeginResult, merge_headers

#: The stored format that these statements know: crates/hapax-sqlite/src/schema.
SCHEMA_VERSION = 3
#: What ``once`` does by default: the file has one write lock, whatever the key.
WAITS_FOR_WRITERS = True

# Deletes no row: SQLite takes the write lock for it, and no page becomes dirty.
LOCK = "DELETE FROM hapax_meta WHERE name = ''"
READ_META = """\
SELECT name, value FROM hapax_meta
WHERE name IN ('schema', 'clock_boot', 'clock_base', 'clock_last', 'clock_wall')"""
WRITE_META = """\
INSERT INTO hapax_meta (name, value) VALUES (:name, :value)
ON CONFLICT DO UPDATE SET value = excluded.value"""
READ_COMMAND = """\
SELECT CASE WHEN fingerprint IS NOT :fingerprint THEN 'reused'
            WHEN phase = 1 THEN 'completed'
            WHEN phase = 2 THEN 'granted'
            WHEN :now < lease_end THEN 'in-progress'
            WHEN :on_unknown = 'rerun' THEN 'granted'
            ELSE 'unknown' END,
       attempt, lease_end - :now, value
FROM hapax_claims
WHERE tenant = :tenant AND kind = 'command' AND scope = :operation AND name = :key
  AND :now < expires_at"""
NEXT_FENCE = "UPDATE hapax_meta SET value = value + 1 WHERE name = 'sequence'"
READ_FENCE = "SELECT value FROM hapax_meta WHERE name = 'sequence'"
WRITE_CLAIM = """\
INSERT INTO hapax_claims (tenant, kind, scope, name, phase, fence, attempt, token, fingerprint,
                          granted_at, lease_end, retention, expires_at, value)
VALUES (:tenant, :kind, :scope, :name, :phase, :fence, :attempt, :token, :fingerprint,
        :now, :now + :lease, :retention, :expires_at, x'')
ON CONFLICT DO UPDATE SET phase = excluded.phase, fence = excluded.fence,
    attempt = excluded.attempt, token = excluded.token, fingerprint = excluded.fingerprint,
    granted_at = excluded.granted_at, lease_end = excluded.lease_end,
    retention = excluded.retention, expires_at = excluded.expires_at, value = excluded.value"""
# The same completion again changes nothing, and is no error.
COMPLETE = """\
UPDATE hapax_claims SET phase = 1, value = :value,
    expires_at = CASE phase WHEN 0 THEN :now + min(retention, 9223372036854775807 - :now)
                            ELSE expires_at END
WHERE tenant = :tenant AND kind = 'command' AND scope = :operation AND name = :key
  AND token = :token AND :now < expires_at AND (phase = 0 OR phase = 1 AND value = :value)"""
FAIL = """\
UPDATE hapax_claims SET phase = 2,
    expires_at = CASE phase WHEN 0 THEN :now + min(retention, 9223372036854775807 - :now)
                            ELSE expires_at END
WHERE tenant = :tenant AND kind = 'command' AND scope = :operation AND name = :key
  AND token = :token AND :now < expires_at AND phase IN (0, 2)"""
CHANGED_ROWS = "SELECT changes()"
NOTE_CHANGE = "INSERT INTO hapax_changes (digest) VALUES (:digest)"
READ_NOTE = "SELECT last_insert_rowid()"
TRIM_NOTES = "DELETE FROM hapax_changes WHERE id <= :id"
READ_MESSAGE = """\
SELECT CASE WHEN phase = 1 THEN 'duplicate'
            WHEN phase = 0 AND :now < lease_end THEN 'in-progress'
            ELSE 'first' END,
       attempt, lease_end - :now
FROM hapax_claims
WHERE tenant = :tenant AND kind = 'inbox' AND scope = :consumer AND name = :message_id
  AND :now < expires_at"""
ENQUEUE = """\
INSERT INTO hapax_outbox (id, queue, tenant, topic, key, payload, headers, deliver_after, created_at)
VALUES (:id, :queue, :tenant, :topic, :key, :payload, :headers, :deliver_after, :created_at)"""

#: The notes that are kept for the other processes, and how often older ones are deleted.
KEPT_NOTES = 10_000
TRIM_EVERY = 256
#: How long a call that does not wait waits for the write lock of the whole file.
COMMIT_MS = 100


def lock(wait: bool) -> Steps[bool]:
    """Takes the write lock of the file; ``False`` where another connection keeps it.

    With ``wait`` it waits as long as the connection's busy timeout; without, only as long as a
    commit of another program on the file may take."""
    if wait:
        try:
            yield LOCK, {}
        except Busy:
            return False
        return True
    rows = yield "PRAGMA busy_timeout", {}
    timeout = int(rows[0][0])
    yield f"PRAGMA busy_timeout = {min(timeout, COMMIT_MS)}", {}
    try:
        yield LOCK, {}
    except Busy:
        return False
    finally:
        yield f"PRAGMA busy_timeout = {timeout}", {}
    return True


def begin(request: BeginRequest) -> Steps[BeginResult]:
    is_locked = yield from lock(request.wait)
    # Without the lock a stored answer is found all the same; it is final.
    now = yield from _now(is_locked)
    found = yield (
        READ_COMMAND,
        {
            "tenant": request.tenant,
            "operation": request.operation,
            "key": request.key,
            "fingerprint": request.fingerprint,
            "on_unknown": request.on_unknown,
            "now": now,
        },
    )
    state, attempt, lease_left, value = found[0] if found else ("granted", 0, 0, b"")
    if state == "completed":
        status, headers, body = decode_response(bytes(value))
        return BeginResult(state, status=status, headers=merge_headers(headers), body=body)
    if state == "in-progress":
        return BeginResult(state, retry_after=lease_left / 1000)
    if state != "granted":
        return BeginResult(state)
    if not is_locked:
        return BeginResult("in-progress", retry_after=LOCKED_RETRY_AFTER)
    token = secrets.token_hex(16)
    fence = yield from _write_claim(
        ("command", request.operation, request.key),
        {
            "tenant": request.tenant,
            "phase": 0,
            "attempt": attempt + 1,
            "token": token,
            "fingerprint": request.fingerprint,
            "now": now,
            "lease": request.lease_ms,
            "retention": request.retention_ms,
            "expires_at": now + request.lease_ms + request.retention_ms,
        },
    )
    return BeginResult("granted", token=token, fence=fence, attempt=attempt + 1)


def complete(
    tenant: str,
    operation: str,
    key: str,
    token: str,
    status: int,
    headers: Sequence[tuple[str, str]],
    body: bytes,
) -> Steps[bool]:
    value = encode_response(status, headers, body)
    return (yield from _end(COMPLETE, tenant, operation, key, {"token": token, "value": value}))


def fail(tenant: str, operation: str, key: str, token: str) -> Steps[bool]:
    return (yield from _end(FAIL, tenant, operation, key, {"token": token}))


def receive(tenant: str, consumer: str, message_id: str, retention_ms: int) -> Steps[bool]:
    yield from _lock_or_raise()
    now = yield from _now()
    found = yield (
        READ_MESSAGE,
        {"tenant": tenant, "consumer": consumer, "message_id": message_id, "now": now},
    )
    state, attempt, lease_left = found[0] if found else ("first", 0, 0)
    if state == "in-progress":
        raise Busy(
            "another consumer is handling the message; do not acknowledge it",
            retry_after=lease_left / 1000,
        )
    if state == "duplicate":
        return False
    yield from _write_claim(
        ("inbox", consumer, message_id),
        {
            "tenant": tenant,
            # Settled at once: its effect commits with it.
            "phase": 1,
            "attempt": attempt + 1,
            "token": secrets.token_hex(16),
            "fingerprint": None,
            "now": now,
            "lease": retention_ms,
            "retention": retention_ms,
            "expires_at": now + retention_ms,
        },
    )
    yield from _note_change(tenant, "inbox", consumer, message_id)
    return True


def enqueue(
    tenant: str,
    topic: str,
    key: Optional[str],
    payload: bytes,
    headers: Mapping[str, str],
    queue: str,
    not_before: Optional[datetime],
) -> Steps[uuid.UUID]:
    yield from _lock_or_raise()
    now, message_id, wall = (yield from _now()), uuid.uuid4(), wall_ms()
    delay = 0
    if not_before is not None:
        delay = int(not_before.astimezone(timezone.utc).timestamp() * 1000) - wall
    yield (
        ENQUEUE,
        {
            "id": str(message_id),
            "queue": queue,
            "tenant": tenant,
            "topic": topic,
            "key": key,
            "payload": payload,
            "headers": json.dumps(dict(headers)) if headers else None,
            # By the clock of the file, which differs from the wall clock by its steps since boot.
            "deliver_after": now + delay if delay > 0 else None,
            "created_at": wall,
        },
    )
    return message_id


def _lock_or_raise() -> Steps[None]:
    # Not a call of `lock`, so that the error keeps its cause.
    yield LOCK, {}


def _now(is_locked: bool = True) -> Steps[int]:
    """Checks the version of the tables, and reads the clock of the file. A new boot is stored if the
    transaction holds the write lock."""
    rows = yield READ_META, {}
    meta: dict[str, int] = {name: value for name, value in rows}
    found = meta.get("schema", 0)
    if found != SCHEMA_VERSION:
        newer = "install a newer hapax-client" if found > SCHEMA_VERSION else MIGRATE_SQLITE
        raise SchemaMismatch(
            f"the tables of hapax have version {found}, and this package knows {SCHEMA_VERSION};"
            f" {newer}"
        )
    time = file_time(meta)
    for name, value in time.rows.items() if is_locked else ():
        yield WRITE_META, {"name": name, "value": value}
    return time.now


def _write_claim(identity: tuple[str, str, str], row: dict[str, Any]) -> Steps[int]:
    yield NEXT_FENCE, {}
    rows = yield READ_FENCE, {}
    fence = int(rows[0][0])
    kind, scope, name = identity
    yield WRITE_CLAIM, {**row, "kind": kind, "scope": scope, "name": name, "fence": fence}
    return fence


def _end(sql: str, tenant: str, operation: str, key: str, values: dict[str, Any]) -> Steps[bool]:
    yield from _lock_or_raise()
    now = yield from _now()
    yield sql, {"tenant": tenant, "operation": operation, "key": key, "now": now, **values}
    rows = yield CHANGED_ROWS, {}
    if rows[0][0] != 1:
        return False
    yield from _note_change(tenant, "command", operation, key)
    return True


def _note_change(tenant: str, kind: str, scope: str, name: str) -> Steps[None]:
    """Wakes those who wait for this key in other processes, when the transaction commits."""
    yield NOTE_CHANGE, {"digest": key_digest(tenant, kind, scope, name)}
    rows: list[tuple[Any, ...]] = yield READ_NOTE, {}
    if rows[0][0] % TRIM_EVERY == 0:
        yield TRIM_NOTES, {"id": rows[0][0] - KEPT_NOTES}


def key_digest(tenant: str, kind: str, scope: str, name: str) -> int:
    """FNV-1a of the four parts, percent-encoded and joined by ``:``, as a signed number."""
    escaped = (
        part.replace("%", "%25").replace(":", "%3A").replace("{", "%7B").replace("}", "%7D")
        for part in (tenant, kind, scope, name)
    )
    digest = 0xCBF29CE484222325
    for byte in ":".join(escaped).encode():
        digest = (digest ^ byte) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    return digest - (1 << 64) if digest >> 63 else digest
