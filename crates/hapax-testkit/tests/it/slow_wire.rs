//! The wire to a server that is slow.

use std::time::{Duration, Instant};

use hapax_testkit::{Redis, Wire, wait_for};

use crate::client::Client;

const LATE: Duration = Duration::from_secs(60);

#[test]
fn a_slow_wire_holds_back_each_answer_and_nothing_else() {
    let redis = Redis::start();
    let wire = Wire::to(redis.port());
    let mut client = Client::connect(wire.port());
    let delay = Duration::from_millis(300);
    wire.slow_answers(delay);
    for _ in 0..2 {
        let since = Instant::now();
        client.send("PING\r\n");
        assert_eq!(client.answer_within(LATE).as_deref(), Some("+PONG\r\n"));
        assert!(since.elapsed() >= delay);
    }

    // Longer than anybody waits: what is held back comes when the wire is quick again.
    wire.slow_answers(LATE * 60);
    client.send("SET key answered-late\r\n");
    wait_for("the request passes", LATE, || {
        (redis.cli(&["GET", "key"]) == "answered-late").then_some(())
    });
    wire.flow();
    assert_eq!(client.answer_within(LATE).as_deref(), Some("+OK\r\n"));
    client.send("PING\r\n");
    assert_eq!(client.answer_within(LATE).as_deref(), Some("+PONG\r\n"));
}
