"""A process that dies between any two statements leaves one order, one answer, one message."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import BINARY, REPOSITORY, clean_environment, fresh_store
from sql_drivers import Driver, migrate

KILLS = 50 * int(os.environ.get("HAPAX_TEST_SCALE") or 1)
TIMEOUT = 600
EXAMPLE = REPOSITORY / "examples/fastapi-orders"


def store_and_database(kind: str, folder: Path) -> tuple[str, str]:
    store = fresh_store(kind, folder)
    migrate(store)
    if kind == "sqlite":
        return store, store.replace("sqlite:", "sqlite+aiosqlite:///", 1)
    return store, store.replace("postgres://", "postgresql+psycopg://", 1)


def run_kills(service: str, database: str, kills: int) -> dict:
    script = Path(__file__).with_name("kill_orders.py")
    command = [sys.executable, str(script), service, database, str(kills)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    # Every point at which the process can die was one at which it died.
    assert report["points"] <= kills
    return report


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_kills_leave_one_order_answer_and_message(kind, tmp_path):
    store, database = store_and_database(kind, tmp_path)
    report = run_kills("shop", database, KILLS)
    assert report["first"] == report["again"]
    assert {status for status, _ in report["first"]} == {201}
    driver = Driver("sqlite3" if kind == "sqlite" else "psycopg", store)
    with driver.transaction() as tx:
        orders = dict(tx.execute("SELECT item, id FROM orders"))
        (count,) = tx.execute("SELECT count(*) FROM orders")[0]
        messages = [
            json.loads(bytes(row[0])) for row in tx.execute("SELECT payload FROM hapax_outbox")
        ]
        pending = tx.execute("SELECT count(*) FROM hapax_claims WHERE phase <> 1")
    # One more than the kills: the attempt that counted the points.
    assert count == len(orders) == KILLS + 1
    for n, (_, text) in enumerate(report["first"], 1):
        answer = {"id": orders[f"tea-{n}"], "item": f"tea-{n}", "pieces": 2}
        assert json.loads(text) == answer
        assert messages.count(answer) == 1
    assert len(messages) == KILLS + 1
    assert pending[0][0] == 0


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_kills_leave_one_invoice(kind, tmp_path):
    store, database = store_and_database(kind, tmp_path)
    report = run_kills("billing", database, KILLS // 2)
    assert {status for status, _ in report["first"] + report["again"]} == {204}
    driver = Driver("sqlite3" if kind == "sqlite" else "psycopg", store)
    with driver.transaction() as tx:
        invoices = [row[0] for row in tx.execute("SELECT order_id FROM invoices")]
    assert sorted(invoices) == list(range(KILLS // 2 + 1))


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_fastapi_orders_example_runs(kind, tmp_path):
    environment = {**clean_environment(), "HAPAX": str(BINARY), "PYTHON": sys.executable}
    arguments = [] if kind == "sqlite" else [fresh_store(kind, tmp_path)]
    done = subprocess.run(
        [str(EXAMPLE / "run.sh"), *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
    )
    assert done.returncode == 0, done.stderr
    order = '{"id":1,"item":"tea","pieces":2}'
    assert done.stdout.count(order + "\n") == 2
    assert done.stdout.count("idempotent-replayed: true") == 1
    assert f"== the orders\n[{order}]\n" in done.stdout
    assert '== the invoices\n[{"order":1,"amount":14}]\n' in done.stdout
