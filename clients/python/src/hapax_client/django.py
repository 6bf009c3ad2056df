"""Exactly once inside ``transaction.atomic`` of Django, on PostgreSQL or SQLite.

>>> with transaction.atomic():
...     order = Idempotency().once("CreateOrder", key, create_order)

The database needs hapax's tables: ``hapax migrate --store …`` makes them. For async views, call from a
function under ``sync_to_async``, as for every transaction of Django.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from types import ModuleType
from typing import Any

from django.db import connections, transaction

from ._sql import commands, messages, postgres, sqlite
from ._sql.drive import Rows, Statement
from ._sql.placeholders import pyformat
from ._sql.values import BeginResult, fingerprint_of
from .errors import HapaxError

__all__ = ["BeginResult", "Idempotency", "Inbox", "Outbox", "fingerprint_of"]


class Idempotency(commands.Idempotency):
    """Commands in the atomic block of this database."""

    def __init__(self, using: str = "default", *, tenant: str = "default") -> None:
        super().__init__(_AtomicTransaction(using), tenant)


class Outbox(messages.Outbox):
    """Messages in the atomic block of this database."""

    def __init__(self, using: str = "default", *, tenant: str = "default") -> None:
        super().__init__(_AtomicTransaction(using), tenant)


class Inbox(messages.Inbox):
    """Received messages in the atomic block of this database."""

    def __init__(self, using: str = "default", *, tenant: str = "default") -> None:
        super().__init__(_AtomicTransaction(using), tenant)


class _AtomicTransaction:
    def __init__(self, using: str) -> None:
        self._using = using

    def statements(self) -> ModuleType:
        connection = connections[self._using]
        dialects = {"postgresql": postgres, "sqlite": sqlite}
        statements = dialects.get(connection.vendor)
        if statements is None:
            raise HapaxError(
                f"hapax works in transactions of PostgreSQL and SQLite, not of {connection.vendor}"
            )
        if not connection.in_atomic_block:
            raise HapaxError("no transaction is open; use `with transaction.atomic():`")
        return statements

    def execute(self, statement: Statement) -> Rows:
        sql, parameters = statement
        with connections[self._using].cursor() as cursor:
            cursor.execute(pyformat(sql), dict(parameters) or None)
            return [tuple(row) for row in cursor.fetchall()] if cursor.description else []

    def savepoint(self) -> AbstractContextManager[Any]:
        savepoint: AbstractContextManager[Any] = transaction.atomic(using=self._using)
        return savepoint
