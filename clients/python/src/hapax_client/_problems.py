"""Turns problem documents (RFC 9457) of the server into errors."""

from __future__ import annotations

from typing import Any, Optional

from ._protocol import Response
from .errors import (
    Busy,
    EventRefused,
    HapaxError,
    InvalidRequest,
    KeyReused,
    Lost,
    Missing,
    OutcomeUnknown,
    StoreUnavailable,
    Unauthorized,
    UnsupportedServer,
    VersionMismatch,
)

_BY_CODE: dict[str, type[HapaxError]] = {
    "lock-held": Busy,
    "in-progress": Busy,
    "record-contended": Busy,
    "key-reused": KeyReused,
    "outcome-unknown": OutcomeUnknown,
    "lock-lost": Lost,
    "claim-lost": Lost,
    "version-mismatch": VersionMismatch,
    "record-missing": Missing,
    "command-missing": Missing,
    "job-missing": Missing,
    "event-conflict": EventRefused,
    "job-closed": EventRefused,
    "not-found": UnsupportedServer,
    "method-not-allowed": UnsupportedServer,
}

_BY_STATUS: dict[int, type[HapaxError]] = {
    400: InvalidRequest,
    401: Unauthorized,
    403: Unauthorized,
    404: UnsupportedServer,
    405: UnsupportedServer,
    408: StoreUnavailable,
    413: InvalidRequest,
    415: InvalidRequest,
    422: InvalidRequest,
    429: StoreUnavailable,
    431: InvalidRequest,
    502: StoreUnavailable,
    503: StoreUnavailable,
    504: StoreUnavailable,
}

# Advice to the user, where the server's own text does not say it.
_HINTS: dict[type[HapaxError], str] = {
    Unauthorized: "give a token of the right scope: connect(url, token=…) or HAPAX_TOKEN",
    UnsupportedServer: "the address is no hapax server, or one older than this package: check the URL, "
    "or update the server",
    KeyReused: "choose a new key for a new request",
    OutcomeUnknown: "find out whether the effect happened, then settle or release the command "
    '(`hapax command --help`); on_unknown="rerun" runs it again',
}


def error_from(response: Response) -> HapaxError:
    """The error that an answer with a status of 400 or more stands for."""
    document = _document(response)
    code = _code(document)
    kind = _BY_CODE.get(code or "") or _BY_STATUS.get(response.status, HapaxError)
    detail = document.get("detail") or f"the server answered {response.status}"
    hint = _HINTS.get(kind)
    retryable = document.get("retryable")
    return kind(
        f"{detail}; {hint}" if hint else str(detail),
        code=code,
        status=response.status,
        retry_after=_retry_after(response, document),
        retryable=retryable if isinstance(retryable, bool) else None,
    )


def _document(response: Response) -> dict[str, Any]:
    try:
        document = response.json()
    except ValueError:
        return {}
    return document if isinstance(document, dict) else {}


def _code(document: dict[str, Any]) -> Optional[str]:
    kind = document.get("type")
    return kind.rsplit("/", 1)[-1] if isinstance(kind, str) else None


def _retry_after(response: Response, document: dict[str, Any]) -> Optional[float]:
    millis = document.get("retry_after_ms")
    if isinstance(millis, (int, float)) and not isinstance(millis, bool):
        return max(0.0, millis / 1000)
    try:
        return max(0.0, float(response.headers["retry-after"]))
    except (KeyError, ValueError):
        return None
