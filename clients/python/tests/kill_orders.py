"""Kills examples/fastapi-orders between any two statements, and reports what is left behind.

    kill_orders.py shop|billing DATABASE_URL KILLS

Each attempt is a process of its own, forked from this one, which has imported everything and opened
nothing. It ends itself with SIGKILL before or after one of its statements, or around its commit.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from pathlib import Path

import httpx
from sqlalchemy import event
from sqlalchemy.engine import Engine
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.orm import Session

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "examples/fastapi-orders"))
import billing
import shop

REQUESTS = {
    "shop": ("/orders", lambda n: {"item": f"tea-{n}", "pieces": 2}),
    "billing": ("/messages", lambda n: {"id": n, "pieces": 2}),
}
MODULES = {"shop": shop, "billing": billing}


class KillPoints:
    """Counts the points at which this process may die, and dies at one of them."""

    def __init__(self, kill_at: int = 0) -> None:
        self.passed, self._kill_at = 0, kill_at

    def install(self) -> None:
        for name in ("before_cursor_execute", "after_cursor_execute", "commit"):
            event.listen(Engine, name, self._pass)
        event.listen(Session, "after_commit", self._pass)

    def _pass(self, *_: object) -> None:
        self.passed += 1
        if self.passed == self._kill_at:
            os.kill(os.getpid(), signal.SIGKILL)


async def post(service: str, app: object, keys: list[int]) -> list[object]:
    """Sends one request for each key, and returns the answers."""
    path, body_of = REQUESTS[service]
    transport = httpx.ASGITransport(app=app)
    async with httpx.AsyncClient(
        transport=transport, base_url="http://service", timeout=60
    ) as client:
        answers = []
        for n in keys:
            headers = {"Idempotency-Key": f"key-{n}"}
            answer = await client.post(path, json=body_of(n), headers=headers)
            answers.append([answer.status_code, answer.text])
        return answers


def in_child(work) -> tuple[int, str]:
    """Runs `work` in a forked process: the signal that ended it, or 0, and what it returned."""
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read_end)
        with os.fdopen(write_end, "w") as pipe:
            pipe.write(json.dumps(work()))
        os._exit(0)
    os.close(write_end)
    with os.fdopen(read_end) as pipe:
        text = pipe.read()
    _, status = os.waitpid(child, 0)
    return (os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0), text


def attempt(service: str, app: object, key: int, kill_at: int) -> tuple[int, str]:
    def work() -> int:
        points = KillPoints(kill_at)
        points.install()
        asyncio.run(post(service, app, [key]))
        return points.passed

    return in_child(work)


def main() -> None:
    service, url, kills = sys.argv[1], sys.argv[2], int(sys.argv[3])

    def create_tables() -> None:
        asyncio.run(MODULES[service].create_tables(create_async_engine(url)))

    in_child(create_tables)
    # Connects to nothing before the first request.
    app = MODULES[service].create_app(url)
    # An attempt that lives counts the points.
    points = int(attempt(service, app, 0, 0)[1])
    keys = list(range(1, kills + 1))
    for key in keys:
        ended_by, _ = attempt(service, app, key, 1 + (key - 1) % points)
        assert ended_by == signal.SIGKILL, "the attempt lived"
    answers = [json.loads(in_child(lambda: asyncio.run(post(service, app, keys)))[1]) for _ in "ab"]
    print(json.dumps({"points": points, "first": answers[0], "again": answers[1]}))


if __name__ == "__main__":
    main()
