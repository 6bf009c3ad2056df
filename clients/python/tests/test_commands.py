"""Commands over HTTP: begin, renew, complete, fail, get."""

from __future__ import annotations

import pytest

from hapax_client import Busy, KeyReused, Lost, OutcomeUnknown


def test_command_completes_and_replays(client, key):
    command = client.command("pay", key)
    assert command.get() is None
    begun = command.begin(fingerprint="a")
    assert begun.granted and begun.attempt == 1 and begun.fence > 0
    command.renew(begun.token, lease=60)
    with pytest.raises(Busy) as busy:
        command.begin(fingerprint="a")
    assert busy.value.retryable and busy.value.code == "in-progress"
    command.complete(begun.token, 201, {"content-type": "text/plain"}, b"paid \xff")
    command.complete(begun.token, 201, {"content-type": "text/plain"}, b"paid \xff")
    again = command.begin(fingerprint="a")
    assert not again.granted
    assert (again.answer.status, again.answer.body) == (201, b"paid \xff")
    assert again.answer.headers == {"content-type": "text/plain"}
    assert again.answer.expires_in > 0
    assert command.get()["state"] == "completed"
    with pytest.raises(KeyReused):
        command.begin(fingerprint="b")


def test_failed_command_may_be_retried(client, key):
    command = client.command("pay", key)
    first = command.begin()
    command.fail(first.token)
    second = command.begin()
    assert second.attempt == 2 and second.fence > first.fence
    with pytest.raises(Lost):
        command.complete(first.token)
    with pytest.raises(Lost):
        command.renew(first.token)


def test_expired_command_is_unknown_until_it_is_rerun(client, key):
    command = client.command("pay", key)
    command.begin(lease=0.001)
    with pytest.raises(OutcomeUnknown, match="settle or release"):
        command.begin(wait=30)
    assert command.begin(on_unknown="rerun").attempt == 2


@pytest.mark.parametrize(
    "odd", ["a/b", "..", ".", "a%2Fb", "a?b#c", "a&b;c", "käse".encode().hex(), "~!{}"]
)
def test_command_with_odd_key_is_found_again(local, key, odd):
    command = local.command(odd, odd + key)
    begun = command.begin()
    command.complete(begun.token, 200, body="ok")
    assert local.command(odd, odd + key).begin().answer.body == b"ok"


async def test_async_command_completes_and_replays(aclient, key):
    command = aclient.command("pay", key)
    begun = await command.begin(fingerprint="a")
    await command.renew(begun.token)
    await command.complete(begun.token, body="paid")
    assert (await command.begin(fingerprint="a")).answer.body == b"paid"
    assert (await command.get())["state"] == "completed"
