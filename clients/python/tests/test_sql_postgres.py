"""Things that only PostgreSQL has: isolation levels, lock_timeout, roles; and kills with bare psycopg."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import psycopg
import pytest
import sqlalchemy
from conftest import PATIENCE, fresh_store
from psycopg import IsolationLevel
from sql_drivers import migrate

from hapax_client import Busy, HapaxError, StoreUnavailable, Unauthorized
from hapax_client.psycopg import AsyncIdempotency, Idempotency, Inbox, Outbox
from hapax_client.sqlalchemy import Idempotency as SqlAlchemyIdempotency

pytest_plugins = ["sql_stores"]

OPERATION = "CreateOrder"
LEVELS = [
    IsolationLevel.READ_COMMITTED,
    IsolationLevel.REPEATABLE_READ,
    IsolationLevel.SERIALIZABLE,
]


@pytest.fixture
def store(sql_servers) -> str:
    return sql_servers["postgres"].store


def connect(store: str, level: IsolationLevel = IsolationLevel.READ_COMMITTED):
    connection = psycopg.connect(store)
    connection.isolation_level = level
    return connection


def orders(store: str, item: str) -> int:
    with psycopg.connect(store) as connection:
        query = "SELECT count(*) FROM orders WHERE item = %s"
        return connection.execute(query, [item]).fetchone()[0]


def add_order(connection, item: str) -> None:
    connection.execute(
        "INSERT INTO orders (id, item) SELECT abs(hashtext(gen_random_uuid()::text)), %s", [item]
    )


@pytest.mark.parametrize("level", LEVELS, ids=lambda level: level.name.lower())
def test_postgres_once_at_every_isolation_level(store, level, key):
    """Four callers at once, each of which tries until it has the answer."""
    answers, start = [], threading.Barrier(4)

    def call() -> None:
        start.wait(PATIENCE)
        while True:
            with connect(store, level) as connection:
                try:
                    answers.append(Idempotency(connection).once(OPERATION, key, create(connection)))
                    connection.commit()
                    return
                except (Busy, psycopg.errors.SerializationFailure):
                    connection.rollback()

    def create(connection):
        def run() -> str:
            add_order(connection, key)
            return key

        return run

    threads = [threading.Thread(target=call) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert answers == [key] * 4
    assert orders(store, key) == 1


def test_postgres_serialization_failure_is_the_drivers_own(store, key):
    with connect(store, IsolationLevel.SERIALIZABLE) as late, connect(store) as first:
        # The snapshot of the late one is older than the claim of the first.
        late.execute("SELECT count(*) FROM orders")
        token = Idempotency(first).begin(OPERATION, key).token
        Idempotency(first).fail(OPERATION, key, token)
        first.commit()
        with pytest.raises(psycopg.errors.SerializationFailure):
            Idempotency(late).begin(OPERATION, key)
        late.rollback()
        assert Idempotency(late).begin(OPERATION, key).attempt == 2


def test_postgres_wait_is_bounded_by_lock_timeout(store, key):
    with connect(store) as first, connect(store) as second:
        assert Idempotency(first).begin(OPERATION, key).state == "granted"
        assert Inbox(first).receive("billing", key)
        second.execute("SET lock_timeout = '50ms'")
        second.commit()
        assert Idempotency(second).begin(OPERATION, key, wait=True).state == "in-progress"
        with pytest.raises(Busy, match="do not acknowledge"):
            Inbox(second).receive("billing", key)
        second.rollback()
        first.rollback()


def test_postgres_autocommit_needs_a_transaction(store, key):
    with psycopg.connect(store, autocommit=True) as connection:
        with pytest.raises(HapaxError, match=r"connection\.transaction\(\)"):
            Idempotency(connection).begin(OPERATION, key)
        with connection.transaction():
            assert Idempotency(connection).begin(OPERATION, key).state == "granted"
    url = store.replace("postgres://", "postgresql+psycopg://")
    engine = sqlalchemy.create_engine(url, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection, pytest.raises(HapaxError, match="AUTOCOMMIT"):
        SqlAlchemyIdempotency(connection).begin(OPERATION, key)
    engine.dispose()


async def test_postgres_async_autocommit_is_refused(store, key):
    async with await psycopg.AsyncConnection.connect(store, autocommit=True) as connection:
        with pytest.raises(HapaxError, match="transaction"):
            await AsyncIdempotency(connection).begin(OPERATION, key)


def test_postgres_missing_functions_say_how_to_make_them(tmp_path):
    empty = fresh_store("postgres", tmp_path)
    for call in (
        lambda c: Idempotency(c).begin(OPERATION, "k"),
        lambda c: Idempotency(c).once(OPERATION, "k", dict),
        lambda c: Inbox(c).receive("billing", "m"),
        lambda c: Outbox(c).enqueue("t", None, b""),
    ):
        with psycopg.connect(empty) as connection:
            with pytest.raises(HapaxError, match="hapax migrate --store postgres://") as refused:
                call(connection)
            assert not refused.value.retryable
            connection.rollback()


def test_postgres_role_without_rights_is_told(store, key):
    role = f"r{key}"
    with psycopg.connect(store) as connection:
        connection.execute(f"CREATE ROLE {role}")
        connection.execute(f"SET LOCAL ROLE {role}")
        with pytest.raises(Unauthorized, match="hapax_grant_app"):
            Idempotency(connection).begin(OPERATION, key)
        connection.rollback()


def test_postgres_closed_connection_is_store_unavailable(store, key):
    connection = psycopg.connect(store)
    connection.close()
    with pytest.raises(StoreUnavailable):
        Idempotency(connection).begin(OPERATION, key)
    engine = sqlalchemy.create_engine("postgresql+psycopg://nobody@127.0.0.1:1/nothing")
    with sqlalchemy.orm.Session(engine) as session, pytest.raises(StoreUnavailable):
        SqlAlchemyIdempotency(session).once(OPERATION, key, dict)


def test_postgres_lost_connection_is_store_unavailable(store, key):
    with psycopg.connect(store) as connection, psycopg.connect(store, autocommit=True) as admin:
        pid = connection.info.backend_pid
        admin.execute("SELECT pg_terminate_backend(%s)", [pid])
        with pytest.raises(StoreUnavailable) as refused:
            # The server may take a moment to end the connection.
            while True:
                Idempotency(connection).begin(OPERATION, key)
        assert refused.value.retryable
    with psycopg.connect(store) as connection:
        assert Idempotency(connection).begin(OPERATION, key).attempt == 1


def test_postgres_objects_of_the_session_follow_the_savepoint(store, key):
    from test_sql_docs import Base, Order

    engine = sqlalchemy.create_engine(store.replace("postgres://", "postgresql+psycopg://"))
    assert Base
    with sqlalchemy.orm.Session(engine) as session, session.begin():
        order = Order(id=abs(hash(key)) % 2**31, item=key)

        def fails() -> None:
            session.add(order)
            session.flush()
            raise LookupError

        with pytest.raises(LookupError):
            SqlAlchemyIdempotency(session).once(OPERATION, key, fails)
        assert order not in session
    engine.dispose()
    assert orders(store, key) == 0


def test_postgres_kill_between_any_two_statements(tmp_path):
    """A process with bare psycopg dies before each of its statements, and around its commit."""
    store = fresh_store("postgres", tmp_path)
    migrate(store)
    with psycopg.connect(store) as connection:
        connection.execute("CREATE TABLE orders (item text NOT NULL)")
    script = Path(__file__).with_name("kill_psycopg.py")
    done = subprocess.run(
        [sys.executable, str(script), store], capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr
    points = int(done.stdout)
    assert points >= 8
    with psycopg.connect(store) as connection:
        count = "SELECT count(*), count(DISTINCT {0}) FROM {1}"
        for column, table in (
            ("item", "orders"),
            ("key", "hapax_outbox"),
            ("name", "hapax_claims"),
        ):
            found = connection.execute(count.format(column, table)).fetchone()
            assert found == (points + 1, points + 1)
        states = connection.execute("SELECT DISTINCT phase, attempt FROM hapax_claims").fetchall()
        assert states == [(1, 1)]
