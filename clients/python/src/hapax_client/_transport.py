"""Performs the effects of operations over httpx, blocking or with asyncio."""

from __future__ import annotations

import asyncio
import ssl
import threading
import time
import weakref
from collections.abc import AsyncIterator, Iterator
from inspect import isawaitable
from typing import Any, Callable, Optional, TypeVar

import httpx

from ._endpoint import Address, Endpoint
from ._fork import fork_waits, watch_forks
from ._http import (
    LIMITS,
    STREAM_SILENCE,
    WAITING_LIMITS,
    failure_from,
    is_refused,
    request_arguments,
    response_from,
)
from ._protocol import (
    Call,
    Effect,
    Emit,
    OpenStream,
    Pause,
    ReadChunk,
    Request,
    Response,
    Steps,
    TransportFailure,
)

T = TypeVar("T")


def tls_context(endpoint: Endpoint) -> ssl.SSLContext:
    return httpx.create_ssl_context(trust_env=endpoint.trust_env)


class SyncTransport:
    """Blocks. Used by many threads at once, and before and after a fork."""

    def __init__(self, endpoint: Endpoint, timeout: float) -> None:
        self.endpoint = endpoint
        self._timeout = timeout
        self._tls: Optional[ssl.SSLContext] = None
        self.after_fork_in_child()
        watch_forks(self)

    def after_fork_in_child(self) -> None:
        self._lock = threading.Lock()
        self._clients: dict[bool, httpx.Client] = {}

    def for_asyncio(self) -> AsyncTransport:
        """A transport to the same server."""
        return AsyncTransport(self.endpoint, self._timeout)

    def run(self, steps: Steps[T], pause: Callable[[float], Any] = time.sleep) -> T:
        """Drives an operation to its result."""
        try:
            effect = next(steps)
            while True:
                try:
                    result = self._perform(effect, pause)
                except TransportFailure as failure:
                    effect = steps.throw(failure)
                else:
                    effect = steps.send(result)
        except StopIteration as done:
            result_of_steps: T = done.value
            return result_of_steps

    def iterate(self, steps: Steps[None]) -> Iterator[Any]:
        """Drives an operation that emits values while it reads a stream."""
        stream = _SyncStream(self)
        try:
            effect = next(steps)
            while True:
                result: Any
                try:
                    if isinstance(effect, Emit):
                        yield effect.value
                        result = None
                    elif isinstance(effect, OpenStream):
                        result = stream.open(effect.request)
                    elif isinstance(effect, ReadChunk):
                        result = stream.read()
                    else:
                        result = self._perform(effect, time.sleep)
                except TransportFailure as failure:
                    effect = steps.throw(failure)
                else:
                    effect = steps.send(result)
        except StopIteration:
            return
        finally:
            stream.close()

    def _perform(self, effect: Effect, pause: Callable[[float], Any]) -> Any:
        if isinstance(effect, Request):
            return self._send(effect)
        if isinstance(effect, Pause):
            return pause(effect.seconds)
        if isinstance(effect, Call):
            return effect.function(*effect.arguments)
        raise AssertionError(f"no such effect here: {type(effect).__name__}")

    def _send(self, request: Request) -> Response:
        address = self.endpoint.address()
        client = self.client(waits=request.wait > 0)
        arguments = request_arguments(request, address, self._timeout)
        try:
            return response_from(client.request(**arguments))
        except httpx.HTTPError as error:
            if is_refused(error):
                self.endpoint.find_again(address)
            raise failure_from(error, address) from None

    def client(self, *, waits: bool) -> httpx.Client:
        with self._lock:
            if waits not in self._clients:
                with fork_waits:
                    self._tls = self._tls or tls_context(self.endpoint)
                self._clients[waits] = httpx.Client(
                    verify=self._tls,
                    trust_env=self.endpoint.trust_env,
                    limits=WAITING_LIMITS if waits else LIMITS,
                )
            return self._clients[waits]

    def close(self) -> None:
        with self._lock:
            clients, self._clients = list(self._clients.values()), {}
        for client in clients:
            client.close()
        self.endpoint.close()


class _SyncStream:
    """The answer that an iteration reads at present."""

    def __init__(self, transport: SyncTransport) -> None:
        self._transport = transport
        self._address: Optional[Address] = None
        self._response: Optional[httpx.Response] = None
        self._chunks: Iterator[bytes] = iter(())

    def open(self, request: Request) -> Response:
        self.close()
        self._address = self._transport.endpoint.address()
        arguments = request_arguments(request, self._address, STREAM_SILENCE)
        client = self._transport.client(waits=True)
        try:
            self._response = client.send(client.build_request(**arguments), stream=True)
            if self._response.status_code != 200:
                return response_from(self._response, self._response.read())
        except httpx.HTTPError as error:
            if is_refused(error):
                self._transport.endpoint.find_again(self._address)
            raise failure_from(error, self._address) from None
        self._chunks = self._response.iter_bytes()
        return response_from(self._response, b"")

    def read(self) -> bytes:
        assert self._address is not None, "a stream is opened before it is read"
        try:
            return next(self._chunks, b"")
        except httpx.HTTPError as error:
            raise failure_from(error, self._address) from None

    def close(self) -> None:
        response, self._response, self._chunks = self._response, None, iter(())
        if response is not None:
            response.close()


class AsyncTransport:
    """Awaits. Each event loop has connections of its own, also one that runs after a fork."""

    def __init__(self, endpoint: Endpoint, timeout: float) -> None:
        self.endpoint = endpoint
        self._timeout = timeout
        self._tls: Optional[ssl.SSLContext] = None
        self._clients: weakref.WeakKeyDictionary[
            asyncio.AbstractEventLoop, dict[bool, httpx.AsyncClient]
        ] = weakref.WeakKeyDictionary()

    async def run(self, steps: Steps[T]) -> T:
        """Drives an operation to its result."""
        try:
            effect = next(steps)
            while True:
                try:
                    result = await self._perform(effect)
                except TransportFailure as failure:
                    effect = steps.throw(failure)
                else:
                    effect = steps.send(result)
        except StopIteration as done:
            result_of_steps: T = done.value
            return result_of_steps
        finally:
            steps.close()

    async def iterate(self, steps: Steps[None]) -> AsyncIterator[Any]:
        """Drives an operation that emits values while it reads a stream."""
        stream = _AsyncStream(self)
        try:
            effect = next(steps)
            while True:
                result: Any
                try:
                    if isinstance(effect, Emit):
                        yield effect.value
                        result = None
                    elif isinstance(effect, OpenStream):
                        result = await stream.open(effect.request)
                    elif isinstance(effect, ReadChunk):
                        result = await stream.read()
                    else:
                        result = await self._perform(effect)
                except TransportFailure as failure:
                    effect = steps.throw(failure)
                else:
                    effect = steps.send(result)
        except StopIteration:
            return
        finally:
            await stream.close()

    async def _perform(self, effect: Effect) -> Any:
        if isinstance(effect, Request):
            return await self._send(effect)
        if isinstance(effect, Pause):
            return await asyncio.sleep(effect.seconds)
        if isinstance(effect, Call):
            result = effect.function(*effect.arguments)
            return await result if isawaitable(result) else result
        raise AssertionError(f"no such effect here: {type(effect).__name__}")

    async def _send(self, request: Request) -> Response:
        address = await self.address()
        client = self.client(waits=request.wait > 0)
        arguments = request_arguments(request, address, self._timeout)
        try:
            return response_from(await client.request(**arguments))
        except httpx.HTTPError as error:
            await self.find_again(error, address)
            raise failure_from(error, address) from None

    async def address(self) -> Address:
        """The address; finding or starting a server blocks, and therefore runs in a thread."""
        if self.endpoint.is_fixed:
            return self.endpoint.address()
        return await asyncio.to_thread(self.endpoint.address)

    async def find_again(self, error: httpx.HTTPError, failed: Address) -> None:
        if is_refused(error) and not self.endpoint.is_fixed:
            await asyncio.to_thread(self.endpoint.find_again, failed)

    def client(self, *, waits: bool) -> httpx.AsyncClient:
        clients = self._clients.setdefault(asyncio.get_running_loop(), {})
        if waits not in clients:
            with fork_waits:
                self._tls = self._tls or tls_context(self.endpoint)
            clients[waits] = httpx.AsyncClient(
                verify=self._tls,
                trust_env=self.endpoint.trust_env,
                limits=WAITING_LIMITS if waits else LIMITS,
            )
        return clients[waits]

    async def close(self) -> None:
        """Closes the connections of this event loop."""
        clients = self._clients.pop(asyncio.get_running_loop(), {})
        for client in clients.values():
            await client.aclose()
        self.endpoint.close()


class _AsyncStream:
    """The answer that an iteration reads at present."""

    def __init__(self, transport: AsyncTransport) -> None:
        self._transport = transport
        self._address: Optional[Address] = None
        self._response: Optional[httpx.Response] = None
        self._chunks: Optional[AsyncIterator[bytes]] = None

    async def open(self, request: Request) -> Response:
        await self.close()
        self._address = await self._transport.address()
        arguments = request_arguments(request, self._address, STREAM_SILENCE)
        client = self._transport.client(waits=True)
        try:
            self._response = await client.send(client.build_request(**arguments), stream=True)
            if self._response.status_code != 200:
                return response_from(self._response, await self._response.aread())
        except httpx.HTTPError as error:
            await self._transport.find_again(error, self._address)
            raise failure_from(error, self._address) from None
        self._chunks = self._response.aiter_bytes()
        return response_from(self._response, b"")

    async def read(self) -> bytes:
        assert self._address is not None and self._chunks is not None, "opened before it is read"
        try:
            return await self._chunks.__anext__()
        except StopAsyncIteration:
            return b""
        except httpx.HTTPError as error:
            raise failure_from(error, self._address) from None

    async def close(self) -> None:
        response, self._response, self._chunks = self._response, None, None
        if response is not None:
            await response.aclose()
