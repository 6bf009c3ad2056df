"""A service that counts its executions, as an ASGI and as a WSGI application, and servers for both.

`POST` at any path runs: the JSON body says how to answer. `GET` passes the middleware untouched.
"""

from __future__ import annotations

import asyncio
import json
import socket
import socketserver
import threading
from collections.abc import Iterator
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

import uvicorn

from hapax_client import asgi, wsgi

BINARY = bytes(range(256))


class Target:
    """Counts executions; a test may hold them at a gate."""

    def __init__(self) -> None:
        self.executions = 0
        self.finished = 0
        self.seen: list[dict[str, str]] = []
        self.gate = threading.Event()
        self.gate.set()
        self._lock = threading.Lock()

    def start(self, headers: dict[str, str]) -> None:
        with self._lock:
            self.executions += 1
            self.seen.append(headers)

    def finish(self) -> None:
        with self._lock:
            self.finished += 1

    def answer(self, asked: dict[str, Any]) -> tuple[int, list[tuple[str, str]], list[bytes]]:
        if asked.get("raise"):
            raise RuntimeError("the handler failed on purpose")
        if "chunks" in asked:
            chunks = [chunk.encode() for chunk in asked["chunks"]]
        elif asked.get("binary"):
            chunks = [BINARY]
        else:
            chunks = [f"execution {self.executions}".encode() + b"." * asked.get("size", 0)]
        headers = [(name, value) for name, value in asked.get("headers", [])]
        return asked.get("status", 201), headers, chunks

    # ASGI

    async def asgi(self, scope, receive, send) -> None:
        if scope["type"] == "lifespan":
            for moment in ("startup", "shutdown"):
                await receive()
                await send({"type": f"lifespan.{moment}.complete"})
            return
        body = b""
        while True:
            message = await receive()
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        if scope["method"] == "GET":
            await self._send(send, 200, [], [b"%d" % self.executions])
            return
        self.start({name.decode(): value.decode() for name, value in scope["headers"]})
        assert await asyncio.to_thread(self.gate.wait, 60)
        answer = self.answer(json.loads(body or b"{}"))
        self.finish()
        await self._send(send, *answer)

    @staticmethod
    async def _send(send, status, headers, chunks) -> None:
        encoded = [(name.encode(), value.encode()) for name, value in headers]
        await send({"type": "http.response.start", "status": status, "headers": encoded})
        for chunk in chunks:
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
        await send({"type": "http.response.body", "body": b""})

    # WSGI

    def wsgi(self, environ, start_response) -> Iterator[bytes]:
        if environ["REQUEST_METHOD"] == "GET":
            start_response("200 OK", [])
            return iter([b"%d" % self.executions])
        body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        named = {
            key[5:].lower().replace("_", "-"): value
            for key, value in environ.items()
            if key[:5] == "HTTP_"
        }
        self.start(named)
        assert self.gate.wait(60)
        status, headers, chunks = self.answer(json.loads(body or b"{}"))
        self.finish()
        start_response(f"{status} Status", headers)
        return iter(chunks)


class AsgiServer:
    """uvicorn on a thread."""

    def __init__(self, target: Target, client, **settings: Any) -> None:
        app = asgi.IdempotencyMiddleware(target.asgi, client=client, **settings)
        self._socket = socket.socket()
        self._socket.bind(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        config = uvicorn.Config(app, log_level="critical", lifespan="on")
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(
            target=self._server.run, args=([self._socket],), daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        self._server.should_exit = True
        self._thread.join(30)
        self._socket.close()


class _QuietHandler(WSGIRequestHandler):
    def log_message(self, *arguments: Any) -> None:
        pass


class _ThreadingServer(socketserver.ThreadingMixIn, WSGIServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, request, client_address) -> None:
        pass


class WsgiServer:
    """A server with a thread for each connection."""

    def __init__(self, target: Target, client, **settings: Any) -> None:
        app = wsgi.IdempotencyMiddleware(target.wsgi, client=client, **settings)
        self._server = _ThreadingServer(("127.0.0.1", 0), _QuietHandler)
        self._server.set_app(app)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()


SERVERS = {"asgi": AsgiServer, "wsgi": WsgiServer}
