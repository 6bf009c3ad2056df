//! The message brokers that the tests start.

use std::io::Read;
use std::net::{Ipv4Addr, TcpStream};

use hapax_testkit::{Nats, RabbitMq};

fn is_refused(port: u16) -> bool {
    TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_err()
}

#[test]
fn nats_restarts_on_its_port_after_a_kill() {
    let nats = Nats::start();
    let before = nats.pid();
    nats.kill();
    assert!(nats.pid().is_none() && is_refused(nats.port()));
    nats.restart();
    assert!(nats.pid().is_some() && nats.pid() != before);
    assert!(greeting(nats.port()).contains("\"jetstream\":true"));
}

#[test]
fn nats_without_jetstream_reports_it() {
    let nats = Nats::without_jetstream();
    assert!(!greeting(nats.port()).contains("\"jetstream\":true"));
}

#[test]
fn rabbitmq_restarts_on_its_port_after_a_kill() {
    let rabbit = RabbitMq::start();
    let before = rabbit.pid();
    rabbit.kill();
    assert!(rabbit.pid().is_none() && is_refused(rabbit.port()));
    rabbit.restart();
    assert!(rabbit.pid().is_some() && rabbit.pid() != before);
    rabbit.shut_down();
    assert!(rabbit.pid().is_none() && is_refused(rabbit.port()));
    rabbit.restart();
    assert!(rabbit.pid().is_some());
}

fn greeting(port: u16) -> String {
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
    let mut text = Vec::new();
    while !text.ends_with(b"\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).unwrap();
        text.extend(byte);
    }
    String::from_utf8(text).unwrap()
}
