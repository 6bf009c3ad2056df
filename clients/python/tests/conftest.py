"""Servers for the tests: the real `hapax`, on SQLite, Redis and PostgreSQL.

HAPAX_TEST_BIN          the `hapax` binary; default target/debug/hapax of the repository
HAPAX_TEST_REDIS_URL    a redis-server of the tests' own, as `with-servers` starts it
HAPAX_TEST_POSTGRES_URL a PostgreSQL of the tests' own
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

import hapax_client

REPOSITORY = Path(__file__).resolve().parents[3]
BINARY = Path(os.environ.get("HAPAX_TEST_BIN") or REPOSITORY / "target/debug/hapax")
STORES = ["sqlite", "redis", "postgres"]
# The bound of every wait for a condition: a machine may stand still for some seconds.
PATIENCE = 60.0


def wait_for(condition, what: str, patience: float = PATIENCE):
    """Waits until `condition()` is true, and returns its value."""
    end = time.monotonic() + patience
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < end, f"still not after {patience:g} s: {what}"
        time.sleep(0.02)


def clean_environment() -> dict[str, str]:
    """The environment without what would change a server's or a client's settings."""
    return {k: v for k, v in os.environ.items() if not k.startswith("HAPAX_") and k != "REDIS_URL"}


class HapaxServer:
    """A running `hapax serve` on a free port."""

    def __init__(self, store: str, folder: Path, config: str = "", listen: str = "127.0.0.1:0"):
        self.folder, self.store, self.token = folder, store, None
        arguments = [str(BINARY), "serve", "--listen", listen, "--store", store]
        arguments += ["--config", str(folder / "hapax.toml")]
        (folder / "hapax.toml").write_text(config)
        with (folder / "server.log").open("ab") as log:
            self.process = subprocess.Popen(
                arguments,
                cwd=folder,
                env=clean_environment(),
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        self.url = self._announced()
        threading.Thread(target=self.process.stdout.read, daemon=True).start()

    def _announced(self) -> str:
        for line in self.process.stdout:
            if "listens on " in line:
                return line.split("listens on ")[1].strip()
        raise AssertionError("no server:\n" + (self.folder / "server.log").read_text())

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()


def fresh_store(kind: str, folder: Path) -> str:
    """The URL of a store that no other test uses."""
    if kind == "sqlite":
        return f"sqlite:{folder / 'hapax.db'}"
    if kind == "memory":
        return "memory:"
    variable = f"HAPAX_TEST_{kind.upper()}_URL"
    url = os.environ.get(variable)
    if not url:
        pytest.skip(f"{variable} is not set; `with-servers redis postgres -- …` sets it")
    if kind == "postgres":
        name = f"t{uuid.uuid4().hex}"
        subprocess.run(["psql", url, "-qc", f"CREATE DATABASE {name}"], check=True)
        return url.rsplit("/", 1)[0] + f"/{name}"
    return url


@pytest.fixture(scope="session", params=STORES)
def server(request, tmp_path_factory) -> Iterator[HapaxServer]:
    """One server for each store, for the whole run: tests keep apart by their keys (`key`)."""
    folder = tmp_path_factory.mktemp("server")
    server = HapaxServer(fresh_store(request.param, folder), folder)
    yield server
    server.stop()


@pytest.fixture(scope="session")
def sqlite_server(tmp_path_factory) -> Iterator[HapaxServer]:
    """For tests in which the store makes no difference."""
    folder = tmp_path_factory.mktemp("sqlite")
    server = HapaxServer(fresh_store("sqlite", folder), folder)
    yield server
    server.stop()


@pytest.fixture
def client(server) -> Iterator[hapax_client.Client]:
    with hapax_client.connect(server.url) as client:
        yield client


@pytest.fixture
async def aclient(server):
    async with hapax_client.aconnect(server.url) as client:
        yield client


@pytest.fixture
def local(sqlite_server) -> Iterator[hapax_client.Client]:
    """A client of the server on SQLite."""
    with hapax_client.connect(sqlite_server.url) as client:
        yield client


@pytest.fixture
def key() -> str:
    """A key that no other test uses."""
    return uuid.uuid4().hex


@pytest.fixture
def frequent_renewal(monkeypatch) -> None:
    """Renews every tenth of a second in a minute: seen soon, and no stalled machine loses the lease."""
    monkeypatch.setattr("hapax_client._lease.RENEWALS", 600)


@pytest.fixture(autouse=True)
def no_settings_from_outside(monkeypatch):
    for name in ("HAPAX_URL", "HAPAX_SERVER", "HAPAX_TOKEN"):
        monkeypatch.delenv(name, raising=False)


def run_python(code: str, *arguments: str, **options) -> subprocess.Popen:
    """A Python process that has this package."""
    return subprocess.Popen([sys.executable, "-c", code, *arguments], **options)
