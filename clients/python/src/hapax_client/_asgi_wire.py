"""ASGI messages: the body of a request that was read, and the answers that the middleware gives itself."""

from __future__ import annotations

from collections.abc import Awaitable, MutableMapping
from typing import Any, Callable

from ._commands import Answer
from ._kept_response import replayed_headers
from ._problem_document import Headers, Problem

Message = MutableMapping[str, Any]
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]


def body_then(body: bytes, receive: Receive) -> Receive:
    """Receives the body that was read, then from `receive`."""
    first = [body]

    async def receive_body_first() -> Message:
        if first:
            return {"type": "http.request", "body": first.pop(), "more_body": False}
        return await receive()

    return receive_body_first


async def send_problem(send: Send, problem: Problem) -> None:
    body = problem.body()
    headers = [*problem.headers(), (b"content-length", b"%d" % len(body))]
    await _send_all(send, problem.status, headers, body)


async def send_replay(send: Send, answer: Answer) -> None:
    try:
        headers = replayed_headers(answer)
    except Problem as problem:
        await send_problem(send, problem)
        return
    await _send_all(send, answer.status, headers, answer.body)


async def _send_all(send: Send, status: int, headers: Headers, body: bytes) -> None:
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
