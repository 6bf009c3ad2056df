"""The promises of `begin`, `complete`, `fail`, `once`, `receive` and `enqueue` promise, on every driver and store."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone

import pytest
from conftest import PATIENCE, wait_for

import hapax_client
from hapax_client import Busy, InvalidRequest, KeyReused, OutcomeUnknown, ResultNotKept
from hapax_client.sqlite import fingerprint_of

pytest_plugins = ["sql_stores"]

OPERATION = "CreateOrder"


class Undo(Exception):
    """Rolls a transaction back."""


def orders(driver, item: str) -> int:
    with driver.transaction() as tx:
        return tx.execute(f"SELECT count(*) FROM orders WHERE item = '{item}'")[0][0]


def add_order(tx, item: str) -> None:
    tx.execute(
        f"INSERT INTO orders (id, item) SELECT coalesce(max(id), 0) + 1, '{item}' FROM orders"
    )


def granted(tx, key: str) -> str:
    """Begins the command, and returns its token."""
    begun = tx.idempotency.begin(OPERATION, key, wait=True)
    assert begun.state == "granted"
    return begun.token


def state_over_http(http, key: str) -> str:
    answer = http.get(f"/v1/commands/{OPERATION}/{key}")
    return answer.json()["state"] if answer.status_code == 200 else "none"


def test_sql_commit_is_replayed_everywhere(driver, http, key):
    headers, body = {"location": "/orders/1", "x-part": ["a", "b"]}, b"\x00\xff bento"
    with driver.transaction() as tx:
        begun = tx.idempotency.begin(OPERATION, key, fingerprint="f", wait=True)
        assert (begun.state, begun.attempt) == ("granted", 1)
        assert begun.token not in repr(begun)
        add_order(tx, key)
        assert tx.idempotency.complete(OPERATION, key, begun.token, 201, headers, body)
        assert tx.idempotency.complete(OPERATION, key, begun.token, 201, headers, body)
        assert not tx.idempotency.complete(OPERATION, key, begun.token, 200)
    with driver.transaction() as tx:
        again = tx.idempotency.begin(OPERATION, key, fingerprint="f", wait=True)
        assert (again.state, again.status, again.headers, again.body) == (
            "completed", 201, headers, body,
        )  # fmt: skip
        assert tx.idempotency.begin(OPERATION, key, fingerprint="g", wait=True).state == "reused"
        assert tx.idempotency.begin(OPERATION, key, wait=True).state == "reused"
    answer = http.post(f"/v1/commands/{OPERATION}/{key}", json={"fingerprint": "f"})
    assert answer.status_code == 200
    assert answer.json()["headers"] == headers
    assert answer.json()["body_base64"] == "AP8gYmVudG8="
    assert orders(driver, key) == 1


def test_sql_answer_over_http_is_replayed(driver, http, key):
    path = f"/v1/commands/{OPERATION}/{key}"
    token = http.post(path, json={"fingerprint": "f"}).json()["token"]
    with driver.transaction() as tx:
        begun = tx.idempotency.begin(OPERATION, key, fingerprint="f", wait=True)
        assert begun.state == "in-progress"
        assert 0 < begun.retry_after <= 30
    http.put(path, json={"token": token, "status": 201, "headers": {"a": "b"}, "body": "done"})
    with driver.transaction() as tx:
        begun = tx.idempotency.begin(OPERATION, key, fingerprint="f", wait=True)
        assert (begun.status, begun.headers, begun.body) == (201, {"a": "b"}, b"done")


def test_sql_completion_wakes_a_waiter_over_http(driver, http, key):
    with driver.transaction() as tx:
        token = granted(tx, key)
    answers = []
    path = f"/v1/commands/{OPERATION}/{key}"
    waiter = threading.Thread(
        target=lambda: answers.append(http.post(path, json={"wait_ms": 60_000}).json())
    )
    waiter.start()
    with driver.transaction() as tx:
        assert tx.idempotency.complete(OPERATION, key, token, 201, body=b"made")
    waiter.join(PATIENCE)
    assert [(answer["status"], answer["body"]) for answer in answers] == [(201, "made")]


def test_sql_and_client_agree_on_no_fingerprint(driver, key):
    with hapax_client.connect(driver.server.url) as client:
        token = client.command(OPERATION, key).begin().token
        with driver.transaction() as tx:
            assert tx.idempotency.begin(OPERATION, key, wait=True).state == "in-progress"
        client.command(OPERATION, key).complete(token)


def test_sql_rollback_leaves_nothing(driver, http, key):
    with pytest.raises(Undo), driver.transaction() as tx:
        token = granted(tx, key)
        add_order(tx, key)
        tx.idempotency.complete(OPERATION, key, token, 201)
        tx.outbox.enqueue("orders", key, {"n": 1}, queue=key)
        assert tx.inbox.receive("billing", key)
        raise Undo
    assert orders(driver, key) == 0
    assert state_over_http(http, key) == "none"
    assert http.get(f"/v1/queues/{key}").json()["depth"] == 0
    with driver.transaction() as tx:
        assert tx.idempotency.begin(OPERATION, key, wait=True).attempt == 1
        assert tx.inbox.receive("billing", key)


def test_sql_failed_command_may_be_retried(driver, http, key):
    with driver.transaction() as tx:
        token = tx.idempotency.begin(OPERATION, key, fingerprint="f", wait=True).token
        assert not tx.idempotency.fail(OPERATION, key, "another token")
        assert tx.idempotency.fail(OPERATION, key, token)
        assert not tx.idempotency.complete(OPERATION, key, token, 200)
    assert state_over_http(http, key) == "failed"
    with driver.transaction() as tx:
        assert tx.idempotency.begin(OPERATION, key, fingerprint="g", wait=True).state == "reused"
        assert tx.idempotency.begin(OPERATION, key, fingerprint="f", wait=True).attempt == 2


def test_sql_lapsed_lease_is_unknown(driver, http, key):
    http.post(f"/v1/commands/{OPERATION}/{key}", json={"lease_ms": 1})
    wait_for(lambda: state_over_http(http, key) == "unknown", "the lease runs out")
    with driver.transaction() as tx:
        assert tx.idempotency.begin(OPERATION, key, wait=True).state == "unknown"
        with pytest.raises(OutcomeUnknown) as refused:
            tx.idempotency.once(OPERATION, key, dict)
        assert not refused.value.retryable
        assert tx.idempotency.begin(OPERATION, key, on_unknown="rerun", wait=True).attempt == 2


def test_sql_tenants_are_apart(driver, key):
    with driver.transaction() as tx:
        assert tx.idempotency.begin(OPERATION, key, wait=True).state == "granted"
        assert tx.idempotency.begin(OPERATION, key, tenant="other", wait=True).state == "granted"
        assert tx.inbox.receive("billing", key)
        assert tx.inbox.receive("billing", key, tenant="other")
        assert tx.inbox.receive("mailing", key)


def test_sql_second_transaction_is_told_at_once(driver, key):
    with driver.transaction() as first:
        token = granted(first, key)
        with pytest.raises(Undo), driver_again(driver).transaction() as second:
            begun = second.idempotency.begin(OPERATION, key)
            assert (begun.state, begun.token) == ("in-progress", None)
            assert 0 < begun.retry_after <= 1
            raise Undo
        first.idempotency.complete(OPERATION, key, token, 201)


def test_sql_second_transaction_waits_if_told_to(driver, key):
    seen, is_first_in = [], threading.Event()

    def second() -> None:
        other = driver_again(driver)
        is_first_in.wait(PATIENCE)
        with other.transaction() as tx:
            seen.append(tx.idempotency.begin(OPERATION, key, wait=True).state)
        other.close()

    thread = threading.Thread(target=second)
    thread.start()
    with driver.transaction() as tx:
        token = granted(tx, key)
        is_first_in.set()
        # A chance for a call that does not wait; whatever it sees, the test is right without it.
        thread.join(0.2)
        assert seen == []
        tx.idempotency.complete(OPERATION, key, token, 201)
    thread.join(PATIENCE)
    assert seen == ["completed"]


def driver_again(driver):
    """The same driver, for a transaction beside the first one."""
    again = type(driver)(driver.name, driver.store)
    again.is_second = True
    return again


@dataclass
class Order:
    item: str
    pieces: int


def test_sql_once_runs_once_and_replays(driver, http, key):
    runs = []
    print_of = fingerprint_of({"item": key})

    def create() -> Order:
        runs.append(key)
        add_order(tx, key)
        return Order(key, 2)

    for replayed in (False, True):
        with driver.transaction() as tx:
            order = tx.idempotency.once(OPERATION, key, create, print_of)
            assert (order, tx.idempotency.replayed) == (Order(key, 2), replayed)
    assert (len(runs), orders(driver, key)) == (1, 1)
    answer = http.post(f"/v1/commands/{OPERATION}/{key}", json={"fingerprint": print_of})
    assert answer.json()["body"] == f'{{"item":"{key}","pieces":2}}'
    with driver.transaction() as tx, pytest.raises(KeyReused):
        tx.idempotency.once(OPERATION, key, create, "another")


def test_sql_once_refuses_an_answer_that_is_no_result(driver, key):
    answers = [({}, b"made"), ({"hapax-result": "exception"}, b"{}"), ({}, b'{"other":1}')]
    for number, (headers, body) in enumerate(answers):
        name = f"{key}-{number}"
        with driver.transaction() as tx:
            tx.idempotency.complete(OPERATION, name, granted(tx, name), 201, headers, body)
        with driver.transaction() as tx, pytest.raises(ResultNotKept):
            tx.idempotency.once(OPERATION, name, dict, result=Order)


def test_sql_once_undoes_what_failed(driver, http, key):
    def fails() -> None:
        add_order(tx, key)
        raise Undo

    def unstorable() -> object:
        add_order(tx, key)
        return object()

    with driver.transaction() as tx:
        add_order(tx, key + "-before")
        with pytest.raises(Undo):
            tx.idempotency.once(OPERATION, key, fails)
        with pytest.raises(InvalidRequest, match="JSON"):
            tx.idempotency.once(OPERATION, key, unstorable)
    assert (orders(driver, key), orders(driver, key + "-before")) == (0, 1)
    assert state_over_http(http, key) == "none"


def test_sql_once_beside_another_is_busy(driver, key):
    with driver.transaction() as first:
        granted(first, key)
        with pytest.raises(Undo), driver_again(driver).transaction() as second:
            with pytest.raises(Busy) as refused:
                second.idempotency.once(OPERATION, key, dict, wait=False)
            assert refused.value.retryable
            assert refused.value.retry_after > 0
            raise Undo


def test_sql_message_is_received_once(driver, http, key):
    for first in (True, False):
        with driver.transaction() as tx:
            assert tx.inbox.receive("billing", key) is first
    assert http.post(f"/v1/inbox/billing/{key}").json() == {"duplicate": True}


def test_sql_message_of_another_consumer_is_busy(driver, http, key):
    token = http.post(f"/v1/inbox/billing/{key}").json()["token"]
    with pytest.raises(Busy), driver.transaction() as tx:
        tx.inbox.receive("billing", key)
    http.put(f"/v1/inbox/billing/{key}", json={"token": token})
    with driver.transaction() as tx:
        assert not tx.inbox.receive("billing", key)


def test_sql_lapsed_message_is_taken_over(driver, http, key):
    http.post(f"/v1/inbox/billing/{key}", json={"lease_ms": 1})

    def receive() -> bool:
        try:
            with driver.transaction() as tx:
                return tx.inbox.receive("billing", key)
        except Busy:
            return False

    wait_for(receive, "the lease of the message runs out")


def test_sql_enqueued_message_is_in_the_queue(driver, http, key):
    later = datetime.now(timezone.utc) + timedelta(days=1)
    with driver.transaction() as tx:
        ids = [
            tx.outbox.enqueue("orders", key, {"n": 1}, headers={"a": "b"}, queue=key),
            tx.outbox.enqueue("orders", None, b"\x00\xff", queue=key),
            tx.outbox.enqueue("orders", key, "text", queue=key, not_before=later),
        ]
    assert http.get(f"/v1/queues/{key}").json()["depth"] == 3
    with driver.transaction() as tx:
        rows = tx.execute(
            f"SELECT id, key, payload, deliver_after IS NULL FROM hapax_outbox WHERE queue = '{key}'"
        )
    found = {str(row[0]): (row[1], bytes(row[2]), bool(row[3])) for row in rows}
    assert found == {
        str(ids[0]): (key, b'{"n":1}', True),
        str(ids[1]): (None, b"\x00\xff", True),
        str(ids[2]): (key, b"text", False),
    }


BAD_BEGINS = [
    {"key": ""},
    {"key": "k" * 256},
    {"key": "a b"},
    {"key": "caf\u00e9"},
    {"key": None},
    {"operation": ""},
    {"tenant": "a/b"},
    {"tenant": "t" * 65},
    {"fingerprint": "f" * 256},
    {"fingerprint": 7},
    {"lease": 0},
    {"lease": 3601},
    {"lease": "30s"},
    {"lease": float("nan")},
    {"retention": -1},
    {"retention": timedelta(days=367)},
    {"on_unknown": "guess"},
    {"wait": 5},
]


def test_sql_bad_input_is_refused_and_claims_nothing(driver, http, key):
    with driver.transaction() as tx:
        for bad in BAD_BEGINS:
            with pytest.raises(InvalidRequest) as refused:
                tx.idempotency.begin(**{"operation": OPERATION, "key": key, **bad})
            assert next(iter(bad)) in str(refused.value)
            assert not refused.value.retryable
        token = granted(tx, key)
        for bad in (
            {"status": 99}, {"status": "200"}, {"headers": {"a b": "c"}}, {"headers": {"a": 1}},
            {"headers": {"a": "b\n"}}, {"headers": {"a": "1", "A": "2"}}, {"headers": ["a"]},
            {"body": 7}, {"body": b"x" * (1024 * 1024)}, {"token": ""},
        ):  # fmt: skip
            with pytest.raises(InvalidRequest):
                tx.idempotency.complete(
                    **{"operation": OPERATION, "key": key, "token": token, **bad}
                )
        for bad in (
            {"topic": ""}, {"topic": None}, {"key": 7}, {"payload": object()}, {"payload": float("nan")},
            {"headers": {"a": 1}}, {"queue": "a b"}, {"not_before": datetime(2030, 1, 1)},
        ):  # fmt: skip
            with pytest.raises(InvalidRequest):
                tx.outbox.enqueue(
                    **{"topic": "t", "key": None, "payload": b"", "queue": key, **bad}
                )
        with pytest.raises(InvalidRequest):
            tx.inbox.receive("billing", "")
        tx.idempotency.fail(OPERATION, key, token)
    assert state_over_http(http, key) == "failed"
    assert http.get(f"/v1/queues/{key}").json()["depth"] == 0
