//! Every limit is answered with a problem document.

use std::time::Duration;

use crate::support::eventually;
use crate::support::http::SentRequest;
use crate::support::server::Setup;

/// Long enough on a busy machine between a connection and its first bytes.
const HEADERS: &str = "4s";

#[test]
fn concurrent_requests_are_limited_per_tenant() {
    let server = Setup::memory().flags(&["--in-flight", "3"]).start();
    let waiting = server.fill(3);
    let refused = server.get("/v1/records/k").is(429, "too-many-requests");
    assert_eq!(refused.json()["retryable"], true);
    assert_eq!(refused.header("retry-after"), Some("1"));
    // Health and metrics are never refused.
    for path in ["/healthz", "/readyz", "/metrics", "/"] {
        assert_eq!(server.get(path).status(), 200, "{path}");
    }
    waiting.into_iter().for_each(SentRequest::hang_up);
    eventually("there is room again", || server.get("/v1/records/k").status() == 404);
}

#[test]
fn headers_that_do_not_arrive_get_408() {
    let server = Setup::memory().flags(&["--header-timeout", HEADERS]).start();
    let slow = SentRequest::new(&server.address, b"GET /v1/locks/k HTTP/1.1\r\nHost: loc");
    // A connection without any request is closed.
    let silent = SentRequest::new(&server.address, b"");
    // A byte now and then does not extend the timeout.
    let mut trickle = SentRequest::new(&server.address, b"GET / HTTP/1.1\r\nX: ");
    eventually("it is not heard out", || {
        trickle.more(b"y");
        !trickle.alive()
    });
    trickle.answer().is(408, "request-timeout");
    slow.answer().is(408, "request-timeout");
    assert!(silent.silence());
}

#[test]
fn header_timeout_restarts_with_each_request() {
    let server = Setup::memory().flags(&["--header-timeout", HEADERS]).start();
    let ask = format!("GET /healthz HTTP/1.1\r\nHost: {}\r\n\r\n", server.address);
    let mut kept = SentRequest::new(&server.address, ask.as_bytes());
    kept.first_byte();
    // Longer than that time.
    std::thread::sleep(Duration::from_millis(4500));
    kept.more(b"GET /");
    let rest = String::from_utf8(kept.rest()).unwrap();
    assert!(rest.contains("HTTP/1.1 408"), "{rest}");
}

#[test]
fn idle_connections_are_closed() {
    // The limit of a request's headers must not be what closes it.
    let flags = ["--idle-timeout", "300ms", "--header-timeout", "10m"];
    let server = Setup::memory().flags(&flags).start();
    let ask = format!("GET /healthz HTTP/1.1\r\nHost: {}\r\n\r\n", server.address);
    let kept = SentRequest::new(&server.address, ask.as_bytes());
    let all = String::from_utf8(kept.rest()).unwrap();
    assert_eq!(all.matches("HTTP/1.1").count(), 1, "{all}");
}

#[test]
fn long_wait_is_not_an_idle_connection() {
    let server =
        Setup::memory().flags(&["--idle-timeout", "300ms", "--header-timeout", HEADERS]).start();
    server.lock("k");
    server.post("/v1/locks/k").json(r#"{"wait_ms":5000}"#).is(409, "lock-held");
}

#[test]
fn bodies_that_do_not_arrive_get_408() {
    let server = Setup::memory().flags(&["--body-timeout", "300ms"]).start();
    let ask = server.put("/v1/records/k").json("[1,2,3]").bytes();
    let slow = SentRequest::new(&server.address, &ask[..ask.len() - 3]).answer();
    slow.is(408, "request-timeout");
    server.get("/v1/records/k").is(404, "record-missing");
}

#[test]
fn connections_over_the_limit_wait() {
    let server =
        Setup::memory().flags(&["--max-connections", "2", "--header-timeout", HEADERS]).start();
    let _silent = [SentRequest::new(&server.address, b""), SentRequest::new(&server.address, b"")];
    assert_eq!(server.get("/healthz").status(), 200);
}

#[test]
fn too_many_headers_are_refused() {
    let server = Setup::memory().start();
    let many =
        (0..150).fold(server.get("/v1/locks/k"), |ask, i| ask.header(&format!("X-{i}"), "y"));
    many.is(431, "headers-too-large");
    server.get("/v1/locks/k").header("X", &"y".repeat(40_000)).is(431, "headers-too-large");
    server.get("/v1/locks/k").header("X", &"y".repeat(2_000_000)).is(431, "headers-too-large");
    server.get(&format!("/v1/locks/{}", "k".repeat(60_000))).is(400, "invalid-request");
    let huge_path = server.get(&format!("/v1/locks/{}", "k".repeat(100_000))).send();
    assert!([400, 431].contains(&huge_path.status));
    huge_path.problem();
}

#[test]
fn fault_13_idle_connections_make_room() {
    let flags = ["--max-connections", "2", "--idle-timeout", "10m", "--header-timeout", "10m"];
    let server = Setup::memory().flags(&flags).start();
    let ask = format!("GET /healthz HTTP/1.1\r\nHost: {}\r\n\r\n", server.address);
    let idle = || {
        let mut kept = SentRequest::new(&server.address, ask.as_bytes());
        kept.read_answer();
        kept
    };
    let (first, second) = (idle(), idle());
    assert_eq!(server.get("/healthz").status(), 200);
    eventually("the longest idle connection is closed", || !first.alive());
    assert!(second.alive());
    drop(first);
    // A connection with a request in flight is never closed.
    server.lock("k");
    let waiting = server.post("/v1/locks/k").json(r#"{"wait_ms":60000}"#).begin();
    assert_eq!(server.get("/healthz").status(), 200);
    eventually("the idle one made room", || !second.alive());
    assert!(waiting.alive());
}

#[test]
fn fault_24_json_parsing_is_bounded() {
    let server = Setup::memory().flags(&["--buffer-memory", "8MiB"]).start();
    let zeros = format!("[{}0]", "0,".repeat(400_000));
    let event =
        |data: &str| format!(r#"{{"domain":"d","job_id":"j","stage":"s","seq":1,"data":{data}}}"#);
    // More than all requests together may take: to send it again would be in vain.
    let refused = server.post("/v1/events").json(event(&zeros)).is(413, "payload-too-large");
    assert_eq!(
        (&refused.json()["retryable"], refused.header("retry-after")),
        (&false.into(), None)
    );
    assert!(refused.detail().contains("8388608 (`--buffer-memory`)"), "{}", refused.detail());
    // A record is stored as it was written, and becomes no tree. A patch does, and so does the record
    // that it changes.
    assert_eq!(server.put("/v1/records/k").json(&zeros).status(), 201);
    server.patch("/v1/records/k").json(&zeros).is(413, "payload-too-large");
    server.patch("/v1/records/k").json(r#"{"a":1}"#).is(413, "payload-too-large");
    assert_eq!(server.get("/v1/records/k").send().text(), zeros);
    assert_eq!(server.post("/v1/events").json(event("[0]")).status(), 201);
}

#[test]
fn fault_24_memory_in_use_is_retryable() {
    let flags = ["--buffer-memory", "8MiB", "--body-timeout", "10m"];
    let server = Setup::memory().flags(&flags).start();
    // Parsed, this and the record that it replaces take about half of the memory.
    let zeros = format!("[{}0]", "0,".repeat(6_000));
    let patch = || server.patch("/v1/records/k").json(&zeros).send();
    assert_eq!(server.put("/v1/records/k").json("[]").status(), 201);
    assert_eq!(patch().status, 200);
    // Unfinished bodies take most of it; one that a patch leaves no room is sent again.
    let body = server.put("/v1/records/other").json("1".repeat(1 << 20)).bytes();
    let mut uploads = Vec::new();
    eventually("the memory is in use", || {
        uploads.retain(SentRequest::alive);
        uploads.resize_with(7, || SentRequest::new(&server.address, &body[..body.len() - 1]));
        let refused = patch();
        if refused.status == 503 {
            assert_eq!(refused.is(503, "overloaded").json()["retryable"], true);
            assert_eq!(refused.header("retry-after"), Some("1"));
        }
        refused.status == 503
    });
    uploads.into_iter().for_each(SentRequest::hang_up);
    eventually("there is room again", || patch().status == 200);
}

#[test]
fn fault_19_streams_that_can_take_all_connections_are_warned_about() {
    let warned =
        |flags: &[&str]| Setup::memory().flags(flags).start().stop().contains("--sse-conn");
    assert!(warned(&["--max-connections", "1063", "--sse-connections", "1000"]));
    assert!(!warned(&["--max-connections", "1064", "--sse-connections", "1000"]));
    assert!(!warned(&[]));
}
