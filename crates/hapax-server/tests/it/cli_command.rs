//! `hapax command` against a real server.

use crate::cli_support::{Ran, Server, WAIT_TIMEOUT};
use serde_json::json;

fn begin(server: &Server, more: &[&str]) -> Ran {
    let arguments = ["command", "begin", "POST /orders", "key-1", "--json"];
    server.run(arguments.iter().chain(more))
}

fn ticket(ran: &Ran) -> String {
    let begun = ran.json();
    assert_eq!(begun["state"], "pending", "{begun}");
    begun["token"].as_str().expect("a token").to_owned()
}

fn step(server: &Server, action: &str, ticket: &str, more: &[&str]) -> Ran {
    let arguments = ["command", action, "POST /orders", "key-1", "--ticket", ticket];
    server.run(arguments.iter().chain(more))
}

#[test]
fn command_runs_once_and_every_caller_gets_its_response() {
    let server = Server::start();
    let ticket = ticket(&begin(&server, &[]));
    assert!(begin(&server, &[]).failed(75).contains("in-progress"));

    let answer = ["--status", "201", "--header", "Location: /orders/17", "--body", r#"{"id":17}"#];
    step(&server, "complete", "somebody-elses", &answer).failed(4);
    step(&server, "complete", &ticket, &answer).ok();
    step(&server, "complete", &ticket, &answer).ok();

    let again = begin(&server, &[]).json();
    assert_eq!(again["state"], "completed");
    assert_eq!((&again["status"], &again["body"]), (&json!(201), &json!(r#"{"id":17}"#)));
    let shown = server.run(["command", "show", "POST /orders", "key-1"]).ok();
    assert!(shown.contains("completed") && shown.contains("/orders/17"), "{shown}");
    assert!(shown.ends_with("\n\n{\"id\":17}\n"), "{shown}");
    assert!(!shown.contains(&ticket));
}

#[test]
fn failed_command_may_be_tried_again() {
    let server = Server::start();
    let first = ticket(&begin(&server, &["--fingerprint", "a"]));
    step(&server, "fail", &first, &[]).ok();
    step(&server, "fail", "somebody-elses", &[]).failed(4);
    assert!(begin(&server, &["--fingerprint", "b"]).failed(4).contains("key-reused"));
    let second = begin(&server, &["--fingerprint", "a"]).json();
    assert_eq!(second["attempt"], 2);
    server.run(["command", "show", "POST /orders", "nobody"]).failed(3);
}

#[test]
fn command_of_vanished_owner_is_unknown() {
    let server = Server::start();
    ticket(&begin(&server, &["--lease", "1ms"]));
    let unknown = hapax_testkit::wait_for("the lease runs out", WAIT_TIMEOUT, || {
        Some(begin(&server, &[])).filter(|again| again.code() == 4)
    });
    assert!(unknown.err().contains("outcome-unknown"), "{}", unknown.err());
    assert_eq!(begin(&server, &["--on-unknown", "rerun"]).json()["attempt"], 2);
}

#[test]
fn binary_body_comes_back_unchanged() {
    let server = Server::start();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("answer.bin");
    std::fs::write(&file, [0, 159, 146, 150]).unwrap();
    let ticket = ticket(&begin(&server, &[]));
    let body = format!("@{}", file.display());
    let headers = ["--header", "link: a", "--header", "link: b"];
    step(&server, "complete", &ticket, &[&["--body", &body][..], &headers].concat()).ok();
    let again = begin(&server, &[]).json();
    assert_eq!(again["body_base64"], "AJ+Slg==");
    assert_eq!(again["headers"]["link"], json!(["a", "b"]));
    step(&server, "complete", &ticket, &["--header", "broken"]).failed(2);
}

#[test]
fn many_commands_are_decided_by_where() {
    let server = Server::start();
    for key in ["a", "b"] {
        let begun = server.run(["command", "begin", "pay", key, "--json"]).json();
        let ticket = begun["token"].as_str().unwrap().to_owned();
        server.run(["command", "fail", "pay", key, "--ticket", &ticket]).ok();
    }
    let decide = |more: &[&str]| {
        let all = [&["command"], more, &["--note", "they ran", "--json"]].concat();
        server.run(all)
    };
    let settle = ["settle", "--where", "state=failed,operation=pay", "--status", "204"];
    assert_eq!(decide(&settle).json()["done"], 2);
    assert_eq!(decide(&["release", "--where", "state=failed,older-than=1h"]).json()["done"], 0);
    decide(&["release", "--where", "state=pending"]).failed(1);
    decide(&["release", "--where", "key=a"]).failed(2);
    decide(&["release", "pay"]).failed(2);
    decide(&["release", "pay", "a", "--where", "state=failed"]).failed(2);
    let listed = server.run(["command", "list", "--operation", "pay", "--json"]).json();
    assert_eq!(listed["commands"][0]["state"], "completed");
}
