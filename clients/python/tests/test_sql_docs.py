"""Runs the blocks of the guides about the caller's own transaction."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
import sqlalchemy
from conftest import REPOSITORY, fresh_store
from sql_drivers import configure_django, migrate
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

import hapax_client._sql.sqlite as statements
from hapax_client._sql.file_clock import file_time
from hapax_client._sql.response import encode_response

pytest_plugins = ["sql_stores"]

DOCS = REPOSITORY / "docs"
SQLITE_STATEMENTS = {
    value
    for name, value in vars(statements).items()
    if name.isupper() and isinstance(value, str) and not name.startswith("MIGRATE")
}
# Needed only to delete old notes now and then.
UNDOCUMENTED = {statements.READ_NOTE}


class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True)
    item: Mapped[str]


def blocks_of(page: str, heading: str, language: str) -> list[str]:
    """The fenced blocks of one section, up to the next heading of its level."""
    level = heading.split(" ")[0] + " "
    found: list[str] = []
    is_inside, fence, block = False, None, []
    for line in (DOCS / page).read_text().splitlines():
        if line.startswith("```"):
            if fence == language and is_inside:
                found.append("\n".join(block))
            fence, block = (line[3:], []) if fence is None else (None, [])
        elif fence is not None:
            block.append(line)
        elif line.startswith(level):
            is_inside = line == heading
    assert found, f"no blocks in {page}, {heading}"
    return found


def test_sql_guide_has_the_statements_of_the_package():
    blocks = blocks_of("sql.md", "## SQLite", "sql")
    assert set(blocks) == SQLITE_STATEMENTS - UNDOCUMENTED


def test_sql_guide_statements_are_replayed_over_http(sql_servers, key):
    server = sql_servers["sqlite"]
    connection = sqlite3.connect(server.store.partition(":")[2], isolation_level=None, timeout=60)
    meta = dict(connection.execute(statements.READ_META).fetchall())
    now = file_time(meta).now
    parameters: dict[str, Any] = {
        "tenant": "default", "operation": "CreateOrder", "key": key, "fingerprint": "f", "now": now,
        "on_unknown": "refuse", "kind": "command", "scope": "CreateOrder", "phase": 0,
        "attempt": 1, "token": key, "lease": 30_000, "retention": 3_600_000,
        "expires_at": now + 3_630_000, "value": encode_response(201, [("a", "b")], b"made"),
        "digest": statements.key_digest("default", "command", "CreateOrder", key),
        "consumer": "billing", "message_id": key, "id": key[:8] + "-0000-4000-8000-" + key[:12],
        "queue": key, "topic": "orders", "payload": b"{}", "headers": None, "deliver_after": None,
        "created_at": int(time.time() * 1000),
    }  # fmt: skip
    connection.execute("BEGIN IMMEDIATE")
    changed = {}
    for sql in blocks_of("sql.md", "## SQLite", "sql"):
        # A note of the first claim, and a row of the clock, are written under other names.
        own = {"id": 0} if sql == statements.TRIM_NOTES else {"name": key, "value": 1}
        is_meta = sql in (statements.TRIM_NOTES, statements.WRITE_META)
        given = {**parameters, "name": key, **(own if is_meta else {})}
        cursor = connection.execute(sql, given)
        changed[sql] = cursor.rowcount
        rows = cursor.fetchall()
        if sql == statements.READ_FENCE:
            parameters["fence"] = rows[0][0]
    connection.execute("DELETE FROM hapax_meta WHERE name = ?", (key,))
    connection.execute("COMMIT")
    connection.close()
    assert (changed[statements.COMPLETE], changed[statements.FAIL]) == (1, 0)
    with httpx.Client(base_url=server.url, timeout=60) as http:
        answer = http.post(f"/v1/commands/CreateOrder/{key}", json={"fingerprint": "f"}).json()
        assert (answer["status"], answer["headers"], answer["body"]) == (201, {"a": "b"}, "made")
        assert http.get(f"/v1/queues/{key}").json()["depth"] == 1


@pytest.fixture(params=["sqlite", "postgres"])
def shop(request, tmp_path):
    """A database with hapax's tables and a table of orders, and the names that the guides use."""
    store = fresh_store(request.param, tmp_path)
    migrate(store)
    if request.param == "sqlite":
        path = Path(store.partition(":")[2])
        urls = [f"sqlite:///{path}", f"sqlite+aiosqlite:///{path}"]
    else:
        urls = [store.replace("postgres://", "postgresql+psycopg://")] * 2
    engine = sqlalchemy.create_engine(urls[0], poolclass=sqlalchemy.pool.NullPool)
    Base.metadata.create_all(engine)
    async_engine = create_async_engine(urls[1], poolclass=sqlalchemy.pool.NullPool)
    yield SimpleNamespace(
        kind=request.param,
        engine=engine,
        sessions=async_sessionmaker(async_engine),
        store=store,
        names={"Session": Session, "Order": Order, "engine": engine},
    )
    engine.dispose()


def orders(shop) -> int:
    with Session(shop.engine) as session:
        return session.scalar(sqlalchemy.select(sqlalchemy.func.count(Order.id)))


def run_block(block: str, names: dict[str, Any]) -> None:
    exec(compile(block, "guide", "exec", dont_inherit=True), names)


def test_python_guide_transactions(shop, tmp_path):
    from django.db import connections

    configured = configure_django(shop.store)
    connections.settings["default"] = connections.settings[configured]
    other = fresh_store("sqlite", tmp_path) if shop.kind == "postgres" else shop.store
    migrate(other)
    names = {
        **shop.names,
        "sessions": shop.sessions,
        "postgres_url": shop.store,
        "sqlite_path": other.partition(":")[2],
    }
    made = 0
    for block in blocks_of("python-transactions.md", "# Python, in your own transaction", "python"):
        if "import psycopg" in block and shop.kind != "postgres":
            continue
        if "import sqlite3" in block and shop.kind == "postgres":
            continue
        run_block(block, names)
        if "FastAPI()" in block:
            answers = asyncio.run(post_twice(names["app"]))
            assert answers == [(201, {"ordered": "tea"})] * 2 + [(500, None)]
            made += 1
        elif "begun.state" in block:
            made += 1
            run_block(block, names)
        elif "AsyncIdempotency" in block:
            assert asyncio.run(names["order_tea"]()) == {"ordered": "tea"}
            made += 2
        elif "DjangoIdempotency" in block:
            assert names["answer"] == {"ordered": "tea"}
        elif "import sqlite3" in block:
            names["connection"].close()
            made += 1
        else:
            made += 1
        assert orders(shop) == made, block
    for connection in connections.all(initialized_only=True):
        connection.close()
    del connections["default"]


async def post_twice(app: Any) -> list[Any]:
    """Orders twice with one key, then another thing with it."""
    transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://shop") as client:
        answers = []
        for item in ("tea", "tea", "coffee"):
            headers = {"Idempotency-Key": "key-16"}
            answer = await client.post("/orders", json={"item": item}, headers=headers)
            is_made = answer.status_code == 201
            answers.append((answer.status_code, answer.json() if is_made else None))
        return answers


def test_migrating_guide_from_a_table_of_your_own(shop):
    names = dict(shop.names)
    create, move = blocks_of("migrating.md", "## From a table of your own, in Python", "python")
    run_block(create, names)
    run_block(move, names)
    with Session(shop.engine) as session, session.begin():
        names["move_answers"](session, [("old-1", "tea", b'{"id":99}')])
    for _ in range(2):
        with Session(shop.engine) as session, session.begin():
            assert names["create_order"](session, "old-1", "tea") == {"id": 99}
        with Session(shop.engine) as session, session.begin():
            assert names["create_order"](session, "new-1", "tea") == {"id": 1}
    with Session(shop.engine) as session, session.begin():
        names["move_answers"](session, [("new-1", "tea", b'{"id":98}')])
        assert names["create_order"](session, "new-1", "tea") == {"id": 1}
    assert orders(shop) == 1


def test_migrating_guide_from_bento(shop):
    names = dict(shop.names)
    (block,) = blocks_of("migrating.md", "## From Bento's `SqlAlchemyIdempotency`", "python")
    run_block(block, names)

    async def request() -> Any:
        async with shop.sessions() as session:

            async def handler() -> dict[str, str]:
                session.add(Order(item="tea"))
                return {"item": "tea"}

            return await names["create_order"](session, "key-1", "hash", handler)

    assert asyncio.run(request()) == ({"item": "tea"}, False)
    assert asyncio.run(request()) == ({"item": "tea"}, True)
    assert orders(shop) == 1
