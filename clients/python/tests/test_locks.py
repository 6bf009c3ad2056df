"""Locks: one owner, renewed in the background, told when they are lost."""

from __future__ import annotations

import asyncio
import os
import threading

import httpx
import pytest
from conftest import wait_for

import hapax_client
from hapax_client import Busy, InvalidRequest, Lost


def test_lock_is_held_in_the_block_alone(client, key):
    with client.lock(key, ttl=60) as lock:
        assert lock.fence > 0 and not lock.lost
        with pytest.raises(Busy) as busy, client.lock(key, blocking=False):
            pass
        assert busy.value.retryable and busy.value.code == "lock-held"
        assert client.lock(key, blocking=False).acquire() is False
    with client.lock(key, blocking=False) as again:
        assert again.fence > lock.fence


def test_lock_waits_for_the_owner(client, key):
    first = client.lock(key)
    assert first.acquire()
    taken = threading.Event()

    def second():
        with client.lock(key, wait=60):
            taken.set()

    thread = threading.Thread(target=second)
    thread.start()
    assert not taken.is_set()
    first.release()
    thread.join(60)
    assert taken.is_set()


def remaining(server, key):
    return httpx.get(f"{server.url}/v1/locks/{key}").json()["expires_in_ms"]


def test_lock_is_renewed_in_the_background(server, client, key, frequent_renewal):
    with client.lock(key, ttl=60) as lock:
        before = remaining(server, key)
        wait_for(lambda: remaining(server, key) > before, "a renewal")
        assert not lock.lost


def test_lock_is_lost_when_it_is_not_renewed(client, key):
    with pytest.raises(Lost), client.lock(key, ttl=0.3, renew_for=0) as lock:
        with client.lock(key, wait=60) as other:
            assert other.fence > lock.fence
        wait_for(lambda: lock.lost, "the lock is lost")


def test_lost_lock_is_told_after_a_renewal(client, key, frequent_renewal):
    with pytest.raises(Lost), client.lock(key, ttl=60) as lock:
        client._transport.run(_release(lock))
        wait_for(lambda: lock.lost, "the renewal notices")


def _release(lock):
    from hapax_client._protocol import Request
    from hapax_client._retry import send

    yield from send(Request("DELETE", lock._path, headers={"hapax-token": lock._token}))


def test_error_of_the_block_wins_over_the_loss(client, key):
    with pytest.raises(KeyError), client.lock(key, ttl=0.3, renew_for=0) as lock:
        wait_for(lambda: lock.lost, "the lock is lost")
        raise KeyError


def test_lock_decorates_functions(local, key):
    @local.lock(key, blocking=False)
    def held():
        with pytest.raises(Busy):
            nested()
        return 7

    @local.lock(key, blocking=False)
    def nested():
        raise AssertionError("ran beside the owner")

    assert held() == 7
    assert held() == 7

    async def coroutine():
        pass

    with pytest.raises(InvalidRequest, match="aconnect"):
        local.lock(key)(coroutine)


def test_lock_excludes_64_threads(client, key):
    inside, most, fences = [], [], []

    def work():
        with client.lock(key, wait=120) as lock:
            inside.append(1)
            most.append(len(inside))
            fences.append(lock.fence)
            inside.pop()

    threads = [threading.Thread(target=work) for _ in range(64)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert max(most) == 1 and len(most) == 64
    assert fences == sorted(set(fences))


def test_lock_object_belongs_to_one_owner(local, key):
    with local.lock(key) as lock, pytest.raises(InvalidRequest, match="taken already"):
        lock.acquire()
    with pytest.raises(InvalidRequest, match="not taken"):
        lock.release()
    with pytest.raises(InvalidRequest):
        _ = local.lock(key).fence


def test_forked_child_leaves_the_lock_to_its_parent(local, key):
    lock = local.lock(key)
    lock.acquire()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            lock.release()
            status = 0
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    assert not local.lock(key, blocking=False).acquire()
    lock.release()


async def test_async_lock_is_renewed_and_released(server, aclient, key, frequent_renewal):
    async with aclient.lock(key, ttl=60) as lock:
        before = remaining(server, key)
        await asyncio.to_thread(wait_for, lambda: remaining(server, key) > before, "a renewal")
        assert not lock.lost and lock.fence > 0
    async with aclient.lock(key, blocking=False) as again:
        assert again.fence > lock.fence


async def test_async_lock_is_released_when_its_task_is_cancelled(aclient, key):
    taken = asyncio.Event()

    async def hold():
        async with aclient.lock(key, ttl=60):
            taken.set()
            await asyncio.sleep(600)

    task = asyncio.create_task(hold())
    await asyncio.wait_for(taken.wait(), 60)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    async with aclient.lock(key, blocking=False):
        pass


async def test_async_lock_decorates_coroutine_functions(aclient, key):
    @aclient.lock(key, blocking=False)
    async def held():
        return await aclient.lock(key, blocking=False).acquire()

    assert await held() is False
    with pytest.raises(InvalidRequest, match="connect"):
        aclient.lock(key)(lambda: None)


@pytest.mark.parametrize(
    "arguments",
    [
        {"name": ""},
        {"name": "x" * 256},
        {"name": "with space"},
        {"name": "käse"},
        {"name": 7},
        {"name": "a", "ttl": 0},
        {"name": "a", "ttl": -1},
        {"name": "a", "ttl": "5"},
        {"name": "a", "ttl": True},
        {"name": "a", "ttl": 3601},
        {"name": "a", "ttl": float("nan")},
        {"name": "a", "wait": -1},
        {"name": "a", "wait": None},
    ],
)
def test_lock_refuses_bad_arguments(arguments):
    client = hapax_client.connect("http://127.0.0.1:9")
    with pytest.raises(InvalidRequest) as refused:
        client.lock(**arguments)
    assert isinstance(refused.value, ValueError) and not refused.value.retryable
