"""The SQL functions behind a real PgBouncer in transaction mode: many clients, two connections to PostgreSQL."""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
import pytest
from conftest import wait_for

from hapax_client import Busy
from hapax_client.psycopg import Idempotency

pytest_plugins = ["sql_stores"]

PGBOUNCER = shutil.which("pgbouncer", path=f"{os.environ['PATH']}:/usr/sbin")
SETTINGS = """
[databases]
{database} = host={host} port={port} user={user}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {listen}
unix_socket_dir =
auth_type = any
pool_mode = transaction
default_pool_size = 2
logfile = {folder}/log
"""


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


@pytest.fixture
def pooled(sql_servers, tmp_path) -> Iterator[str]:
    """The URL of the store through a pool of two connections."""
    if PGBOUNCER is None and not os.environ.get("CI"):
        pytest.skip("pgbouncer is not installed")
    store = urlsplit(sql_servers["postgres"].store)
    database, listen = store.path[1:], free_port()
    settings = SETTINGS.format(
        database=database,
        host=store.hostname,
        port=store.port,
        user=store.username,
        listen=listen,
        folder=tmp_path,
    )
    (tmp_path / "pgbouncer.ini").write_text(settings)
    command = [PGBOUNCER, "-q", str(tmp_path / "pgbouncer.ini")]
    if os.geteuid() == 0:
        # PgBouncer refuses to run as root.
        give_away(tmp_path)
        command[1:1] = ["-u", "nobody"]
    with subprocess.Popen(command) as process:
        url = f"postgres://{store.username}@127.0.0.1:{listen}/{database}"
        try:
            wait_for(lambda: answers(url), "PgBouncer")
            yield url
        finally:
            process.kill()


def give_away(folder: Path) -> None:
    """Lets `nobody` enter the folder and read what is in it."""
    nobody = pwd.getpwnam("nobody").pw_uid
    for path in (folder, *folder.iterdir()):
        os.chown(path, nobody, -1)
    for parent in folder.parents:
        if (
            parent.stat().st_uid == 0
            and parent != parent.parent
            and not parent.stat().st_mode & 0o001
        ):
            parent.chmod(parent.stat().st_mode | 0o011)


def answers(url: str) -> bool:
    try:
        psycopg.connect(url, prepare_threshold=None).close()
    except psycopg.OperationalError:
        return False
    return True


def order_once(url: str, key: str) -> dict:
    """Tries until it has the answer, each time with a new client."""

    def attempt():
        with psycopg.connect(url, prepare_threshold=None) as connection:

            def insert() -> dict:
                row = connection.execute(
                    "INSERT INTO orders (id, item) SELECT count(*) + 1, %s FROM orders RETURNING item",
                    [key],
                )
                return {"item": row.fetchone()[0]}

            try:
                return Idempotency(connection).once("pooled", key, insert)
            except Busy:
                connection.rollback()
                return None

    return wait_for(attempt, "the answer")


def test_pooled_callers_with_one_key_run_once(pooled, key):
    with ThreadPoolExecutor(16) as pool:
        made = list(pool.map(lambda _: order_once(pooled, key), range(32)))
    assert made == [{"item": key}] * 32
    with psycopg.connect(pooled, prepare_threshold=None) as connection:
        found = connection.execute("SELECT count(*) FROM orders WHERE item = %s", [key])
        assert found.fetchone() == (1,)


def test_pooled_connections_keep_nothing_of_a_call(pooled, key):
    """Settings and locks of a call end with its transaction: the next client has the same connection."""
    shown = (
        "SELECT current_setting('lock_timeout'), current_setting('enable_seqscan'), current_setting('search_path'), "
        "(SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'), (SELECT count(*) FROM pg_prepared_statements)"
    )
    with psycopg.connect(pooled, prepare_threshold=None) as connection:
        before = connection.execute(shown).fetchone()
    for end in ("commit", "rollback"):
        with psycopg.connect(pooled, prepare_threshold=None) as connection:
            Idempotency(connection).begin("pooled", f"{key}-{end}", wait=True)
            getattr(connection, end)()
            assert connection.execute(shown).fetchone() == before
