"""The caller's transaction, on whatever driver, and how a call runs in it."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager, AbstractContextManager
from types import ModuleType
from typing import Any, Callable, Optional, Protocol

from . import values
from .drive import Rows, Statement, drive, drive_async
from .driver_errors import typed_errors


class Transaction(Protocol):
    """The caller's open transaction, on whatever driver."""

    def statements(self) -> ModuleType:
        """``_sql.postgres`` or ``_sql.sqlite``. Raises without an open transaction."""
        ...

    def execute(self, statement: Statement) -> Rows: ...

    def savepoint(self) -> AbstractContextManager[Any]: ...


class AsyncTransaction(Protocol):
    """As `Transaction`, for an asyncio driver."""

    async def statements(self) -> ModuleType: ...

    async def execute(self, statement: Statement) -> Rows: ...

    def savepoint(self) -> AbstractAsyncContextManager[Any]: ...


class Calls:
    """The arguments of each call, checked, as the statements to run."""

    def __init__(self, tenant: str) -> None:
        self._tenant = values.check_tenant(tenant)

    def _tenant_or(self, tenant: Optional[str]) -> str:
        return self._tenant if tenant is None else values.check_tenant(tenant)


def run(transaction: Transaction, steps: Callable[[ModuleType], Any]) -> Any:
    return drive(steps(statements_of(transaction)), transaction.execute)


async def run_async(transaction: AsyncTransaction, steps: Callable[[ModuleType], Any]) -> Any:
    return await drive_async(steps(await async_statements_of(transaction)), transaction.execute)


def statements_of(transaction: Transaction) -> ModuleType:
    """The statements for this transaction. A session may connect for it."""
    with typed_errors():
        return transaction.statements()


async def async_statements_of(transaction: AsyncTransaction) -> ModuleType:
    with typed_errors():
        return await transaction.statements()
