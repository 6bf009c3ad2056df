//! `hapax follow`: a job live, across restarts of the server.

use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStdout, Stdio};

use crate::cli_support::{PATIENCE, Server};
use hapax_testkit::wait_for;
use serde_json::Value;

fn publish(server: &Server, stage: &str, seq: u64) {
    let seq = seq.to_string();
    let data = format!("{{\"at\":{seq}}}");
    server.run(["publish", "scan/job-1", "--stage", stage, "--seq", &seq, "--data", &data]).ok();
}

/// A follower that runs.
struct Following(Child, BufReader<ChildStdout>);

impl Following {
    fn start(server: &Server, more: &[&str]) -> Self {
        let mut command = server.command(["follow", "scan/job-1"]);
        command.args(more).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap());
        Self(child, lines)
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.1.read_line(&mut line).unwrap();
        line
    }

    fn ends(&mut self) -> i32 {
        let status = wait_for("it ends", PATIENCE, || self.0.try_wait().unwrap());
        status.code().unwrap()
    }
}

impl Drop for Following {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn follow_prints_events_live_until_the_final_one() {
    let server = Server::start();
    let mut live = Following::start(&server, &[]);
    publish(&server, "vision", 10);
    assert_eq!(live.line(), "    1  vision         10  {\"at\":10}\n");
    publish(&server, "rule", 20);
    assert!(live.line().contains("rule"));
    publish(&server, "done", 51);
    assert!(live.line().contains("done"));
    assert_eq!(live.ends(), 0);
    // Who comes later gets the whole of it, or what comes after a cursor, or nothing more.
    let all = server.run(["follow", "scan/job-1", "--json"]).ok();
    let offsets: Vec<_> = all
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap()["offset"].as_u64().unwrap())
        .collect();
    assert_eq!(offsets, [1, 2, 3]);
    let after = server.run(["follow", "scan/job-1", "--last-seq", "20"]).ok();
    assert_eq!(after.lines().count(), 1, "{after}");
}

#[test]
fn follow_resumes_after_server_restart() {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("sqlite:{}", folder.path().join("hapax.db").display());
    let mut server = Server::on(&url);
    publish(&server, "vision", 10);
    let mut live = Following::start(&server, &["--json"]);
    let mut offsets = vec![offset(&live.line())];
    for seq in 11..14 {
        server.kill();
        server = server.replace();
        publish(&server, "vision", seq);
        offsets.push(offset(&live.line()));
    }
    publish(&server, "done", 51);
    offsets.push(offset(&live.line()));
    assert_eq!(live.ends(), 0);
    assert_eq!(offsets, [1, 2, 3, 4, 5]);
}

fn offset(line: &str) -> u64 {
    serde_json::from_str::<Value>(line).unwrap()["offset"].as_u64().unwrap()
}

#[test]
fn follow_prints_a_gap_with_the_state() {
    let server = Server::with_config("[events]\nentries = 2\n");
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
    crate::cli_support::run(nowhere.env("HAPAX_SERVER", "http://127.0.0.1:1")).failed(69);
}
