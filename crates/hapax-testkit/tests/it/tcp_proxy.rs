//! The proxy's faults: stalls, delays, cuts, dropped answers, refusals.

use std::net::{Ipv4Addr, TcpStream};
use std::time::{Duration, Instant};

use hapax_testkit::{Redis, TcpProxy, wait_for};

use crate::client::Client;

const SOON: Duration = Duration::from_millis(200);
const LATE: Duration = Duration::from_secs(60);
const PONG: Option<&str> = Some("+PONG\r\n");
const CLOSED: Option<&str> = Some("");

/// A server, a proxy to it, and a client of the proxy.
fn proxied() -> (Redis, TcpProxy, Client) {
    let redis = Redis::start();
    let proxy = TcpProxy::to(redis.port());
    let client = Client::connect(proxy.port());
    (redis, proxy, client)
}

/// Waits until the server has this value, although its answer is held back.
fn arrives(redis: &Redis, value: &str) {
    wait_for("the request passes", LATE, || (redis.cli(&["GET", "key"]) == value).then_some(()));
}

#[test]
fn stalled_proxy_delivers_after_resume() {
    let (redis, proxy, mut client) = proxied();
    assert_eq!(client.ask("PING").as_deref(), PONG);

    proxy.stall();
    client.send("SET key stalled");
    assert_eq!(client.answer_within(SOON), None);
    assert_eq!(redis.cli(&["EXISTS", "key"]), "0");
    proxy.resume();
    assert_eq!(client.answer_within(LATE).as_deref(), Some("+OK\r\n"));
    assert_eq!(redis.cli(&["GET", "key"]), "stalled");

    proxy.stall_answers();
    client.send("SET key answered-late");
    assert_eq!(client.answer_within(SOON), None);
    arrives(&redis, "answered-late");
    proxy.resume();
    assert_eq!(client.answer_within(LATE).as_deref(), Some("+OK\r\n"));
}

#[test]
fn black_hole_swallows_old_connections_only() {
    let (_redis, proxy, mut old) = proxied();
    assert_eq!(old.ask("PING").as_deref(), PONG);
    proxy.black_hole();
    old.send("SET key lost");
    proxy.resume();
    assert_eq!(old.answer_within(SOON), None);
    let mut new = Client::connect(proxy.port());
    assert_eq!(new.ask("EXISTS key").as_deref(), Some(":0\r\n"));
    proxy.cut();
    assert_eq!(old.answer_within(LATE).as_deref(), CLOSED);
}

#[test]
fn cut_proxy_accepts_new_connections() {
    let (redis, proxy, mut client) = proxied();
    assert_eq!(client.ask("PING").as_deref(), PONG);
    proxy.cut();
    assert_eq!(client.answer_within(LATE).as_deref(), CLOSED);

    let mut client = Client::connect(proxy.port());
    assert_eq!(client.ask("PING").as_deref(), PONG);
    proxy.stall();
    client.send("SET key held-back");
    assert_eq!(client.answer_within(SOON), None);
    proxy.cut();
    proxy.resume();
    assert_eq!(client.answer_within(LATE).as_deref(), CLOSED);
    assert_eq!(redis.cli(&["EXISTS", "key"]), "0");
    assert_eq!(proxy.accepted(), 2);
}

#[test]
fn dropped_answer_belongs_to_executed_request() {
    let (redis, proxy, mut client) = proxied();
    proxy.drop_next_answer();
    assert_eq!(client.ask("INCR counter").as_deref(), CLOSED);
    assert_eq!(redis.cli(&["GET", "counter"]), "1");
    assert_eq!(proxy.dropped_answers(), 1);

    let mut client = Client::connect(proxy.port());
    proxy.drop_next_answer_to(b"counter");
    assert_eq!(client.ask("PING").as_deref(), PONG);
    assert_eq!(client.ask("INCR counter").as_deref(), CLOSED);
    assert_eq!(redis.cli(&["GET", "counter"]), "2");
    assert_eq!(proxy.dropped_answers(), 2);
}

#[test]
fn refusing_proxy_keeps_old_connections() {
    let (_redis, proxy, mut old) = proxied();
    assert_eq!(old.ask("PING").as_deref(), PONG);
    proxy.refuse();
    assert!(TcpStream::connect((Ipv4Addr::LOCALHOST, proxy.port())).is_err());
    assert_eq!(old.ask("PING").as_deref(), PONG);
    proxy.accept();
    let mut new = Client::connect(proxy.port());
    assert_eq!(new.ask("PING").as_deref(), PONG);
}

#[test]
fn dropped_proxy_closes_its_connections() {
    let (_redis, proxy, mut client) = proxied();
    let port = proxy.port();
    assert_eq!(client.ask("PING").as_deref(), PONG);
    drop(proxy);
    assert_eq!(client.answer_within(LATE).as_deref(), CLOSED);
    assert!(TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_err());
}

#[test]
fn delaying_proxy_holds_answers_back_only() {
    let (redis, proxy, mut client) = proxied();
    let delay = Duration::from_millis(300);
    proxy.delay_answers(delay);
    for _ in 0..2 {
        let since = Instant::now();
        assert_eq!(client.ask("PING").as_deref(), PONG);
        assert!(since.elapsed() >= delay);
    }

    // A delay beyond the test's end: `resume` delivers the answer.
    proxy.delay_answers(LATE * 60);
    client.send("SET key answered-late");
    arrives(&redis, "answered-late");
    proxy.resume();
    assert_eq!(client.answer_within(LATE).as_deref(), Some("+OK\r\n"));
    assert_eq!(client.ask("PING").as_deref(), PONG);
}
