"""The answers that the middlewares give themselves: problem documents (RFC 9457), as those of the server and the proxy."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from typing import Optional

from .errors import Busy, HapaxError, KeyReused, OutcomeUnknown, StoreUnavailable

#: Status, title and ``retryable`` of each kind of problem that a middleware answers.
KINDS: dict[str, tuple[int, str, bool]] = {
    "invalid-request": (400, "The request is not valid", False),
    "key-missing": (400, "The request needs an Idempotency-Key", False),
    "invalid-key": (400, "The Idempotency-Key is not valid", False),
    "scope-missing": (400, "The caller of the request cannot be identified", False),
    "request-timeout": (408, "The request took too long to arrive", True),
    "in-progress": (409, "Another attempt is still running", True),
    "outcome-unknown": (409, "The outcome of an attempt is unknown", False),
    "response-not-kept": (409, "The request ran, but its response was not kept", False),
    "payload-too-large": (413, "The request body is too large", False),
    "key-reused": (422, "The key belongs to another request", False),
    "internal": (500, "The server failed", False),
    "store-unavailable": (503, "The store did not answer", True),
}

Headers = list[tuple[bytes, bytes]]


@dataclass(eq=False)
class Problem(Exception):
    """A refusal of one request. ``detail`` never contains a key, a body or a credential."""

    kind: str
    detail: str
    retry_after: Optional[float] = None
    members: dict[str, object] = field(default_factory=dict)

    @property
    def status(self) -> int:
        return KINDS[self.kind][0]

    def headers(self) -> Headers:
        headers = [(b"content-type", b"application/problem+json")]
        if self.retry_after is not None:
            headers.append((b"retry-after", b"%d" % max(1, math.ceil(self.retry_after))))
        return headers

    def body(self) -> bytes:
        status, title, retryable = KINDS[self.kind]
        document: dict[str, object] = {
            "type": "https://hapax.dev/problems/" + self.kind,
            "title": title,
            "status": status,
            "detail": self.detail,
            "retryable": retryable,
        }
        if self.retry_after is not None:
            document["retry_after_ms"] = math.ceil(self.retry_after * 1000)
        document.update(self.members)
        return json.dumps(document, ensure_ascii=False).encode()


def problem_of(error: HapaxError) -> Problem:
    """The answer to a request whose claim was refused."""
    if isinstance(error, Busy):
        detail = "the first request with this key has no response yet; send the request again"
        return Problem("in-progress", detail, error.retry_after or 1.0)
    if isinstance(error, KeyReused):
        return Problem(
            "key-reused",
            "this key was used with another path, query, content type or body; use a new one",
        )
    if isinstance(error, OutcomeUnknown):
        return Problem(
            "outcome-unknown",
            "an earlier attempt ended without a response; find out whether it acted, then settle or release the key",
        )
    if isinstance(error, StoreUnavailable):
        return Problem("store-unavailable", "nothing was run; try again", error.retry_after or 1.0)
    return Problem(
        "internal", "the idempotency store refused the service's request; nothing was run"
    )
