//! `hapax lock take`, `renew`, `release` and `show` against a real server.

use crate::cli_support::{Server, WAIT_TIMEOUT, hapax, run};
use crate::support::has;
use hapax_testkit::{free_port, wait_for};

fn ticket(server: &Server, key: &str) -> String {
    let taken = server.run(["lock", "take", key, "--ttl", "1h", "--json"]).json();
    taken["token"].as_str().expect("a token").to_owned()
}

#[test]
fn lock_has_one_owner_until_released() {
    let server = Server::start();
    let ticket = ticket(&server, "deploy");

    has(&server.run(["lock", "take", "deploy"]).failed(75), &["lock-held", "try again in"]);
    server.run(["lock", "release", "deploy", "--ticket", &ticket]).ok();
    server.run(["lock", "take", "deploy"]).ok();
}

#[test]
fn lock_is_renewed_and_released_only_by_its_owner() {
    let server = Server::start();
    let ticket = ticket(&server, "deploy");

    for action in ["renew", "release"] {
        has(
            &server.run(["lock", action, "deploy", "--ticket", "somebody-elses"]).failed(4),
            &["lock-lost"],
        );
    }
    let renewed = server.run(["lock", "renew", "deploy", "--ttl", "10m", "--ticket", &ticket]);
    assert!(renewed.ok().contains("ttl    10m"));
    let mut release = server.command(["lock", "release", "deploy"]);
    run(release.env("HAPAX_TICKET", &ticket)).ok();
    server.run(["lock", "release", "deploy", "--ticket", &ticket]).failed(4);
}

#[test]
fn lock_show_hides_the_ticket() {
    let server = Server::start();
    assert!(server.run(["lock", "show", "deploy"]).ok().contains("held  false"));
    let ticket = ticket(&server, "deploy");
    let shown = server.run(["lock", "show", "deploy"]).ok();
    assert!(shown.contains("held        true") && shown.contains("expires_in"), "{shown}");
    assert!(!shown.contains(&ticket));
}

#[test]
fn lock_take_waits_for_its_turn() {
    let server = Server::start();
    let ticket = ticket(&server, "deploy");
    let mut waiting = server
        .command(["lock", "take", "deploy", "--wait", "50s"])
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap();
    assert!(waiting.try_wait().unwrap().is_none());
    server.run(["lock", "release", "deploy", "--ticket", &ticket]).ok();
    let status = wait_for("it gets its turn", WAIT_TIMEOUT, || waiting.try_wait().unwrap());
    assert!(status.success());
}

#[test]
fn lock_key_may_be_any_printable_text() {
    let server = Server::start();
    let odd = "a/../b?c=d#e%2F+&;\"'<>|\\^`{}~";
    let first = ticket(&server, odd);
    server.run(["lock", "take", odd]).failed(75);
    server.run(["lock", "take", "a/../b"]).ok();
    for dots in [".", ".."] {
        ticket(&server, dots);
    }
    server.run(["lock", "release", odd, "--ticket", &first]).ok();
    server.run(["lock", "take", "no spaces"]).failed(1);
}

#[test]
fn lock_exits_69_without_server_and_2_for_a_wrong_url() {
    let nobody = format!("http://127.0.0.1:{}", free_port());
    let failed = run(hapax().args(["lock", "show", "x", "--server", &nobody])).failed(69);
    assert!(failed.contains("hapax serve"), "{failed}");
    run(hapax().args(["lock", "show", "x", "--server", "localhost"])).failed(2);
    run(hapax().args(["lock", "take", "x", "--ttl", "soon"])).failed(2);
}

#[test]
fn lock_json_error_is_the_servers_document() {
    let server = Server::start();
    ticket(&server, "deploy");
    let problem = server.run(["lock", "take", "deploy", "--json"]).failed(75);
    let problem: serde_json::Value = serde_json::from_str(&problem).unwrap();
    assert!(problem["retry_after_ms"].is_u64() && problem["retryable"] == true, "{problem}");
}

#[test]
fn lock_is_released_by_force() {
    let server = Server::start();
    server.run(["lock", "take", "deploy", "--ttl", "10m"]).ok();
    let force = || server.run(["lock", "force-release", "deploy", "--note", "gone"]);
    assert_eq!(force().ok(), "");
    force().failed(3);
    let audit = server.run(["audit"]).ok();
    assert!(audit.contains("force-release") && audit.contains("gone"), "{audit}");
}
