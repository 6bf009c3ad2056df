"""Things that only SQLite has: the clock of the file, notes for other processes, the version of the tables."""

from __future__ import annotations

import sqlite3

import httpx
import pytest
from conftest import REPOSITORY
from sql_drivers import migrate

from hapax_client import Busy, HapaxError
from hapax_client._sql import file_clock
from hapax_client._sql.sqlite import SCHEMA_VERSION, key_digest
from hapax_client.sqlalchemy import Idempotency as SqlAlchemyIdempotency
from hapax_client.sqlite import Idempotency, Inbox, Outbox

pytest_plugins = ["sql_stores"]


@pytest.fixture
def file(tmp_path):
    """A file with hapax's tables, and nothing that runs on it."""
    path = tmp_path / "shop.db"
    migrate(f"sqlite:{path}")
    return path


def test_sqlite_statements_know_the_current_schema():
    folder = REPOSITORY / "crates/hapax-sqlite/src/schema"
    assert len(list(folder.glob("v*.sql"))) == SCHEMA_VERSION


def test_sqlite_missing_tables_say_how_to_make_them(tmp_path):
    with sqlite3.connect(tmp_path / "empty.db") as connection:
        for call in (
            lambda: Idempotency(connection).begin("Op", "k"),
            lambda: Idempotency(connection).once("Op", "k", dict),
            lambda: Inbox(connection).receive("billing", "m"),
            lambda: Outbox(connection).enqueue("t", None, b""),
        ):
            with pytest.raises(HapaxError, match="hapax migrate --store sqlite:FILE") as refused:
                call()
            assert not refused.value.retryable
    connection.close()


@pytest.mark.parametrize("version, fix", [(2, "hapax migrate"), (99, "newer hapax-client")])
def test_sqlite_other_schema_version_is_refused(file, version, fix):
    connection = sqlite3.connect(file)
    connection.execute("UPDATE hapax_meta SET value = ? WHERE name = 'schema'", (version,))
    with pytest.raises(HapaxError, match=f"version {version}.*{fix}"):
        Idempotency(connection).begin("Op", "k")
    connection.close()


def test_sqlite_needs_a_transaction(file):
    connection = sqlite3.connect(file, isolation_level=None)
    with pytest.raises(HapaxError, match="BEGIN IMMEDIATE"):
        Idempotency(connection).begin("Op", "k")
    connection.execute("BEGIN IMMEDIATE")
    assert Idempotency(connection).begin("Op", "k").state == "granted"
    connection.execute("ROLLBACK")
    connection.row_factory = sqlite3.Row
    connection.execute("BEGIN")
    assert Idempotency(connection).begin("Op", "k").state == "granted"
    connection.close()


def test_sqlite_autocommit_engine_is_refused(file):
    import sqlalchemy

    engine = sqlalchemy.create_engine(f"sqlite:///{file}", isolation_level="AUTOCOMMIT")
    with engine.connect() as connection, pytest.raises(HapaxError, match="AUTOCOMMIT"):
        SqlAlchemyIdempotency(connection).begin("Op", "k")
    engine.dispose()
    with pytest.raises(HapaxError, match="not a Engine"):
        SqlAlchemyIdempotency(engine)


def test_sqlite_old_snapshot_is_told_in_progress(file):
    reader, writer = sqlite3.connect(file, timeout=0.1), sqlite3.connect(file)
    reader.execute("BEGIN")
    reader.execute("SELECT * FROM hapax_meta").fetchall()
    with writer:
        Outbox(writer).enqueue("t", None, b"")
    for wait in (False, True):
        assert Idempotency(reader).begin("Op", "k", wait=wait).state == "in-progress"
    with pytest.raises(Busy, match="BEGIN IMMEDIATE"):
        Inbox(reader).receive("billing", "m")
    assert reader.execute("PRAGMA busy_timeout").fetchone() == (100,)
    reader.close()
    writer.close()


def test_sqlite_digest_is_that_of_the_server(sql_servers, key):
    server = sql_servers["sqlite"]
    connection = sqlite3.connect(server.store.partition(":")[2])
    for name in (f"{key}:%{{}}", key):
        with httpx.Client(base_url=server.url, timeout=60) as http:
            path = "/v1/commands/Op/" + name.replace("%", "%25").replace("{", "%7B").replace(
                "}", "%7D"
            )
            token = http.post(path).json()["token"]
            assert http.put(path, json={"token": token, "status": 200}).status_code == 200
        digest = key_digest("default", "command", "Op", name)
        rows = connection.execute("SELECT 1 FROM hapax_changes WHERE digest = ?", (digest,))
        assert rows.fetchone() == (1,)
    connection.close()


def test_sqlite_notes_are_trimmed(file):
    connection = sqlite3.connect(file)
    connection.execute("INSERT INTO hapax_changes (id, digest) VALUES (1, 7), (20478, 7)")
    assert Inbox(connection).receive("billing", "m-1")
    assert Inbox(connection).receive("billing", "m-2")
    (oldest,) = connection.execute("SELECT min(id) FROM hapax_changes").fetchone()
    assert oldest == 20478
    connection.close()


def test_sqlite_clock_of_a_new_file_is_the_wall_clock(monkeypatch):
    set_clocks(monkeypatch, boot=7, elapsed=500, wall=1_000_000)
    time = file_clock.file_time({})
    assert (time.now, time.rows["clock_base"]) == (1_000_000, 999_500)
    # The wall clock is set back: nothing changes.
    set_clocks(monkeypatch, boot=7, elapsed=600, wall=5)
    assert file_clock.file_time(time.rows) == file_clock.FileTime(1_000_100, {})


def test_sqlite_clock_goes_on_after_a_reboot(monkeypatch):
    meta = {"clock_boot": 7, "clock_base": 0, "clock_last": 5_000, "clock_wall": 90_000}
    set_clocks(monkeypatch, boot=8, elapsed=10, wall=91_000)
    time = file_clock.file_time(meta)
    assert (time.now, time.rows["clock_boot"]) == (6_000, 8)
    # The wall clock was set back while the machine was off: the time does not go back.
    set_clocks(monkeypatch, boot=8, elapsed=10, wall=80_000)
    assert file_clock.file_time(meta).now == 5_000


def test_sqlite_clock_after_a_restored_snapshot(monkeypatch):
    meta = {"clock_boot": 7, "clock_base": 1_000, "clock_last": 9_000, "clock_wall": 9_000}
    set_clocks(monkeypatch, boot=7, elapsed=100, wall=9_500)
    assert file_clock.file_time(meta).now == 9_000


def set_clocks(monkeypatch, *, boot, elapsed, wall):
    monkeypatch.setattr(file_clock, "_boot_id", lambda: boot)
    monkeypatch.setattr(file_clock, "_since_boot_ms", lambda: elapsed)
    monkeypatch.setattr(file_clock, "wall_ms", lambda: wall)


def test_sqlite_clock_of_a_stored_boot_agrees_with_the_server(sql_servers):
    path = sql_servers["sqlite"].store.partition(":")[2]
    connection = sqlite3.connect(path)
    query = "SELECT name, value FROM hapax_meta WHERE name LIKE 'clock%'"
    meta = dict(connection.execute(query).fetchall())
    connection.close()
    # The file knows this boot, and a new base is not needed: both programs tell the same time.
    assert file_clock.file_time(meta).rows == {}
