"""Results, and the checks of arguments: a call with a bad one is refused before any statement runs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Optional, Union

from .. import _json_values
from ..errors import InvalidRequest

#: Seconds, or a timedelta.
Duration = Union[int, float, timedelta]
#: As over HTTP: a text for each name, or a list of texts for a repeated header.
Headers = Mapping[str, Union[str, Sequence[str]]]

LEASE = timedelta(seconds=30)
RETENTION = timedelta(hours=24)
INBOX_RETENTION = timedelta(days=30)
MAX_LEASE = timedelta(hours=1)
MAX_RETENTION = timedelta(days=366)
MAX_HEADERS = 256
MAX_ANSWER = 1024 * 1024

STATES = ("granted", "completed", "in-progress", "reused", "unknown")


@dataclass(frozen=True)
class BeginResult:
    """The answer to ``begin``.

    ``state`` is one of

    - ``granted``: act, then ``complete`` or ``fail`` with ``token``, in this transaction;
    - ``completed``: it ran before; ``status``, ``headers`` and ``body`` are its answer;
    - ``in-progress``: another attempt runs; try again after ``retry_after`` seconds;
    - ``reused``: the key was used before with another fingerprint;
    - ``unknown``: the last attempt disappeared and may or may not have acted.
    """

    state: str
    # Hidden from logs: whoever has the token may complete the command, and a body may be personal.
    token: Optional[str] = field(default=None, repr=False)
    fence: Optional[int] = None
    attempt: Optional[int] = None
    status: Optional[int] = None
    headers: Optional[Headers] = field(default=None, repr=False)
    body: Optional[bytes] = field(default=None, repr=False)
    retry_after: Optional[float] = None


@dataclass(frozen=True)
class BeginRequest:
    """The arguments of ``begin``, checked."""

    operation: str
    key: str
    tenant: str
    fingerprint: Optional[str]
    lease_ms: int
    retention_ms: int
    on_unknown: str
    wait: bool


def begin_request(
    operation: str,
    key: str,
    fingerprint: Optional[str],
    tenant: str,
    lease: Duration,
    retention: Duration,
    on_unknown: str,
    wait: bool,
) -> BeginRequest:
    if on_unknown not in ("refuse", "rerun"):
        raise InvalidRequest("on_unknown takes 'refuse' or 'rerun'")
    if not isinstance(wait, bool):
        raise InvalidRequest("wait takes True or False")
    return BeginRequest(
        operation=check_operation(operation),
        key=check_key("key", key),
        tenant=check_tenant(tenant),
        fingerprint=check_fingerprint(fingerprint),
        lease_ms=check_duration("lease", lease, MAX_LEASE),
        retention_ms=check_duration("retention", retention, MAX_RETENTION),
        on_unknown=on_unknown,
        wait=wait,
    )


def check_operation(operation: str) -> str:
    return _check_text("operation", operation, lowest=0x20)


def check_key(part: str, key: str) -> str:
    return _check_text(part, key)


def check_tenant(tenant: str) -> str:
    _check_text("tenant", tenant, limit=64)
    if "/" in tenant:
        raise InvalidRequest("tenant has a '/', which is reserved")
    return tenant


def check_token(token: str) -> str:
    if not isinstance(token, str) or not 1 <= len(token.encode()) <= 255:
        raise InvalidRequest("token takes the text that `begin` returned, 1 to 255 bytes")
    return token


def check_fingerprint(fingerprint: Optional[str]) -> Optional[str]:
    """An empty fingerprint is none, as in the SQL functions."""
    if fingerprint is None or fingerprint == "":
        return None
    if not isinstance(fingerprint, str) or len(fingerprint.encode()) > 255 or "\0" in fingerprint:
        raise InvalidRequest(
            "fingerprint takes a text of at most 255 bytes; `fingerprint_of(value)` makes one"
        )
    return fingerprint


def check_duration(part: str, duration: Duration, limit: timedelta) -> int:
    """The milliseconds of a duration."""
    if isinstance(duration, timedelta):
        seconds = duration.total_seconds()
    elif isinstance(duration, (int, float)) and not isinstance(duration, bool):
        seconds = float(duration)
    else:
        raise InvalidRequest(f"{part} takes seconds or a timedelta")
    if not 0.001 <= seconds <= limit.total_seconds():
        raise InvalidRequest(f"{part} takes 0.001 to {limit.total_seconds():.0f} seconds")
    return int(seconds * 1000)


def check_status(status: int) -> int:
    if not isinstance(status, int) or isinstance(status, bool) or not 100 <= status <= 599:
        raise InvalidRequest("status takes a number from 100 to 599")
    return status


def check_headers(headers: Optional[Headers]) -> list[tuple[str, str]]:
    """The headers of an answer, one pair for each repetition."""
    if headers is None:
        return []
    if not isinstance(headers, Mapping):
        raise InvalidRequest("headers takes a mapping of texts, or of lists of texts")
    pairs: list[tuple[str, str]] = []
    for name, value in headers.items():
        if not isinstance(name, str) or not name.isascii() or not _is_header_name(name):
            raise InvalidRequest("headers has an invalid name")
        values = [value] if isinstance(value, str) else value
        if not isinstance(values, (list, tuple)) or not all(isinstance(v, str) for v in values):
            raise InvalidRequest("headers takes texts and lists of texts")
        if any(not " " <= c <= "~" and c != "\t" for v in values for c in v):
            raise InvalidRequest("headers has a value that is not printable ASCII")
        pairs.extend((name, v) for v in values)
    if len({name.lower() for name in headers}) != len(headers):
        raise InvalidRequest("headers has a repeated name; a repeated header is a list")
    if len(pairs) > MAX_HEADERS:
        raise InvalidRequest(f"headers takes at most {MAX_HEADERS} headers")
    return pairs


def _is_header_name(name: str) -> bool:
    return bool(name) and all(c.isalnum() or c in "!#$%&'*+-.^_`|~" for c in name)


def merge_headers(pairs: Sequence[tuple[str, str]]) -> Headers:
    merged: dict[str, Union[str, list[str]]] = {}
    for name, value in pairs:
        known = merged.get(name)
        if known is None:
            merged[name] = value
        elif isinstance(known, list):
            known.append(value)
        else:
            merged[name] = [known, value]
    return merged


def check_body(part: str, body: Union[bytes, str]) -> bytes:
    if isinstance(body, str):
        return body.encode()
    if isinstance(body, (bytes, bytearray, memoryview)):
        return bytes(body)
    raise InvalidRequest(f"{part} takes bytes or a text")


def check_answer_size(headers: Sequence[tuple[str, str]], body: bytes) -> None:
    """Before PostgreSQL refuses it with an error that ends the transaction."""
    size = 5 + sum(6 + len(name) + len(value) for name, value in headers) + len(body)
    if size > MAX_ANSWER:
        raise InvalidRequest(
            f"headers and body have {size} bytes; an answer takes at most {MAX_ANSWER}"
        )


def check_message(topic: str, key: Optional[str], payload: object) -> bytes:
    """The bytes of a message: bytes and texts as they are, everything else as JSON."""
    for part, text in (("topic", topic), ("key", key)):
        if text is None and part == "key":
            continue
        if not isinstance(text, str) or "\0" in text or (part == "topic" and not text):
            raise InvalidRequest(f"{part} takes a text without NUL bytes")
    if isinstance(payload, (bytes, bytearray, memoryview, str)):
        return check_body("payload", payload)  # type: ignore[arg-type]
    try:
        return json.dumps(payload, separators=(",", ":"), allow_nan=False).encode()
    except (TypeError, ValueError) as error:
        raise InvalidRequest("payload takes bytes, a text or a JSON value") from error


def check_message_headers(headers: Optional[Mapping[str, str]]) -> Mapping[str, str]:
    if headers is None:
        return {}
    if not isinstance(headers, Mapping) or not all(
        isinstance(text, str) for pair in headers.items() for text in pair
    ):
        raise InvalidRequest("headers takes a mapping of texts")
    return headers


def check_queue(queue: str) -> str:
    return _check_text("queue", queue)


def check_not_before(not_before: Optional[datetime]) -> Optional[datetime]:
    if not_before is None:
        return None
    if not isinstance(not_before, datetime) or not_before.tzinfo is None:
        raise InvalidRequest("not_before takes a datetime with a time zone")
    return not_before


def fingerprint_of(value: Any) -> str:
    """A fingerprint of a request, as the decorator ``client.once`` makes it of its arguments: of any
    JSON value, dataclass or pydantic model. The order of members does not matter."""
    try:
        return _json_values.fingerprint_of(value)
    except (TypeError, ValueError) as error:
        raise InvalidRequest("a fingerprint is made of a JSON value") from error


def _check_text(part: str, text: str, lowest: int = 0x21, limit: int = 255) -> str:
    # The text itself is not in the message, because keys may identify a person.
    if not isinstance(text, str):
        raise InvalidRequest(f"{part} takes a text")
    if not 1 <= len(text) <= limit:
        raise InvalidRequest(f"{part} has {len(text)} bytes; it takes 1 to {limit}")
    for at, character in enumerate(text):
        if not lowest <= ord(character) <= 0x7E:
            raise InvalidRequest(
                f"{part} has a character that is not printable ASCII"
                f" ({lowest:#x} to 0x7e) at position {at}"
            )
    return text
