use serde_json::{Value, json};

use crate::support::eventually;
use crate::support::http::HttpResponse;
use crate::support::server::Server;

const PATH: &str = "/v1/commands/CreateOrder/key-1";

fn begin(server: &Server, body: Value) -> HttpResponse {
    server.post(PATH).json(body).send()
}

fn complete(server: &Server, body: Value) -> HttpResponse {
    server.put(PATH).json(body).send()
}

/// A command whose lease has run out; its token.
fn lost(server: &Server) -> String {
    let token = begin(server, json!({"lease_ms": 1})).token();
    eventually("the lease runs out", || server.get(PATH).send().json()["state"] == "unknown");
    token
}

#[test]
fn command_runs_once_and_is_replayed_to_everyone() {
    let server = Server::start();
    server.get(PATH).is(404, "command-missing");
    let begun = begin(&server, json!({"fingerprint": "f"}));
    let token = begun.token();
    assert_eq!((&begun.json()["state"], &begun.json()["attempt"]), (&json!("pending"), &json!(1)));
    assert!(begun.json()["fence"].is_u64());
    let busy = begin(&server, json!({"fingerprint": "f"}));
    busy.is(409, "in-progress");
    assert_eq!(busy.json()["retryable"], true);
    assert!(busy.header("retry-after").is_some());
    begin(&server, json!({"fingerprint": "g"})).is(422, "key-reused");
    begin(&server, json!({})).is(422, "key-reused");

    let answer = json!({"token": token, "status": 201, "body": "{\"id\":17}",
        "headers": {"Location": "/orders/17", "X-Two": ["a", "b"]}});
    let completed = complete(&server, answer.clone());
    assert_eq!((completed.status, completed.json()), (200, json!({"state": "completed"})));
    assert_eq!(complete(&server, answer.clone()).status, 200, "the same again");
    let mut other = answer;
    other["body"] = json!("other");
    complete(&server, other).is(409, "claim-lost");

    let replayed = begin(&server, json!({"fingerprint": "f"}));
    assert_eq!(replayed.status, 200);
    let mut shown = replayed.json();
    let expires = shown.as_object_mut().unwrap().shift_remove("expires_in_ms").unwrap();
    assert!((1..=86_400_000).contains(&expires.as_u64().unwrap()));
    let expected = json!({"state": "completed", "status": 201, "body": "{\"id\":17}",
        "headers": {"Location": "/orders/17", "X-Two": ["a", "b"]}});
    assert_eq!(shown, expected);
    begin(&server, json!({"fingerprint": "g"})).is(422, "key-reused");
    server.delete(PATH).header("Hapax-Token", &token).is(409, "claim-lost");

    let seen = server.get(PATH).send().json();
    assert_eq!((&seen["state"], &seen["attempt"]), (&json!("completed"), &json!(1)));
    assert_eq!(seen["status"], 201);
    for number in ["begun_ms_ago", "expires_in_ms", "fence"] {
        assert!(seen[number].is_u64(), "{number}: {seen}");
    }
    assert!(seen.get("token").is_none());
}

#[test]
fn binary_command_bodies_travel_in_base64() {
    let server = Server::start();
    let token = begin(&server, json!({})).token();
    let done = complete(&server, json!({"token": token, "status": 200, "body_base64": "AJ+Slg=="}));
    assert_eq!(done.status, 200);
    let seen = begin(&server, json!({})).json();
    assert_eq!(seen["body_base64"], "AJ+Slg==");
    assert!(seen.get("body").is_none());
}

#[test]
fn base64_body_that_is_text_comes_back_as_text() {
    let server = Server::start();
    let token = begin(&server, json!({})).token();
    complete(&server, json!({"token": token, "status": 204, "body_base64": "aGk="}));
    let seen = begin(&server, json!({})).json();
    assert_eq!((&seen["body"], &seen["headers"]), (&json!("hi"), &json!({})));
}

#[test]
fn failed_command_keeps_fingerprint_and_counts_attempts() {
    let server = Server::start();
    let first = begin(&server, json!({"fingerprint": "f"})).token();
    assert_eq!(server.delete(PATH).header("Hapax-Token", &first).status(), 204);
    let seen = server.get(PATH).send().json();
    assert_eq!((&seen["state"], &seen["attempt"]), (&json!("failed"), &json!(1)));
    begin(&server, json!({"fingerprint": "g"})).is(422, "key-reused");
    let again = begin(&server, json!({"fingerprint": "f"}));
    assert_eq!(again.json()["attempt"], 2);
    complete(&server, json!({"token": first, "status": 200})).is(409, "claim-lost");
}

#[test]
fn command_of_gone_owner_has_unknown_outcome() {
    let server = Server::start();
    let lost = lost(&server);
    let seen = server.get(PATH).send().json();
    assert!(seen["unknown_for_ms"].is_u64() && seen["expires_in_ms"].is_u64());
    let unknown = begin(&server, json!({}));
    unknown.is(409, "outcome-unknown");
    assert_eq!(unknown.json()["retryable"], false);
    begin(&server, json!({"on_unknown": "refuse"})).is(409, "outcome-unknown");
    let rerun = begin(&server, json!({"on_unknown": "rerun"}));
    assert_eq!(rerun.json()["attempt"], 2);
    complete(&server, json!({"token": lost, "status": 200})).is(409, "claim-lost");
    complete(&server, json!({"token": rerun.token(), "status": 200}));
}

#[test]
fn late_completion_is_accepted_without_a_takeover() {
    let server = Server::start();
    let late = json!({"token": lost(&server), "status": 200, "body": "late"});
    assert_eq!(complete(&server, late).status, 200);
    assert_eq!(begin(&server, json!({})).json()["body"], "late");
}

#[test]
fn command_wait_ends_with_the_response() {
    let server = Server::start();
    let token = begin(&server, json!({})).token();
    let waiting: Vec<_> =
        (0..5).map(|_| server.post(PATH).json(r#"{"wait_ms":60000}"#).begin()).collect();
    server.has_in_flight(6);
    complete(&server, json!({"token": token, "status": 200, "body": "here"}));
    for waiting in waiting {
        let answer = waiting.answer();
        assert_eq!((answer.status, &answer.json()["body"]), (200, &json!("here")));
    }
}

#[test]
fn command_runs_for_one_of_fifty_at_once() {
    let server = Server::start();
    let sent: Vec<_> = (0..50).map(|_| server.post(PATH).begin()).collect();
    let answers: Vec<_> = sent.into_iter().map(|sent| sent.answer()).collect();
    assert_eq!(answers.iter().filter(|answer| answer.status == 201).count(), 1);
    assert_eq!(answers.iter().filter(|answer| answer.status == 409).count(), 49);
}

#[test]
fn operations_with_spaces_and_slashes_stay_distinct() {
    let server = Server::start();
    let a = "/v1/commands/POST%20%2Forders/k";
    assert_eq!(server.post(a).status(), 201);
    assert_eq!(server.post(a).status(), 409);
    assert_eq!(server.post("/v1/commands/POST%20/orders%2Fk").status(), 201);
    assert_eq!(server.post("/v1/commands/other/k").status(), 201);
}

#[test]
fn command_with_too_many_headers_is_not_completed() {
    let server = Server::start();
    let token = begin(&server, json!({})).token();
    let many = vec!["y"; 65_536];
    let refused = complete(&server, json!({"token": token, "status": 200, "headers": {"x": many}}));
    refused.is(400, "invalid-request");
    assert!(refused.text().contains("`headers`"));
    assert_eq!(server.get(PATH).send().json()["state"], "pending");
}

#[test]
fn fault_40_command_lease_is_renewed() {
    let server = Server::start();
    let renew = |body: Value| server.patch(PATH).json(body).send();
    renew(json!({"token": "nobodys"})).is(409, "claim-lost");
    // A lease that expired, and that nobody took over, is revived.
    let token = lost(&server);
    let renewed = renew(json!({"token": token, "lease_ms": 3_000_000}));
    let fence = server.get(PATH).send().json()["fence"].clone();
    assert_eq!(renewed.status, 200, "{}", renewed.text());
    assert_eq!(renewed.json(), json!({"fence": fence, "lease_ms": 3_000_000}));
    let shown = server.get(PATH).send().json();
    assert_eq!(shown["state"], "pending", "{shown}");
    assert!(shown["lease_expires_in_ms"].as_u64() > Some(1_000_000), "{shown}");
    begin(&server, json!({"on_unknown": "rerun"})).is(409, "in-progress");

    assert_eq!(renew(json!({"token": token})).json()["lease_ms"], 30_000);
    renew(json!({"token": "another", "lease_ms": 5})).is(409, "claim-lost");
    for bad in [
        json!({"lease_ms": 5}),
        json!({"token": token, "lease_ms": 0}),
        json!({"token": token, "lease_ms": 3_600_001}),
        json!({"token": token, "ttl_ms": 5}),
    ] {
        renew(bad).is(400, "invalid-request");
    }
    assert_eq!(complete(&server, json!({"token": token, "status": 200})).status, 200);
    renew(json!({"token": token})).is(409, "claim-lost");
}
