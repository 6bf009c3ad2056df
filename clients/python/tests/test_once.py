"""Functions that run once for each key."""

from __future__ import annotations

import asyncio
import dataclasses
import datetime
import decimal
import enum
import subprocess
import threading
import uuid
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Optional, Union

import pydantic
import pytest
from conftest import run_python, wait_for

from hapax_client import (
    Busy,
    InvalidRequest,
    KeyReused,
    Lost,
    OutcomeUnknown,
    ResultNotKept,
)


class Color(enum.Enum):
    RED = "red"


@dataclasses.dataclass
class Line:
    name: str
    price: decimal.Decimal


@dataclasses.dataclass
class Order:
    id: uuid.UUID
    at: datetime.datetime
    lines: list[Line]
    color: Optional[Color] = None


class Model(pydantic.BaseModel):
    id: int
    at: datetime.datetime


def test_once_gives_everybody_the_first_result(client, key):
    calls, replays = [], []

    @client.once("Create", key="order_id", on_replay=replays.append)
    def create(order_id: str, tea: int = 1) -> dict[str, Any]:
        calls.append(order_id)
        return {"order": order_id, "n": len(calls)}

    assert create(key) == {"order": key, "n": 1}
    assert create(order_id=key) == {"order": key, "n": 1}
    assert create(key, tea=1) == {"order": key, "n": 1}
    assert calls == [key] and len(replays) == 2
    with pytest.raises(KeyReused):
        create(key, tea=2)
    assert create(key + "b") == {"order": key + "b", "n": 2}


def test_once_takes_the_key_from_text_argument_or_callable(local, key):
    calls = []

    @local.once("Text", key=key)
    def by_text() -> None:
        calls.append("text")

    @local.once(
        "Header", key=lambda request: request["headers"]["idempotency-key"], fingerprint=None
    )
    def by_header(request: dict[str, Any]) -> None:
        calls.append("header")

    class Service:
        @local.once("Method", key="order")
        def by_argument(self, order: uuid.UUID) -> None:
            calls.append("argument")

    for _ in range(2):
        by_text()
        by_header({"headers": {"idempotency-key": key}, "n": len(calls)})
        Service().by_argument(uuid.UUID(key))
    assert calls == ["text", "header", "argument"]


@pytest.mark.parametrize("bad", [None, "", "two words", "x" * 256, "käse"])
def test_once_refuses_a_bad_key_before_anything_is_claimed(local, bad):
    @local.once("Bad", key="key")
    def never(key: Any) -> None:
        raise AssertionError("ran")

    with pytest.raises(InvalidRequest, match="key"):
        never(bad)


def test_once_fingerprint_names_the_argument_that_it_cannot_hash(local, key):
    @local.once("Hash", key="key")
    def by_default(key: str, session: object) -> None: ...

    with pytest.raises(InvalidRequest, match="'session'"):
        by_default(key, object())
    assert local.command("Hash", key).get() is None

    @local.once("Hash", key="key", fingerprint=("key", "n"))
    def named(key: str, n: int, session: object) -> int:
        return n

    assert named(key, 1, object()) == 1
    with pytest.raises(KeyReused):
        named(key, 2, object())
    with pytest.raises(InvalidRequest, match="'m'"):
        local.once("Hash", key="key", fingerprint=("m",))(lambda key: None)


@pytest.mark.parametrize("runs", range(2))
def test_once_keeps_results_of_their_type(local, key, runs):
    order = Order(
        uuid.UUID(key),
        datetime.datetime(2026, 1, 2, tzinfo=datetime.timezone.utc),
        [Line("tea", decimal.Decimal("1.20"))],
        Color.RED,
    )
    model = Model(id=7, at=order.at)
    results: dict[str, tuple[Any, Any]] = {
        "order": (Order, order),
        "maybe": (Optional[Order], order),
        "none": (Optional[Order], None),
        "orders": (list[Order], [order, order]),
        "by_name": (dict[str, Order], {"a": order}),
        "model": (Model, model),
        "models": (list[Model], [model]),
        "pair": (tuple[int, Model], (1, model)),
        "many": (tuple[int, ...], (1, 2, 3)),
        "bytes": (bytes, b"\x00\xff"),
        "set": (set[int], {1, 2}),
        "text": (Union[int, str], "7"),
        "day": (datetime.date, datetime.date(2026, 1, 2)),
        "span": (datetime.timedelta, datetime.timedelta(seconds=3)),
        "plain": (Any, {"a": [1, None, "ü", 1.5]}),
    }
    for name, (annotation, result) in results.items():

        def give(result=result):
            return result

        give.__annotations__["return"] = annotation
        once = local.once(f"Result-{name}", key=key, fingerprint=None)(give)
        assert once() == result, name
        replayed = once()
        assert replayed == result and type(replayed) is type(result), name


def test_once_result_that_cannot_be_kept_is_told_and_not_run_again(local, key):
    calls = []

    @local.once("Big", key="key")
    def give(key: str, kind: str) -> Any:
        calls.append(kind)
        return object() if kind == "object" else "x" * 2_000_000

    for kind in ("object", "big"):
        with pytest.raises(ResultNotKept):
            give(key + kind, kind)
        with pytest.raises(ResultNotKept):
            give(key + kind, kind)
    assert calls == ["object", "big"]


def test_once_exception_gives_the_key_back(client, key):
    calls = []

    @client.once("Fail", key="key")
    def fail_first(key: str) -> int:
        calls.append(1)
        if len(calls) == 1:
            raise KeyError("first")
        return 5

    with pytest.raises(KeyError):
        fail_first(key)
    assert client.command("Fail", key).get()["state"] == "failed"
    assert fail_first(key) == 5 and fail_first(key) == 5
    assert len(calls) == 2


class OutOfStock(ValueError):
    pass


def test_once_stores_exceptions_by_rule(local, key):
    calls = []

    @local.once("Stock", key="key", store_exceptions=(ValueError,))
    def order(key: str) -> int:
        calls.append(1)
        raise OutOfStock("tea", 7)

    for _ in range(3):
        with pytest.raises(OutOfStock) as raised:
            order(key)
        assert raised.value.args == ("tea", 7)
    assert len(calls) == 1


def test_once_waits_within_its_bound(local, key):
    begun = local.command("Slow", key).begin(lease=60)

    @local.once("Slow", key="key", wait=0, fingerprint=None)
    def at_once(key: str) -> int:
        return 1

    @local.once("Slow", key="key", wait=60, fingerprint=None)
    def waits(key: str) -> int:
        return 1

    with pytest.raises(Busy):
        at_once(key)
    with ThreadPoolExecutor() as pool:
        later = pool.submit(waits, key)
        local.command("Slow", key).complete(begun.token, body="42")
        assert later.result(60) == 42


def test_once_unknown_says_what_to_do(local, key):
    local.command("Gone", key).begin(lease=0.001)
    calls = []

    def run(key: str) -> int:
        calls.append(1)
        return 9

    with pytest.raises(OutcomeUnknown, match="settle or release") as unknown:
        local.once("Gone", key="key", fingerprint=None)(run)(key)
    assert not unknown.value.retryable and not calls
    assert local.once("Gone", key="key", fingerprint=None, on_unknown="rerun")(run)(key) == 9


def test_once_renews_its_lease_while_the_function_runs(client, key, frequent_renewal):
    @client.once("Long", key="key", lease=60)
    def long(key: str) -> int:
        before = remaining(key)
        wait_for(lambda: remaining(key) > before, "a renewal")
        return 3

    def remaining(key: str) -> int:
        return client.command("Long", key).get()["lease_expires_in_ms"]

    assert long(key) == 3


def test_once_lost_claim_is_told(local, key):
    @local.once("Taken", key="key", lease=0.05, renew_for=0, fingerprint=None)
    def slow(key: str) -> int:
        other = wait_for(lambda: take_over(key), "the lease expires")
        local.command("Taken", key).complete(other.token, body="2")
        return 1

    def take_over(key: str):
        try:
            return local.command("Taken", key).begin(on_unknown="rerun")
        except Busy:
            return None

    with pytest.raises(Lost):
        slow(key)
    assert slow(key) == 2


def test_once_refuses_the_wrong_kind_of_function(local):
    async def coroutine() -> None: ...

    with pytest.raises(InvalidRequest, match="aconnect"):
        local.once("X", key="k")(coroutine)
    for arguments in [{"key": 7}, {"key": "k", "on_unknown": "guess"}, {"key": "k", "lease": "1"}]:
        with pytest.raises(InvalidRequest):
            local.once("X", **arguments)


def test_once_64_threads_run_it_once(client, key):
    calls, barrier = [], threading.Barrier(64)

    @client.once("Threads", key="key", wait=120)
    def run(key: str) -> int:
        calls.append(1)
        return len(calls)

    def call(_):
        barrier.wait(60)
        return run(key)

    with ThreadPoolExecutor(64) as pool:
        assert list(pool.map(call, range(64))) == [1] * 64
    assert len(calls) == 1


async def test_once_64_tasks_run_it_once(aclient, key):
    calls, replays = [], []

    async def on_replay(result: int) -> None:
        replays.append(result)

    @aclient.once("Tasks", key="key", wait=120, on_replay=on_replay)
    async def run(key: str) -> int:
        calls.append(1)
        await asyncio.sleep(0)
        return len(calls)

    assert await asyncio.gather(*(run(key) for _ in range(64))) == [1] * 64
    assert len(calls) == 1 and replays == [1] * 63


def test_once_processes_run_it_once(server, key, tmp_path):
    code = """
import os, sys, threading
from concurrent.futures import ThreadPoolExecutor
import hapax_client
url, key, folder = sys.argv[1:]
client = hapax_client.connect(url)

@client.once("Processes", key="key", wait=120)
def run(key: str) -> int:
    open(f"{folder}/{os.getpid()}-{threading.get_ident()}", "w").close()
    return os.getpid()

print("ready", flush=True)
sys.stdin.readline()
with ThreadPoolExecutor(8) as pool:
    print(sorted(set(pool.map(lambda _: run(key), range(8)))), flush=True)
"""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    processes = [run_python(code, server.url, key, str(tmp_path), **pipes) for _ in range(8)]
    for process in processes:
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        process.stdin.write("go\n")
        process.stdin.flush()
    answers = {process.communicate(timeout=120)[0] for process in processes}
    assert len(answers) == 1 and len(list(tmp_path.iterdir())) == 1, answers


async def test_once_async_exception_and_cancellation_give_the_key_back(aclient, key):
    begun = asyncio.Event()

    @aclient.once("Cancel", key="key")
    async def hang(key: str) -> int:
        begun.set()
        await asyncio.sleep(600)
        return 1

    task = asyncio.create_task(hang(key))
    await asyncio.wait_for(begun.wait(), 60)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (await aclient.command("Cancel", key).get())["state"] == "failed"

    @aclient.once("Cancel", key="key")
    async def run(key: str) -> int:
        return 2

    assert await run(key) == 2 and await run(key) == 2
    with pytest.raises(InvalidRequest, match="connect"):
        aclient.once("Cancel", key="key")(lambda key: 1)


async def test_once_async_exception_is_stored_by_rule(aclient, key):
    @aclient.once("Stored", key="key", store_exceptions=(OutOfStock,))
    async def fail(key: str) -> int:
        raise OutOfStock(key)

    for _ in range(2):
        with pytest.raises(OutOfStock, match=key):
            await fail(key)


def test_once_killed_owner_leaves_an_unknown_outcome(server, client, key):
    code = """
import sys, time
import hapax_client
client = hapax_client.connect(sys.argv[1])

@client.once("Killed", key="key", lease=1)
def run(key: str) -> int:
    print("runs", flush=True)
    time.sleep(600)
    return 1

run(sys.argv[2])
"""
    process = run_python(code, server.url, key, stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "runs\n"
    process.kill()
    process.communicate()

    def run(key: str) -> int:
        return 2

    with pytest.raises(OutcomeUnknown):
        client.once("Killed", key="key", wait=60)(run)(key)
    assert client.once("Killed", key="key", wait=60, on_unknown="rerun")(run)(key) == 2
