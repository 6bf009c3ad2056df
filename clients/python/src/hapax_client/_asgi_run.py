"""One run of an ASGI application under a claim: renewed while it runs, settled before its answer ends."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Coroutine
from typing import Any, Callable

from ._asgi_response import CollectedResponse, ResponseCut
from ._asgi_wire import Message, Receive, Scope, Send, body_then, send_problem, send_replay
from ._client import AsyncClient
from ._commands import AsyncCommand, Begun
from ._keyed_request import Settings
from ._keyed_run import (
    SETTLE_FOR,
    SETTLE_PAUSE,
    answer_of_the_winner,
    keep_alive,
    leave_unknown,
    settle,
)
from ._lease import RenewalTask
from ._problem_document import Problem
from .errors import HapaxError, Lost

App = Callable[[Scope, Receive, Send], Awaitable[None]]

_log = logging.getLogger("hapax_client")
# The event loop itself keeps only weak references to tasks.
_background: set[asyncio.Task[None]] = set()


class FirstRun:
    """One run of the application under a claim."""

    def __init__(
        self,
        app: App,
        settings: Settings,
        hapax: AsyncClient,
        command: AsyncCommand,
        begun: Begun,
        client: Send,
    ) -> None:
        assert begun.token is not None, "a granted claim has a token"
        self._app = app
        self._settings = settings
        self._hapax = hapax
        self._command = command
        self._token = begun.token
        self._client = client
        self._response = CollectedResponse(self._settings, client, self._settle)

    async def run(self, scope: Scope, body: bytes) -> None:
        renewal = self._renewal()
        try:
            await self._app(scope, body_then(body, _wait_for_ever), self._response.send)
            if not self._response.ended:
                raise ResponseCut("the application returned before the end of its response")
        except BaseException:
            if not self._response.ended:
                await self._leave_unknown()
            raise
        finally:
            renewal.stop()

    async def watch_client(self, receive: Receive, run: asyncio.Task[None]) -> None:
        """Ends a response that is not kept some time after its client has left."""
        while (await receive())["type"] != "http.disconnect":
            pass
        self._response.client_is_gone = True
        await asyncio.sleep(self._settings.detached_timeout)
        if not self._response.is_kept:
            run.cancel()

    async def _settle(self, response: CollectedResponse) -> bool:
        """Stores the outcome. False where the claim was lost, and another answer was sent."""
        try:
            await self._try_to_settle()
        except Lost:
            await self._answer_of_the_winner()
            return False
        except HapaxError:
            # The effect has happened: its client gets the answer, and the store later.
            _in_background(self._settle_later())
        return True

    async def _try_to_settle(self) -> None:
        response = self._response
        body = None if response.body is None else bytes(response.body)
        await self._hapax.run(
            settle(
                self._settings, self._command, self._token, response.status, response.headers, body
            )
        )

    async def _settle_later(self) -> None:
        end = time.monotonic() + SETTLE_FOR
        renewal = self._renewal()
        try:
            while time.monotonic() < end:
                await asyncio.sleep(SETTLE_PAUSE)
                try:
                    return await self._try_to_settle()
                except HapaxError as error:
                    if not error.retryable:
                        break
            _log.warning("the outcome of a request could not be stored")
        finally:
            renewal.stop()

    async def _answer_of_the_winner(self) -> None:
        """Another attempt took over while this one ran late: its answer counts."""
        if self._response.started:
            raise ResponseCut("another attempt has taken over")
        try:
            await send_replay(
                self._client, await self._hapax.run(answer_of_the_winner(self._command))
            )
        except Problem as problem:
            await send_problem(self._client, problem)

    def _renewal(self) -> RenewalTask:
        steps = keep_alive(self._settings, self._command, self._token)
        return RenewalTask(self._hapax._transport, steps)

    async def _leave_unknown(self) -> None:
        try:
            await asyncio.shield(self._hapax.run(leave_unknown(self._command, self._token)))
        except HapaxError:
            _log.warning("the outcome of a request is unknown from the end of its lease on")


async def _wait_for_ever() -> Message:
    # The application must not learn that its client left: a client that leaves changes nothing.
    await asyncio.get_running_loop().create_future()
    raise AssertionError("unreachable: nothing completes that future")


def _in_background(work: Coroutine[Any, Any, None]) -> None:
    task = asyncio.ensure_future(work)
    _background.add(task)
    task.add_done_callback(_background.discard)
