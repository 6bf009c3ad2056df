"""The stored form of a response, and the response that a replay makes of it. Shared by the ASGI and the WSGI middleware."""

from __future__ import annotations

import time
from email.utils import formatdate
from typing import Optional, Union

from ._commands import Answer
from ._keyed_request import Settings
from ._problem_document import Headers, Problem

StoredHeaders = dict[str, Union[str, list[str]]]

#: Marks a stored response whose body was not kept.
NOT_KEPT = "hapax-response-not-kept"
#: A service's own word about its response; not sent to the client.
STORE = b"idempotency-store"

_NEVER_STORED = frozenset(
    b"connection content-length date keep-alive proxy-authenticate proxy-authorization proxy-connection set-cookie te "
    b"trailer transfer-encoding upgrade".split()
) | {STORE, NOT_KEPT.encode()}


def judge(settings: Settings, status: int, headers: Headers) -> str:
    """Whether the response is kept: ``keep``, ``give-back`` or ``unknown``."""
    if any(name == STORE and value.strip().lower() == b"never" for name, value in headers):
        return "give-back"
    return settings.verdict(status)


def without_own_headers(headers: Headers) -> Headers:
    """The headers that go to the client."""
    return [(name, value) for name, value in headers if name != STORE]


def is_event_stream(headers: Headers) -> bool:
    return any(
        name == b"content-type" and value.lower().startswith(b"text/event-stream")
        for name, value in headers
    )


def declared_length(headers: Headers) -> Optional[int]:
    lengths = [value for name, value in headers if name == b"content-length"]
    return int(lengths[0]) if lengths and lengths[0].isdigit() else None


def headers_to_store(headers: Headers) -> StoredHeaders:
    """The headers that are valid for a later client."""
    named = {
        name.strip().lower()
        for key, line in headers
        if key == b"connection"
        for name in line.split(b",")
    }
    stored: dict[str, list[str]] = {}
    for name, value in headers:
        if name not in _NEVER_STORED and name not in named:
            stored.setdefault(name.decode("latin-1"), []).append(value.decode("latin-1"))
    return {name: values[0] if len(values) == 1 else values for name, values in stored.items()}


def replayed_headers(answer: Answer) -> Headers:
    """The headers of a replay. Raises the problem of a response that was not kept."""
    status, stored = answer.status, answer.headers
    if any(name.lower() == NOT_KEPT for name in stored):
        raise Problem(
            "response-not-kept",
            "it was too large, or an event stream; a retry runs nothing: ask the service for the outcome",
            members={"original_status": status},
        )
    headers: Headers = []
    for name, values in stored.items():
        for value in [values] if isinstance(values, str) else values:
            headers.append((name.lower().encode("latin-1"), value.encode("latin-1")))
    if status >= 200 and status not in (204, 304):
        headers.append((b"content-length", b"%d" % len(answer.body)))
    headers.append((b"idempotent-replayed", b"true"))
    if answer.expires_in is not None:
        expires = formatdate(time.time() + answer.expires_in, usegmt=True)
        headers.append((b"idempotency-expires", expires.encode()))
    return headers
