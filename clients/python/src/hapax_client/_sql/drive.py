"""Runs the statements of a call on a connection."""

from __future__ import annotations

from collections.abc import Awaitable, Generator, Mapping
from typing import Any, Callable, TypeVar

from .driver_errors import hapax_error

T = TypeVar("T")
#: SQL with parameters as ``:name``, and their values.
Statement = tuple[str, Mapping[str, Any]]
Rows = list[tuple[Any, ...]]
#: Yields statements, is sent their rows, and returns the result of the call.
Steps = Generator[Statement, Rows, T]


def drive(steps: Steps[T], execute: Callable[[Statement], Rows]) -> T:
    try:
        statement = next(steps)
        while True:
            try:
                rows = execute(statement)
            # Also for an interrupt: the steps restore the settings of the connection.
            except BaseException as error:
                statement = _throw(steps, error)
            else:
                statement = steps.send(rows)
    except StopIteration as done:
        result: T = done.value
        return result


async def drive_async(steps: Steps[T], execute: Callable[[Statement], Awaitable[Rows]]) -> T:
    try:
        statement = next(steps)
        while True:
            try:
                rows = await execute(statement)
            except BaseException as error:
                statement = _throw(steps, error)
            else:
                statement = steps.send(rows)
    except StopIteration as done:
        result: T = done.value
        return result


def _throw(steps: Steps[T], error: BaseException) -> Statement:
    typed = hapax_error(error) if isinstance(error, Exception) else None
    if typed is None:
        return steps.throw(error)
    typed.__cause__ = error
    return steps.throw(typed)


def no_steps(result: T) -> Steps[T]:
    """A call that needs no statement."""
    return result
    yield  # pragma: no cover
