"""Collects the response of an ASGI application while it goes out to the client."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any, Callable, Optional

from . import _kept_response
from ._asgi_wire import Message, Send
from ._keyed_request import Settings


class ResponseCut(Exception):
    """The application's response broke off or has another length than it declared."""


class CollectedResponse:
    """Passes a response on as it comes, and keeps a copy of it up to the limit.

    ``at_end`` is called before the client can know that it has everything: before the last byte where the length is
    declared, else before the end.
    """

    def __init__(
        self,
        settings: Settings,
        client: Send,
        at_end: Callable[[CollectedResponse], Awaitable[bool]],
    ):
        self._settings = settings
        self._client = client
        self._at_end = at_end
        self._start: Optional[Message] = None
        self._held: list[bytes] = []
        self._length: Optional[int] = None
        self._sent = 0
        self.started = False
        self.ended = False
        self.client_is_gone = False
        self.status = 0
        self.headers: list[Any] = []
        self.body: Optional[bytearray] = bytearray()

    @property
    def is_kept(self) -> bool:
        """Whether the whole response fits into the store."""
        return self.body is not None

    async def send(self, message: Message) -> None:
        """Takes a message of the application."""
        if message["type"] == "http.response.start":
            self._begin(message)
        elif message["type"] == "http.response.body":
            await self._continue(message.get("body", b""), bool(message.get("more_body", False)))
        else:
            await self._pass_on(message)

    def _begin(self, message: Message) -> None:
        headers = [
            (bytes(name).lower(), bytes(value)) for name, value in message.get("headers", [])
        ]
        self.status, self.headers = message["status"], headers
        self._length = _kept_response.declared_length(headers)
        if _kept_response.is_event_stream(headers):
            self.body = None
        self._start = {**message, "headers": _kept_response.without_own_headers(headers)}

    async def _continue(self, chunk: bytes, more: bool) -> None:
        if self._start is None and not self.started:
            raise ResponseCut("the application sent a body before the head of its response")
        self._collect(chunk)
        self._sent += len(chunk)
        self._held.append(chunk)
        if not more:
            await self._finish()
        elif self._length is None or self._sent < self._length:
            await self._release(more=True)

    def _collect(self, chunk: bytes) -> None:
        if self.body is None:
            return
        self.body += chunk
        if len(self.body) > self._settings.max_body:
            self.body = None

    async def _finish(self) -> None:
        # The response to HEAD and 304 may declare a length that no body follows; neither takes a key.
        if (
            self._length is not None
            and self._sent != self._length
            and self.status not in (204, 304)
        ):
            raise ResponseCut("the response has another length than it declared")
        self.ended = True
        if await self._at_end(self):
            await self._release(more=False)

    async def _release(self, more: bool) -> None:
        if self._start is not None:
            start, self._start, self.started = self._start, None, True
            await self._pass_on(start)
        chunk, self._held = b"".join(self._held), []
        await self._pass_on({"type": "http.response.body", "body": chunk, "more_body": more})

    async def _pass_on(self, message: Message) -> None:
        if self.client_is_gone:
            return
        try:
            await self._client(message)
        except Exception:
            # A client that leaves changes nothing: the run goes on, and its response is kept.
            self.client_is_gone = True
