//! `hapax command run` and `hapax inbox run`: a command of the shell that has its effect once.

use std::process::Command;

use crate::cli_support::{Running, Server, WAIT_TIMEOUT, hapax, run};
use crate::support::has;
use crate::support::store::TestStore;
use hapax_testkit::wait_for;

/// Says that it runs, then waits for the end of its input.
const HOLD: &str = "echo begun; read _; echo done";

fn command_run(server: &Server, options: &[&str], script: &str) -> Command {
    let arguments = ["command", "run", "pay", "k"].iter().chain(options);
    server.command(arguments.chain(&["--", "sh", "-c", script]))
}

fn inbox_run(server: &Server, script: &str) -> Command {
    server.command(["inbox", "run", "billing", "m", "--", "sh", "-c", script])
}

fn state(server: &Server) -> serde_json::Value {
    server.run(["command", "show", "pay", "k", "--json"]).json()
}

#[test]
fn fault_40_command_run_renews_and_completes() {
    let server = Server::start();
    // Time enough between two renewals for a busy machine to miss none.
    let mut first = Running::start(&mut command_run(&server, &["--lease", "15s"], HOLD));
    let mut least = u64::MAX;
    wait_for("it is renewed", WAIT_TIMEOUT, || {
        let left = state(&server)["lease_expires_in_ms"].as_u64().expect("a lease");
        let renewed = left > least;
        least = left;
        renewed.then_some(())
    });
    let second = run(&mut command_run(&server, &["--on-unknown", "rerun"], "echo twice"));
    has(&second.failed(75), &["in-progress"]);
    assert_eq!(second.out(), "");
    first.let_go();
    first.ends_with(0);
    assert_eq!(first.rest(), "done\n");
    let shown = state(&server);
    assert_eq!((&shown["state"], &shown["body"]), (&"completed".into(), &"begun\ndone\n".into()));
    let again = run(&mut command_run(&server, &[], "echo twice"));
    assert_eq!(again.ok(), "begun\ndone\n", "the first one's output");
}

#[test]
fn fault_40_command_run_waits_for_the_first_ones_output() {
    let server = Server::start();
    let mut first = Running::start(&mut command_run(&server, &[], HOLD));
    let mut second = Running::begin(&mut command_run(&server, &["--wait", "1h"], "echo twice"));
    first.let_go();
    first.ends_with(0);
    second.ends_with(0);
    assert_eq!(second.rest(), "begun\ndone\n");
}

#[test]
fn fault_40_command_run_that_fails_may_be_tried_again() {
    let server = Server::start();
    assert_eq!(run(&mut command_run(&server, &[], "exit 7")).code(), 7);
    assert_eq!(state(&server)["state"], "failed");
    run(&mut server.command(["command", "run", "pay", "k", "--", "no-such-program"])).failed(127);
    let third = run(&mut command_run(&server, &[], "echo $HAPAX_ATTEMPT; echo $HAPAX_FENCE"));
    let out = third.ok();
    let lines: Vec<u64> = out.lines().map(|line| line.parse().expect("a number")).collect();
    assert_eq!((lines.len(), lines[0]), (2, 3), "attempt and fence: {out}");
}

#[test]
fn fault_40_command_run_that_was_killed_stays_unknown() {
    let server = Server::start();
    let killed = run(&mut command_run(&server, &["--lease", "300ms"], "kill -KILL $$"));
    assert_eq!(killed.code(), 128 + 9);
    let unknown = wait_for("its lease expires", WAIT_TIMEOUT, || {
        Some(run(&mut command_run(&server, &[], "echo twice"))).filter(|ran| ran.code() != 75)
    });
    has(&unknown.failed(4), &["outcome-unknown"]);
    let rerun = command_run(&server, &["--on-unknown", "rerun"], "head -c 2000000 /dev/zero");
    let rerun = run(&mut { rerun });
    assert_eq!(rerun.ok().len(), 2_000_000, "all of it is passed on");
    has(&rerun.err(), &["not kept"]);
    assert_eq!(run(&mut command_run(&server, &[], "echo twice")).ok(), "");
}

#[test]
fn fault_40_inbox_run_handles_a_message_once() {
    let server = Server::start();
    assert_eq!(run(&mut inbox_run(&server, "exit 3")).code(), 3);
    let mut second = Running::start(&mut inbox_run(&server, "echo $HAPAX_ATTEMPT; read _; true"));
    assert_eq!(second.first_line, "2");
    run(&mut inbox_run(&server, "echo twice")).failed(75);
    second.let_go();
    second.ends_with(0);
    let duplicate = run(&mut inbox_run(&server, "echo twice"));
    assert_eq!(duplicate.ok(), "");
    has(&duplicate.err(), &["duplicate"]);
}

#[test]
fn fault_40_command_and_inbox_run_on_a_store() {
    let store = TestStore::quick_sqlite();
    let url = store.url();
    run(hapax().args(["migrate", "--store", &url]));
    for name in [["command", "run", "pay", "k"], ["inbox", "run", "billing", "m"]] {
        let ran = || run(hapax().args(name).args(["--store", &url, "--", "echo", "x"]));
        assert_eq!(ran().ok(), "x\n");
        let again = ran();
        assert!(["x\n", ""].contains(&again.ok().as_str()), "{}", again.out());
    }
    let renew = |what: [&str; 4]| {
        let begun =
            run(hapax().args([what[0], "begin", what[2], "new", "--json", "--store", &url]));
        let ticket = begun.json()["token"].as_str().expect("a token").to_owned();
        let renew = [what[0], "renew", what[2], "new", "--lease", "5m", "--ticket", &ticket];
        run(hapax().args(renew).args(["--store", &url])).ok()
    };
    has(&renew(["command", "", "pay", ""]), &["fence", "5m"]);
    has(&renew(["inbox", "", "billing", ""]), &["fence", "5m"]);
}
