"""Records: values with versions."""

from __future__ import annotations

import threading

import pytest

from hapax_client import InvalidRequest, VersionMismatch


def test_record_is_written_read_and_deleted(client, key):
    record = client.record(f"cart:{key}")
    assert record.get() is None and record.get({}) == {} and record.read() is None
    assert record.delete() is False
    version = record.put({"tea": [1, None, "ü"]}, ttl=60)
    read = record.read()
    assert (read.value, read.version) == ({"tea": [1, None, "ü"]}, version)
    assert 0 < read.expires_in <= 60
    record.put(None)
    assert record.get(default="absent") is None and record.read().value is None
    assert record.delete() is True and record.read() is None


def test_record_put_compares_the_version(client, key):
    record = client.record(key)
    first = record.put(1, absent=True)
    with pytest.raises(VersionMismatch) as mismatch:
        record.put(2, absent=True)
    assert not mismatch.value.retryable
    second = record.put(2, version=first)
    with pytest.raises(VersionMismatch):
        record.put(3, version=first)
    with pytest.raises(VersionMismatch):
        record.delete(version=first)
    assert record.get() == 2
    assert record.delete(version=second)


def test_record_update_loses_no_change(client, key):
    record = client.record(key)
    threads = [
        threading.Thread(
            target=lambda: [record.update(lambda n: n + 1, default=0) for _ in range(4)]
        )
        for _ in range(6)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert record.get() == 24


def test_record_update_passes_errors_of_the_function_on(local, key):
    with pytest.raises(ZeroDivisionError):
        local.record(key).update(lambda _: 1 // 0)
    assert local.record(key).read() is None
    for bad in (lambda: local.record(key).update(7), lambda: local.record(key).put(object())):
        with pytest.raises(InvalidRequest):
            bad()
    for value in (float("nan"), {1, 2}):
        with pytest.raises(InvalidRequest, match="JSON"):
            local.record(key).put(value)


async def test_async_record_is_updated(aclient, key):
    record = aclient.record(key)
    assert await record.get() is None
    await record.put({"n": 1})

    async def later(value):
        return {"n": value["n"] + 1}

    assert await record.update(lambda value: {"n": value["n"] + 1}) == {"n": 2}
    assert await record.update(later) == {"n": 3}
    assert (await record.read()).value == {"n": 3}
    assert await record.delete() is True
