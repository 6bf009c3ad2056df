//! The wire: stalls, cuts, lost answers, refusals.

use std::net::{Ipv4Addr, TcpStream};
use std::time::Duration;

use hapax_testkit::{Redis, Wire, wait_for};

use crate::client::Client;

const SOON: Duration = Duration::from_millis(200);
const LATE: Duration = Duration::from_secs(60);
const CLOSED: Option<&str> = Some("");

#[test]
fn a_stalled_wire_delivers_later() {
    let redis = Redis::start();
    let wire = Wire::to(redis.port());
    let mut client = Client::connect(wire.port());
    client.send("PING\r\n");
    assert_eq!(client.answer_within(LATE).as_deref(), Some("+PONG\r\n"));

    wire.stall();
    client.send("SET key stalled\r\n");
    assert_eq!(client.answer_within(SOON), None);
    assert_eq!(redis.cli(&["EXISTS", "key"]), "0");
    wire.flow();
    assert_eq!(client.answer_within(LATE).as_deref(), Some("+OK\r\n"));
    assert_eq!(redis.cli(&["GET", "key"]), "stalled");

    wire.stall_answers();
    client.send("SET key answered-late\r\n");
    assert_eq!(client.answer_within(SOON), None);
    wait_for("the request passes", LATE, || {
        (redis.cli(&["GET", "key"]) == "answered-late").then_some(())
    });
    wire.flow();
    assert_eq!(client.answer_within(LATE).as_deref(), Some("+OK\r\n"));
}

#[test]
fn a_stranded_connection_says_nothing_for_ever_and_new_ones_work() {
    let redis = Redis::start();
    let wire = Wire::to(redis.port());
    let mut old = Client::connect(wire.port());
    old.send("PING\r\n");
    assert_eq!(old.answer_within(LATE).as_deref(), Some("+PONG\r\n"));
    wire.strand();
    old.send("SET key stranded\r\n");
    wire.flow();
    assert_eq!(old.answer_within(SOON), None);
    let mut new = Client::connect(wire.port());
    new.send("EXISTS key\r\n");
    assert_eq!(new.answer_within(LATE).as_deref(), Some(":0\r\n"));
    wire.cut();
    assert_eq!(old.answer_within(LATE).as_deref(), CLOSED);
}

#[test]
fn a_cut_wire_takes_new_connections() {
    let redis = Redis::start();
    let wire = Wire::to(redis.port());
    let mut client = Client::connect(wire.port());
    client.send("PING\r\n");
    assert_eq!(client.answer_within(LATE).as_deref(), Some("+PONG\r\n"));
    wire.cut();
    assert_eq!(client.answer_within(LATE).as_deref(), CLOSED);

    let mut client = Client::connect(wire.port());
    client.send("PING\r\n");
    assert_eq!(client.answer_within(LATE).as_deref(), Some("+PONG\r\n"));
    wire.stall();
    client.send("SET key held-back\r\n");
    assert_eq!(client.answer_within(SOON), None);
    wire.cut();
    wire.flow();
    assert_eq!(client.answer_within(LATE).as_deref(), CLOSED);
    assert_eq!(redis.cli(&["EXISTS", "key"]), "0");
    assert_eq!(wire.accepted(), 2);
}

#[test]
fn a_dropped_answer_belongs_to_work_that_was_done() {
    let redis = Redis::start();
    let wire = Wire::to(redis.port());
    let mut client = Client::connect(wire.port());
    wire.drop_next_answer();
    client.send("INCR counter\r\n");
    assert_eq!(client.answer_within(LATE).as_deref(), CLOSED);
    assert_eq!(redis.cli(&["GET", "counter"]), "1");
    assert_eq!(wire.dropped_answers(), 1);

    let mut client = Client::connect(wire.port());
    wire.drop_next_answer_to(b"counter");
    client.send("PING\r\n");
    assert_eq!(client.answer_within(LATE).as_deref(), Some("+PONG\r\n"));
    client.send("INCR counter\r\n");
    assert_eq!(client.answer_within(LATE).as_deref(), CLOSED);
    assert_eq!(redis.cli(&["GET", "counter"]), "2");
    assert_eq!(wire.dropped_answers(), 2);
}

#[test]
fn a_refusing_wire_keeps_old_connections() {
    let redis = Redis::start();
    let wire = Wire::to(redis.port());
    let mut old = Client::connect(wire.port());
    old.send("PING\r\n");
    assert_eq!(old.answer_within(LATE).as_deref(), Some("+PONG\r\n"));
    wire.refuse();
    assert!(TcpStream::connect((Ipv4Addr::LOCALHOST, wire.port())).is_err());
    old.send("PING\r\n");
    assert_eq!(old.answer_within(LATE).as_deref(), Some("+PONG\r\n"));
    wire.accept();
    let mut new = Client::connect(wire.port());
    new.send("PING\r\n");
    assert_eq!(new.answer_within(LATE).as_deref(), Some("+PONG\r\n"));
}

#[test]
fn a_dropped_wire_closes_its_connections() {
    let redis = Redis::start();
    let wire = Wire::to(redis.port());
    let port = wire.port();
    let mut client = Client::connect(port);
    client.send("PING\r\n");
    assert_eq!(client.answer_within(LATE).as_deref(), Some("+PONG\r\n"));
    drop(wire);
    assert_eq!(client.answer_within(LATE).as_deref(), CLOSED);
    assert!(TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_err());
}
