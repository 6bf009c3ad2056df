"""The server that `connect()` starts where none is named: shared, private, ended with its last client."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import stat
import subprocess

import httpx
import pytest
from conftest import BINARY, run_python, wait_for

import hapax_client
from hapax_client import InvalidRequest, StoreUnavailable

CLIENT = """
import sys
import hapax_client
client = hapax_client.connect()
print(client._transport.endpoint.address().url, client.record("n").update(lambda n: n + 1, default=0), flush=True)
sys.stdin.readline()
"""


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("HAPAX_BIN", str(BINARY))
    monkeypatch.setenv("HAPAX_DATA", str(tmp_path / "data"))
    return tmp_path / "data"


class ClientProcess:
    """Another process that has a client until it is told to end."""

    def __init__(self):
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self.process = run_python(CLIENT, **pipes)

    def answer(self) -> tuple[str, int]:
        url, count = self.process.stdout.readline().split()
        return url, int(count)

    def end(self, kill: bool = False) -> None:
        if kill:
            self.process.kill()
        self.process.communicate("\n", timeout=60)


def is_gone(url: str) -> bool:
    try:
        httpx.get(f"{url}/healthz", timeout=60)
    except httpx.ConnectError:
        return True
    except httpx.HTTPError:
        return False
    return False


def test_server_is_shared_and_ends_with_its_last_client(folder):
    first, second = ClientProcess(), ClientProcess()
    (url, one), (other, two) = first.answer(), second.answer()
    assert url == other and {one, two} == {1, 2}
    first.end()
    with hapax_client.connect() as client:
        assert client._transport.endpoint.address().url == url
        second.end(kill=True)
        assert client.record("n").get() == 2
    wait_for(lambda: is_gone(url), "the server ends")


def test_server_ends_when_its_clients_are_killed():
    processes = [ClientProcess() for _ in range(3)]
    url = {process.answer()[0] for process in processes}.pop()
    for process in processes:
        process.end(kill=True)
    wait_for(lambda: is_gone(url), "the server ends")


def test_server_is_started_once_by_many_starters():
    processes = [ClientProcess() for _ in range(8)]
    answers = [process.answer() for process in processes]
    assert len({url for url, _ in answers}) == 1
    assert sorted(count for _, count in answers) == list(range(1, 9))
    for process in processes:
        process.end()


def test_server_is_started_anew_while_the_last_one_ends():
    for count in range(1, 6):
        with hapax_client.connect() as client:
            assert client.record("n").update(lambda n: n + 1, default=0) == count


def test_server_that_was_killed_is_started_again(folder):
    with hapax_client.connect() as client:
        client.record("kept").put(7)
        old = json.loads((folder / "server.json").read_text())
        os.kill(old["pid"], signal.SIGKILL)
        wait_for(lambda: is_gone(old["url"]), "the server is dead")
        assert client.record("kept").get() == 7
        assert client._transport.endpoint.address().url != old["url"]


def test_forked_child_keeps_the_server(folder):
    read, write = os.pipe()
    client = hapax_client.connect()
    url = client._transport.endpoint.address().url
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.close(write)
            os.read(read, 1)  # until the parent has closed its client
            client.record("child").put(1)
            status = 0
        finally:
            os._exit(status)
    os.close(read)
    client.close()
    os.close(write)
    assert os.waitpid(child, 0)[1] == 0
    wait_for(lambda: is_gone(url), "the server ends with the child")


def test_server_is_private(folder):
    with hapax_client.connect() as client:
        url = client._transport.endpoint.address().url
        assert url.startswith("http://127.0.0.1:")
        assert httpx.get(f"{url}/v1/records/x").status_code == 401
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        for path in folder.iterdir():
            assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0, path.name


async def test_async_client_starts_the_server_too():
    async with hapax_client.aconnect() as client:
        url = (await client._transport.address()).url
        assert await client.record("n").update(lambda n: n + 1, default=0) == 1
    await asyncio.to_thread(wait_for, lambda: is_gone(url), "the server ends")
    client = await hapax_client.aconnect()
    assert await client.record("n").get() == 1
    await client.aclose()


@pytest.mark.parametrize(
    "broken", ["", "{", '{"url": 7}', '{"url": "http://127.0.0.1:1", "token": "x"}']
)
def test_broken_server_file_is_replaced(folder, broken):
    folder.mkdir(mode=0o700)
    (folder / "server.json").write_text(broken)
    with hapax_client.connect() as client:
        assert client.record("n").get() is None


def test_missing_or_broken_server_is_told(folder, monkeypatch, tmp_path):
    monkeypatch.setenv("HAPAX_BIN", str(tmp_path / "missing"))
    with pytest.raises(InvalidRequest, match="cannot be run"):
        hapax_client.connect()
    monkeypatch.setenv("HAPAX_BIN", "/bin/false")
    with pytest.raises(StoreUnavailable, match="did not start"):
        hapax_client.connect()
    monkeypatch.delenv("HAPAX_BIN")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(InvalidRequest, match="pip install hapax-server"):
        hapax_client.connect()
    (tmp_path / "file").touch()
    monkeypatch.setenv("HAPAX_DATA", str(tmp_path / "file" / "data"))
    with pytest.raises(InvalidRequest, match="HAPAX_DATA"):
        hapax_client.connect()
