"""One run of a WSGI application under a claim: renewed while it runs, settled before its answer ends."""

from __future__ import annotations

import http.client
import logging
import threading
import time
from collections.abc import Iterable, Iterator
from typing import Any, Callable, Optional

from ._client import Client
from ._commands import Answer, Begun, Command
from ._kept_response import declared_length, is_event_stream, replayed_headers, without_own_headers
from ._keyed_request import Settings
from ._keyed_run import (
    SETTLE_FOR,
    SETTLE_PAUSE,
    answer_of_the_winner,
    keep_alive,
    leave_unknown,
    settle,
)
from ._lease import RenewalThread
from ._problem_document import Headers, Problem
from .errors import HapaxError, Lost

Environ = dict[str, Any]
StartResponse = Callable[..., Any]
_log = logging.getLogger("hapax_client")


class ResponseCut(Exception):
    """The application's response has another length than it declared, or another attempt took over."""


class FirstRun:
    """Runs the application, collects its response, and stores it before the client can know that it has all."""

    def __init__(self, settings: Settings, client: Client, command: Command, begun: Begun) -> None:
        assert begun.token is not None, "a granted claim has a token"
        self._settings = settings
        self._client = client
        self._command = command
        self._token = begun.token
        self._renewal = RenewalThread(
            client._transport, keep_alive(settings, command, begun.token)
        )
        self._status = ""
        self._code = 0
        self._headers: Headers = []
        self._held: list[bytes] = []

    def run(
        self, app: Callable[[StartResponse], Iterable[bytes]], start_response: StartResponse
    ) -> Iterable[bytes]:
        try:
            chunks = self._chunks_of(app(self._start))
            if self._collect(chunks):
                body = b"".join(self._held)
                self._check_length(len(body))
                return self._finish(start_response, body)
        except BaseException:
            self._abandon()
            raise
        return self._stream(start_response, chunks)

    def _start(self, status: str, headers: list[tuple[str, str]], exc_info: Any = None) -> Any:
        self._status, self._code = status, int(status.split(" ", 1)[0])
        self._headers = [(k.lower().encode("latin-1"), v.encode("latin-1")) for k, v in headers]
        return self._held.append

    def _chunks_of(self, response: Iterable[bytes]) -> Iterator[bytes]:
        try:
            yield from response
        finally:
            close = getattr(response, "close", None)
            if close is not None:
                close()

    def _collect(self, chunks: Iterator[bytes]) -> bool:
        """Reads the response; False where it is too large to store, or an event stream."""
        for chunk in chunks:
            self._held.append(chunk)
            too_large = sum(map(len, self._held)) > self._settings.max_body
            if too_large or is_event_stream(self._headers):
                return False
        if not self._status:
            raise ResponseCut("the application ended without calling start_response")
        return True

    def _finish(self, start_response: StartResponse, body: bytes) -> Iterable[bytes]:
        try:
            self._settle(body)
        except Lost:
            try:
                return replay(start_response, self._client.run(answer_of_the_winner(self._command)))
            except Problem as problem:
                return respond(start_response, problem.status, problem.headers(), problem.body())
        start_response(self._status, _texts(without_own_headers(self._headers)))
        return [body]

    def _stream(self, start_response: StartResponse, chunks: Iterator[bytes]) -> Iterator[bytes]:
        """Passes on a response that is not kept. The store learns of its end before the client does."""
        length, sent = declared_length(self._headers), 0
        start_response(self._status, _texts(without_own_headers(self._headers)))
        try:
            while True:
                held, self._held = b"".join(self._held), []
                if held:
                    sent += len(held)
                    if length is not None and sent >= length:
                        self._held = [held]
                        break
                    yield held
                chunk = next(chunks, None)
                if chunk is None:
                    break
                self._held.append(chunk)
            for chunk in chunks:
                sent += len(chunk)
            self._check_length(sent)
            self._settle(None)
        except GeneratorExit:
            # The client left, which changes nothing: the response is read to its end.
            self._read_on(chunks)
            raise
        except BaseException:
            self._abandon()
            raise
        yield b"".join(self._held)

    def _read_on(self, chunks: Iterator[bytes]) -> None:
        end = time.monotonic() + self._settings.detached_timeout
        try:
            for _ in chunks:
                if time.monotonic() > end:
                    self._abandon()
                    return
            self._settle(None)
        except BaseException:
            self._abandon()
            raise

    def _check_length(self, length: int) -> None:
        declared = declared_length(self._headers)
        if declared is not None and declared != length and self._code not in (204, 304):
            raise ResponseCut("the response has another length than it declared")

    def _settle(self, body: Optional[bytes]) -> None:
        """Stores the outcome; raises Lost where another attempt has taken over."""
        try:
            self._try_to_settle(body)
        except Lost:
            self._renewal.stop()
            raise
        except HapaxError:
            # The effect has happened: its client gets the answer, and the store later.
            threading.Thread(target=self._settle_later, args=(body,), daemon=True).start()
        else:
            self._renewal.stop()

    def _try_to_settle(self, body: Optional[bytes]) -> None:
        steps = settle(self._settings, self._command, self._token, self._code, self._headers, body)
        self._client.run(steps)

    def _settle_later(self, body: Optional[bytes]) -> None:
        end = time.monotonic() + SETTLE_FOR
        try:
            while time.monotonic() < end:
                time.sleep(SETTLE_PAUSE)
                try:
                    return self._try_to_settle(body)
                except HapaxError as error:
                    if not error.retryable:
                        break
            _log.warning("the outcome of a request could not be stored")
        finally:
            self._renewal.stop()

    def _abandon(self) -> None:
        """The run may or may not have acted."""
        self._renewal.stop()
        try:
            self._client.run(leave_unknown(self._command, self._token))
        except HapaxError:
            _log.warning("the outcome of a request is unknown from the end of its lease on")


def replay(start_response: StartResponse, answer: Answer) -> Iterable[bytes]:
    return respond(start_response, answer.status, replayed_headers(answer), answer.body)


def respond(
    start_response: StartResponse, status: int, headers: Headers, body: bytes
) -> Iterable[bytes]:
    reason = http.client.responses.get(status, "Status")
    start_response(f"{status} {reason}", _texts(headers))
    return [body]


def _texts(headers: Headers) -> list[tuple[str, str]]:
    return [(name.decode("latin-1"), value.decode("latin-1")) for name, value in headers]
