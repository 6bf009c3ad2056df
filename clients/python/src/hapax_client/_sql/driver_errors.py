"""The errors of database drivers as errors of hapax.

A serialization failure or a deadlock stays the driver's own error: it may come from any statement of
the transaction, so callers that use such an isolation level handle it already.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Optional

from ..errors import Busy, HapaxError, InvalidRequest, StoreUnavailable, Unauthorized

MIGRATE_SQLITE = "`hapax migrate --store sqlite:FILE` makes them"
MIGRATE_POSTGRES = "`hapax migrate --store postgres://…` makes them"
LOCKED_RETRY_AFTER = 0.05


class SchemaMismatch(HapaxError):
    """The tables or functions of hapax are missing, or of a version that this package does not know."""

    retryable = False


def hapax_error(error: Exception) -> Optional[HapaxError]:
    """The typed error for what a driver raised; ``None`` where it is to be raised as it is."""
    if isinstance(error, HapaxError):
        return None
    driver_error = _unwrap(error)
    if isinstance(driver_error, sqlite3.Error):
        return _sqlite_error(driver_error)
    state = getattr(driver_error, "sqlstate", None) or getattr(driver_error, "pgcode", None)
    if isinstance(state, str):
        return _postgres_error(state, driver_error)
    # PEP 249's names for a connection that is closed or cannot be made: such an error has no state.
    if type(driver_error).__name__ in ("OperationalError", "InterfaceError"):
        return StoreUnavailable("PostgreSQL cannot be reached, or closed the connection")
    return None


@contextmanager
def typed_errors() -> Iterator[None]:
    """Raises what a driver raises inside as an error of hapax."""
    try:
        yield
    except Exception as error:
        typed = hapax_error(error)
        if typed is None:
            raise
        raise typed from error


def _unwrap(error: BaseException) -> BaseException:
    """SQLAlchemy keeps the driver's error in ``orig``, Django and asyncpg's adapter as the cause."""
    for _ in range(4):
        inner = getattr(error, "orig", None)
        if not isinstance(inner, BaseException):
            if getattr(error, "sqlstate", None) or isinstance(error, sqlite3.Error):
                return error
            inner = error.__cause__
        if inner is None:
            return error
        error = inner
    return error


def _sqlite_error(error: sqlite3.Error) -> Optional[HapaxError]:
    # The extended code is there from Python 3.11 on; the text always is.
    text = str(error)
    if "locked" in text or "busy" in text:
        return Busy(
            "another connection holds the write lock of the file, or wrote since this transaction"
            " began to read; roll back and try again, or begin with BEGIN IMMEDIATE",
            retry_after=LOCKED_RETRY_AFTER,
        )
    if text.startswith("no such table: hapax_"):
        return SchemaMismatch(f"the file has no tables of hapax; {MIGRATE_SQLITE}")
    if any(part in text for part in ("readonly", "disk", "unable to open")):
        return StoreUnavailable("the SQLite file cannot be written; look at the cause")
    return None


def _postgres_error(state: str, error: BaseException) -> Optional[HapaxError]:
    if state == "55P03":
        return Busy(
            "another transaction or consumer has this key, and did not end within lock_timeout; roll"
            " back and try again (do not acknowledge a message)",
            retry_after=LOCKED_RETRY_AFTER,
        )
    if state in ("42883", "42P01", "3F000") and "hapax_" in str(error):
        return SchemaMismatch(
            "the database has no functions of hapax, or older ones, or they are not in the"
            f" search_path; {MIGRATE_POSTGRES}"
        )
    if state == "42501":
        return Unauthorized(
            "this role may not call the functions of hapax; their owner grants it with `SELECT"
            " hapax_grant_app('ROLE')`"
        )
    if state == "22023":
        return InvalidRequest(str(error).splitlines()[0])
    if state.startswith(("08", "53", "57")):
        return StoreUnavailable("PostgreSQL does not answer; look at the cause")
    return None
