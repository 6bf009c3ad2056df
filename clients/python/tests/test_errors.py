"""Bad input, servers that are away, old or foreign, and tokens without the scope."""

from __future__ import annotations

import hashlib
import logging
import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from conftest import HapaxServer, fresh_store

import hapax_client
from hapax_client import (
    HapaxError,
    InvalidRequest,
    StoreUnavailable,
    Unauthorized,
    UnsupportedServer,
)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class StubServer:
    """An HTTP server that answers as it is told, and remembers what it was asked."""

    def __init__(self, answer):
        asked = self.asked = []

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_any(self):
                body = self.rfile.read(int(self.headers.get("content-length") or 0))
                asked.append((self.command, self.path, body))
                reply = answer(len(asked), self)
                if reply is None:
                    self.close_connection = True
                    return
                status, headers, text = reply
                self.send_response(status)
                for name, value in {**headers, "content-length": str(len(text))}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(text)

            do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = handle_any

            def log_message(self, *_):
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._server.shutdown()
        self._server.server_close()


def problem(status: int, code: str, retryable: bool, headers=None):
    text = '{"type":"https://x/problems/%s","detail":"told","retryable":%s}'
    body = (text % (code, "true" if retryable else "false")).encode()
    return status, {"content-type": "application/problem+json", **(headers or {})}, body


GRANTED = (201, {}, b'{"state":"pending","token":"t","fence":1,"attempt":1}')


def test_error_tree_is_small_and_tells_retryable():
    retryable = {c.__name__: c.retryable for c in HapaxError.__subclasses__()}
    assert {name for name, value in retryable.items() if value} == {"Busy", "StoreUnavailable"}
    for name in (
        "Busy",
        "KeyReused",
        "OutcomeUnknown",
        "Lost",
        "VersionMismatch",
        "StoreUnavailable",
    ):
        assert issubclass(getattr(hapax_client, name), HapaxError)


def test_server_that_is_away_is_told_in_time(key):
    client = hapax_client.connect(f"http://127.0.0.1:{free_port()}")
    calls = [
        lambda: client.lock(key).acquire(),
        lambda: client.command("pay", key).begin(),
        lambda: client.once("pay", key=key)(lambda: 1)(),
        lambda: client.record(key).get(),
        lambda: client.record(key).put(1),
        lambda: client.publish("scan", key, "s", 1),
        lambda: client.inbox("billing").once(key).__enter__(),
    ]
    for call in calls:
        with pytest.raises(StoreUnavailable) as away:
            call()
        assert key not in str(away.value)


async def test_async_server_that_is_away_is_told_in_time(key):
    async with hapax_client.aconnect(f"http://127.0.0.1:{free_port()}") as client:
        with pytest.raises(StoreUnavailable):
            await client.record(key).get()


def test_server_that_hangs_is_told_in_time(key):
    hang = threading.Event()
    with StubServer(lambda *_: hang.wait(60) and None) as stub:
        client = hapax_client.connect(stub.url, timeout=0.2)
        with pytest.raises(StoreUnavailable) as away:
            client.record(key).put(1)
        # The write may have happened: only the caller can decide what to do.
        assert not away.value.retryable and len(stub.asked) == 1
        with pytest.raises(StoreUnavailable) as away:
            client.record(key).get()
        assert away.value.retryable and len(stub.asked) == 1 + 4
        hang.set()


def test_retry_keeps_the_request_and_honours_retry_after(key):
    def answer(count, _):
        busy = problem(503, "overloaded", True, {"retry-after": "1"})
        return busy if count < 3 else GRANTED

    with StubServer(answer) as stub:
        client = hapax_client.connect(stub.url)
        assert client.command("pay", key).begin(fingerprint="f").granted
        assert len(stub.asked) == 3 and len(set(stub.asked)) == 1


def test_retry_ends_where_the_server_wants_a_long_pause(key):
    with StubServer(lambda *_: problem(503, "overloaded", True, {"retry-after": "3600"})) as stub:
        with pytest.raises(StoreUnavailable) as away:
            hapax_client.connect(stub.url).record(key).get()
        assert away.value.retry_after == 3600 and len(stub.asked) == 1


def test_write_is_not_repeated_where_it_may_have_happened(key):
    with StubServer(lambda *_: problem(503, "store-unavailable", True)) as stub:
        client = hapax_client.connect(stub.url)
        with pytest.raises(StoreUnavailable) as away:
            client.record(key).put(1, version='"v"')
        assert len(stub.asked) == 1 and not away.value.retryable


def test_lost_answer_of_an_update_is_told_and_not_applied_twice(key):
    def answer(_, handler):
        return (200, {"etag": '"v"'}, b"1") if handler.command == "GET" else None

    with StubServer(answer) as stub:
        with pytest.raises(StoreUnavailable, match="may have been executed"):
            hapax_client.connect(stub.url).record(key).update(lambda n: n + 1)
        assert [method for method, _, _ in stub.asked] == ["GET", "PUT"]


def test_old_server_is_told(key):
    """A server without the renewal of commands, as they were at first."""

    def answer(count, handler):
        if handler.command == "PATCH":
            return problem(405, "method-not-allowed", False)
        return GRANTED if handler.command == "POST" else (200, {}, b'{"state":"completed"}')

    with StubServer(answer) as stub:
        client = hapax_client.connect(stub.url)
        with pytest.raises(UnsupportedServer, match="update the server"):
            client.command("pay", key).renew("token")
    for foreign in [(404, {}, b"<html>no such page"), problem(404, "not-found", False)]:
        told = pytest.raises(UnsupportedServer, match="no hapax server")
        with StubServer(lambda *_, foreign=foreign: foreign) as stub, told:
            hapax_client.connect(stub.url).lock(key).acquire()


def test_function_runs_on_an_old_server_without_renewal(key, frequent_renewal):
    renewals = threading.Event()

    def answer(count, handler):
        if handler.command == "PATCH":
            renewals.set()
            return problem(405, "method-not-allowed", False)
        return GRANTED if handler.command == "POST" else (200, {}, b'{"state":"completed"}')

    with StubServer(answer) as stub:
        client = hapax_client.connect(stub.url)

        @client.once("pay", key=key, lease=60)
        def run() -> bool:
            return renewals.wait(60)

        assert run() is True
        assert stub.asked[-1][0] == "PUT"


@pytest.fixture(scope="module")
def guarded_server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("guarded")
    config = ""
    for name, scope in (("app", "data"), ("grafana", "metrics")):
        digest = hashlib.sha256(f"token-of-{name}".encode()).hexdigest()
        config += f'[[token]]\nname = "{name}"\nsha256 = "{digest}"\nscopes = ["{scope}"]\n'
    server = HapaxServer(fresh_store("sqlite", folder), folder, config)
    yield server
    server.stop()


@pytest.mark.parametrize("token", [None, "wrong", "token-of-grafana"])
def test_token_without_the_scope_is_told_and_nothing_is_claimed(guarded_server, key, token):
    client = hapax_client.connect(guarded_server.url, token=token)
    calls = []
    for call in (
        lambda: client.once("pay", key=key)(lambda: calls.append(1))(),
        lambda: client.lock(key).acquire(),
        lambda: client.inbox("billing").once(key).__enter__(),
        lambda: list(client.follow("scan", key)),
    ):
        with pytest.raises(Unauthorized, match="HAPAX_TOKEN") as refused:
            call()
        assert not refused.value.retryable
    assert not calls
    allowed = hapax_client.connect(guarded_server.url, token="token-of-app")
    assert allowed.command("pay", key).get() is None
    assert allowed.lock(key, blocking=False).acquire()


def test_environment_names_server_and_token(guarded_server, monkeypatch, key):
    monkeypatch.setenv("HAPAX_SERVER", "http://127.0.0.1:1")
    monkeypatch.setenv("HAPAX_URL", guarded_server.url)
    monkeypatch.setenv("HAPAX_TOKEN", "token-of-app")
    assert hapax_client.connect().record(key).get() is None
    monkeypatch.delenv("HAPAX_URL")
    monkeypatch.setenv("HAPAX_SERVER", guarded_server.url)
    assert hapax_client.connect().record(key).get() is None
    with pytest.raises(Unauthorized):
        hapax_client.connect(token="wrong").record(key).get()


@pytest.mark.parametrize(
    "url",
    ["", "localhost:8787", "ftp://x", "http://", "http://u:p@h", "http://h:x", "http://h?q", 7],
)
def test_connect_refuses_a_bad_url(url):
    with pytest.raises(InvalidRequest, match="url"):
        hapax_client.connect(url)


def test_connect_refuses_a_bad_token_and_timeout():
    for arguments in ({"token": 7}, {"token": "two words"}, {"timeout": 0}, {"timeout": "1"}):
        with pytest.raises(InvalidRequest):
            hapax_client.connect("http://127.0.0.1:1", **arguments)


def test_function_that_ran_is_not_lost_silently_when_the_server_dies(tmp_path, key):
    server = HapaxServer(fresh_store("sqlite", tmp_path), tmp_path)
    client = hapax_client.connect(server.url)

    @client.once("pay", key=key)
    def run() -> int:
        server.stop()
        return 1

    with pytest.raises(hapax_client.OutcomeUnknown, match="could not be stored"):
        run()


def test_logs_and_errors_name_no_key(tmp_path, caplog, frequent_renewal):
    secret = "Uf00d-person"
    caplog.set_level(logging.DEBUG, logger="hapax_client")
    server = HapaxServer(fresh_store("sqlite", tmp_path), tmp_path)
    client = hapax_client.connect(server.url, token="tok-Uf00d")
    renewed = threading.Event()

    class Watch(logging.Handler):
        def emit(self, record):
            renewed.set()

    watch = Watch()
    logging.getLogger("hapax_client").addHandler(watch)
    try:
        with client.lock(secret, ttl=60), pytest.raises(HapaxError) as raised:
            server.stop()
            assert renewed.wait(60)
            client.command(secret, secret).begin(fingerprint=secret)
    finally:
        logging.getLogger("hapax_client").removeHandler(watch)
    assert caplog.records
    shown = [record.getMessage() for record in caplog.records if record.name == "hapax_client"]
    for text in [*shown, str(raised.value), repr(raised.value), repr(client.command("a", "b"))]:
        assert "Uf00d" not in text
