"""Exactly once in a transaction of psycopg 3, by the SQL functions of hapax.

>>> with psycopg.connect(url) as connection:
...     order = Idempotency(connection).once("CreateOrder", key, create_order)

The database needs hapax's tables and functions: ``hapax migrate --store postgres://…`` makes them.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from types import ModuleType
from typing import Any

from psycopg import AsyncConnection, Connection
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row

from ._sql import commands, messages, postgres
from ._sql.drive import Rows, Statement
from ._sql.placeholders import pyformat
from ._sql.values import BeginResult, fingerprint_of
from .errors import HapaxError

__all__ = [
    "AsyncIdempotency",
    "AsyncInbox",
    "AsyncOutbox",
    "BeginResult",
    "Idempotency",
    "Inbox",
    "Outbox",
    "fingerprint_of",
]

SAVEPOINT = "hapax_once"


class Idempotency(commands.Idempotency):
    """Commands in the open transaction of this connection."""

    def __init__(self, connection: Connection[Any], *, tenant: str = "default") -> None:
        super().__init__(_PsycopgTransaction(connection), tenant)


class Outbox(messages.Outbox):
    """Messages in the open transaction of this connection."""

    def __init__(self, connection: Connection[Any], *, tenant: str = "default") -> None:
        super().__init__(_PsycopgTransaction(connection), tenant)


class Inbox(messages.Inbox):
    """Received messages in the open transaction of this connection."""

    def __init__(self, connection: Connection[Any], *, tenant: str = "default") -> None:
        super().__init__(_PsycopgTransaction(connection), tenant)


class AsyncIdempotency(commands.AsyncIdempotency):
    """Commands in the open transaction of this connection."""

    def __init__(self, connection: AsyncConnection[Any], *, tenant: str = "default") -> None:
        super().__init__(_AsyncPsycopgTransaction(connection), tenant)


class AsyncOutbox(messages.AsyncOutbox):
    """Messages in the open transaction of this connection."""

    def __init__(self, connection: AsyncConnection[Any], *, tenant: str = "default") -> None:
        super().__init__(_AsyncPsycopgTransaction(connection), tenant)


class AsyncInbox(messages.AsyncInbox):
    """Received messages in the open transaction of this connection."""

    def __init__(self, connection: AsyncConnection[Any], *, tenant: str = "default") -> None:
        super().__init__(_AsyncPsycopgTransaction(connection), tenant)


class _PsycopgTransaction:
    def __init__(self, connection: Connection[Any]) -> None:
        self._connection = connection

    def statements(self) -> ModuleType:
        return _checked_statements(self._connection, self._connection.autocommit)

    def execute(self, statement: Statement) -> Rows:
        sql, parameters = statement
        with self._connection.cursor(row_factory=tuple_row) as cursor:
            return cursor.execute(pyformat(sql), parameters).fetchall()

    @contextmanager
    def savepoint(self) -> Iterator[None]:
        # Not `connection.transaction()`: as the first statement it would begin and commit.
        self._connection.execute(f"SAVEPOINT {SAVEPOINT}")
        try:
            yield
        except BaseException:
            if _is_usable(self._connection):
                self._connection.execute(f"ROLLBACK TO SAVEPOINT {SAVEPOINT}")
                self._connection.execute(f"RELEASE SAVEPOINT {SAVEPOINT}")
            raise
        self._connection.execute(f"RELEASE SAVEPOINT {SAVEPOINT}")


class _AsyncPsycopgTransaction:
    def __init__(self, connection: AsyncConnection[Any]) -> None:
        self._connection = connection

    async def statements(self) -> ModuleType:
        return _checked_statements(self._connection, self._connection.autocommit)

    async def execute(self, statement: Statement) -> Rows:
        sql, parameters = statement
        async with self._connection.cursor(row_factory=tuple_row) as cursor:
            await cursor.execute(pyformat(sql), parameters)
            return await cursor.fetchall()

    @asynccontextmanager
    async def savepoint(self) -> AsyncIterator[None]:
        await self._connection.execute(f"SAVEPOINT {SAVEPOINT}")
        try:
            yield
        except BaseException:
            if _is_usable(self._connection):
                await self._connection.execute(f"ROLLBACK TO SAVEPOINT {SAVEPOINT}")
                await self._connection.execute(f"RELEASE SAVEPOINT {SAVEPOINT}")
            raise
        await self._connection.execute(f"RELEASE SAVEPOINT {SAVEPOINT}")


def _checked_statements(connection: Any, autocommit: bool) -> ModuleType:
    if autocommit and connection.info.transaction_status == TransactionStatus.IDLE:
        raise HapaxError(
            "no transaction is open on this autocommit connection; use `with connection.transaction():`"
        )
    return postgres


def _is_usable(connection: Any) -> bool:
    return connection.info.transaction_status in (
        TransactionStatus.INTRANS,
        TransactionStatus.INERROR,
    )
