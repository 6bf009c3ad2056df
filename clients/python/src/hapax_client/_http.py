"""The part that the sync and the async transport share: limits, headers, and the meaning of failures."""

from __future__ import annotations

from typing import Any, Optional

import httpx

from ._endpoint import Address
from ._protocol import Request, Response, TransportFailure

# Requests that wait for another owner have connections of their own: they would otherwise take the
# last ones, and the owner could neither renew nor complete.
LIMITS = httpx.Limits(max_connections=100, max_keepalive_connections=20, keepalive_expiry=5.0)
WAITING_LIMITS = httpx.Limits(
    max_connections=1000, max_keepalive_connections=20, keepalive_expiry=5.0
)

# The server sends a comment every 15 s on an event stream on which nothing happens.
STREAM_SILENCE = 60.0

_NOT_SENT = (
    httpx.ConnectError,
    httpx.ConnectTimeout,
    httpx.PoolTimeout,
    httpx.UnsupportedProtocol,
    httpx.ProxyError,
)


def request_arguments(request: Request, address: Address, timeout: float) -> dict[str, Any]:
    """The arguments of `httpx.Client.build_request`."""
    headers = {"accept": "application/json", **request.headers}
    if address.token is not None:
        headers["authorization"] = f"Bearer {address.token}"
    if request.body is not None:
        headers.setdefault("content-type", "application/json")
    return {
        "method": request.method,
        "url": address.url + request.path,
        "content": request.body,
        "params": dict(request.query) or None,
        "headers": headers,
        "timeout": httpx.Timeout(timeout, read=timeout + request.wait),
    }


def response_from(response: httpx.Response, body: Optional[bytes] = None) -> Response:
    return Response(
        response.status_code, response.headers, response.content if body is None else body
    )


def failure_from(error: httpx.HTTPError, address: Address) -> TransportFailure:
    """Names the kind of failure and the server, never the path: keys may identify a person."""
    sent = not isinstance(error, _NOT_SENT)
    return TransportFailure(f"{type(error).__name__} at {address.url}", sent=sent)


def is_refused(error: httpx.HTTPError) -> bool:
    return isinstance(error, (httpx.ConnectError, httpx.ConnectTimeout))
