"""Exactly once in a transaction of SQLAlchemy 2, on PostgreSQL or SQLite.

>>> order = Idempotency(session).once("CreateOrder", key, create_order)
>>> session.commit()

With an ``AsyncSession`` or ``AsyncConnection`` the methods are coroutines. The caller commits. The
database needs hapax's tables: ``hapax migrate --store …`` makes them.
"""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager, AbstractContextManager
from types import ModuleType
from typing import Any, Union, overload

from sqlalchemy import text
from sqlalchemy.engine import Connection
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_scoped_session
from sqlalchemy.orm import Session, scoped_session

from ._sql import commands, messages, postgres, sqlite
from ._sql.commands import AsyncIdempotency
from ._sql.drive import Rows, Statement
from ._sql.messages import AsyncInbox, AsyncOutbox
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

SyncHandle = Union[Session, "scoped_session[Any]", Connection]
AsyncHandle = Union[AsyncSession, "async_scoped_session[Any]", AsyncConnection]


# Functions with the names of classes: what they return depends on the kind of the session.
@overload
def Idempotency(session: SyncHandle, *, tenant: str = ...) -> commands.Idempotency: ...
@overload
def Idempotency(session: AsyncHandle, *, tenant: str = ...) -> AsyncIdempotency: ...
def Idempotency(
    session: Union[SyncHandle, AsyncHandle], *, tenant: str = "default"
) -> Union[commands.Idempotency, AsyncIdempotency]:
    """Commands in the transaction of this session or connection."""
    if _is_async(session):
        return AsyncIdempotency(_AsyncSessionTransaction(session), tenant)
    return commands.Idempotency(_SessionTransaction(session), tenant)


@overload
def Outbox(session: SyncHandle, *, tenant: str = ...) -> messages.Outbox: ...
@overload
def Outbox(session: AsyncHandle, *, tenant: str = ...) -> AsyncOutbox: ...
def Outbox(
    session: Union[SyncHandle, AsyncHandle], *, tenant: str = "default"
) -> Union[messages.Outbox, AsyncOutbox]:
    """Messages in the transaction of this session or connection."""
    if _is_async(session):
        return AsyncOutbox(_AsyncSessionTransaction(session), tenant)
    return messages.Outbox(_SessionTransaction(session), tenant)


@overload
def Inbox(session: SyncHandle, *, tenant: str = ...) -> messages.Inbox: ...
@overload
def Inbox(session: AsyncHandle, *, tenant: str = ...) -> AsyncInbox: ...
def Inbox(
    session: Union[SyncHandle, AsyncHandle], *, tenant: str = "default"
) -> Union[messages.Inbox, AsyncInbox]:
    """Received messages in the transaction of this session or connection."""
    if _is_async(session):
        return AsyncInbox(_AsyncSessionTransaction(session), tenant)
    return messages.Inbox(_SessionTransaction(session), tenant)


def _is_async(session: object) -> bool:
    if isinstance(session, (AsyncSession, AsyncConnection, async_scoped_session)):
        return True
    if isinstance(session, (Session, Connection, scoped_session)):
        return False
    raise HapaxError(
        "pass a Session, Connection, AsyncSession or AsyncConnection of SQLAlchemy,"
        f" not a {type(session).__name__}"
    )


class _SessionTransaction:
    def __init__(self, session: Any) -> None:
        self._session = session

    def _connection(self) -> Connection:
        connection: Connection = (
            self._session if isinstance(self._session, Connection) else self._session.connection()
        )
        return connection

    def statements(self) -> ModuleType:
        return _checked_statements(self._connection())

    def execute(self, statement: Statement) -> Rows:
        sql, parameters = statement
        result = self._connection().execute(text(sql), dict(parameters))
        return [tuple(row) for row in result] if result.returns_rows else []

    def savepoint(self) -> AbstractContextManager[Any]:
        # The session's own savepoint: its objects follow the rollback.
        savepoint: AbstractContextManager[Any] = self._session.begin_nested()
        return savepoint


class _AsyncSessionTransaction:
    def __init__(self, session: Any) -> None:
        self._session = session

    async def _connection(self) -> AsyncConnection:
        if isinstance(self._session, AsyncConnection):
            return self._session
        connection: AsyncConnection = await self._session.connection()
        return connection

    async def statements(self) -> ModuleType:
        return await (await self._connection()).run_sync(_checked_statements)

    async def execute(self, statement: Statement) -> Rows:
        sql, parameters = statement
        result = await (await self._connection()).execute(text(sql), dict(parameters))
        return [tuple(row) for row in result] if result.returns_rows else []

    def savepoint(self) -> AbstractAsyncContextManager[Any]:
        savepoint: AbstractAsyncContextManager[Any] = self._session.begin_nested()
        return savepoint


def _checked_statements(connection: Connection) -> ModuleType:
    """The statements for the database of this connection, whose transaction must be a real one."""
    dialects = {"postgresql": postgres, "sqlite": sqlite}
    statements = dialects.get(connection.dialect.name)
    if statements is None:
        raise HapaxError(
            f"hapax works in transactions of PostgreSQL and SQLite, not of {connection.dialect.name}"
        )
    driver: Any = connection.connection.driver_connection
    if statements is sqlite:
        commits_each = driver.isolation_level is None and not driver.in_transaction
    else:
        commits_each = getattr(connection.connection.dbapi_connection, "autocommit", False) is True
    if commits_each:
        raise HapaxError("this connection commits every statement; do not set AUTOCOMMIT on it")
    return statements
