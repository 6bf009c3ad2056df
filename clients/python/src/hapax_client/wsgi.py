"""``Idempotency-Key`` for WSGI applications (Flask, Django, Pyramid, Bottle).

>>> app.wsgi_app = IdempotencyMiddleware(app.wsgi_app, client=hapax_client.connect())  # doctest: +SKIP

The first request with a key runs; every other one with it gets the same answer, byte for byte. The rules
are those of hapax's own layer and proxy: see ``docs/idempotency-key.md``. An answer within the limit is
collected before it is sent; a larger one, and an event stream, goes out as it comes.
"""

from __future__ import annotations

import io
import logging
from collections.abc import Iterable
from typing import Any, Callable, Optional

from . import _keyed_run
from ._client import Client, connect
from ._keyed_request import Head, KeyedRequest, Settings, fingerprint_of
from ._problem_document import Problem
from ._wsgi_run import Environ, FirstRun, StartResponse, replay, respond

App = Callable[[Environ, StartResponse], Iterable[bytes]]
_log = logging.getLogger("hapax_client")


class IdempotencyMiddleware:
    """Runs each keyed request once. `settings` are those of `hapax_client.Settings`, by name."""

    def __init__(self, app: App, client: Optional[Client] = None, **settings: Any) -> None:
        self.app = app
        self.settings = Settings(**settings)
        self.client = client if client is not None else connect()

    def __call__(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        # Only the middleware sets these two.
        environ.pop("HTTP_HAPAX_ATTEMPT", None)
        environ.pop("HTTP_HAPAX_FENCE", None)
        head = _head_of(environ)
        try:
            keyed = KeyedRequest.parse(self.settings, head)
            if keyed is None:
                return self.app(environ, start_response)
            body = self._read_body(environ)
            command = self.client.command(keyed.operation, keyed.key)
            steps = _keyed_run.begin(self.settings, command, fingerprint_of(head, body))
            begun = self.client.run(steps)
            if begun is not None and begun.answer is not None:
                return replay(start_response, begun.answer)
        except Problem as problem:
            return respond(start_response, problem.status, problem.headers(), problem.body())
        environ["wsgi.input"], environ["CONTENT_LENGTH"] = io.BytesIO(body), str(len(body))
        if begun is None:
            return self._run_unprotected(environ, start_response)
        environ["HTTP_HAPAX_ATTEMPT"] = str(begun.attempt)
        environ["HTTP_HAPAX_FENCE"] = str(begun.fence)
        run = FirstRun(self.settings, self.client, command, begun)
        return run.run(lambda start: self.app(environ, start), start_response)

    def _read_body(self, environ: Environ) -> bytes:
        """The whole body. The server bounds how long a client may take."""
        limit, source = self.settings.max_body, environ["wsgi.input"]
        declared = environ.get("CONTENT_LENGTH") or ""
        if declared.isdigit():
            expected = int(declared)
        else:
            # Without a length only a server that ends the stream itself can be read to its end.
            expected = limit + 1 if environ.get("wsgi.input_terminated") else 0
        body = bytearray()
        while expected <= limit or not declared:
            chunk = source.read(min(expected, limit + 1) - len(body))
            body += chunk
            if not chunk or len(body) >= expected:
                break
        if expected > limit and declared or len(body) > limit:
            detail = f"a request with a key has at most {limit} bytes; nothing was run"
            raise Problem("payload-too-large", detail)
        if declared and len(body) < expected:
            raise Problem(
                "invalid-request", "the request broke off before its end; nothing was run"
            )
        return bytes(body)

    def _run_unprotected(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        _log.warning("a request ran without protection: the store is unavailable")

        def marked(status: str, headers: list[tuple[str, str]], *rest: Any) -> Any:
            marked_headers = [*headers, ("Hapax-Unprotected", "store-unavailable")]
            return start_response(status, marked_headers, *rest)

        return self.app(environ, marked)


def _head_of(environ: Environ) -> Head:
    headers = [
        (name[5:].lower().replace("_", "-").encode("latin-1"), value.encode("latin-1"))
        for name, value in environ.items()
        if name.startswith("HTTP_")
    ]
    if environ.get("CONTENT_TYPE"):
        headers.append((b"content-type", environ["CONTENT_TYPE"].encode("latin-1")))
    path = environ.get("SCRIPT_NAME", "") + environ.get("PATH_INFO", "")
    raw = path.encode("latin-1")
    # Servers differ in whether they tell the path as it was sent.
    sent = str(environ.get("RAW_URI") or environ.get("REQUEST_URI") or "").partition("?")[0]
    query = environ.get("QUERY_STRING", "").encode("latin-1")
    shown = raw.decode("utf-8", "replace")
    return Head(environ["REQUEST_METHOD"], shown, query, headers, sent.encode("latin-1") or raw)
