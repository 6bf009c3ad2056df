//! Every answer is as the OpenAPI document describes it. The answers of all other tests in this folder
//! are compared too, as they are read.

use hapax_testkit::Redis;
use serde_json::{Value, json};

use crate::http::events_client::Listener;
use crate::http::queues::Scene;
use crate::support::eventually;
use crate::support::http::HttpResponse;
use crate::support::schema::{self, DescribedResponse};
use crate::support::server::{Server, Setup};

/// Sends a request, and expects a status.
#[track_caller]
fn send(server: &Server, method: &str, path: &str, body: &Value, status: u16) -> HttpResponse {
    let ask = server.ask(method, path);
    let answer = if body.is_null() { ask.send() } else { ask.json(body).send() };
    assert_eq!(answer.status, status, "{method} {path}: {}", answer.text());
    answer
}

/// Sends a request without a body but with a header, and expects a status.
#[track_caller]
fn send_with(server: &Server, method: &str, path: &str, header: (&str, &str), status: u16) {
    let answer = server.ask(method, path).header(header.0, header.1).send();
    assert_eq!(answer.status, status, "{method} {path}: {}", answer.text());
}

fn locks(server: &Server) {
    let path = "/v1/locks/k";
    let ttl = json!({"ttl_ms": 600_000});
    let token = send(server, "POST", path, &ttl, 201).token();
    send(server, "POST", path, &ttl, 409);
    send(server, "GET", path, &Value::Null, 200);
    send(server, "GET", "/v1/operator/locks", &Value::Null, 200);
    send(server, "PUT", path, &json!({"token": token}), 200);
    send(server, "PUT", path, &json!({"token": "other"}), 409);
    send_with(server, "DELETE", path, ("Hapax-Token", "other"), 409);
    send_with(server, "DELETE", path, ("Hapax-Token", &token), 204);
    let forced = "/v1/operator/locks/k";
    send(server, "DELETE", forced, &Value::Null, 404);
    send(server, "POST", path, &ttl, 201);
    send_with(server, "DELETE", forced, ("Hapax-Note", "owner%20gone"), 204);
    send(server, "GET", "/v1/operator/audit", &Value::Null, 200);
}

/// A lock of another program, which no operator can release.
fn foreign_locks(redis: &Redis) {
    let server = Setup::on(&redis.url()).start();
    redis.cli(&["SET", "processing:k", "foreign", "PX", "600000"]);
    send(&server, "DELETE", "/v1/operator/locks/processing:k", &Value::Null, 409);
}

fn session(server: &Server) {
    let (path, off) = ("/v1/session", Setup::memory().flags(&["--console", "off"]).start());
    send(server, "GET", path, &Value::Null, 200);
    send(server, "POST", path, &json!({"token": "t"}), 200);
    send(server, "DELETE", path, &Value::Null, 204);
    for method in ["GET", "POST", "DELETE"] {
        off.ask(method, path).is(404, "not-found");
    }
}

fn records(server: &Server) {
    let (path, none) = ("/v1/records/k", &Value::Null);
    for method in ["GET", "PATCH", "DELETE"] {
        let body = if method == "PATCH" { &json!({}) } else { none };
        send(server, method, path, body, 404);
    }
    let version = send(server, "PUT", path, &json!({"a": 1}), 201).etag();
    send_with(server, "GET", path, ("If-None-Match", &version), 304);
    send(server, "GET", path, none, 200);
    send(server, "PUT", path, &json!([1]), 200);
    send(server, "PATCH", path, &json!({"b": null}), 200);
    for method in ["GET", "PUT", "PATCH", "DELETE"] {
        let ask = server.ask(method, path).header("If-Match", &version);
        let ask = if ["PUT", "PATCH"].contains(&method) { ask.json("{}") } else { ask };
        ask.is(412, "version-mismatch");
    }
    send(server, "DELETE", path, none, 204);
}

/// Commands in every state, and the decisions of an operator about them.
fn commands(server: &Server) {
    let none = &Value::Null;
    let begin = |key: &str, lease: u64, status| {
        let body = json!({"fingerprint": "f", "lease_ms": lease});
        send(server, "POST", &format!("/v1/commands/pay/{key}"), &body, status)
    };
    let path = "/v1/commands/pay/done";
    send(server, "GET", path, none, 404);
    let token = begin("done", 600_000, 201).token();
    send(server, "GET", path, none, 200);
    begin("done", 600_000, 409);
    send(server, "POST", path, &json!({"fingerprint": "another"}), 422);
    send(server, "PATCH", path, &json!({"token": token, "lease_ms": 600_000}), 200);
    send(server, "PATCH", path, &json!({"token": "other"}), 409);
    for (operator, status) in [("PUT", 409), ("DELETE", 409), ("GET", 200)] {
        let body = if operator == "PUT" { &json!({"status": 200}) } else { none };
        send(server, operator, "/v1/operator/commands/pay/done", body, status);
    }
    let response =
        json!({"token": token, "status": 201, "headers": {"a": ["b", "c"]}, "body": "x"});
    send(server, "PUT", path, &response, 200);
    send(server, "PUT", path, &json!({"token": "other", "status": 200}), 409);
    send_with(server, "DELETE", path, ("Hapax-Token", "other"), 409);
    begin("done", 600_000, 200);
    let binary = begin("binary", 600_000, 201).token();
    let response = json!({"token": binary, "status": 200, "body_base64": "/w=="});
    send(server, "PUT", "/v1/commands/pay/binary", &response, 200);

    let failed = begin("failed", 600_000, 201).token();
    send_with(server, "DELETE", "/v1/commands/pay/failed", ("Hapax-Token", &failed), 204);
    begin("unknown", 1, 201);
    eventually("the lease runs out", || begin_conflicts(server, "unknown", "outcome-unknown"));
    for key in ["done", "binary", "failed", "unknown"] {
        send(server, "GET", &format!("/v1/commands/pay/{key}"), none, 200);
    }
    send(server, "GET", "/v1/operator/commands?limit=1", none, 200);
    let decided = "/v1/operator/commands/pay";
    send(server, "PUT", &format!("{decided}/failed"), &json!({"status": 200}), 200);
    send(server, "DELETE", &format!("{decided}/unknown"), none, 204);
    for (method, body) in [("GET", none), ("PUT", &json!({"status": 200})), ("DELETE", none)] {
        send(server, method, &format!("{decided}/nothing"), body, 404);
    }
    send(server, "POST", "/v1/operator/sweep", none, 200);
}

fn begin_conflicts(server: &Server, key: &str, code: &str) -> bool {
    let body = json!({"fingerprint": "f"});
    server.post(&format!("/v1/commands/pay/{key}")).json(body).send().problem() == code
}

/// A command that two callers have: an operator has to name one of them.
async fn ambiguous_commands(scene: &Scene) {
    for scope in ["a", "b"] {
        scene.begin_command(scope, "POST /orders", "k").await;
    }
    let path = "/v1/operator/commands/POST%20%2Forders/k";
    for method in ["GET", "DELETE"] {
        scene.server.ask(method, path).is(409, "scope-ambiguous");
    }
    let life = "/v1/operator/keys/command/POST%20%2Forders/k";
    scene.server.get(life).is(409, "scope-ambiguous");
    send(&scene.server, "GET", &format!("{life}?caller=a"), &Value::Null, 200);
}

fn inbox(server: &Server) {
    let (path, empty) = ("/v1/inbox/billing/1", &json!({}));
    let token = send(server, "POST", path, empty, 201).token();
    send(server, "POST", path, empty, 409);
    send(server, "PATCH", path, &json!({"token": token}), 200);
    send(server, "PATCH", path, &json!({"token": "other"}), 409);
    send(server, "PUT", path, &json!({"token": "other"}), 409);
    send(server, "PUT", path, &json!({"token": token}), 200);
    send(server, "POST", path, empty, 200);
    send_with(server, "DELETE", path, ("Hapax-Token", "other"), 409);
    let other = send(server, "POST", "/v1/inbox/billing/2", empty, 201).token();
    send_with(server, "DELETE", "/v1/inbox/billing/2", ("Hapax-Token", &other), 204);
}

fn events(server: &Server) {
    let none = &Value::Null;
    let event = |seq: u64, data: u64, last: bool| json!({"domain": "scan", "job_id": "j", "stage": "s", "seq": seq, "data": data, "final": last});
    send(server, "GET", "/v1/jobs/scan/j", none, 404);
    let first = event(1, 1, false);
    send(server, "POST", "/v1/events", &first, 201);
    // One event that was published before is not answered as a list.
    let again = send(server, "POST", "/v1/events", &first, 200);
    assert_eq!(again.json()["published"], false);
    send(server, "POST", "/v1/events", &event(1, 2, false), 409);
    let all = json!([first, event(1, 2, false), event(2, 2, true), event(3, 3, false)]);
    let answer = send(server, "POST", "/v1/events", &all, 200).json();
    let statuses: Vec<_> =
        answer["results"].as_array().unwrap().iter().map(|r| &r["status"]).collect();
    assert_eq!(statuses, [200, 409, 201, 409]);
    let job = send(server, "GET", "/v1/jobs/scan/j", none, 200).json();
    let end = format!("{}-{}", job["epoch"], job["offset"]);
    let masked = "/v1/operator/jobs/scan/j/events";
    for path in ["/v1/jobs/scan/j/events", masked, "/v1/events/stream?job=scan/j"] {
        let stream = send(server, "GET", path, none, 200).text();
        let last = stream.lines().rfind(|line| line.starts_with("id: ")).unwrap();
        let end = if path.contains("stream") { &last[4..] } else { &*end };
        send_with(server, "GET", path, ("Last-Event-ID", end), 204);
    }
}

async fn queues(scene: &Scene) {
    let (server, none) = (&scene.server, &Value::Null);
    let dead = "/v1/queues/outbox/dead";
    for (method, end) in [("POST", "/requeue"), ("DELETE", "")] {
        let id = scene.bury("default", "a").await;
        for path in ["/v1/queues", "/v1/queues/outbox", dead, &format!("{dead}?payload=true")] {
            send(server, "GET", path, none, 200);
        }
        let path = format!("{dead}/{id}{end}");
        send(server, method, &path, none, 204);
        send(server, method, &path, none, 404);
        if method == "POST" {
            scene.drain().await;
        }
    }
    for path in ["/v1/queues/outbox/dead/reasons", "/v1/operator/queues/outbox/waiting"] {
        send(server, "GET", path, none, 200);
    }
    for path in ["/v1/queues/outbox/pause", "/v1/queues/outbox/resume"] {
        send(server, "POST", path, none, 204);
    }
}

fn tasks(server: &Server) {
    let none = &Value::Null;
    for action in ["requeue", "discard"] {
        let path = format!("/v1/queues/outbox/dead/{action}");
        send(server, "POST", &path, &json!({"where": {}}), 202);
    }
    let decide = json!({"where": {"state": "unknown"}, "action": "release"});
    let task = send(server, "POST", "/v1/operator/commands/decide", &decide, 202).json();
    let path = format!("/v1/operator/tasks/{}", task["id"].as_str().unwrap());
    send(server, "GET", "/v1/operator/tasks", none, 200);
    for method in ["GET", "DELETE"] {
        send(server, method, &path, none, 200);
        send(server, method, "/v1/operator/tasks/nothing", none, 404);
    }
    send(server, "GET", "/v1/operator/tenants", none, 200);
}

/// What operators see of the activity; after the requests of the other functions.
fn activity(server: &Server) {
    let none = &Value::Null;
    for what in ["overview", "suppressed", "conflicts", "queues", "jobs", "streams", "line"] {
        send(server, "GET", &format!("/v1/operator/{what}"), none, 200);
    }
    send(server, "GET", "/v1/operator/keys/command/pay/done", none, 200);
    send(server, "GET", "/v1/operator/keys/lock/-/nothing", none, 404);
    send(server, "GET", "/v1/operator/jobs/scan/j", none, 200);
    send(server, "GET", "/v1/operator/jobs/scan/nothing", none, 404);
    let stream = Listener::open(&server.address, "HTTP/1.1", "/v1/operator/activity", &[]);
    assert_eq!(stream.status, 200);
    let link = "/v1/operator/jobs/scan/j/link";
    send(server, "POST", link, none, 404);
    let signing = Setup::memory().flags(&["--sse-secret", &"s".repeat(32)]).start();
    send(&signing, "POST", link, none, 200);
}

fn system(server: &Server) {
    for path in ["/healthz", "/readyz", "/metrics"] {
        send(server, "GET", path, &Value::Null, 200);
        send_with(server, "GET", path, ("Host", "elsewhere.example"), 403);
    }
}

/// Whether a response can be had from any operation, or only from a store or network that fails.
fn is_common((_, path, status): &DescribedResponse) -> bool {
    let record_contended = path == "/v1/records/{key}" && *status == 409;
    record_contended || [400, 401, 403, 408, 413, 415, 429, 431, 500, 503].contains(status)
}

#[tokio::test(flavor = "multi_thread")]
async fn fault_28_answers_match_their_schema() {
    let scene = Scene::new("").await;
    let server = &scene.server;
    session(server);
    locks(server);
    foreign_locks(&Redis::start());
    records(server);
    commands(server);
    ambiguous_commands(&scene).await;
    inbox(server);
    events(server);
    queues(&scene).await;
    tasks(server);
    activity(server);
    system(server);
    let compared = schema::compared();
    let missed: Vec<_> = schema::described()
        .into_iter()
        .filter(|response| !is_common(response) && !compared.contains(response))
        .collect();
    assert_eq!(missed, [], "described, and not answered by this test");
}

/// Problems that any operation may answer; those of a failing store and of limits are in other tests.
#[test]
fn fault_28_common_problems_match_their_schema() {
    let server = crate::http::access::guarded();
    let ask = |name: &str| server.put("/v1/records/k").bearer(name);
    ask("shop").json("{").is(400, "invalid-request");
    server.put("/v1/records/k").json("{}").is(401, "unauthorized");
    ask("watch").json("{}").is(403, "forbidden");
    server.get("/v1/nothing").bearer("shop").is(404, "not-found");
    server.post("/v1/records/k").bearer("shop").is(405, "method-not-allowed");
    ask("shop").json(" ".repeat(2 << 20)).is(413, "payload-too-large");
    ask("shop").header("Content-Type", "text/plain").body(b"{}").is(415, "unsupported-media-type");
    ask("shop").header("X", &"y".repeat(40_000)).json("{}").is(431, "headers-too-large");
}

/// The comparison itself notices what it is there for.
#[test]
fn fault_28_comparison_finds_wrong_answers() {
    let answer = |status: u16, kind: &str, body: &str| HttpResponse {
        status,
        headers: vec![("content-type".into(), kind.into())],
        body: body.as_bytes().into(),
    };
    let (json, problem) = ("application/json", "application/problem+json");
    let find = |method: &str, path: &str, answer: &HttpResponse| {
        schema::find_fault(method, path, answer, true)
    };
    let lock = r#"{"held":false,"fence":null,"expires_in_ms":null}"#;
    let right = answer(200, json, lock);
    assert_eq!(find("GET", "/v1/locks/k?x=1", &right), None);
    assert_eq!(find("HEAD", "/v1/locks/k", &answer(200, json, "")), None);
    for (wrong, expected) in [
        (answer(202, json, lock), "202 is not described"),
        (answer(200, "text/plain", lock), "not described with"),
        (answer(200, json, r#"{"held":false,"fence":null}"#), "required"),
        (answer(200, json, r#"{"held":0,"fence":null,"expires_in_ms":null}"#), "held: type"),
        (answer(200, json, r#"{"held":true,"fence":-1,"expires_in_ms":null}"#), "fence"),
        (answer(200, json, &lock.replace('{', r#"{"more":1,"#)), "more is not described"),
        (answer(404, problem, "{}"), "404 is not described"),
        (answer(400, json, "{}"), "not described with"),
        (answer(400, problem, r#"{"type":"t","title":"t","status":400}"#), "required"),
    ] {
        let found = find("GET", "/v1/locks/k", &wrong).unwrap_or_else(|| panic!("{expected}"));
        assert!(found.contains(expected), "{found}");
    }
    let list = answer(200, json, r#"{"results":[{"status":200}]}"#);
    assert!(find("POST", "/v1/events", &list).is_some(), "members of an item are required");
    assert!(find("DELETE", "/v1/locks/k", &answer(204, json, "{}")).is_some());
    assert!(find("GET", "/v1/nothing", &right).is_some());
    assert!(find("BREW", "/v1/locks/k", &answer(405, problem, "{}")).is_some());
}
