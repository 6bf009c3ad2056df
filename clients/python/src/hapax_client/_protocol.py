"""The effects that operations ask for, without doing any I/O themselves.

An operation is a generator: it yields an effect, receives the result and returns its own result. A
transport performs the effects, synchronously or with asyncio, so that each operation is written once.
"""

from __future__ import annotations

import json
from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from typing import Any, Callable, Optional, TypeVar, Union

T = TypeVar("T")


@dataclass(frozen=True)
class Request:
    """One HTTP request. Its result is a `Response`, or a `TransportFailure` is thrown."""

    method: str
    path: str
    body: Optional[bytes] = None
    query: Mapping[str, str] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    # How long the server may hold the request before it answers, in seconds.
    wait: float = 0.0
    # Whether the request may be sent again although the server may have acted on it.
    repeatable: bool = True


@dataclass(frozen=True)
class Response:
    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


@dataclass(frozen=True)
class Pause:
    """Wait for so many seconds. Its result is None."""

    seconds: float


@dataclass(frozen=True)
class Call:
    """Call a function of the user; with asyncio, its result is awaited where it can be."""

    function: Callable[..., Any]
    arguments: tuple[Any, ...] = ()


@dataclass(frozen=True)
class OpenStream:
    """Send a request whose answer is read piece by piece. Its result is a `Response` without body."""

    request: Request


@dataclass(frozen=True)
class ReadChunk:
    """Read from the open stream. Its result is some bytes, none at the end."""


@dataclass(frozen=True)
class Emit:
    """Hand a value to the one who iterates. Its result is None."""

    value: Any


Effect = Union[Request, Pause, Call, OpenStream, ReadChunk, Emit]
Steps = Generator[Effect, Any, T]


class TransportFailure(Exception):
    """No answer came. `sent` is false where the server cannot have seen the request."""

    def __init__(self, message: str, *, sent: bool) -> None:
        super().__init__(message)
        self.sent = sent
