//! `hapax publish`: one event, many events, and malformed ones.

use crate::cli_support::{Running, Server, Setup, run_with_input};
use crate::support::store::TestStore;
use crate::support::{eventually, has};
use serde_json::{Value, json};

fn event(job: &str, seq: u64) -> String {
    let event =
        json!({"domain": "scan", "job_id": job, "stage": "vision", "seq": seq, "data": {"n": seq}});
    event.to_string()
}

/// The seq of the job's state.
fn state(server: &Server) -> Option<u64> {
    let answer = server.get("/v1/jobs/scan/job").try_send()?;
    answer.json()["state"]["seq"].as_u64()
}

#[test]
fn publish_by_flags_recognises_a_duplicate() {
    let server = Server::start();
    let publish = |more: &[&str]| {
        let one = ["publish", "scan/job-1", "--stage", "vision", "--seq", "10"];
        server.run([&one[..], more].concat())
    };
    let first = publish(&["--data", "{\"a\":1}", "--json"]).json();
    assert_eq!((&first["published"], &first["offset"]), (&json!(true), &json!(1)));
    let again = publish(&["--data", "{ \"a\": 1 }", "--json"]).json();
    assert_eq!((&again["published"], &again["offset"]), (&json!(false), &json!(1)));
    assert!(publish(&["--data", "{\"a\":2}"]).failed(4).contains("event-conflict"));
    publish(&["--data", "{"]).failed(2);
    let last = ["publish", "scan/job-1", "--stage", "done", "--seq", "60", "--final"];
    assert!(server.run(last).ok().contains("published"));
    let late = ["publish", "scan/job-1", "--stage", "vision", "--seq", "11"];
    assert!(server.run(late).failed(4).contains("job-closed"));
    server.run(["publish", "scan", "--stage", "vision", "--seq", "11"]).failed(2);
    server.run(["publish", "scan/job-1", "--stage", "vision"]).failed(2);
    server.run(["publish", "scan/job-1", "--stage", "gap", "--seq", "1"]).failed(1);
}

#[test]
fn publish_many_is_in_order_and_idempotent() {
    let server = Server::start();
    let events: String = (0..2500).map(|n| event(&format!("job-{}", n % 7), n) + "\n").collect();
    let first = server.run_with_input(&["publish"], events.as_bytes());
    assert_eq!(first.ok(), "2500 published, 0 duplicates\n");
    let again = server.run_with_input(&["publish", "--json", "--batch", "33"], events.as_bytes());
    let again = again.json();
    assert_eq!((&again["published"], &again["duplicates"]), (&json!(0), &json!(2500)));
    server.run(["publish", "scan/job-3", "--stage", "done", "--seq", "9999", "--final"]).ok();
    let followed = server.run(["follow", "scan/job-3", "--json"]).ok();
    let seqs: Vec<_> = followed
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap()["seq"].as_u64().unwrap())
        .collect();
    let expected: Vec<_> = (0..2500).filter(|n| n % 7 == 3).chain([9999]).collect();
    assert_eq!(seqs, expected);
}

#[test]
fn publish_names_bad_lines_and_sends_the_others() {
    let server = Server::start();
    let closed = r#"{"domain":"scan","job_id":"b","stage":"done","seq":51,"data":null}"#;
    let lines = [
        event("a", 1),
        String::new(),
        "{\"domain\":".into(),
        r#"{"domain":"scan","job_id":"a","stage":"vision","data":1}"#.into(),
        event("a", 2),
        event("a", 2).replace("{\"n\":2}", "3"),
        closed.into(),
        event("b", 52),
        event("c", 1),
    ];
    let ran = server.run_with_input(&["publish"], lines.join("\n").as_bytes());
    let said = ran.failed(1);
    let counted = "4 published, 0 duplicates, 1 conflicts, 1 of closed jobs, 2 malformed\n";
    assert_eq!(ran.out(), counted);
    has(&said, &["line 3: no JSON", "line 4:", "`seq`", "line 6:", "line 8:"]);
    let ran = server.run_with_input(&["publish", "--json"], lines[5].as_bytes());
    assert_eq!(ran.code(), 4);
    let summary: Value = serde_json::from_str(&ran.out()).unwrap();
    assert_eq!(summary["conflicts"], 1);
    assert_eq!(server.run_with_input(&["publish"], b"").ok(), "0 published, 0 duplicates\n");
}

/// Events of a pipe that stays open are sent one by one, also after the server was away.
#[test]
fn publish_sends_slow_pipe_at_once_and_waits_for_server() {
    let store = TestStore::sqlite();
    let mut server = Setup::on(&store.url()).start();
    let mut publisher = Running::begin(&mut server.command(["publish", "--retry-for", "10m"]));
    let arrives = |server: &Server, seq: u64| {
        eventually("the event arrives", || state(server) == Some(seq));
    };
    publisher.send_line(&event("job", 1));
    arrives(&server, 1);
    server.kill();
    publisher.send_line(&event("job", 2));
    server.restart();
    arrives(&server, 2);
    publisher.let_go();
    let said = publisher.line();
    publisher.ends_with(0);
    assert!(said.starts_with("2 published") || said.starts_with("1 published, 1 dup"), "{said}");
}

#[test]
fn publish_exits_69_without_server() {
    let server = Server::start();
    let mut command = server.command(["publish", "--retry-for", "300ms"]);
    command.env("HAPAX_SERVER", "http://127.0.0.1:1");
    run_with_input(&mut command, event("job", 1).as_bytes()).failed(69);
}
