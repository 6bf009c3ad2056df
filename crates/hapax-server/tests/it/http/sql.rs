//! Commands, messages, locks and records that one side writes by SQL and the other over HTTP.

use hapax_testkit::Postgres;
use serde_json::json;

use crate::support::server::{Server, Setup};

fn servers() -> (Postgres, Server) {
    let postgres = Postgres::start();
    let server = Setup::on(&postgres.url()).start();
    server.is_ready(true);
    (postgres, server)
}

#[test]
fn sql_and_http_see_the_same_commands() {
    let (postgres, server) = servers();
    // Begun and completed by SQL, replayed over HTTP.
    let path = "/v1/commands/CreateOrder/by-sql";
    let token =
        postgres.psql("SELECT token FROM hapax_begin('CreateOrder', 'by-sql', fingerprint => 'f')");
    let asked = json!({"fingerprint": "f"});
    server.post(path).json(asked.clone()).is(409, "in-progress");
    server.post(path).json(json!({"fingerprint": "g"})).is(422, "key-reused");
    let complete = format!(
        "SELECT hapax_complete('CreateOrder', 'by-sql', '{token}', 201, \
         '{{\"location\": \"/orders/17\", \"x-two\": [\"a\", \"b\"]}}', '\\x00ff')"
    );
    assert_eq!(postgres.psql(&complete), "t");
    let replayed = server.post(path).json(asked).send();
    assert_eq!(replayed.status, 200);
    let shown = replayed.json();
    assert_eq!((&shown["status"], &shown["body_base64"]), (&json!(201), &json!("AP8=")));
    assert_eq!(shown["headers"], json!({"location": "/orders/17", "x-two": ["a", "b"]}));

    // Begun and completed over HTTP, replayed by SQL.
    let path = "/v1/commands/CreateOrder/by-http";
    let token = server.post(path).json(json!({})).send().token();
    let begin =
        "SELECT state, attempt, status, headers, body FROM hapax_begin('CreateOrder', 'by-http')";
    assert_eq!(postgres.psql(begin), "in-progress||||");
    let answer = json!({"token": token, "status": 202, "headers": {"a": "b"}, "body": "later"});
    assert_eq!(server.put(path).json(answer).status(), 200);
    assert_eq!(postgres.psql(begin), r#"completed||202|{"a": "b"}|\x6c61746572"#);

    // Begun over HTTP and failed by SQL; the next attempt goes the other way round.
    let path = "/v1/commands/CreateOrder/both";
    let token = server.post(path).json(json!({})).send().token();
    let fail = |token: &str| format!("SELECT hapax_fail('CreateOrder', 'both', '{token}')");
    assert_eq!(postgres.psql(&fail("another")), "f");
    assert_eq!(postgres.psql(&fail(&token)), "t");
    let second = postgres.psql("SELECT attempt, token FROM hapax_begin('CreateOrder', 'both')");
    let (attempt, token) = second.split_once('|').unwrap();
    assert_eq!(attempt, "2");
    assert_eq!(server.delete(path).header("Hapax-Token", token).status(), 204);
    assert_eq!(server.post(path).json(json!({})).send().json()["attempt"], 3);
}

#[test]
fn http_waiter_gets_what_sql_completes() {
    let (postgres, server) = servers();
    let path = "/v1/commands/CreateOrder/k";
    let token = server.post(path).json(json!({})).send().token();
    let waiting = server.post(path).json(json!({"wait_ms": 60_000})).begin();
    server.has_in_flight(2);
    let complete =
        format!("SELECT hapax_complete('CreateOrder', 'k', '{token}', 201, body => 'done')");
    assert_eq!(postgres.psql(&complete), "t");
    let answer = waiting.answer();
    assert_eq!((answer.status, &answer.json()["body"]), (200, &json!("done")));
}

#[test]
fn sql_and_http_see_the_same_messages_locks_and_records() {
    let (postgres, server) = servers();
    assert_eq!(postgres.psql("SELECT hapax_receive('billing', 'm1')"), "t");
    assert_eq!(server.post("/v1/inbox/billing/m1").json(json!({})).status(), 200);
    let token = server.post("/v1/inbox/billing/m2").json(json!({})).send().token();
    assert_eq!(server.put("/v1/inbox/billing/m2").json(json!({"token": token})).status(), 200);
    assert_eq!(postgres.psql("SELECT hapax_receive('billing', 'm2')"), "f");

    let token = postgres.psql("SELECT token FROM hapax_lock('nightly', '1 hour')");
    server.post("/v1/locks/nightly").json(json!({})).is(409, "lock-held");
    assert_eq!(server.delete("/v1/locks/nightly").header("Hapax-Token", &token).status(), 204);
    let token = server.post("/v1/locks/nightly").json(json!({"ttl_ms": 3_600_000})).send().token();
    assert_eq!(postgres.psql("SELECT state FROM hapax_lock('nightly')"), "held");
    assert_eq!(postgres.psql(&format!("SELECT hapax_unlock('nightly', '{token}')")), "t");

    let version =
        postgres.psql("SELECT hapax_record_put('r', '{\"n\": 1}', expected_version => 0)");
    let read = server.get("/v1/records/r").send();
    assert_eq!((read.etag(), read.json()), (format!("\"{version}\""), json!({"n": 1})));
    let written =
        server.put("/v1/records/r").header("If-Match", &read.etag()).json(json!({"n": 2}));
    let etag = written.send().etag();
    let put = |expected: &str| format!("SELECT hapax_record_put('r', '3', {expected})");
    assert_eq!(postgres.psql(&put(&version)), "", "an old version");
    assert_ne!(postgres.psql(&put(etag.trim_matches('"'))), "");

    let id = postgres.psql("SELECT hapax_enqueue('orders', 'order-1', 'x')");
    assert_eq!(id.len(), 36);
    assert_eq!(server.get("/v1/queues/outbox").send().json()["depth"], 1);
}
