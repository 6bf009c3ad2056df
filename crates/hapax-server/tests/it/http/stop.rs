use std::net::TcpStream;

use rustix::process::Signal;

use crate::support::eventually;
use crate::support::http::SentRequest;
use crate::support::server::{Server, Setup};

/// A server on memory. A body that never arrives keeps a request in flight.
fn patient() -> Setup {
    Setup::memory().flags(&["--body-timeout", "10m"])
}

/// A request whose body is still on its way, and the rest of it.
fn unfinished(server: &Server) -> (SentRequest, Vec<u8>) {
    let ask = server.put("/v1/records/k").json("[1,2,3]").bytes();
    let (first, rest) = ask.split_at(ask.len() - 3);
    let sent = SentRequest::new(&server.address, first);
    server.has_in_flight(2);
    (sent, rest.to_vec())
}

fn accepts_nothing_new(server: &Server) {
    eventually("nothing new is accepted", || TcpStream::connect(&server.address).is_err());
}

#[test]
fn shutdown_answers_requests_in_flight() {
    let server = patient().start();
    let (mut sent, rest) = unfinished(&server);
    server.signal(Signal::TERM);
    accepts_nothing_new(&server);
    sent.more(&rest);
    let answer = sent.answer();
    assert_eq!(answer.status, 201);
    assert_eq!(answer.header("connection"), Some("close"));
    let log = server.ended();
    assert!(log.contains("every request was answered"), "{log}");
}

#[test]
fn shutdown_tells_waiting_requests_at_once() {
    for signal in [Signal::TERM, Signal::INT] {
        let server = Server::start();
        server.lock("k");
        let waiting = server.post("/v1/locks/k").json(r#"{"wait_ms":60000}"#).begin();
        let command = server.post("/v1/commands/o/k").send();
        assert_eq!(command.status, 201);
        let other = server.post("/v1/commands/o/k").json(r#"{"wait_ms":60000}"#).begin();
        server.has_in_flight(3);
        server.signal(signal);
        for waiting in [waiting, other] {
            let told = waiting.answer();
            told.is(503, "shutting-down");
            assert_eq!(told.json()["retryable"], true);
        }
        server.ended();
    }
}

#[test]
fn shutdown_waits_a_limited_time() {
    let server = patient().flags(&["--shutdown-timeout", "200ms"]).start();
    let _unfinished = unfinished(&server);
    server.signal(Signal::TERM);
    let log = server.ended();
    assert!(log.contains("not answered in time"), "{log}");
}

#[test]
fn second_signal_ends_at_once() {
    let server = patient().flags(&["--shutdown-timeout", "1h"]).start();
    let _unfinished = unfinished(&server);
    server.signal(Signal::TERM);
    accepts_nothing_new(&server);
    server.signal(Signal::INT);
    let log = server.ended();
    assert!(log.contains("second signal"), "{log}");
}

#[test]
fn idle_connections_do_not_delay_shutdown() {
    let server = Server::start();
    let idle: Vec<_> = (0..5).map(|_| TcpStream::connect(&server.address).unwrap()).collect();
    let mut used = SentRequest::new(
        &server.address,
        format!("GET /healthz HTTP/1.1\r\nHost: {}\r\n\r\n", server.address).as_bytes(),
    );
    used.first_byte();
    let log = server.stop();
    assert!(log.contains("every request was answered"), "{log}");
    drop(idle);
}
