use serde_json::{Value, json};

use crate::http::access::guarded;
use crate::support::http::HttpResponse;
use crate::support::server::Server;
use crate::support::{eventually, has};

const PATH: &str = "/v1/inbox/billing/message-1";

fn receive(server: &Server, body: Value) -> HttpResponse {
    server.post(PATH).json(&body).send()
}

fn settle(server: &Server, token: &str) -> HttpResponse {
    server.put(PATH).json(json!({"token": token})).send()
}

#[test]
fn inbox_message_takes_effect_once() {
    let server = Server::start();
    let first = server.post(PATH).send();
    let token = first.token();
    let members: Vec<_> = first.json().as_object().unwrap().keys().cloned().collect();
    assert_eq!(members, ["token", "fence", "attempt"]);
    assert_eq!(first.json()["attempt"], 1);
    let busy = receive(&server, json!({}));
    busy.is(409, "in-progress");
    assert!(busy.header("retry-after").is_some() && busy.json()["retryable"] == true);
    let settled = settle(&server, &token);
    assert_eq!((settled.status, settled.json()), (200, json!({"state": "completed"})));
    assert_eq!(settle(&server, &token).status, 200, "the same again");
    let duplicate = receive(&server, json!({"lease_ms": 5}));
    assert_eq!((duplicate.status, duplicate.json()), (200, json!({"duplicate": true})));
    settle(&server, "another").is(409, "claim-lost");
    server.delete(PATH).header("Hapax-Token", &token).is(409, "claim-lost");
}

#[test]
fn inbox_message_given_back_is_next_deliverys() {
    let server = Server::start();
    let first = receive(&server, json!({})).token();
    assert_eq!(server.delete(PATH).header("Hapax-Token", &first).status(), 204);
    let second = receive(&server, json!({}));
    assert_eq!((second.status, &second.json()["attempt"]), (201, &json!(2)));
    settle(&server, &first).is(409, "claim-lost");
}

#[test]
fn inbox_takes_over_from_gone_consumer() {
    let server = Server::start();
    let lost = receive(&server, json!({"lease_ms": 1}));
    let mut taken = None;
    eventually("the lease runs out", || {
        let received = receive(&server, json!({}));
        taken = (received.status == 201).then_some(received);
        taken.is_some()
    });
    let taken = taken.unwrap().json();
    assert_eq!(taken["attempt"], 2);
    assert!(taken["fence"].as_u64() > lost.json()["fence"].as_u64());
    settle(&server, &lost.token()).is(409, "claim-lost");
    assert_eq!(settle(&server, taken["token"].as_str().unwrap()).status, 200);
}

#[test]
fn inbox_recognises_message_for_its_retention() {
    let server = Server::start();
    let token = receive(&server, json!({"retention_ms": 1})).token();
    settle(&server, &token);
    eventually("it is forgotten", || receive(&server, json!({})).status == 201);
}

/// An inbox whose key is the message alone would take the second consumer's, and the other
/// tenant's, for a duplicate.
#[test]
fn hole_25_every_consumer_of_every_tenant_has_an_inbox_of_its_own() {
    let server = guarded();
    let receive = |token: &str, path: &str| server.post(path).bearer(token).send();
    let first = receive("shop", PATH);
    let body = json!({"token": first.token()}).to_string();
    assert_eq!(server.put(PATH).bearer("shop").json(&body).status(), 200);
    assert_eq!(receive("shop", PATH).json(), json!({"duplicate": true}));
    assert_eq!(receive("shop", "/v1/inbox/mailing/message-1").status, 201);
    assert_eq!(receive("shop", "/v1/inbox/billing/message-2").status, 201);
    assert_eq!(receive("bank", PATH).status, 201);
}

#[test]
fn inbox_refuses_malformed_requests() {
    let server = Server::start();
    for (method, path, body, named) in [
        ("POST", "/v1/inbox/c/", "{}", "key is empty"),
        ("POST", "/v1/inbox//m", "{}", "consumer is empty"),
        ("POST", "/v1/inbox/c%20d/m", "{}", "consumer"),
        ("POST", "/v1/inbox/c/%C3%A9", "{}", "key"),
        ("POST", PATH, r#"{"lease_ms":0}"#, "lease_ms"),
        ("POST", PATH, r#"{"lease_ms":3600001}"#, "lease_ms"),
        ("POST", PATH, r#"{"retention_ms":"x"}"#, "retention_ms"),
        ("POST", PATH, r#"{"retention_ms":31622400001}"#, "retention_ms"),
        ("POST", PATH, r#"{"wait_ms":1}"#, "wait_ms"),
        ("PUT", PATH, "{}", "token"),
        ("PUT", PATH, r#"{"token":"t","status":200}"#, "status"),
        ("DELETE", PATH, "", "Hapax-Token"),
    ] {
        has(&server.ask(method, path).json(body).is(400, "invalid-request").detail(), &[named]);
    }
    assert_eq!(server.post(PATH).json("{}").send().json()["attempt"], 1);
    server.get(PATH).is(405, "method-not-allowed");
}

#[test]
fn fault_40_message_lease_is_renewed() {
    let server = Server::start();
    let renew = |body: Value| server.patch(PATH).json(&body).send();
    let first = receive(&server, json!({"lease_ms": 600_000}));
    let (token, fence) = (first.token(), first.json()["fence"].clone());
    let renewed = renew(json!({"token": token, "lease_ms": 3_000_000}));
    assert_eq!(renewed.status, 200, "{}", renewed.text());
    assert_eq!(renewed.json(), json!({"fence": fence, "lease_ms": 3_000_000}));
    let busy = receive(&server, json!({}));
    busy.is(409, "in-progress");
    assert!(busy.json()["retry_after_ms"].as_u64() > Some(1_000_000), "{}", busy.text());
    renew(json!({"token": "another"})).is(409, "claim-lost");
    renew(json!({"token": token, "lease_ms": 0})).is(400, "invalid-request");
    renew(json!({"token": token, "status": 1})).is(400, "invalid-request");
    assert_eq!(settle(&server, &token).status, 200);
    renew(json!({"token": token})).is(409, "claim-lost");
}
