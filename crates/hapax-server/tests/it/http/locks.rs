use serde_json::json;

use crate::support::server::Server;

#[test]
fn lock_is_renewed_and_released_by_its_owner_only() {
    let server = Server::start();
    let path = "/v1/locks/processing:user:U1";
    let taken = server.post(path).json(r#"{"ttl_ms":600000,"wait_ms":0}"#).send();
    assert_eq!(taken.status, 201);
    let (token, fence) = (taken.json()["token"].clone(), taken.json()["fence"].as_u64().unwrap());
    assert_eq!(taken.json(), json!({"token": token, "fence": fence, "ttl_ms": 600_000}));
    let token = token.as_str().unwrap();

    let held = server.post(path).is(409, "lock-held");
    assert_eq!(held.json()["retryable"], true);
    assert!((1..=600_000).contains(&held.json()["retry_after_ms"].as_u64().unwrap()));

    let longer = json!({"token": token, "ttl_ms": 1_200_000}).to_string();
    let renewed = server.put(path).json(&longer).send();
    let expected = json!({"fence": fence, "ttl_ms": 1_200_000});
    assert_eq!((renewed.status, renewed.json()), (200, expected));
    let seen = server.get(path).send();
    assert_eq!(seen.json()["held"], true);
    assert_eq!(seen.json()["fence"], fence);
    assert!(seen.json()["expires_in_ms"].as_u64().unwrap() > 600_000);
    assert!(!seen.text().contains(token), "the token is never shown");

    let foreign = server.delete(path).header("Hapax-Token", "not-yours").is(409, "lock-lost");
    assert_eq!(foreign.json()["retryable"], false);
    server.put(path).json(r#"{"token":"not-yours"}"#).is(409, "lock-lost");
    assert_eq!(server.get(path).send().json()["held"], true);

    let released = server.delete(path).header("Hapax-Token", token).send();
    assert_eq!((released.status, released.body.len()), (204, 0));
    let free = json!({"held": false, "fence": null, "expires_in_ms": null});
    assert_eq!(server.get(path).send().json(), free);
    server.delete(path).header("Hapax-Token", token).is(409, "lock-lost");
    let again = server.post(path).send().json();
    assert!(again["fence"].as_u64().unwrap() > fence, "fences grow");
    assert_eq!(again["ttl_ms"], 5000, "the default");
}

#[test]
fn lock_goes_to_one_of_fifty_at_once() {
    let server = Server::start();
    let ask = server.post("/v1/locks/k").json(r#"{"ttl_ms":60000}"#);
    let sent: Vec<_> = (0..50).map(|_| ask.begin()).collect();
    let answers: Vec<_> = sent.into_iter().map(|sent| sent.answer()).collect();
    assert_eq!(answers.iter().filter(|answer| answer.status == 201).count(), 1);
    for held in answers.iter().filter(|answer| answer.status != 201) {
        held.is(409, "lock-held");
    }
}

#[test]
fn lock_wait_is_woken_by_the_release() {
    let server = Server::start();
    let token = server.lock("k");
    let waiting = server.post("/v1/locks/k").json(r#"{"wait_ms":60000}"#).begin();
    // A waiting request counts as in flight.
    server.has_in_flight(2);
    assert_eq!(server.delete("/v1/locks/k").header("Hapax-Token", &token).status(), 204);
    assert_eq!(waiting.answer().status, 201);
}

#[test]
fn lock_wait_ends_with_lock_held_after_its_time() {
    let server = Server::start();
    server.lock("k");
    server.post("/v1/locks/k").json(r#"{"wait_ms":50}"#).is(409, "lock-held");
}

#[test]
fn client_that_disconnects_waits_no_longer() {
    let server = Server::start();
    let token = server.lock("k");
    let waiting = server.post("/v1/locks/k").json(r#"{"wait_ms":60000,"ttl_ms":60000}"#).begin();
    server.has_in_flight(2);
    waiting.hang_up();
    server.has_in_flight(1);
    assert_eq!(server.delete("/v1/locks/k").header("Hapax-Token", &token).status(), 204);
    assert_eq!(server.get("/v1/locks/k").send().json()["held"], false);
}

#[test]
fn head_is_answered_where_get_is() {
    let server = Server::start();
    for path in ["/v1/locks/k", "/healthz", "/readyz", "/", "/openapi.json"] {
        let answer = server.ask("HEAD", path).send();
        assert_eq!((answer.status, answer.body.len()), (200, 0), "{path}");
    }
}

#[test]
fn percent_encoded_slash_belongs_to_the_key() {
    let server = Server::start();
    server.lock("a%2Fb");
    assert_eq!(server.get("/v1/locks/a%2fb").send().json()["held"], true);
    assert_eq!(server.get("/v1/locks/a%252Fb").send().json()["held"], false);
    assert_eq!(server.get("/v1/locks/%61%2Fb").send().json()["held"], true);
    server.get("/v1/locks/a/b").is(404, "not-found");
}
