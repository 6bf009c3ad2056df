"""Outbox and inbox in the caller's transaction, sync and async, over any driver."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from datetime import datetime
from types import ModuleType
from typing import Any, Callable, Optional

from . import values
from .transaction import AsyncTransaction, Calls, Transaction, run, run_async
from .values import Duration


class _OutboxCalls(Calls):
    def _enqueue(
        self,
        topic: str,
        key: Optional[str],
        payload: object,
        headers: Optional[Mapping[str, str]],
        queue: str,
        not_before: Optional[datetime],
        tenant: Optional[str],
    ) -> Callable[[ModuleType], Any]:
        arguments = (
            self._tenant_or(tenant),
            topic,
            key,
            values.check_message(topic, key, payload),
            values.check_message_headers(headers),
            values.check_queue(queue),
            values.check_not_before(not_before),
        )
        return lambda statements: statements.enqueue(*arguments)


class Outbox(_OutboxCalls):
    """Messages that are sent if, and only if, the caller's transaction commits; `hapax relay` sends
    them."""

    def __init__(self, transaction: Transaction, tenant: str) -> None:
        super().__init__(tenant)
        self._transaction = transaction

    def enqueue(
        self,
        topic: str,
        key: Optional[str],
        payload: object,
        headers: Optional[Mapping[str, str]] = None,
        queue: str = "outbox",
        not_before: Optional[datetime] = None,
        tenant: Optional[str] = None,
    ) -> uuid.UUID:
        """Adds a message and returns its id, which travels with it. Messages of one key keep their
        order. The payload is bytes or a text, sent as they are, or a JSON value."""
        steps = self._enqueue(topic, key, payload, headers, queue, not_before, tenant)
        message_id: uuid.UUID = run(self._transaction, steps)
        return message_id


class AsyncOutbox(_OutboxCalls):
    """As `Outbox`, for asyncio."""

    def __init__(self, transaction: AsyncTransaction, tenant: str) -> None:
        super().__init__(tenant)
        self._transaction = transaction

    async def enqueue(
        self,
        topic: str,
        key: Optional[str],
        payload: object,
        headers: Optional[Mapping[str, str]] = None,
        queue: str = "outbox",
        not_before: Optional[datetime] = None,
        tenant: Optional[str] = None,
    ) -> uuid.UUID:
        """See `Outbox.enqueue`."""
        steps = self._enqueue(topic, key, payload, headers, queue, not_before, tenant)
        message_id: uuid.UUID = await run_async(self._transaction, steps)
        return message_id


class _InboxCalls(Calls):
    def _receive(
        self, consumer: str, message_id: str, tenant: Optional[str], retention: Duration
    ) -> Callable[[ModuleType], Any]:
        arguments = (
            self._tenant_or(tenant),
            values.check_key("consumer", consumer),
            values.check_key("message_id", message_id),
            values.check_duration("retention", retention, values.MAX_RETENTION),
        )
        return lambda statements: statements.receive(*arguments)


class Inbox(_InboxCalls):
    """Messages that were delivered twice have their effect once."""

    def __init__(self, transaction: Transaction, tenant: str) -> None:
        super().__init__(tenant)
        self._transaction = transaction

    def receive(
        self,
        consumer: str,
        message_id: str,
        tenant: Optional[str] = None,
        retention: Duration = values.INBOX_RETENTION,
    ) -> bool:
        """``True`` for the first delivery: act in this transaction, commit, then acknowledge.
        ``False`` for a duplicate: acknowledge it. Raises `Busy` while another consumer has it: do
        not acknowledge it, so that it is delivered again."""
        steps = self._receive(consumer, message_id, tenant, retention)
        return bool(run(self._transaction, steps))


class AsyncInbox(_InboxCalls):
    """As `Inbox`, for asyncio."""

    def __init__(self, transaction: AsyncTransaction, tenant: str) -> None:
        super().__init__(tenant)
        self._transaction = transaction

    async def receive(
        self,
        consumer: str,
        message_id: str,
        tenant: Optional[str] = None,
        retention: Duration = values.INBOX_RETENTION,
    ) -> bool:
        """See `Inbox.receive`."""
        steps = self._receive(consumer, message_id, tenant, retention)
        return bool(await run_async(self._transaction, steps))
