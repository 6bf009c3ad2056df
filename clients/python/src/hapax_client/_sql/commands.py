"""Commands in the caller's transaction, sync and async, over any driver."""

from __future__ import annotations

from collections.abc import Awaitable
from types import ModuleType
from typing import Any, Callable, Optional, TypeVar, Union

from ..errors import Busy, KeyReused, Lost, OutcomeUnknown
from . import values
from .drive import drive, drive_async
from .result_json import decode_result, encode_result, replay_result
from .transaction import (
    AsyncTransaction,
    Calls,
    Transaction,
    async_statements_of,
    run,
    run_async,
    statements_of,
)
from .values import BeginResult, Duration, Headers

T = TypeVar("T")
JSON_HEADERS: Headers = {"content-type": "application/json"}


class _IdempotencyCalls(Calls):
    #: Whether the last ``once`` returned the result of an earlier one.
    replayed: bool = False

    def _begin(
        self,
        operation: str,
        key: str,
        fingerprint: Optional[str],
        tenant: Optional[str],
        lease: Duration,
        retention: Duration,
        on_unknown: str,
        wait: bool,
    ) -> Callable[[ModuleType], Any]:
        request = values.begin_request(
            operation, key, fingerprint, self._tenant_or(tenant), lease, retention, on_unknown, wait
        )
        return lambda statements: statements.begin(request)

    def _complete(
        self,
        operation: str,
        key: str,
        token: str,
        status: int,
        headers: Optional[Headers],
        body: Union[bytes, str],
        tenant: Optional[str],
    ) -> Callable[[ModuleType], Any]:
        arguments = (
            self._tenant_or(tenant),
            values.check_operation(operation),
            values.check_key("key", key),
            values.check_token(token),
            values.check_status(status),
            values.check_headers(headers),
            values.check_body("body", body),
        )
        values.check_answer_size(*arguments[-2:])
        return lambda statements: statements.complete(*arguments)

    def _fail(
        self, operation: str, key: str, token: str, tenant: Optional[str]
    ) -> Callable[[ModuleType], Any]:
        arguments = (
            self._tenant_or(tenant),
            values.check_operation(operation),
            values.check_key("key", key),
            values.check_token(token),
        )
        return lambda statements: statements.fail(*arguments)


class Idempotency(_IdempotencyCalls):
    """Commands in the caller's transaction: claim, effect and answer commit together or not at all."""

    def __init__(self, transaction: Transaction, tenant: str) -> None:
        super().__init__(tenant)
        self._transaction = transaction

    def begin(
        self,
        operation: str,
        key: str,
        fingerprint: Optional[str] = None,
        tenant: Optional[str] = None,
        lease: Duration = values.LEASE,
        retention: Duration = values.RETENTION,
        on_unknown: str = "refuse",
        wait: bool = False,
    ) -> BeginResult:
        """Asks to run a command. Every expected outcome is a state of the answer, not an error.

        Without ``wait``, a command in another open transaction is ``in-progress`` at once; with it,
        the call waits for that transaction's end (PostgreSQL: ``lock_timeout``; SQLite: the busy
        timeout of the connection)."""
        steps = self._begin(operation, key, fingerprint, tenant, lease, retention, on_unknown, wait)
        begun: BeginResult = run(self._transaction, steps)
        return begun

    def complete(
        self,
        operation: str,
        key: str,
        token: str,
        status: int = 200,
        headers: Optional[Headers] = None,
        body: Union[bytes, str] = b"",
        tenant: Optional[str] = None,
    ) -> bool:
        """Stores the answer. ``False`` where the token does not own the command (any more)."""
        steps = self._complete(operation, key, token, status, headers, body, tenant)
        return bool(run(self._transaction, steps))

    def fail(self, operation: str, key: str, token: str, tenant: Optional[str] = None) -> bool:
        """Gives the command back, so that it may be retried. ``False`` as for `complete`."""
        return bool(run(self._transaction, self._fail(operation, key, token, tenant)))

    def once(
        self,
        operation: str,
        key: str,
        fn: Callable[[], T],
        fingerprint: Optional[str] = None,
        *,
        tenant: Optional[str] = None,
        lease: Duration = values.LEASE,
        retention: Duration = values.RETENTION,
        on_unknown: str = "refuse",
        wait: Optional[bool] = None,
        result: Optional[type] = None,
    ) -> T:
        """Runs ``fn`` if no transaction with this operation and key has committed before, and
        returns its result; later calls return the same result without running it.

        After an exception of ``fn`` its writes and the claim are undone, and the caller's
        transaction goes on. Results are JSON values, dataclasses or pydantic models (``result``, or
        the return annotation of ``fn``, says which). ``wait`` is ``False`` on PostgreSQL and
        ``True`` on SQLite, where every write waits for the one write lock of the file."""
        statements = statements_of(self._transaction)
        waits = statements.WAITS_FOR_WRITERS if wait is None else wait
        begin = self._begin(
            operation, key, fingerprint, tenant, lease, retention, on_unknown, waits
        )
        # Before the savepoint: on SQLite a savepoint outside of a transaction would commit.
        if not drive(statements.lock(waits), self._transaction.execute):
            raise _busy(None)
        with self._transaction.savepoint():
            begun: BeginResult = drive(begin(statements), self._transaction.execute)
            self.replayed = begun.state == "completed"
            if self.replayed:
                replay: T = replay_result(begun.body or b"", begun.headers, fn, result)
                return replay
            token = _token_of(begun)
            answer = encode_result(fn())
            if not self.complete(operation, key, token, 200, JSON_HEADERS, answer, tenant):
                raise _lost()
        value: T = decode_result(answer, fn, result)
        return value


class AsyncIdempotency(_IdempotencyCalls):
    """As `Idempotency`, for asyncio."""

    def __init__(self, transaction: AsyncTransaction, tenant: str) -> None:
        super().__init__(tenant)
        self._transaction = transaction

    async def begin(
        self,
        operation: str,
        key: str,
        fingerprint: Optional[str] = None,
        tenant: Optional[str] = None,
        lease: Duration = values.LEASE,
        retention: Duration = values.RETENTION,
        on_unknown: str = "refuse",
        wait: bool = False,
    ) -> BeginResult:
        """See `Idempotency.begin`."""
        steps = self._begin(operation, key, fingerprint, tenant, lease, retention, on_unknown, wait)
        begun: BeginResult = await run_async(self._transaction, steps)
        return begun

    async def complete(
        self,
        operation: str,
        key: str,
        token: str,
        status: int = 200,
        headers: Optional[Headers] = None,
        body: Union[bytes, str] = b"",
        tenant: Optional[str] = None,
    ) -> bool:
        """See `Idempotency.complete`."""
        steps = self._complete(operation, key, token, status, headers, body, tenant)
        return bool(await run_async(self._transaction, steps))

    async def fail(
        self, operation: str, key: str, token: str, tenant: Optional[str] = None
    ) -> bool:
        """See `Idempotency.fail`."""
        return bool(await run_async(self._transaction, self._fail(operation, key, token, tenant)))

    async def once(
        self,
        operation: str,
        key: str,
        fn: Callable[[], Awaitable[T]],
        fingerprint: Optional[str] = None,
        *,
        tenant: Optional[str] = None,
        lease: Duration = values.LEASE,
        retention: Duration = values.RETENTION,
        on_unknown: str = "refuse",
        wait: Optional[bool] = None,
        result: Optional[type] = None,
    ) -> T:
        """See `Idempotency.once`; ``fn`` is a coroutine function."""
        statements = await async_statements_of(self._transaction)
        waits = statements.WAITS_FOR_WRITERS if wait is None else wait
        begin = self._begin(
            operation, key, fingerprint, tenant, lease, retention, on_unknown, waits
        )
        if not await drive_async(statements.lock(waits), self._transaction.execute):
            raise _busy(None)
        async with self._transaction.savepoint():
            begun: BeginResult = await drive_async(begin(statements), self._transaction.execute)
            self.replayed = begun.state == "completed"
            if self.replayed:
                replay: T = replay_result(begun.body or b"", begun.headers, fn, result)
                return replay
            token = _token_of(begun)
            answer = encode_result(await fn())
            if not await self.complete(operation, key, token, 200, JSON_HEADERS, answer, tenant):
                raise _lost()
        value: T = decode_result(answer, fn, result)
        return value


def _token_of(begun: BeginResult) -> str:
    """The token of a granted command; for every other state the error of ``once``."""
    if begun.state == "granted" and begun.token is not None:
        return begun.token
    if begun.state == "reused":
        raise KeyReused("the key was used before with another fingerprint; use a new key")
    if begun.state == "unknown":
        raise OutcomeUnknown(
            "the last attempt disappeared and may or may not have acted; find out, then settle it"
            " with `hapax command`, or pass on_unknown='rerun'"
        )
    raise _busy(begun.retry_after)


def _busy(retry_after: Optional[float]) -> Busy:
    return Busy(
        "another attempt with this key is running; roll back and try again",
        retry_after=0.05 if retry_after is None else retry_after,
    )


def _lost() -> Lost:
    return Lost("the effect took longer than lease and retention of its claim; pass a longer one")
