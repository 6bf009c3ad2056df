"""Methods that are written once, as generators, and serve sync and async clients alike."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Callable, Generic, TypeVar, overload

from ._protocol import Steps

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from typing_extensions import Concatenate, ParamSpec

    from ._transport import AsyncTransport, SyncTransport

    P = ParamSpec("P")
T = TypeVar("T")


class SyncBound:
    """Something whose operations block until they are done."""

    def __init__(self, transport: SyncTransport) -> None:
        self._transport = transport


class AsyncBound:
    """Something whose operations are awaited."""

    def __init__(self, transport: AsyncTransport) -> None:
        self._transport = transport


if TYPE_CHECKING:

    class sync_or_async(Generic[P, T]):
        """Decorates a generator method of a class that `SyncBound` or `AsyncBound` completes."""

        def __init__(self, function: Callable[Concatenate[Any, P], Steps[T]]) -> None: ...

        @overload
        def __get__(self, instance: SyncBound, owner: Any = None) -> Callable[P, T]: ...

        @overload
        def __get__(self, instance: AsyncBound, owner: Any = None) -> Callable[P, Awaitable[T]]: ...

        @overload
        def __get__(self, instance: object, owner: Any = None) -> sync_or_async[P, T]: ...

        def __get__(self, instance: object, owner: Any = None) -> Any: ...

        def steps(self, instance: Any, *args: P.args, **kwargs: P.kwargs) -> Steps[T]: ...

else:

    class sync_or_async:
        def __init__(self, function):
            self._function = function
            functools.update_wrapper(self, function)

        def __get__(self, instance, owner=None):
            if instance is None:
                return self
            function = self._function

            @functools.wraps(function)
            def call(*args, **kwargs):
                return instance._transport.run(function(instance, *args, **kwargs))

            return call

        def steps(self, instance, *args, **kwargs):
            """The bare generator, for use inside another operation."""
            return self._function(instance, *args, **kwargs)
