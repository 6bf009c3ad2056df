"""Fixtures: one migrated store of each kind for the whole run, with a server on it."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest
from conftest import HapaxServer, fresh_store
from sql_drivers import DRIVERS, Driver, kind_of, migrate


class SqlServers:
    """A server for each kind of store, started when it is first asked for."""

    def __init__(self, folders) -> None:
        self._servers, self._folders = {}, folders

    def stop(self) -> None:
        for server in self._servers.values():
            server.stop()

    def __getitem__(self, kind: str) -> HapaxServer:
        if kind not in self._servers:
            folder = self._folders.mktemp(f"sql-{kind}")
            store = fresh_store(kind, folder)
            migrate(store)
            driver = Driver("sqlite3" if kind == "sqlite" else "psycopg", store)
            with driver.transaction() as tx:
                tx.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, item TEXT NOT NULL)")
            self._servers[kind] = HapaxServer(store, folder)
        return self._servers[kind]


@pytest.fixture(scope="session")
def sql_servers(tmp_path_factory) -> Iterator[SqlServers]:
    servers = SqlServers(tmp_path_factory)
    yield servers
    servers.stop()


@pytest.fixture(params=DRIVERS)
def driver(request, sql_servers) -> Iterator[Driver]:
    """Each way into a transaction, on a store that a server also uses."""
    server = sql_servers[kind_of(request.param)]
    driver = Driver(request.param, server.store)
    driver.server = server
    yield driver
    driver.close()


@pytest.fixture
def http(driver) -> Iterator[httpx.Client]:
    """A plain HTTP client of the server on the driver's store."""
    with httpx.Client(base_url=driver.server.url, timeout=60) as client:
        yield client
