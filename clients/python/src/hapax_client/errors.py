"""The errors of this package: a small tree, each with `retryable`.

`retryable` tells whether the same call may succeed later and may be made again as it is.

>>> from hapax_client import Busy, HapaxError
>>> issubclass(Busy, HapaxError), Busy("held").retryable
(True, True)
"""

from __future__ import annotations

from typing import Optional


class HapaxError(Exception):
    """The base of all errors of this package.

    `code` is the server's stable name of the problem, such as `lock-held`; `retry_after` is in seconds.
    """

    retryable = False

    def __init__(
        self,
        message: str,
        *,
        code: Optional[str] = None,
        status: Optional[int] = None,
        retry_after: Optional[float] = None,
        retryable: Optional[bool] = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.status = status
        self.retry_after = retry_after
        if retryable is not None:
            self.retryable = retryable


class Busy(HapaxError):
    """Another owner has the lock, or another attempt is still running: try again later."""

    retryable = True


class KeyReused(HapaxError):
    """The key was used before with other arguments: choose a new key for a new request."""


class OutcomeUnknown(HapaxError):
    """The owner of the last attempt disappeared: it may or may not have acted.

    Find out whether the effect happened. If it did, settle the command with its answer
    (`hapax command settle`); if not, release it (`hapax command release`). A function that may safely
    run twice is called with `on_unknown="rerun"`.
    """


class Lost(HapaxError):
    """The lock or the claim belongs to this process no longer; another owner may be at work."""


class VersionMismatch(HapaxError):
    """The record is not at the expected version: read it and decide again."""


class StoreUnavailable(HapaxError):
    """The server or its store did not answer in time, or has no room: try again later."""

    retryable = True


class InvalidRequest(HapaxError, ValueError):
    """An argument is not valid; the message names the argument, its limit and the fix."""


class Unauthorized(HapaxError):
    """The token is missing, wrong, or lacks the scope."""


class UnsupportedServer(HapaxError):
    """The server does not know this call: it is older than this package, or no hapax server."""


class Missing(HapaxError):
    """There is no such record, command or job."""


class EventRefused(HapaxError):
    """The job is closed, or its log has another event with this stage and seq."""


class ResultNotKept(HapaxError):
    """The function ran, but its result could not be stored, so that no later call can get it."""
