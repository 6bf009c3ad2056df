"""``Idempotency-Key`` for ASGI applications (FastAPI, Starlette, Django, Litestar, Quart).

>>> app.add_middleware(IdempotencyMiddleware, client=hapax_client.aconnect())  # doctest: +SKIP

The first request with a key runs; every other one with it gets the same answer, byte for byte. The rules
are those of hapax's own layer and proxy: see ``docs/idempotency-key.md``.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable
from typing import Any, Callable, Optional, Union

from . import _keyed_run
from ._asgi_run import FirstRun
from ._asgi_wire import Message, Receive, Scope, Send, body_then, send_problem, send_replay
from ._client import AsyncClient, Client, aconnect
from ._commands import AsyncCommand, Begun
from ._keyed_request import RESERVED_HEADERS, Head, KeyedRequest, Settings, fingerprint_of
from ._problem_document import Problem

App = Callable[[Scope, Receive, Send], Awaitable[None]]

# Responses are collected as they are sent: nothing may go out behind the middleware's back.
_WITHHELD_EXTENSIONS = (
    "http.response.pathsend",
    "http.response.zerocopysend",
    "http.response.trailers",
)
_log = logging.getLogger("hapax_client")


class IdempotencyMiddleware:
    """Runs each keyed request once. `settings` are those of `hapax_client.Settings`, by name.

    A client of the blocking kind is taken too: its server and token are used.
    """

    def __init__(
        self, app: App, client: Optional[Union[AsyncClient, Client]] = None, **settings: Any
    ) -> None:
        self.app = app
        self.settings = Settings(**settings)
        if isinstance(client, Client):
            client = client.for_asyncio()
        self.client: AsyncClient = client if client is not None else aconnect()
        self._runs: set[asyncio.Task[None]] = set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, self._closing(send))
            return
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        scope = {**scope, "headers": _without_reserved(scope["headers"])}
        head = _head_of(scope)
        try:
            keyed = KeyedRequest.parse(self.settings, head)
            if keyed is None:
                await self.app(scope, receive, send)
                return
            body = await self._read_body(receive)
            if body is None:
                return
            command = self.client.command(keyed.operation, keyed.key)
            steps = _keyed_run.begin(self.settings, command, fingerprint_of(head, body))
            begun = await self.client.run(steps)
        except Problem as problem:
            await send_problem(send, problem)
            return
        if begun is None:
            await self._run_unprotected(scope, body_then(body, receive), send)
        elif begun.answer is not None:
            await send_replay(send, begun.answer)
        else:
            await self._run_to_its_end(command, begun, scope, body, receive, send)

    async def _read_body(self, receive: Receive) -> Optional[bytes]:
        """The whole body; None where the client left before its end."""
        body, began = bytearray(), time.monotonic()
        while True:
            # One second more for each KiB that has arrived.
            left = self.settings.body_timeout + len(body) / 1024 - (time.monotonic() - began)
            try:
                message = await asyncio.wait_for(receive(), max(left, 0))
            except asyncio.TimeoutError:
                raise Problem(
                    "request-timeout", "its body took too long; nothing was run"
                ) from None
            if message["type"] == "http.disconnect":
                return None
            body += message.get("body", b"")
            if len(body) > self.settings.max_body:
                limit = self.settings.max_body
                raise Problem(
                    "payload-too-large",
                    f"a request with a key has at most {limit} bytes; nothing was run",
                )
            if not message.get("more_body", False):
                return bytes(body)

    async def _run_unprotected(self, scope: Scope, receive: Receive, send: Send) -> None:
        _log.warning("a request ran without protection: the store is unavailable")

        async def marked(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = [
                    *message.get("headers", []),
                    (b"hapax-unprotected", b"store-unavailable"),
                ]
                message = {**message, "headers": headers}
            await send(message)

        await self.app(scope, receive, marked)

    async def _run_to_its_end(
        self,
        command: AsyncCommand,
        begun: Begun,
        scope: Scope,
        body: bytes,
        receive: Receive,
        send: Send,
    ) -> None:
        """Runs the application on a task of its own, to its end even if the client leaves."""
        run = FirstRun(self.app, self.settings, self.client, command, begun, send)
        task = asyncio.ensure_future(run.run(_scope_of_run(scope, begun), body))
        self._runs.add(task)
        task.add_done_callback(self._runs.discard)
        watcher = asyncio.ensure_future(run.watch_client(receive, task))
        try:
            await asyncio.shield(task)
        finally:
            watcher.cancel()

    def _closing(self, send: Send) -> Send:
        """Ends what outlives its connection before the server ends."""

        async def closing(message: Message) -> None:
            if message["type"] == "lifespan.shutdown.complete":
                await self.drain()
                await self.client.aclose()
            await send(message)

        return closing

    async def drain(self) -> None:
        """Waits until all first runs have ended and are stored."""
        while self._runs:
            await asyncio.wait(set(self._runs))


def _head_of(scope: Scope) -> Head:
    # The path of a mounted application is below its root: the key belongs to the whole path.
    root, path = scope.get("root_path", ""), scope["path"]
    full = path if path.startswith(root) else root + path
    raw = scope.get("raw_path") or path.encode()
    return Head(scope["method"], full, scope.get("query_string", b""), scope["headers"], raw)


def _without_reserved(headers: Any) -> list[tuple[bytes, bytes]]:
    lower = [(bytes(name).lower(), bytes(value)) for name, value in headers]
    return [(name, value) for name, value in lower if name not in RESERVED_HEADERS]


def _scope_of_run(scope: Scope, begun: Begun) -> Scope:
    told = [
        (b"hapax-attempt", b"%d" % (begun.attempt or 1)),
        (b"hapax-fence", b"%d" % (begun.fence or 0)),
    ]
    extensions = scope.get("extensions") or {}
    kept = {name: value for name, value in extensions.items() if name not in _WITHHELD_EXTENSIONS}
    return {**scope, "headers": [*scope["headers"], *told], "extensions": kept}
