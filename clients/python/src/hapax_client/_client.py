"""The client, sync and async: everything begins here."""

from __future__ import annotations

from collections.abc import Generator
from types import TracebackType
from typing import Any, Optional

from ._arguments import Seconds, seconds
from ._commands import AsyncCommand, Command
from ._endpoint import Endpoint, endpoint_from
from ._transport import AsyncTransport, SyncTransport
from .errors import InvalidRequest

# The longest that the server may take for a request, beyond what the request asks it to wait.
TIMEOUT = 10.0


class Client:
    """A blocking client; used by any number of threads, before and after a fork.

    >>> with hapax_client.connect("http://127.0.0.1:8787") as client:  # doctest: +SKIP
    ...     client.command("pay", "order-1").get()
    """

    def __init__(self, transport: SyncTransport) -> None:
        self._transport = transport

    def command(self, operation: str, key: str) -> Command:
        """One command: begin, renew, complete, fail, get."""
        return Command(self._transport, operation, key)

    def close(self) -> None:
        """Closes the connections. A later call opens new ones."""
        self._transport.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self,
        kind: Optional[type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        self.close()


class AsyncClient:
    """A client for asyncio; each event loop has connections of its own.

    >>> async with hapax_client.aconnect("http://127.0.0.1:8787") as client:  # doctest: +SKIP
    ...     await client.command("pay", "order-1").get()
    """

    def __init__(self, transport: AsyncTransport) -> None:
        self._transport = transport

    def command(self, operation: str, key: str) -> AsyncCommand:
        """One command: begin, renew, complete, fail, get."""
        return AsyncCommand(self._transport, operation, key)

    async def aclose(self) -> None:
        """Closes the connections of this event loop. A later call opens new ones."""
        await self._transport.close()

    close = aclose

    async def __aenter__(self) -> AsyncClient:
        await self._transport.address()
        return self

    async def __aexit__(
        self,
        kind: Optional[type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        await self.aclose()

    def __await__(self) -> Generator[Any, None, AsyncClient]:
        """`await aconnect()` finds the server at once, not with the first call."""
        return self.__aenter__().__await__()


def connect(
    url: Optional[str] = None, *, token: Optional[str] = None, timeout: Seconds = TIMEOUT
) -> Client:
    """A client of the server at `url`, or of the one that HAPAX_URL or HAPAX_SERVER names.

    `token` is an access token (HAPAX_TOKEN), `timeout` the longest that a call may take beyond what
    it asks the server to wait. Nothing is sent before the first call.
    """
    return Client(SyncTransport(_endpoint(url, token), _timeout(timeout)))


def aconnect(
    url: Optional[str] = None, *, token: Optional[str] = None, timeout: Seconds = TIMEOUT
) -> AsyncClient:
    """The twin of `connect` for asyncio: use it with `async with`, `await`, or as it is."""
    return AsyncClient(AsyncTransport(_endpoint(url, token), _timeout(timeout)))


def _timeout(timeout: Seconds) -> float:
    return seconds("timeout", timeout, most=3600)


def _endpoint(url: Optional[str], token: Optional[str]) -> Endpoint:
    endpoint = endpoint_from(url, token)
    if endpoint is None:
        raise InvalidRequest("no server: give connect(url), or set HAPAX_URL")
    return endpoint
