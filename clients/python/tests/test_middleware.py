"""The middlewares, against the rules of hapax's own layer: the same tests for ASGI and WSGI."""

from __future__ import annotations

import uuid
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from conftest import wait_for
from middleware_target import BINARY, SERVERS, Target

import hapax_client

TOKEN = {"authorization": "Bearer alice"}


class Shop:
    """A service behind a middleware, and a client of it."""

    def __init__(self, kind, client, settings):
        self.target = Target()
        self.server = SERVERS[kind](self.target, client, **settings)
        self.http = httpx.Client(base_url=self.server.url, timeout=60)
        self.hapax = client

    def post(self, key=None, asked=None, path="/orders", **options):
        headers = {**TOKEN, **options.pop("headers", {})}
        if key is not None:
            headers["idempotency-key"] = key
        return self.http.post(
            path, json=asked if asked is not None else {}, headers=headers, **options
        )


@pytest.fixture(params=sorted(SERVERS))
def shops(request, local):
    """Makes services behind the middleware of one kind."""
    made = []

    def make(client=local, **settings):
        shop = Shop(request.param, client, settings)
        made.append(shop)
        return shop

    yield make
    for shop in made:
        shop.target.gate.set()
        shop.http.close()
        shop.server.stop()


@pytest.fixture
def shop(shops):
    return shops()


def problem(response):
    assert response.headers["content-type"] == "application/problem+json"
    document = response.json()
    assert document["status"] == response.status_code
    return response.status_code, document["type"].rsplit("/", 1)[-1]


def test_a_request_without_a_key_and_a_safe_method_pass(shop, key):
    assert [shop.post().text, shop.post().text] == ["execution 1", "execution 2"]
    assert shop.http.get("/orders", headers={"idempotency-key": key}).text == "2"


def test_a_replay_is_the_same_byte_for_byte(shop, key):
    asked = {
        "binary": True,
        "headers": [["Content-Type", "image/x"], ["X-Two", "1"], ["X-Two", "2"]],
    }
    first, second = shop.post(key, asked), shop.post(key, asked)
    assert (
        (first.status_code, first.content) == (second.status_code, second.content) == (201, BINARY)
    )
    for response in (first, second):
        assert response.headers["content-type"] == "image/x"
        assert response.headers.get_list("x-two") == ["1", "2"]
    assert "idempotent-replayed" not in first.headers
    assert second.headers["idempotent-replayed"] == "true"
    assert second.headers["idempotency-expires"].endswith("GMT")
    assert shop.target.executions == 1


def test_a_replay_leaves_out_cookies_and_what_belongs_to_one_connection(shop, key):
    asked = {"headers": [["Set-Cookie", "a=b"], ["X-Kept", "yes"], ["Idempotency-Store", "always"]]}
    first, second = shop.post(key, asked), shop.post(key, asked)
    assert first.headers["set-cookie"] == "a=b"
    assert "idempotency-store" not in first.headers
    assert "set-cookie" not in second.headers and second.headers["x-kept"] == "yes"


def test_a_key_is_the_same_bare_and_quoted(shop, key):
    assert shop.post(key).text == shop.post(f'"{key}"').text == "execution 1"


@pytest.mark.parametrize("status", [200, 204, 303, 404, 409, 422])
def test_an_answer_is_kept(shop, key, status):
    asked = {"status": status, "chunks": []}
    for _ in range(2):
        assert shop.post(key, asked).status_code == status
    assert shop.target.executions == 1


@pytest.mark.parametrize("status", [401, 403, 408, 425, 429, 500, 503])
def test_after_an_answer_that_a_retry_may_change_the_key_is_free(shop, key, status):
    assert shop.post(key, {"status": status}).status_code == status
    shop.post(key, {"status": status})
    assert shop.target.executions == 2
    assert [seen["hapax-attempt"] for seen in shop.target.seen] == ["1", "2"]


@pytest.mark.parametrize("status", [502, 504])
def test_a_gateway_error_leaves_the_outcome_unknown(shop, key, status):
    assert shop.post(key, {"status": status}).status_code == status
    wait_for(
        lambda: problem(shop.post(key, {"status": status})) == (409, "outcome-unknown"), "unknown"
    )
    assert shop.target.executions == 1


def test_a_service_decides_itself_with_a_header(shop, key):
    asked = {"headers": [["Idempotency-Store", "never"]]}
    assert [shop.post(key, asked).text, shop.post(key, asked).text] == [
        "execution 1",
        "execution 2",
    ]


def test_verdicts_overrule_the_status(shops, key):
    shop = shops(verdicts={404: "give-back"})
    for _ in range(2):
        shop.post(key, {"status": 404})
    assert shop.target.executions == 2


def test_an_exception_leaves_the_outcome_unknown(shop, key):
    assert shop.post(key, {"raise": True}).status_code == 500
    wait_for(
        lambda: problem(shop.post(key, {"raise": True})) == (409, "outcome-unknown"), "unknown"
    )
    assert shop.target.executions == 1


def test_on_unknown_rerun_runs_again_and_says_so(shops, key):
    shop = shops(on_unknown="rerun")
    shop.post(key, {"status": 502})
    wait_for(lambda: shop.post(key, {"status": 502}).status_code == 502, "a second run")
    attempts = [(int(seen["hapax-attempt"]), int(seen["hapax-fence"])) for seen in shop.target.seen]
    assert [attempt for attempt, _ in attempts] == [1, 2]
    assert attempts[0][1] < attempts[1][1]


def test_fifty_at_once_run_once(shop, key):
    with ThreadPoolExecutor(50) as pool:
        answers = list(pool.map(lambda _: shop.post(key), range(50)))
    assert {(answer.status_code, answer.text) for answer in answers} == {(201, "execution 1")}
    assert sum("idempotent-replayed" in answer.headers for answer in answers) == 49


def test_a_duplicate_is_told_that_the_first_one_runs(shops, key):
    shop = shops(wait=0)
    shop.target.gate.clear()
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(shop.post, key)
        wait_for(lambda: shop.target.executions, "the first run")
        second = shop.post(key)
        assert problem(second) == (409, "in-progress")
        assert int(second.headers["retry-after"]) >= 1 and second.json()["retryable"]
        # The key is compared even while the first one runs.
        assert problem(shop.post(key, {"size": 1})) == (422, "key-reused")
        shop.target.gate.set()
        assert first.result().text == "execution 1"


@pytest.mark.parametrize(
    "other",
    [
        {"asked": {"size": 1}},
        {"params": {"a": "1"}},
        {"headers": {"content-type": "text/plain"}},
        {"headers": {"x-http-method-override": "PUT"}},
    ],
    ids=["body", "query", "content type", "method override"],
)
def test_another_request_with_the_key_is_refused(shop, key, other):
    shop.post(key)
    assert problem(shop.post(key, **other)) == (422, "key-reused")
    assert shop.target.executions == 1


def test_another_path_method_or_caller_has_keys_of_its_own(shop, key):
    shop.post(key)
    assert "idempotent-replayed" not in shop.post(key, path="/other").headers
    assert (
        "idempotent-replayed" not in shop.post(key, headers={"authorization": "Bearer bob"}).headers
    )
    assert "idempotent-replayed" not in shop.post(key, headers={"x-api-key": "bob"}).headers
    assert (
        "idempotent-replayed"
        not in shop.http.patch("/orders", json={}, headers={"idempotency-key": key}).headers
    )
    assert shop.target.executions == 5


@pytest.mark.parametrize("invalid", ["", '"', '"a', '"a"b', "a b", "x" * 256])
def test_an_invalid_key_runs_nothing(shop, invalid):
    assert problem(shop.post(invalid)) == (400, "invalid-key")
    assert shop.target.executions == 0


def test_a_required_key_that_is_missing_runs_nothing(shops):
    shop = shops(require_key=True)
    assert problem(shop.post()) == (400, "key-missing")
    assert shop.target.executions == 0


@pytest.mark.parametrize(
    "headers",
    [{"authorization": ""}, {"authorization": "Bearer"}, {"authorization": "Basic YTpi"}],
    ids=["none", "bare scheme", "basic"],
)
def test_a_cookie_without_credentials_is_no_caller(shop, key, headers):
    headers = {**headers, "cookie": "session=1"}
    assert problem(shop.post(key, headers=headers)) == (400, "scope-missing")
    assert shop.target.executions == 0


def test_a_cookie_can_be_the_scope(shops, key):
    shop = shops(scope="cookie:session")
    ada, bob = {"cookie": "theme=x; session=ada"}, {"cookie": "session=bob"}
    assert shop.post(key, headers=ada).text == "execution 1"
    assert shop.post(key, headers={"cookie": "session=ada"}).text == "execution 1"
    assert shop.post(key, headers=bob).text == "execution 2"
    assert problem(shop.post(key)) == (400, "scope-missing")


def test_the_service_sees_attempt_and_fence_that_clients_cannot_set(shop, key):
    shop.post(key, headers={"hapax-attempt": "7", "hapax-fence": "9999999"})
    shop.post(headers={"hapax-attempt": "7"})
    keyed, bare = shop.target.seen
    assert keyed["hapax-attempt"] == "1" and keyed["hapax-fence"] != "9999999"
    assert keyed["idempotency-key"] == key
    assert "hapax-attempt" not in bare


def test_a_request_above_the_limit_runs_nothing(shops, key):
    shop = shops(max_body=64)
    assert problem(shop.post(key, {"size": 1, "more": "x" * 64})) == (413, "payload-too-large")
    assert shop.target.executions == 0


def test_an_answer_above_the_limit_arrives_and_a_retry_is_told_so(shops, key):
    shop = shops(max_body=1000)
    asked = {"size": 2000, "status": 200}
    assert shop.post(key, asked).text == "execution 1" + "." * 2000
    retried = shop.post(key, asked)
    assert problem(retried) == (409, "response-not-kept")
    assert retried.json()["original_status"] == 200
    assert shop.target.executions == 1


def test_an_event_stream_arrives_and_a_retry_is_told_so(shop, key):
    asked = {
        "chunks": ["data: 1\n\n", "data: 2\n\n"],
        "headers": [["Content-Type", "text/event-stream"]],
    }
    assert shop.post(key, asked).text == "data: 1\n\ndata: 2\n\n"
    assert problem(shop.post(key, asked)) == (409, "response-not-kept")


def test_an_answer_of_another_length_than_declared_is_unknown(shop, key):
    asked = {"chunks": ["short"], "headers": [["Content-Length", "9"]]}
    with pytest.raises(httpx.HTTPError):
        response = shop.post(key, asked)
        response.raise_for_status()
    wait_for(lambda: problem(shop.post(key, asked)) == (409, "outcome-unknown"), "unknown")


def test_a_client_that_has_the_answer_gets_it_again(shop, key):
    """The last byte goes out after the store has the answer."""
    for asked in ({"size": 10}, {"chunks": ["a", "b"], "headers": [["Content-Length", "2"]]}):
        key = uuid.uuid4().hex
        shop.post(key, asked)
        executions = shop.target.executions
        assert shop.post(key, asked).headers["idempotent-replayed"] == "true"
        assert shop.target.executions == executions


def test_a_client_that_leaves_changes_nothing(shop, key):
    shop.target.gate.clear()
    with pytest.raises(httpx.ReadTimeout):
        shop.post(key, timeout=httpx.Timeout(60, read=1))
    wait_for(lambda: shop.target.executions, "the first run")
    shop.target.gate.set()
    again = shop.post(key)
    assert (again.text, again.headers.get("idempotent-replayed")) == ("execution 1", "true")


def test_a_lease_is_renewed_while_the_service_runs(shops, key, local):
    shop = shops(lease=1, scope="single", wait=0)
    shop.target.gate.clear()
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(shop.post, key)
        wait_for(lambda: shop.target.executions, "the first run")
        command = local.command("POST /orders", key)
        # Another command whose lease is not renewed becomes unknown meanwhile: time has passed.
        other = local.command("other", key)
        other.begin(lease=2)
        wait_for(lambda: other.get()["state"] == "unknown", "the end of a lease twice as long")
        # A lease that ran out on a machine that stood still is renewed too.
        wait_for(lambda: command.get()["state"] == "pending", "the renewal")
        shop.target.gate.set()
        assert first.result().text == "execution 1"


def test_a_server_that_is_away_runs_nothing(shops, key):
    away = hapax_client.connect("http://127.0.0.1:9", timeout=1)
    shop = shops(client=away)
    assert problem(shop.post(key)) == (503, "store-unavailable")
    assert shop.target.executions == 0


def test_the_open_policy_runs_and_marks_it(shops, key):
    away = hapax_client.connect("http://127.0.0.1:9", timeout=1)
    shop = shops(client=away, on_store_error="open")
    response = shop.post(key)
    assert (response.text, response.headers["hapax-unprotected"]) == (
        "execution 1",
        "store-unavailable",
    )


@pytest.mark.parametrize(
    "settings",
    [
        {"on_unknown": "guess"},
        {"on_store_error": "x"},
        {"scope": "cookie"},
        {"verdicts": {404: "x"}},
        {"wait": 61},
    ],
)
def test_a_setting_that_makes_no_sense_is_refused(shops, settings):
    with pytest.raises(ValueError, match=next(iter(settings))):
        shops(**settings)


def test_on_every_store_fifty_at_once_run_once(shops, client, key):
    shop = shops(client=client)
    with ThreadPoolExecutor(50) as pool:
        answers = {answer.text for answer in pool.map(lambda _: shop.post(key), range(50))}
    assert answers == {"execution 1"} and shop.target.executions == 1
