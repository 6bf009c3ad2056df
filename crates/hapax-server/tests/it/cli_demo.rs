//! `hapax demo`: every edge shows up on the console, and nothing is left behind.

use std::io::{BufRead, BufReader};
use std::process::Stdio;

use hapax_testkit::free_port;
use rustix::process::{Pid, Signal, kill_process};

use crate::cli_support::{hapax, run};
use crate::support::http::HttpRequest;
use crate::support::{eventually, has};

#[test]
fn demo_shows_every_edge_on_the_console_and_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let address = format!("127.0.0.1:{}", free_port());
    let mut command = hapax();
    command.args(["demo", "--listen", &address]).env("TMPDIR", folder.path());
    // A busy machine must not fail a store call.
    command.env("HAPAX_STORE_TIMEOUT", "20s").env("HAPAX_REPORT_INTERVAL", "100ms");
    let mut demo = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut printed = BufReader::new(demo.stdout.take().unwrap()).lines().map(Result::unwrap);
    assert!(printed.any(|line| line.ends_with(&format!("http://{address}"))), "its address");
    let overview = || HttpRequest::new(&address, "GET", "/v1/operator/overview").send();
    for edge in ["api", "proxy", "relay", "line"] {
        eventually(&format!("{edge} is on the console"), || {
            let overview = overview().json();
            let minutes = overview["minutes"].as_array().unwrap();
            minutes.iter().any(|minute| minute["edges"][edge].is_object())
        });
    }
    let duplicates = || HttpRequest::new(&address, "GET", "/v1/operator/suppressed").send().json();
    eventually("a duplicate was suppressed", || duplicates()["items"][0].is_object());
    let shown =
        |command: &str| run(hapax().args([command, "--server", &format!("http://{address}")])).ok();
    has(&shown("overview"), &["LAST HOUR", "REPLAYS", "proxy-", "webhook"]);
    has(&shown("suppressed"), &["AFTER THE FIRST", "KEY HASH"]);
    let pid = Pid::from_raw(demo.id().cast_signed()).unwrap();
    kill_process(pid, Signal::TERM).unwrap();
    assert!(demo.wait().unwrap().success());
    eventually("its server is gone", || std::net::TcpStream::connect(&address).is_err());
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "its files are gone");
}

#[test]
fn demo_ends_by_itself_after_its_time() {
    run(hapax().args(["demo", "--listen", "127.0.0.1:0", "--for", "100ms"])).ok();
}
