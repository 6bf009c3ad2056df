"""Exactly once in a transaction of ``sqlite3``, beside your own tables.

>>> idempotency = Idempotency(connection)
>>> order = idempotency.once("CreateOrder", key, create_order)
>>> connection.commit()

The file needs hapax's tables: ``hapax migrate --store sqlite:FILE`` makes them, and `hapax serve` or
`hapax relay` may run on the same file.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType

from ._sql import commands, messages, sqlite
from ._sql.drive import Rows, Statement
from ._sql.values import BeginResult, fingerprint_of
from .errors import HapaxError

__all__ = ["BeginResult", "Idempotency", "Inbox", "Outbox", "fingerprint_of"]

SAVEPOINT = "hapax_once"


class Idempotency(commands.Idempotency):
    """Commands in the open transaction of this connection."""

    def __init__(self, connection: sqlite3.Connection, *, tenant: str = "default") -> None:
        super().__init__(_Sqlite3Transaction(connection), tenant)


class Outbox(messages.Outbox):
    """Messages in the open transaction of this connection."""

    def __init__(self, connection: sqlite3.Connection, *, tenant: str = "default") -> None:
        super().__init__(_Sqlite3Transaction(connection), tenant)


class Inbox(messages.Inbox):
    """Received messages in the open transaction of this connection."""

    def __init__(self, connection: sqlite3.Connection, *, tenant: str = "default") -> None:
        super().__init__(_Sqlite3Transaction(connection), tenant)


class _Sqlite3Transaction:
    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def statements(self) -> ModuleType:
        # With an isolation_level sqlite3 begins a transaction with the first write by itself.
        connection = self._connection
        begins_itself = getattr(connection, "autocommit", -1) is not True and (
            connection.isolation_level is not None
        )
        if not connection.in_transaction and not begins_itself:
            raise HapaxError("no transaction is open; execute BEGIN IMMEDIATE first")
        return sqlite

    def execute(self, statement: Statement) -> Rows:
        sql, parameters = statement
        cursor = self._connection.cursor()
        # The caller's row_factory is for the caller's own rows.
        cursor.row_factory = None
        try:
            return cursor.execute(sql, parameters).fetchall()
        finally:
            cursor.close()

    @contextmanager
    def savepoint(self) -> Iterator[None]:
        self._connection.execute(f"SAVEPOINT {SAVEPOINT}")
        try:
            yield
        except BaseException:
            # On a full disk SQLite has already rolled back the transaction with its savepoints.
            if self._connection.in_transaction:
                self._connection.execute(f"ROLLBACK TO {SAVEPOINT}")
                self._connection.execute(f"RELEASE {SAVEPOINT}")
            raise
        self._connection.execute(f"RELEASE {SAVEPOINT}")
