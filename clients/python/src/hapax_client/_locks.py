"""Locks: one owner at a time, renewed in the background, with a fence."""

from __future__ import annotations

import functools
import os
import time
from inspect import iscoroutinefunction
from types import TracebackType
from typing import Any, Callable, Optional, TypeVar

from ._arguments import HOUR, Seconds, check_name, encode_json, millis, path, seconds
from ._commands import MAX_WAIT, send_waiting
from ._lease import Lease, RenewalTask, RenewalThread, log, run_to_end
from ._protocol import Request, Steps
from ._retry import send
from ._transport import AsyncTransport, SyncTransport
from .errors import Busy, InvalidRequest, Lost, StoreUnavailable

F = TypeVar("F", bound=Callable[..., Any])

# The longest that renewal goes on where the caller does not say.
RENEW_FOR = HOUR
MAX_RENEW_FOR = 30 * 24 * HOUR


class LockSteps:
    """The part that sync and async locks share."""

    def __init__(
        self, name: str, ttl: Seconds, wait: Seconds, blocking: bool, renew_for: Optional[Seconds]
    ) -> None:
        self.name = check_name("name", name)
        self._ttl = seconds("ttl", ttl, most=HOUR)
        wait = seconds("wait", wait, most=MAX_WAIT, least=0)
        self._wait = wait if blocking else 0.0
        limit = RENEW_FOR if renew_for is None else renew_for
        self._renew_for = seconds("renew_for", limit, most=MAX_RENEW_FOR, least=0)
        self._path = path("locks", self.name)
        self._token: Optional[str] = None
        self._fence: Optional[int] = None
        self._lease: Optional[Lease] = None
        self._owner_pid = 0

    @property
    def fence(self) -> int:
        """A number that grows with every owner; pass it on to what is written under the lock."""
        if self._fence is None:
            raise InvalidRequest(
                "the lock was not taken yet: use it with `with`, or call acquire()"
            )
        return self._fence

    @property
    def lost(self) -> bool:
        """Whether the lock may be another's by now: not renewed in time, or taken away."""
        return self._lease is not None and self._lease.lost

    def _take(self) -> Steps[None]:
        if self._token is not None:
            raise InvalidRequest("this lock object is taken already; make one for each owner")
        lease = Lease(self._ttl, self._renew_for)
        asked_at = time.monotonic()
        fields = {"ttl_ms": millis(self._ttl)}
        response = yield from send_waiting("POST", self._path, fields, self._wait)
        taken = response.json()
        self._token, self._fence, self._owner_pid = taken["token"], taken["fence"], os.getpid()
        if time.monotonic() - asked_at > self._ttl / 3:
            # A request that waited was granted at some time since. Renewing gives the lease a known
            # beginning, so that it is never believed longer than by the server.
            asked_at = time.monotonic()
            try:
                yield from self._renew()
            except Lost:
                self._token = None
                raise Busy("the lock expired before its grant arrived; try again") from None
        lease.begin(asked_at)
        self._lease = lease

    def _renew(self) -> Steps[None]:
        body = encode_json("token", {"token": self._token, "ttl_ms": millis(self._ttl)})
        yield from send(Request("PUT", self._path, body), total=self._ttl / 2)

    def _give_back(self) -> Steps[None]:
        token, self._token = self._token, None
        if token is None or self._lease is None:
            raise InvalidRequest("the lock is not taken")
        if self._owner_pid != os.getpid():
            return  # A forked child leaves the lock to its parent.
        self._lease.end()
        try:
            yield from send(Request("DELETE", self._path, headers={"hapax-token": token}))
        except StoreUnavailable:
            log.warning("a lock could not be released; it expires by itself")
        if self._lease.lost:
            raise Lost("the lock was lost while it was held: another owner may have been at work")


class Lock(LockSteps):
    """A lock to be used with `with`, as a decorator, or by `acquire` and `release`.

    >>> with client.lock("nightly", ttl=60, wait=5) as lock:  # doctest: +SKIP
    ...     write_report(fence=lock.fence)
    """

    def __init__(
        self,
        transport: SyncTransport,
        name: str,
        ttl: Seconds,
        wait: Seconds,
        blocking: bool,
        renew_for: Optional[Seconds],
    ) -> None:
        super().__init__(name, ttl, wait, blocking, renew_for)
        self._again: Callable[[], Lock] = lambda: Lock(
            transport, name, ttl, wait, blocking, renew_for
        )
        self._transport = transport
        self._renewal: Optional[RenewalThread] = None

    def acquire(self) -> bool:
        """Takes the lock; false where another owner still has it after the wait."""
        try:
            self.__enter__()
        except Busy:
            return False
        return True

    def release(self) -> None:
        """Releases the lock; raises Lost where it was another's meanwhile."""
        if self._renewal is not None:
            self._renewal.stop()
        self._transport.run(self._give_back())

    def __enter__(self) -> Lock:
        self._transport.run(self._take())
        assert self._lease is not None
        self._renewal = RenewalThread(self._transport, self._lease.keep(self._renew))
        return self

    def __exit__(
        self,
        kind: Optional[type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        try:
            self.release()
        except Lost:
            # The error of the block tells more than the loss.
            if error is None:
                raise

    def __call__(self, function: F) -> F:
        """Decorates a function: each call takes the lock, and releases it at its end."""
        if iscoroutinefunction(function):
            raise InvalidRequest(
                "a coroutine function needs the lock of an async client: aconnect()"
            )

        @functools.wraps(function)
        def locked(*args: Any, **kwargs: Any) -> Any:
            with self._again():
                return function(*args, **kwargs)

        return locked  # type: ignore[return-value]


class AsyncLock(LockSteps):
    """The twin of `Lock` for asyncio.

    >>> async with client.lock("nightly", ttl=60, wait=5) as lock:  # doctest: +SKIP
    ...     await write_report(fence=lock.fence)
    """

    def __init__(
        self,
        transport: AsyncTransport,
        name: str,
        ttl: Seconds,
        wait: Seconds,
        blocking: bool,
        renew_for: Optional[Seconds],
    ) -> None:
        super().__init__(name, ttl, wait, blocking, renew_for)
        self._again: Callable[[], AsyncLock] = lambda: AsyncLock(
            transport, name, ttl, wait, blocking, renew_for
        )
        self._transport = transport
        self._renewal: Optional[RenewalTask] = None

    async def acquire(self) -> bool:
        """Takes the lock; false where another owner still has it after the wait."""
        try:
            await self.__aenter__()
        except Busy:
            return False
        return True

    async def release(self) -> None:
        """Releases the lock; raises Lost where it was another's meanwhile."""
        if self._renewal is not None:
            self._renewal.stop()
        await run_to_end(self._give_back(), self._transport)

    async def __aenter__(self) -> AsyncLock:
        await self._transport.run(self._take())
        assert self._lease is not None
        self._renewal = RenewalTask(self._transport, self._lease.keep(self._renew))
        return self

    async def __aexit__(
        self,
        kind: Optional[type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        try:
            await self.release()
        except Lost:
            if error is None:
                raise

    def __call__(self, function: F) -> F:
        """Decorates a coroutine function: each call takes the lock, and releases it at its end."""
        if not iscoroutinefunction(function):
            raise InvalidRequest("a plain function needs the lock of a blocking client: connect()")

        @functools.wraps(function)
        async def locked(*args: Any, **kwargs: Any) -> Any:
            async with self._again():
                return await function(*args, **kwargs)

        return locked  # type: ignore[return-value]
