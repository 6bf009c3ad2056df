"""The inbox: one effect for each message and consumer."""

from __future__ import annotations

import pytest
from conftest import wait_for

from hapax_client import Busy, InvalidRequest


def test_inbox_is_true_once_for_each_consumer(client, key):
    with client.inbox("billing").once(key) as first:
        assert first and first.fence > 0 and first.attempt == 1
        with pytest.raises(Busy), client.inbox("billing").once(key):
            pass
    with client.inbox("billing").once(key) as second:
        assert not second
    with client.inbox("shipping").once(key) as other:
        assert other


def test_inbox_error_gives_the_message_back(client, key):
    with pytest.raises(KeyError), client.inbox("billing").once(key):
        raise KeyError
    with client.inbox("billing").once(key) as again:
        assert again


def test_inbox_renews_a_long_message(client, key, frequent_renewal):
    with client.inbox("billing").once(key, lease=60) as first:
        until = first._lease._until
        wait_for(lambda: first._lease._until > until, "a renewal")
        assert first and not first.lost


def test_inbox_refuses_bad_arguments(local, key):
    for bad in (7, "", "two words", None):
        with pytest.raises(InvalidRequest):
            local.inbox("billing").once(bad)
    with local.inbox("billing").once(key) as first:
        pass
    with pytest.raises(InvalidRequest), first:
        pass


async def test_async_inbox_is_true_once(aclient, key):
    async with aclient.inbox("billing").once(key, lease=5) as first:
        assert first
    async with aclient.inbox("billing").once(key) as second:
        assert not second
    with pytest.raises(KeyError):
        async with aclient.inbox("billing").once(key + "b"):
            raise KeyError
    async with aclient.inbox("billing").once(key + "b") as again:
        assert again
