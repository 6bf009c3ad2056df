"""The inbox: each message has its effect once for each consumer."""

from __future__ import annotations

import os
import time
from types import TracebackType
from typing import Optional

from ._arguments import HOUR, MAX_RETENTION, Seconds, check_name, encode_json, millis, path, seconds
from ._commands import MAX_WAIT
from ._lease import Lease, RenewalTask, RenewalThread, log, run_to_end
from ._locks import RENEW_FOR
from ._protocol import Pause, Request, Steps
from ._retry import send
from ._transport import AsyncTransport, SyncTransport
from .errors import Busy, HapaxError, InvalidRequest

RETENTION = 30 * 24 * HOUR


class MessageSteps:
    """The part that sync and async messages share. False where the message had its effect before."""

    def __init__(
        self, consumer: str, message_id: str, lease: Seconds, retention: Seconds, wait: Seconds
    ) -> None:
        self._path = path(
            "inbox", check_name("consumer", consumer), check_name("message_id", message_id)
        )
        self._lease_time = seconds("lease", lease, most=HOUR)
        self._retention = seconds("retention", retention, most=MAX_RETENTION)
        self._wait = seconds("wait", wait, most=MAX_WAIT, least=0)
        self._token: Optional[str] = None
        self._lease: Optional[Lease] = None
        self._owner_pid = 0
        self.first = False
        self.fence: Optional[int] = None
        self.attempt: Optional[int] = None

    def __bool__(self) -> bool:
        return self.first

    @property
    def lost(self) -> bool:
        """Whether the message may be another's by now."""
        return self._lease is not None and self._lease.lost

    def _receive(self) -> Steps[None]:
        if self._lease is not None:
            raise InvalidRequest("this message object was used already; call once() again")
        body = encode_json(
            "lease",
            {"lease_ms": millis(self._lease_time), "retention_ms": millis(self._retention)},
        )
        deadline = time.monotonic() + self._wait
        while True:
            lease, asked_at = Lease(self._lease_time, RENEW_FOR), time.monotonic()
            try:
                response = yield from send(Request("POST", self._path, body))
                break
            except Busy as busy:
                if time.monotonic() >= deadline:
                    raise
                pause = min(0.5, busy.retry_after or 0.5, deadline - time.monotonic())
                yield Pause(max(0.01, pause))
        told = response.json()
        if response.status == 200:
            return
        self._token, self.fence, self.attempt = told["token"], told["fence"], told["attempt"]
        self.first, self._owner_pid = True, os.getpid()
        lease.begin(asked_at)
        self._lease = lease

    def _renew(self) -> Steps[None]:
        body = encode_json("token", {"token": self._token, "lease_ms": millis(self._lease_time)})
        yield from send(Request("PATCH", self._path, body), total=self._lease_time / 2)

    def _settle(self, failed: bool) -> Steps[None]:
        if self._token is None or self._lease is None or self._owner_pid != os.getpid():
            return
        token, self._token = self._token, None
        self._lease.end()
        if not failed:
            yield from send(Request("PUT", self._path, encode_json("token", {"token": token})))
            return
        try:
            yield from send(Request("DELETE", self._path, headers={"hapax-token": token}))
        except HapaxError as error:
            # The error of the block tells more; the next delivery takes over when the lease expires.
            log.warning("a message could not be given back: %s", error.code or "no answer")


class Message(MessageSteps):
    """One delivery of a message, to be used with `with`."""

    def __init__(
        self,
        transport: SyncTransport,
        consumer: str,
        message_id: str,
        lease: Seconds,
        retention: Seconds,
        wait: Seconds,
    ) -> None:
        super().__init__(consumer, message_id, lease, retention, wait)
        self._transport = transport
        self._renewal: Optional[RenewalThread] = None

    def __enter__(self) -> Message:
        self._transport.run(self._receive())
        if self._lease is not None:
            self._renewal = RenewalThread(self._transport, self._lease.keep(self._renew))
        return self

    def __exit__(
        self,
        kind: Optional[type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        if self._renewal is not None:
            self._renewal.stop()
        self._transport.run(self._settle(failed=error is not None))


class AsyncMessage(MessageSteps):
    """One delivery of a message, to be used with `async with`."""

    def __init__(
        self,
        transport: AsyncTransport,
        consumer: str,
        message_id: str,
        lease: Seconds,
        retention: Seconds,
        wait: Seconds,
    ) -> None:
        super().__init__(consumer, message_id, lease, retention, wait)
        self._transport = transport
        self._renewal: Optional[RenewalTask] = None

    async def __aenter__(self) -> AsyncMessage:
        await self._transport.run(self._receive())
        if self._lease is not None:
            self._renewal = RenewalTask(self._transport, self._lease.keep(self._renew))
        return self

    async def __aexit__(
        self,
        kind: Optional[type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        if self._renewal is not None:
            self._renewal.stop()
        await run_to_end(self._settle(failed=error is not None), self._transport)


class Inbox:
    """The inbox of one consumer.

    >>> with client.inbox("billing").once(message.id) as first:  # doctest: +SKIP
    ...     if first:
    ...         send_invoice(message)
    """

    def __init__(self, transport: SyncTransport, consumer: str) -> None:
        self._transport = transport
        self.consumer = check_name("consumer", consumer)

    def once(
        self,
        message_id: str,
        *,
        lease: Seconds = 30,
        retention: Seconds = RETENTION,
        wait: Seconds = 0,
    ) -> Message:
        """A context manager that is false for a duplicate; an error in its block gives the message back."""
        return Message(self._transport, self.consumer, message_id, lease, retention, wait)


class AsyncInbox:
    """The twin of `Inbox` for asyncio."""

    def __init__(self, transport: AsyncTransport, consumer: str) -> None:
        self._transport = transport
        self.consumer = check_name("consumer", consumer)

    def once(
        self,
        message_id: str,
        *,
        lease: Seconds = 30,
        retention: Seconds = RETENTION,
        wait: Seconds = 0,
    ) -> AsyncMessage:
        """An async context manager that is false for a duplicate."""
        return AsyncMessage(self._transport, self.consumer, message_id, lease, retention, wait)
