//! The proxy's faults: stalls, delays, cuts, dropped answers, refusals.

use std::net::{Ipv4Addr, TcpStream};
use std::time::{Duration, Instant};

use hapax_testkit::{Redis, TcpProxy, wait_for};

use crate::client::Client;

const SOON: Duration = Duration::from_millis(200);
const LATE: Duration = Duration::from_secs(60);
const CLOSED: Option<&str> = Some("");

#[test]
fn stalled_proxy_delivers_after_resume() {
    let redis = Redis::start();
    let proxy = TcpProxy::to(redis.port());
    let mut client = Client::connect(proxy.port());
    client.send("PING\r\n");
    assert_eq!(client.answer_within(LATE).as_deref(), Some("+PONG\r\n"));

    proxy.stall();
    client.send("SET key stalled\r\n");
    assert_eq!(client.answer_within(SOON), None);
    assert_eq!(redis.cli(&["EXISTS", "key"]), "0");
    proxy.resume();
    assert_eq!(client.answer_within(LATE).as_deref(), Some("+OK\r\n"));
    assert_eq!(redis.cli(&["GET", "key"]), "stalled");

    proxy.stall_answers();
    client.send("SET key answered-late\r\n");
    assert_eq!(client.answer_within(SOON), None);
    wait_for("the request passes", LATE, || {
        (redis.cli(&["GET", "key"]) == "answered-late").then_some(())
    });
    proxy.resume();
    assert_eq!(client.answer_within(LATE).as_deref(), Some("+OK\r\n"));
}

#[test]
fn black_hole_swallows_old_connections_only() {
    let redis = Redis::start();
    let proxy = TcpProxy::to(redis.port());
    let mut old = Client::connect(proxy.port());
    old.send("PING\r\n");
    assert_eq!(old.answer_within(LATE).as_deref(), Some("+PONG\r\n"));
    proxy.black_hole();
    old.send("SET key lost\r\n");
    proxy.resume();
    assert_eq!(old.answer_within(SOON), None);
    let mut new = Client::connect(proxy.port());
    new.send("EXISTS key\r\n");
    assert_eq!(new.answer_within(LATE).as_deref(), Some(":0\r\n"));
    proxy.cut();
    assert_eq!(old.answer_within(LATE).as_deref(), CLOSED);
}

#[test]
fn cut_proxy_accepts_new_connections() {
    let redis = Redis::start();
    let proxy = TcpProxy::to(redis.port());
    let mut client = Client::connect(proxy.port());
    client.send("PING\r\n");
    assert_eq!(client.answer_within(LATE).as_deref(), Some("+PONG\r\n"));
    proxy.cut();
    assert_eq!(client.answer_within(LATE).as_deref(), CLOSED);

    let mut client = Client::connect(proxy.port());
    client.send("PING\r\n");
    assert_eq!(client.answer_within(LATE).as_deref(), Some("+PONG\r\n"));
    proxy.stall();
    client.send("SET key held-back\r\n");
    assert_eq!(client.answer_within(SOON), None);
    proxy.cut();
    proxy.resume();
    assert_eq!(client.answer_within(LATE).as_deref(), CLOSED);
    assert_eq!(redis.cli(&["EXISTS", "key"]), "0");
    assert_eq!(proxy.accepted(), 2);
}

#[test]
fn dropped_answer_belongs_to_executed_request() {
    let redis = Redis::start();
    let proxy = TcpProxy::to(redis.port());
    let mut client = Client::connect(proxy.port());
    proxy.drop_next_answer();
    client.send("INCR counter\r\n");
    assert_eq!(client.answer_within(LATE).as_deref(), CLOSED);
    assert_eq!(redis.cli(&["GET", "counter"]), "1");
    assert_eq!(proxy.dropped_answers(), 1);

    let mut client = Client::connect(proxy.port());
    proxy.drop_next_answer_to(b"counter");
    client.send("PING\r\n");
    assert_eq!(client.answer_within(LATE).as_deref(), Some("+PONG\r\n"));
    client.send("INCR counter\r\n");
    assert_eq!(client.answer_within(LATE).as_deref(), CLOSED);
    assert_eq!(redis.cli(&["GET", "counter"]), "2");
    assert_eq!(proxy.dropped_answers(), 2);
}

#[test]
fn refusing_proxy_keeps_old_connections() {
    let redis = Redis::start();
    let proxy = TcpProxy::to(redis.port());
    let mut old = Client::connect(proxy.port());
    old.send("PING\r\n");
    assert_eq!(old.answer_within(LATE).as_deref(), Some("+PONG\r\n"));
    proxy.refuse();
    assert!(TcpStream::connect((Ipv4Addr::LOCALHOST, proxy.port())).is_err());
    old.send("PING\r\n");
    assert_eq!(old.answer_within(LATE).as_deref(), Some("+PONG\r\n"));
    proxy.accept();
    let mut new = Client::connect(proxy.port());
    new.send("PING\r\n");
    assert_eq!(new.answer_within(LATE).as_deref(), Some("+PONG\r\n"));
}

#[test]
fn dropped_proxy_closes_its_connections() {
    let redis = Redis::start();
    let proxy = TcpProxy::to(redis.port());
    let port = proxy.port();
    let mut client = Client::connect(port);
    client.send("PING\r\n");
    assert_eq!(client.answer_within(LATE).as_deref(), Some("+PONG\r\n"));
    drop(proxy);
    assert_eq!(client.answer_within(LATE).as_deref(), CLOSED);
    assert!(TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_err());
}

#[test]
fn delaying_proxy_holds_answers_back_only() {
    let redis = Redis::start();
    let proxy = TcpProxy::to(redis.port());
    let mut client = Client::connect(proxy.port());
    let delay = Duration::from_millis(300);
    proxy.delay_answers(delay);
    for _ in 0..2 {
        let since = Instant::now();
        client.send("PING\r\n");
        assert_eq!(client.answer_within(LATE).as_deref(), Some("+PONG\r\n"));
        assert!(since.elapsed() >= delay);
    }

    // A delay beyond the test's end: `resume` delivers the answer.
    proxy.delay_answers(LATE * 60);
    client.send("SET key answered-late\r\n");
    wait_for("the request passes", LATE, || {
        (redis.cli(&["GET", "key"]) == "answered-late").then_some(())
    });
    proxy.resume();
    assert_eq!(client.answer_within(LATE).as_deref(), Some("+OK\r\n"));
    client.send("PING\r\n");
    assert_eq!(client.answer_within(LATE).as_deref(), Some("+PONG\r\n"));
}
