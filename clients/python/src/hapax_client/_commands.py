"""Commands: the right to run something once, and the answer that everybody gets."""

from __future__ import annotations

import base64
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Optional, Union

from ._arguments import (
    HOUR,
    MAX_RETENTION,
    Seconds,
    check_name,
    check_operation,
    encode_json,
    millis,
    path,
    seconds,
)
from ._dual import AsyncBound, SyncBound, sync_or_async
from ._protocol import Request, Response, Steps
from ._retry import send
from ._transport import AsyncTransport, SyncTransport
from .errors import Busy, InvalidRequest, Missing

Headers = Mapping[str, Union[str, list[str]]]

# The longest that one request waits at the server; longer waits are several requests.
WAIT_SLICE = 20.0
MAX_WAIT = 24 * HOUR


@dataclass(frozen=True)
class Answer:
    """A stored answer, byte for byte."""

    status: int
    headers: Headers = field(default_factory=dict)
    body: bytes = b""
    expires_in: Optional[float] = None


@dataclass(frozen=True)
class Begun:
    """The result of `begin`: `granted` (run it, then complete or fail it) or `completed` (here is the answer)."""

    state: str
    token: Optional[str] = field(default=None, repr=False)
    fence: Optional[int] = None
    attempt: Optional[int] = None
    answer: Optional[Answer] = None

    @property
    def granted(self) -> bool:
        return self.state == "granted"


class CommandSteps:
    """The operations of one command, for sync and async clients.

    >>> command = client.command("pay", "order-1")       # doctest: +SKIP
    >>> begun = command.begin(fingerprint="sha256:…")    # doctest: +SKIP
    >>> command.complete(begun.token, 201, body=b"paid") # doctest: +SKIP
    """

    operation: str
    key: str

    def _name(self, operation: Any, key: Any) -> None:
        self.operation = check_operation(operation)
        self.key = check_name("key", key)

    @property
    def _path(self) -> str:
        return path("commands", self.operation, self.key)

    @sync_or_async
    def begin(
        self,
        *,
        fingerprint: str = "",
        lease: Seconds = 30,
        retention: Seconds = 86400,
        wait: Seconds = 0,
        on_unknown: str = "refuse",
    ) -> Steps[Begun]:
        """Asks for the right to run the command; raises Busy, KeyReused or OutcomeUnknown."""
        if on_unknown not in ("refuse", "rerun"):
            raise InvalidRequest('on_unknown must be "refuse" or "rerun"')
        if not isinstance(fingerprint, str) or len(fingerprint.encode()) > 255:
            raise InvalidRequest("fingerprint must be a str of at most 255 bytes")
        fields = {
            # To the server an empty fingerprint is one, and none at all another.
            **({"fingerprint": fingerprint} if fingerprint else {}),
            "lease_ms": millis(seconds("lease", lease, most=HOUR)),
            "retention_ms": millis(seconds("retention", retention, most=MAX_RETENTION)),
            "on_unknown": on_unknown,
        }
        wait = seconds("wait", wait, most=MAX_WAIT, least=0)
        return _begun((yield from send_waiting("POST", self._path, fields, wait)))

    @sync_or_async
    def complete(
        self, token: str, status: int = 200, headers: Optional[Headers] = None, body: bytes = b""
    ) -> Steps[None]:
        """Stores the answer; raises Lost where the claim is another's by now."""
        fields = {"token": _token(token), "status": status, "headers": dict(headers or {})}
        fields.update(_body_field(body))
        yield from send(Request("PUT", self._path, encode_json("headers", fields)))

    @sync_or_async
    def fail(self, token: str) -> Steps[None]:
        """Gives the command back: nothing happened, and the next attempt may run."""
        yield from send(Request("DELETE", self._path, headers={"hapax-token": _token(token)}))

    @sync_or_async
    def renew(self, token: str, lease: Seconds = 30) -> Steps[None]:
        """Extends the lease from now on; raises Lost where the claim is another's by now."""
        body = {"token": _token(token), "lease_ms": millis(seconds("lease", lease, most=HOUR))}
        yield from send(
            Request("PATCH", self._path, encode_json("token", body)), total=_total(lease)
        )

    @sync_or_async
    def get(self) -> Steps[Optional[dict[str, Any]]]:
        """The state of the command at the server: `state`, `attempt`, …; None where it knows nothing."""
        try:
            response = yield from send(Request("GET", self._path))
        except Missing:
            return None
        shown: dict[str, Any] = response.json()
        return shown


class Command(CommandSteps, SyncBound):
    def __init__(self, transport: SyncTransport, operation: str, key: str) -> None:
        super().__init__(transport)
        self._name(operation, key)


class AsyncCommand(CommandSteps, AsyncBound):
    def __init__(self, transport: AsyncTransport, operation: str, key: str) -> None:
        super().__init__(transport)
        self._name(operation, key)


def send_waiting(method: str, path: str, fields: dict[str, Any], wait: float) -> Steps[Response]:
    """Sends a request with `wait_ms`, again while the answer is Busy and time is left."""
    deadline = time.monotonic() + wait
    while True:
        part = max(0.0, min(deadline - time.monotonic(), WAIT_SLICE))
        body = encode_json("body", {**fields, "wait_ms": millis(part)})
        try:
            return (yield from send(Request(method, path, body, wait=part)))
        except Busy:
            if time.monotonic() >= deadline:
                raise


def _total(lease: Seconds) -> float:
    return seconds("lease", lease, most=HOUR) / 2


def _token(token: Any) -> str:
    return check_name("token", token)


def _body_field(body: Any) -> dict[str, str]:
    if isinstance(body, str):
        return {"body": body}
    if not isinstance(body, (bytes, bytearray)):
        raise InvalidRequest(f"body must be bytes or str, not {type(body).__name__}")
    try:
        return {"body": bytes(body).decode()}
    except UnicodeDecodeError:
        return {"body_base64": base64.b64encode(body).decode()}


def _begun(response: Response) -> Begun:
    shown = response.json()
    if response.status == 201:
        return Begun("granted", shown["token"], shown["fence"], shown["attempt"])
    return Begun("completed", answer=answer_from(shown))


def answer_from(shown: dict[str, Any]) -> Answer:
    encoded = shown.get("body_base64")
    body = base64.b64decode(encoded) if encoded is not None else shown.get("body", "").encode()
    expires = shown.get("expires_in_ms")
    return Answer(
        shown["status"],
        shown.get("headers") or {},
        body,
        None if expires is None else expires / 1000,
    )
