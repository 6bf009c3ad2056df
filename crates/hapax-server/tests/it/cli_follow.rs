//! `hapax follow`: a job live, across restarts of the server.

use crate::cli_support::{Running, Server, Setup, run};
use crate::support::store::TestStore;
use serde_json::Value;

fn publish(server: &Server, stage: &str, seq: u64) {
    let seq = seq.to_string();
    let data = format!("{{\"at\":{seq}}}");
    server.run(["publish", "scan/job-1", "--stage", stage, "--seq", &seq, "--data", &data]).ok();
}

fn follow(server: &Server, more: &[&str]) -> Running {
    Running::begin(server.command(["follow", "scan/job-1"]).args(more))
}

fn offset(line: &str) -> u64 {
    serde_json::from_str::<Value>(line).unwrap()["offset"].as_u64().unwrap()
}

#[test]
fn follow_prints_events_live_until_the_final_one() {
    let server = Server::start();
    let mut live = follow(&server, &[]);
    publish(&server, "vision", 10);
    assert_eq!(live.line(), "    1  vision         10  {\"at\":10}\n");
    publish(&server, "rule", 20);
    assert!(live.line().contains("rule"));
    publish(&server, "done", 51);
    assert!(live.line().contains("done"));
    live.ends_with(0);
    // A later follower gets the whole log, or what comes after a cursor.
    let all = server.run(["follow", "scan/job-1", "--json"]).ok();
    assert_eq!(all.lines().map(offset).collect::<Vec<_>>(), [1, 2, 3]);
    let after = server.run(["follow", "scan/job-1", "--last-seq", "20"]).ok();
    assert_eq!(after.lines().count(), 1, "{after}");
}

#[test]
fn follow_resumes_after_server_restart() {
    let store = TestStore::sqlite();
    let mut server = Setup::on(&store.url()).start();
    publish(&server, "vision", 10);
    let mut live = follow(&server, &["--json"]);
    let mut offsets = vec![offset(&live.line())];
    for seq in 11..14 {
        server.restart();
        publish(&server, "vision", seq);
        offsets.push(offset(&live.line()));
    }
    publish(&server, "done", 51);
    offsets.push(offset(&live.line()));
    live.ends_with(0);
    assert_eq!(offsets, [1, 2, 3, 4, 5]);
}

#[test]
fn follow_prints_a_gap_with_the_state() {
    let server = Setup::memory().file("[events]\nentries = 2\n").start();
    for seq in 10..15 {
        publish(&server, "vision", seq);
    }
    publish(&server, "done", 51);
    let ran = server.run(["follow", "scan/job-1", "--after", "1-1"]);
    let shown = ran.ok();
    assert!(ran.err().contains("are gone"), "{}", ran.err());
    let lines: Vec<_> = shown.lines().collect();
    assert!(lines[0].starts_with("state  done"), "{shown}");
    assert_eq!(lines.len(), 3, "{shown}");
}

#[test]
fn follow_reports_what_cannot_be_followed() {
    let server = Server::start();
    server.run(["follow", "scan"]).failed(2);
    server.run(["follow", "scan/job-1", "--after", "nonsense"]).failed(1);
    let mut nowhere = server.command(["follow", "scan/job-1"]);
    run(nowhere.env("HAPAX_SERVER", "http://127.0.0.1:1")).failed(69);
}
