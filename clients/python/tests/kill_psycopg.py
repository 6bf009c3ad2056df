"""Kills a process with bare psycopg between any two statements of its transaction.

    kill_psycopg.py POSTGRES_URL

Prints how many points there are at which it died; each key was then tried again, twice.
"""

from __future__ import annotations

import os
import signal
import sys

import psycopg
from kill_orders import in_child

from hapax_client.psycopg import Idempotency, Outbox


def order(url: str, key: str, kill_at: int) -> int:
    """One transaction; returns the number of points that it passed."""
    passed = 0

    def point() -> None:
        nonlocal passed
        passed += 1
        if passed == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)

    class KillingCursor(psycopg.Cursor):
        def execute(self, *arguments, **named):
            point()
            return super().execute(*arguments, **named)

    connection = psycopg.connect(url, cursor_factory=KillingCursor)

    def create() -> str:
        connection.execute("INSERT INTO orders (item) VALUES (%s)", [key])
        Outbox(connection).enqueue("orders", key, {"item": key})
        return key

    assert Idempotency(connection).once("CreateOrder", key, create) == key
    point()
    connection.commit()
    point()
    connection.close()
    return passed


def main() -> None:
    url = sys.argv[1]
    points = int(in_child(lambda: order(url, "alive", 0))[1])
    for kill_at in range(1, points + 1):
        key = f"key-{kill_at}"
        assert in_child(lambda: order(url, key, kill_at))[0] == signal.SIGKILL  # noqa: B023
        for _ in range(2):
            assert in_child(lambda: order(url, key, 0))[0] == 0  # noqa: B023
    print(points)


if __name__ == "__main__":
    main()
