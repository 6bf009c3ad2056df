"""The statements of each call on PostgreSQL: one call of a SQL function each.

Casts and plain numbers make them the same for every driver: psycopg, psycopg2, asyncpg, pg8000.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Optional

from .drive import Steps, no_steps
from .values import BeginRequest, BeginResult, merge_headers

BEGIN = """\
SELECT state, token, fence, attempt, status, CAST(headers AS text), body,
       CAST(extract(epoch FROM retry_after) AS double precision)
FROM hapax_begin(operation => CAST(:operation AS text), key => CAST(:key AS text),
    fingerprint => CAST(:fingerprint AS text), tenant => CAST(:tenant AS text),
    lease => make_interval(secs => CAST(:lease AS double precision)),
    retention => make_interval(secs => CAST(:retention AS double precision)),
    on_unknown => CAST(:on_unknown AS text), wait => CAST(:wait AS boolean))"""
COMPLETE = """\
SELECT hapax_complete(operation => CAST(:operation AS text), key => CAST(:key AS text),
    token => CAST(:token AS text), status => CAST(:status AS integer),
    headers => CAST(CAST(:headers AS text) AS jsonb), body => CAST(:body AS bytea),
    tenant => CAST(:tenant AS text))"""
FAIL = """\
SELECT hapax_fail(operation => CAST(:operation AS text), key => CAST(:key AS text),
    token => CAST(:token AS text), tenant => CAST(:tenant AS text))"""
RECEIVE = """\
SELECT hapax_receive(consumer => CAST(:consumer AS text), message_id => CAST(:message_id AS text),
    tenant => CAST(:tenant AS text),
    retention => make_interval(secs => CAST(:retention AS double precision)))"""
ENQUEUE = """\
SELECT CAST(hapax_enqueue(topic => CAST(:topic AS text), key => CAST(:key AS text),
    payload => CAST(:payload AS bytea), headers => CAST(CAST(:headers AS text) AS jsonb),
    queue => CAST(:queue AS text),
    not_before => coalesce(CAST(CAST(:not_before AS text) AS timestamptz), now()),
    tenant => CAST(:tenant AS text)) AS text)"""

#: What ``once`` does by default: a duplicate holds up no connection of its pool.
WAITS_FOR_WRITERS = False


def lock(wait: bool) -> Steps[bool]:
    """Nothing to take: PostgreSQL locks the key itself."""
    return no_steps(True)


def begin(request: BeginRequest) -> Steps[BeginResult]:
    rows = yield (
        BEGIN,
        {
            "operation": request.operation,
            "key": request.key,
            "fingerprint": request.fingerprint or "",
            "tenant": request.tenant,
            "lease": request.lease_ms / 1000,
            "retention": request.retention_ms / 1000,
            "on_unknown": request.on_unknown,
            "wait": request.wait,
        },
    )
    state, token, fence, attempt, status, headers, body, retry_after = rows[0]
    if state != "completed":
        return BeginResult(
            state, token=token, fence=fence, attempt=attempt, retry_after=retry_after
        )
    return BeginResult(
        state,
        status=status,
        headers=json.loads(headers or "{}"),
        body=bytes(body or b""),
    )


def complete(
    tenant: str,
    operation: str,
    key: str,
    token: str,
    status: int,
    headers: Sequence[tuple[str, str]],
    body: bytes,
) -> Steps[bool]:
    rows = yield (
        COMPLETE,
        {
            "operation": operation,
            "key": key,
            "token": token,
            "status": status,
            "headers": json.dumps(merge_headers(headers)),
            "body": body,
            "tenant": tenant,
        },
    )
    return bool(rows[0][0])


def fail(tenant: str, operation: str, key: str, token: str) -> Steps[bool]:
    rows = yield FAIL, {"operation": operation, "key": key, "token": token, "tenant": tenant}
    return bool(rows[0][0])


def receive(tenant: str, consumer: str, message_id: str, retention_ms: int) -> Steps[bool]:
    rows = yield (
        RECEIVE,
        {
            "consumer": consumer,
            "message_id": message_id,
            "tenant": tenant,
            "retention": retention_ms / 1000,
        },
    )
    return bool(rows[0][0])


def enqueue(
    tenant: str,
    topic: str,
    key: Optional[str],
    payload: bytes,
    headers: Mapping[str, str],
    queue: str,
    not_before: Optional[datetime],
) -> Steps[uuid.UUID]:
    rows = yield (
        ENQUEUE,
        {
            "topic": topic,
            "key": key,
            "payload": payload,
            "headers": json.dumps(dict(headers)),
            "queue": queue,
            "not_before": not_before.isoformat() if not_before else None,
            "tenant": tenant,
        },
    )
    return uuid.UUID(rows[0][0])
