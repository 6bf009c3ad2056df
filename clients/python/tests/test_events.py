"""Publishing and following the events of a job."""

from __future__ import annotations

import threading

import pytest
from conftest import HapaxServer, fresh_store

import hapax_client
from hapax_client import EventRefused, InvalidRequest, StoreUnavailable
from hapax_client._events import FrameParser


def test_events_are_published_once_and_followed_in_order(client, key):
    assert client.publish("scan", key, "vision", 1, {"text": "ü\u2028\n"}).published
    again = client.publish("scan", key, "vision", 1, {"text": "ü\u2028\n"})
    assert not again.published and again.offset == 1
    with pytest.raises(EventRefused) as refused:
        client.publish("scan", key, "vision", 1, {"other": True})
    assert refused.value.code == "event-conflict"
    client.publish("scan", key, "rule", 2)
    client.publish("scan", key, "finish", 3, [1], final=True)
    events = list(client.follow("scan", key))
    assert [(e.stage, e.seq, e.offset, e.data) for e in events] == [
        ("vision", 1, 1, {"text": "ü\u2028\n"}),
        ("rule", 2, 2, None),
        ("finish", 3, 3, [1]),
    ]
    assert all(e.kind == "event" and e.timestamp and e.id.endswith(f"-{e.offset}") for e in events)
    rest = list(client.follow("scan", key, last_event_id=events[0].id))
    assert rest == events[1:]
    assert list(client.follow("scan", key, last_event_id=events[-1].id)) == []
    with pytest.raises(EventRefused):
        client.publish("scan", key, "late", 4)


def test_follow_waits_for_events_to_come(client, key):
    seen = []

    def follow():
        seen.extend(event.seq for event in client.follow("scan", key))

    thread = threading.Thread(target=follow)
    thread.start()
    for seq in range(1, 4):
        client.publish("scan", key, "step", seq, final=seq == 3)
    thread.join(60)
    assert seen == [1, 2, 3]


async def test_async_follow_sees_what_is_published(aclient, key):
    for seq in range(1, 4):
        await aclient.publish("scan", key, "step", seq, final=seq == 3)
    assert [event.seq async for event in aclient.follow("scan", key)] == [1, 2, 3]


def test_follow_resumes_over_a_restart_and_tells_gaps(tmp_path, key):
    store = fresh_store("sqlite", tmp_path)
    server = HapaxServer(store, tmp_path, "events.entries = 2\n")
    client = hapax_client.connect(server.url)
    client.publish("scan", key, "step", 1)
    client.publish("scan", key, "step", 2)
    events = client.follow("scan", key)
    assert [next(events).seq, next(events).seq] == [1, 2]
    address = server.url.removeprefix("http://")
    server.stop()
    server = HapaxServer(store, tmp_path, "events.entries = 2\n", listen=address)
    try:
        client.publish("scan", key, "step", 3)
        assert next(events).seq == 3
        events.close()
        for seq in range(4, 8):
            client.publish("scan", key, "step", seq, final=seq == 7)
        first, *rest = list(client.follow("scan", key, last_event_id=_id_of(client, key, 1)))
        assert (first.kind, first.stage) == ("gap", "gap") and first.data["to"]
        assert [(e.kind, e.seq) for e in rest] == [("snapshot", 7), ("event", 6), ("event", 7)]
    finally:
        server.stop()
        client.close()


def _id_of(client, key, offset):
    epoch = client.publish("scan", key, "step", 7, final=True).epoch
    return f"{epoch}-{offset}"


def test_follow_gives_up_within_its_bound():
    client = hapax_client.connect("http://127.0.0.1:9", timeout=1)
    with pytest.raises(StoreUnavailable):
        list(client.follow("scan", "job", reconnect_for=0))


def test_publish_refuses_bad_arguments(local, key):
    for bad in (("scan", key, "s", "1"), ("scan", key, "s", True), ("", key, "s", 1)):
        with pytest.raises(InvalidRequest):
            local.publish(*bad)
    with pytest.raises(InvalidRequest):
        local.publish("scan", key, "s", 1, object())
    with pytest.raises(InvalidRequest):
        local.publish("scan", key, "gap", 1)
    with pytest.raises(InvalidRequest):
        list(local.follow("scan", key, last_event_id="not a cursor"))


def test_frames_are_parsed_from_any_pieces():
    stream = (
        b"retry: 2000\n\n: keep-alive\n\nid: 1-1\nevent: a\n"
        + 'data: {"offset":1,"stage":"a","seq":5,"data":"\u2028","timestamp":"t"}\n\n'.encode()
    )
    for size in (1, 2, 7, len(stream)):
        parser = FrameParser()
        pieces = [stream[i : i + size] for i in range(0, len(stream), size)]
        events = [event for piece in pieces for event in parser.feed(piece)]
        assert [(e.id, e.stage, e.seq, e.data) for e in events] == [("1-1", "a", 5, "\u2028")]
