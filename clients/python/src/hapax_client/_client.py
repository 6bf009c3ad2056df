"""The client, sync and async: everything begins here."""

from __future__ import annotations

from collections.abc import AsyncIterator, Generator, Iterator
from types import TracebackType
from typing import Any, Callable, Optional, TypeVar

from ._arguments import Seconds, seconds
from ._bundled import BundledEndpoint
from ._commands import AsyncCommand, Command
from ._endpoint import Endpoint, endpoint_from
from ._events import RECONNECT_FOR, Event, Published, follow_steps, publish_steps
from ._inbox import AsyncInbox, Inbox
from ._locks import AsyncLock, Lock
from ._once import FingerprintSource, KeySource, OnceOptions, once_async, once_sync
from ._protocol import Steps
from ._records import AsyncRecord, Record
from ._transport import AsyncTransport, SyncTransport

T = TypeVar("T")
# The longest that the server may take for a request, beyond what the request asks it to wait.
TIMEOUT = 10.0

F = TypeVar("F", bound=Callable[..., Any])


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

    def lock(
        self,
        name: str,
        ttl: Seconds = 30,
        wait: Seconds = 30,
        blocking: bool = True,
        renew_for: Optional[Seconds] = None,
    ) -> Lock:
        """A lock for `with` or for a function, renewed in the background for at most `renew_for` (1 h).

        It waits up to `wait` for another owner, not at all with `blocking=False`, and then raises
        Busy. `ttl` is how long the lock outlives an owner that died.
        """
        return Lock(self._transport, name, ttl, wait, blocking, renew_for)

    def once(
        self,
        operation: str,
        key: KeySource,
        *,
        fingerprint: FingerprintSource = "arguments",
        lease: Seconds = 30,
        retention: Seconds = 86400,
        wait: Seconds = 30,
        renew_for: Seconds = 3600,
        on_unknown: str = "refuse",
        on_replay: Optional[Callable[[Any], Any]] = None,
        store_exceptions: tuple[type[Exception], ...] = (),
    ) -> Callable[[F], F]:
        """Decorates a function: it runs once for each key, and every call gets the first result.

        `key` is a text, the name of an argument, or a callable of the arguments. The fingerprint is
        the SHA-256 of all arguments as canonical JSON (but `self` and `cls`), of those that
        `fingerprint` names, or what it returns if it is callable; None for none. A call with the
        same key and another fingerprint raises KeyReused.

        A call waits up to `wait` for one in progress, then raises Busy. An exception gives the key
        back, so that a retry may run, unless `store_exceptions` names it: then every later call
        raises it too. `on_replay` is called with a result that was not computed by this call.
        """
        options = OnceOptions(
            operation,
            key,
            fingerprint=fingerprint,
            lease=lease,
            retention=retention,
            wait=wait,
            renew_for=renew_for,
            on_unknown=on_unknown,
            on_replay=on_replay,
            store_exceptions=store_exceptions,
        )
        return lambda function: once_sync(self._transport, options, function)

    def record(self, key: str) -> Record:
        """One record: get, read, put, update, delete."""
        return Record(self._transport, key)

    def inbox(self, consumer: str) -> Inbox:
        """The inbox of one consumer: each message has its effect once."""
        return Inbox(self._transport, consumer)

    def publish(
        self,
        domain: str,
        job_id: str,
        stage: str,
        seq: int,
        data: Any = None,
        *,
        final: bool = False,
    ) -> Published:
        """Publishes an event of a job; the same event again changes nothing. `final` closes the job."""
        return self._transport.run(publish_steps(domain, job_id, stage, seq, data, final))

    def follow(
        self,
        domain: str,
        job_id: str,
        last_event_id: Optional[str] = None,
        *,
        reconnect_for: Seconds = RECONNECT_FOR,
    ) -> Iterator[Event]:
        """Iterates over the events of a job until it is closed, from after `last_event_id`.

        Reconnects by itself; without an answer for `reconnect_for` it raises StoreUnavailable.
        Missing events are told by an event of the kind `gap`.
        """
        return self._transport.iterate(follow_steps(domain, job_id, last_event_id, reconnect_for))
    def run(self, steps: Steps[T]) -> T:
        """Drives an operation that is written as steps."""
        return self._transport.run(steps)

    def for_asyncio(self) -> AsyncClient:
        """The twin of this client for asyncio: the same server and token."""
        return AsyncClient(self._transport.for_asyncio())

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

    def lock(
        self,
        name: str,
        ttl: Seconds = 30,
        wait: Seconds = 30,
        blocking: bool = True,
        renew_for: Optional[Seconds] = None,
    ) -> AsyncLock:
        """A lock for `async with` or for a coroutine function, renewed in the background for at most `renew_for` (1 h).

        It waits up to `wait` for another owner, not at all with `blocking=False`, and then raises
        Busy. `ttl` is how long the lock outlives an owner that died.
        """
        return AsyncLock(self._transport, name, ttl, wait, blocking, renew_for)

    def once(
        self,
        operation: str,
        key: KeySource,
        *,
        fingerprint: FingerprintSource = "arguments",
        lease: Seconds = 30,
        retention: Seconds = 86400,
        wait: Seconds = 30,
        renew_for: Seconds = 3600,
        on_unknown: str = "refuse",
        on_replay: Optional[Callable[[Any], Any]] = None,
        store_exceptions: tuple[type[Exception], ...] = (),
    ) -> Callable[[F], F]:
        """Decorates a function: it runs once for each key, and every call gets the first result.

        `key` is a text, the name of an argument, or a callable of the arguments. The fingerprint is
        the SHA-256 of all arguments as canonical JSON (but `self` and `cls`), of those that
        `fingerprint` names, or what it returns if it is callable; None for none. A call with the
        same key and another fingerprint raises KeyReused.

        A call waits up to `wait` for one in progress, then raises Busy. An exception gives the key
        back, so that a retry may run, unless `store_exceptions` names it: then every later call
        raises it too. `on_replay` is called with a result that was not computed by this call.
        """
        options = OnceOptions(
            operation,
            key,
            fingerprint=fingerprint,
            lease=lease,
            retention=retention,
            wait=wait,
            renew_for=renew_for,
            on_unknown=on_unknown,
            on_replay=on_replay,
            store_exceptions=store_exceptions,
        )
        return lambda function: once_async(self._transport, options, function)

    def record(self, key: str) -> AsyncRecord:
        """One record: get, read, put, update, delete."""
        return AsyncRecord(self._transport, key)

    def inbox(self, consumer: str) -> AsyncInbox:
        """The inbox of one consumer: each message has its effect once."""
        return AsyncInbox(self._transport, consumer)

    async def publish(
        self,
        domain: str,
        job_id: str,
        stage: str,
        seq: int,
        data: Any = None,
        *,
        final: bool = False,
    ) -> Published:
        """Publishes an event of a job; the same event again changes nothing. `final` closes the job."""
        return await self._transport.run(publish_steps(domain, job_id, stage, seq, data, final))

    def follow(
        self,
        domain: str,
        job_id: str,
        last_event_id: Optional[str] = None,
        *,
        reconnect_for: Seconds = RECONNECT_FOR,
    ) -> AsyncIterator[Event]:
        """Iterates over the events of a job until it is closed, from after `last_event_id`.

        Reconnects by itself; without an answer for `reconnect_for` it raises StoreUnavailable.
        Missing events are told by an event of the kind `gap`.
        """
        return self._transport.iterate(follow_steps(domain, job_id, last_event_id, reconnect_for))
    async def run(self, steps: Steps[T]) -> T:
        """Drives an operation that is written as steps."""
        return await self._transport.run(steps)

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

    Without any, a server of this user is found or started: see "A server of your own" in the guide.
    `token` is an access token (HAPAX_TOKEN), `timeout` the longest that a call may take beyond what
    it asks the server to wait.
    """
    endpoint = _endpoint(url, token)
    limit = _timeout(timeout)
    if not endpoint.is_fixed:
        endpoint.address()
    return Client(SyncTransport(endpoint, limit))


def aconnect(
    url: Optional[str] = None, *, token: Optional[str] = None, timeout: Seconds = TIMEOUT
) -> AsyncClient:
    """The twin of `connect` for asyncio: use it with `async with`, `await`, or as it is."""
    return AsyncClient(AsyncTransport(_endpoint(url, token), _timeout(timeout)))


def _timeout(timeout: Seconds) -> float:
    return seconds("timeout", timeout, most=3600)


def _endpoint(url: Optional[str], token: Optional[str]) -> Endpoint:
    return endpoint_from(url, token) or BundledEndpoint()
