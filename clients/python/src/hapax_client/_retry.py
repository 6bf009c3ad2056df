"""Sends a request, again where that is safe: bounded, with backoff and jitter."""

from __future__ import annotations

import random
import time

from ._problems import error_from
from ._protocol import Pause, Request, Response, Steps, TransportFailure
from .errors import HapaxError, StoreUnavailable

ATTEMPTS = 4
FIRST_PAUSE = 0.1
# The longest that all attempts and pauses of one request take together, beyond its own wait.
TOTAL = 15.0

# The server refused the request before it did anything.
_REFUSED = {"too-many-requests", "overloaded", "shutting-down", "request-timeout"}


def send(request: Request, *, attempts: int = ATTEMPTS, total: float = TOTAL) -> Steps[Response]:
    """Returns the answer, if its status is below 400; raises a `HapaxError` otherwise.

    Everything that names the request (key, token, version) is the same in every attempt.
    """
    deadline = time.monotonic() + total + request.wait
    for attempt in range(1, attempts + 1):
        error, may_repeat = None, True
        try:
            response: Response = yield request
        except TransportFailure as failure:
            may_repeat = request.repeatable or not failure.sent
            error = _unreachable(failure, may_repeat)
        else:
            if response.status < 400:
                return response
            error = error_from(response)
            # A store that did not answer may have written.
            may_have_acted = error.code not in _REFUSED
            may_repeat = isinstance(error, StoreUnavailable) and error.retryable
            may_repeat = may_repeat and (request.repeatable or not may_have_acted)
        pause = _pause(attempt, error)
        if not may_repeat or attempt == attempts or time.monotonic() + pause > deadline:
            raise error
        yield Pause(pause)
    raise AssertionError("unreachable: the last attempt returns or raises")


def _unreachable(failure: TransportFailure, retryable: bool) -> HapaxError:
    advice = (
        "" if retryable else "; the request may have been executed: read before you write again"
    )
    return StoreUnavailable(f"no answer from the server: {failure}{advice}", retryable=retryable)


def _pause(attempt: int, error: HapaxError) -> float:
    backoff: float = FIRST_PAUSE * 2.0 ** (attempt - 1) * random.uniform(0.5, 1.5)
    return max(backoff, error.retry_after or 0.0)
