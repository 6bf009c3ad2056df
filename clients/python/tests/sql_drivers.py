"""Every way into a transaction of the caller's own, behind one interface, so that each law is tested on
all of them."""

from __future__ import annotations

import asyncio
import functools
import inspect
import sqlite3
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, NamedTuple

import psycopg
import sqlalchemy
from conftest import BINARY, PATIENCE, clean_environment
from sqlalchemy.ext.asyncio import create_async_engine

import hapax_client.django
import hapax_client.psycopg
import hapax_client.sqlalchemy
import hapax_client.sqlite

DRIVERS = [
    "sqlite3",
    "sqlalchemy-sqlite",
    "sqlalchemy-aiosqlite",
    "django-sqlite",
    "psycopg",
    "psycopg-async",
    "sqlalchemy-psycopg",
    "sqlalchemy-psycopg-async",
    "sqlalchemy-asyncpg",
    "django-postgres",
]


def kind_of(driver: str) -> str:
    return "sqlite" if driver.endswith("sqlite") or driver == "sqlite3" else "postgres"


def migrate(store: str) -> None:
    command = [str(BINARY), "migrate", "--store", store]
    done = subprocess.run(command, env=clean_environment(), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


class Calls(NamedTuple):
    """The calls of a test in one transaction."""

    idempotency: Any
    outbox: Any
    inbox: Any
    execute: Any


class Driver:
    """Transactions of one driver on one store. ``transaction`` commits, or rolls back on an error."""

    def __init__(self, name: str, store: str) -> None:
        self.name, self.store, self.kind = name, store, kind_of(name)
        self.path = store.partition(":")[2]
        self.is_second = False
        self._closers: list[Any] = []
        self._loop: Any = None

    def close(self) -> None:
        for close in reversed(self._closers):
            close()

    @contextmanager
    def transaction(self) -> Iterator[Calls]:
        opener = getattr(self, "_" + self.name.replace("-", "_"))
        with opener() as calls:
            yield calls

    # Without SQLAlchemy

    @contextmanager
    def _sqlite3(self) -> Iterator[Calls]:
        connection = sqlite3.connect(self.path, timeout=60)
        try:
            with connection:
                yield _calls(
                    hapax_client.sqlite, connection, lambda sql: connection.execute(sql).fetchall()
                )
        finally:
            connection.close()

    @contextmanager
    def _psycopg(self) -> Iterator[Calls]:
        with psycopg.connect(self.store) as connection:
            yield _calls(hapax_client.psycopg, connection, _fetching(connection.execute))

    @contextmanager
    def _psycopg_async(self) -> Iterator[Calls]:
        run = self._run
        connection = run(psycopg.AsyncConnection.connect(self.store))

        def execute(sql: str) -> Any:
            async def fetch() -> Any:
                cursor = await connection.execute(sql)
                return await cursor.fetchall() if cursor.description else []

            return run(fetch())

        module = SimpleNamespace(
            Idempotency=hapax_client.psycopg.AsyncIdempotency,
            Outbox=hapax_client.psycopg.AsyncOutbox,
            Inbox=hapax_client.psycopg.AsyncInbox,
        )
        try:
            yield _awaited(run, _calls(module, connection, execute))
            run(connection.commit())
        finally:
            run(connection.close())

    # SQLAlchemy

    @contextmanager
    def _sqlalchemy_sqlite(self) -> Iterator[Calls]:
        url = f"sqlite:///{self.path}"
        with self._session(url, connect_args={"timeout": 60}) as calls:
            yield calls

    @contextmanager
    def _sqlalchemy_psycopg(self) -> Iterator[Calls]:
        with self._session(self.store.replace("postgres://", "postgresql+psycopg://")) as calls:
            yield calls

    @contextmanager
    def _session(self, url: str, **options: Any) -> Iterator[Calls]:
        engine = self._engine(sqlalchemy.create_engine, url, **options)
        with sqlalchemy.orm.Session(engine) as session, session.begin():
            run = _fetching_rows(lambda sql: session.execute(sqlalchemy.text(sql)))
            yield _calls(hapax_client.sqlalchemy, session, run)

    @contextmanager
    def _sqlalchemy_aiosqlite(self) -> Iterator[Calls]:
        url = f"sqlite+aiosqlite:///{self.path}"
        with self._async_session(url, connect_args={"timeout": 60}) as calls:
            yield calls

    @contextmanager
    def _sqlalchemy_psycopg_async(self) -> Iterator[Calls]:
        url = self.store.replace("postgres://", "postgresql+psycopg://")
        with self._async_session(url) as calls:
            yield calls

    @contextmanager
    def _sqlalchemy_asyncpg(self) -> Iterator[Calls]:
        url = self.store.replace("postgres://", "postgresql+asyncpg://")
        with self._async_session(url) as calls:
            yield calls

    @contextmanager
    def _async_session(self, url: str, **options: Any) -> Iterator[Calls]:
        run = self._run
        engine = self._engine(create_async_engine, url, **options)
        session = sqlalchemy.ext.asyncio.AsyncSession(engine)

        def execute(sql: str) -> Any:
            return _fetching_rows(lambda sql: run(session.execute(sqlalchemy.text(sql))))(sql)

        try:
            yield _awaited(run, _calls(hapax_client.sqlalchemy, session, execute))
            run(session.commit())
        finally:
            run(session.close())

    def _engine(self, create: Any, url: str, **options: Any) -> Any:
        # One connection for each transaction: what is left open is closed with it.
        return create(url, poolclass=sqlalchemy.pool.NullPool, **options)

    # Django

    @contextmanager
    def _django_sqlite(self) -> Iterator[Calls]:
        with self._atomic() as calls:
            yield calls

    @contextmanager
    def _django_postgres(self) -> Iterator[Calls]:
        with self._atomic() as calls:
            yield calls

    @contextmanager
    def _atomic(self) -> Iterator[Calls]:
        from django.db import connections, transaction

        # A database of Django is one connection for each thread.
        using = configure_django(self.store, "second" if self.is_second else "first")

        def execute(sql: str) -> Any:
            with connections[using].cursor() as cursor:
                cursor.execute(sql)
                return cursor.fetchall() if cursor.description else []

        try:
            with transaction.atomic(using=using):
                yield _calls(hapax_client.django, using, execute)
        finally:
            connections[using].close()

    def _run(self, coroutine: Any) -> Any:
        # In a thread of its own, so that a function inside `once` can run statements, too.
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            thread = threading.Thread(target=self._loop.run_forever, daemon=True)
            thread.start()
            self._closers += [self._loop.close, thread.join]
            self._closers.append(lambda: self._loop.call_soon_threadsafe(self._loop.stop))
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(PATIENCE)


def configure_django(store: str, suffix: str = "first") -> str:
    """Adds the store to Django's databases, and returns its name there."""
    import django
    from django.conf import settings
    from django.db import connections

    if not settings.configured:
        settings.configure(DATABASES={}, USE_TZ=True)
        django.setup()
    if store.startswith("sqlite:"):
        database = {
            "ENGINE": "django.db.backends.sqlite3",
            "NAME": store.partition(":")[2],
            "OPTIONS": {"timeout": 60},
        }
    else:
        url = sqlalchemy.make_url(store.replace("postgres://", "postgresql://"))
        database = {
            "ENGINE": "django.db.backends.postgresql",
            "NAME": url.database,
            "USER": url.username or "",
            "PASSWORD": url.password or "",
            "HOST": url.host or "",
            "PORT": url.port or "",
        }
    name = f"{store}-{suffix}"
    if name not in connections.settings:
        configured = connections.configure_settings({"default": database, name: database})
        connections.settings[name] = configured[name]
    return name


def _calls(module: Any, handle: Any, execute: Any) -> Calls:
    return Calls(module.Idempotency(handle), module.Outbox(handle), module.Inbox(handle), execute)


def _fetching(execute: Any) -> Any:
    def run(sql: str) -> Any:
        cursor = execute(sql)
        return cursor.fetchall() if cursor.description else []

    return run


def _fetching_rows(execute: Any) -> Any:
    def run(sql: str) -> Any:
        result = execute(sql)
        return [tuple(row) for row in result] if result.returns_rows else []

    return run


class _Awaited:
    """Calls the coroutine methods of an object as if they were plain ones."""

    def __init__(self, run: Any, target: Any) -> None:
        self._run_coroutine, self._target = run, target

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._target, name)
        if not inspect.iscoroutinefunction(found):
            return found

        def call(*arguments: Any, **named: Any) -> Any:
            if name == "once":
                operation, key, fn, *rest = arguments
                arguments = (operation, key, _as_coroutine_function(fn), *rest)
            return self._run_coroutine(found(*arguments, **named))

        return call


def _as_coroutine_function(fn: Any) -> Any:
    # The function waits for statements that run in the loop, so it must not block the loop itself.
    @functools.wraps(fn, assigned=("__annotations__",))
    async def run() -> Any:
        return await asyncio.to_thread(fn)

    return run


def _awaited(run: Any, calls: Calls) -> Calls:
    wrapped = (_Awaited(run, calls.idempotency), _Awaited(run, calls.outbox))
    return Calls(*wrapped, _Awaited(run, calls.inbox), calls.execute)
