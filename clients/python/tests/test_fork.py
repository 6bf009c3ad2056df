"""Clients that were used before a fork: parent and children go on with connections of their own."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import subprocess
import sys
import threading

import httpx
import pytest
from conftest import wait_for

import hapax_client
from hapax_client import _transport


def in_child(work) -> int:
    """Forks, runs the work in the child, and returns its exit status."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            work()
            status = 0
        finally:
            os._exit(status)
    return child


def status_of(child: int) -> int:
    """Waits for its end; a child that hangs is killed."""

    def ended() -> tuple[int, int] | None:
        pid, status = os.waitpid(child, os.WNOHANG)
        return (pid, status) if pid else None

    try:
        return wait_for(ended, "the child ends")[1]
    except BaseException:
        os.kill(child, signal.SIGKILL)
        raise


def test_client_works_in_parent_and_children_of_a_fork(local, key):
    record = local.record(key)
    record.put(0)

    def count():
        for _ in range(10):
            record.update(lambda n: n + 1)

    children = [in_child(count) for _ in range(4)]
    count()
    assert [status_of(child) for child in children] == [0] * 4
    assert record.get() == 50


def test_client_works_in_a_child_forked_while_threads_use_it(local, key):
    """The locks inside the client may be held by another thread at the time of the fork."""
    stop, record = threading.Event(), local.record(key)

    def hammer():
        while not stop.is_set():
            record.get()

    threads = [threading.Thread(target=hammer) for _ in range(4)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(10):
            child = in_child(lambda: record.put(1))
            assert status_of(child) == 0
    finally:
        stop.set()
        for thread in threads:
            thread.join(60)


def test_fork_waits_until_another_thread_has_made_the_tls_context(sqlite_server, key, monkeypatch):
    """OpenSSL's locks, which that thread holds, stay locked in a child for ever."""
    began, goes_on = threading.Event(), threading.Event()
    make = _transport.tls_context

    def make_slowly(endpoint):
        began.set()
        assert goes_on.wait(60)
        return make(endpoint)

    monkeypatch.setattr(_transport, "tls_context", make_slowly)
    client = hapax_client.connect(sqlite_server.url)
    thread = threading.Thread(target=client.record(key).get)
    thread.start()
    assert began.wait(60)
    monkeypatch.setattr(_transport, "tls_context", lambda _: os._exit(2))
    threading.Timer(0.2, goes_on.set).start()
    child = in_child(lambda: client.record(key).put(1))
    goes_on.set()
    assert status_of(child) == 0, "the child made a context of its own"
    thread.join(60)
    client.close()


def _once_in_process(url: str, key: str) -> int:
    return _FORKED[url].once("Fork", key=key)(os.getpid)()


_FORKED: dict[str, hapax_client.Client] = {}


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_client_works_with_multiprocessing(sqlite_server, local, key, method):
    if method == "fork":
        _FORKED[sqlite_server.url] = local
        local.record(key).put(1)
        target = _once_in_process
    else:
        target = _connect_and_once
    with multiprocessing.get_context(method).Pool(3) as pool:
        answers = pool.starmap_async(target, [(sqlite_server.url, key)] * 6).get(120)
    assert len(set(answers)) == 1


def _connect_and_once(url: str, key: str) -> int:
    with hapax_client.connect(url) as client:
        return client.once("Fork", key=key)(os.getpid)()


def test_async_client_works_in_many_loops_and_after_a_fork(sqlite_server, key):
    client = hapax_client.aconnect(sqlite_server.url)

    async def add() -> int:
        return await client.record(key).update(lambda n: n + 1, default=0)

    assert asyncio.run(add()) == 1
    child = in_child(lambda: asyncio.run(add()))
    assert status_of(child) == 0
    assert asyncio.run(add()) == 3


APPLICATION = """
import os, sys
import hapax_client
client = hapax_client.connect({url!r})
client.record({key!r}).put(0)  # a connection that the workers inherit

@client.once("Gunicorn", key="key", wait=60)
def create(key: str) -> int:
    client.record({key!r}).update(lambda n: n + 1)
    return os.getpid()

def application(environ, start_response):
    text = f"{{os.getpid()}} {{create(environ['QUERY_STRING'])}}".encode()
    start_response("200 OK", [("Content-Length", str(len(text)))])
    return [text]
"""


def test_client_works_in_gunicorn_workers_that_were_forked(sqlite_server, local, key, tmp_path):
    (tmp_path / "forked.py").write_text(APPLICATION.format(url=sqlite_server.url, key=key))
    socket = tmp_path / "gunicorn.sock"
    arguments = [
        "--preload",
        "--workers=3",
        "--threads=4",
        f"--bind=unix:{socket}",
        "--no-control-socket",
    ]
    process = subprocess.Popen(
        [sys.executable, "-m", "gunicorn", *arguments, "forked:application"],
        cwd=tmp_path,
        stderr=subprocess.DEVNULL,
    )
    try:
        transport = httpx.HTTPTransport(uds=str(socket))
        with httpx.Client(transport=transport, timeout=60, headers={"connection": "close"}) as http:
            wait_for(lambda: socket.exists() or process.poll() is not None, "gunicorn listens")
            answers: list[tuple[str, str]] = []
            lock = threading.Lock()

            def call(query):
                pid, made_by = http.get(f"http://g/?{query}").text.split()
                with lock:
                    answers.append((pid, query + made_by))

            threads = [threading.Thread(target=call, args=(f"k{n % 4}",)) for n in range(24)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(120)
        assert len(answers) == 24
        assert len({made for _, made in answers}) == 4, "each key ran once"
        assert local.record(key).get() == 4
    finally:
        process.terminate()
        process.wait(60)
