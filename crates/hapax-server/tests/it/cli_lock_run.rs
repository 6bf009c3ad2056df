//! `hapax lock run`: one command at a time, through signals, crashes and lost locks.

use std::process::Command;
use std::time::{Duration, Instant};

use crate::cli_support::{Running, Server, WAIT_TIMEOUT, hapax, run};
use crate::support::eventually;
use crate::support::store::TestStore;
use hapax_testkit::wait_for;
use rustix::process::Signal;

/// Says the fence, then waits for the end of its input.
const HOLD: &str = "echo $HAPAX_FENCE; read _";

fn lock_run(server: &Server, options: &[&str], script: &str) -> Command {
    let arguments = ["lock", "run", "job"].iter().chain(options);
    server.command(arguments.chain(&["--", "sh", "-c", script]))
}

fn held(server: &Server) -> bool {
    server.run(["lock", "show", "job", "--json"]).json()["held"] == true
}

fn alive(pid: &str) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/stat"));
    status.is_ok_and(|stat| !stat.rsplit(')').next().unwrap_or("").trim_start().starts_with('Z'))
}

#[test]
fn lock_run_refuses_second_command_while_first_runs() {
    let server = Server::start();
    let mut first = Running::start(&mut lock_run(&server, &[], HOLD));

    let second = run(&mut lock_run(&server, &[], "echo ran"));
    second.failed(75);
    assert_eq!(second.out(), "");

    first.let_go();
    first.wait();
    assert_eq!(run(&mut lock_run(&server, &[], "echo ran")).ok(), "ran\n");
}

#[test]
fn lock_run_waits_for_its_turn_with_a_higher_fence() {
    let server = Server::start();
    let mut first = Running::start(&mut lock_run(&server, &[], HOLD));
    let mut second = lock_run(&server, &["--wait", "1h"], "test $HAPAX_FENCE -gt $FENCE");
    let mut second = second.env("FENCE", &first.first_line).spawn().unwrap();
    assert!(second.try_wait().unwrap().is_none());
    first.let_go();
    let status = wait_for("its turn", WAIT_TIMEOUT, || second.try_wait().unwrap());
    assert!(status.success(), "{status}");
}

#[test]
fn lock_run_exits_with_the_commands_code() {
    let server = Server::start();
    assert_eq!(run(&mut lock_run(&server, &[], "exit 7")).code(), 7);
    assert_eq!(run(&mut lock_run(&server, &[], "kill -KILL $$")).code(), 128 + 9);
    let missing = run(&mut server.command(["lock", "run", "job", "--", "no-such-program"]));
    let said = missing.failed(127);
    assert!(said.contains("hapax: no-such-program: "), "{said}");
    run(&mut server.command(["lock", "run", "job", "--", "/"])).failed(126);
    run(&mut server.command(["lock", "run", "job"])).failed(2);
    assert!(!held(&server), "every one of them released the lock");
}

#[test]
fn lock_run_renews_while_the_command_runs() {
    let server = Server::start();
    // Time enough between two renewals for a busy machine to miss neither.
    let mut running = Running::start(&mut lock_run(&server, &["--ttl", "15s"], HOLD));
    let (mut least, mut renewed) = (u64::MAX, 0);
    wait_for("it is renewed twice", WAIT_TIMEOUT, || {
        let shown = server.run(["lock", "show", "job", "--json"]).json();
        assert_eq!(shown["held"], true);
        assert_eq!(shown["fence"].to_string(), running.first_line);
        let left = shown["expires_in_ms"].as_u64().expect("a number");
        renewed += u32::from(left > least);
        least = left;
        (renewed == 2).then_some(())
    });
    running.let_go();
    running.wait();
    assert!(!held(&server));
}

#[test]
fn lock_run_forwards_signal_and_releases_afterwards() {
    let server = Server::start();
    for (signal, name) in [(Signal::TERM, "TERM"), (Signal::INT, "INT"), (Signal::HUP, "HUP")] {
        let script =
            format!("trap 'echo {name}; exit 3' {name}; echo ready; while :; do sleep 0.05; done");
        // Tests that run in the background ignore signals, and hapax would inherit that.
        let plain = lock_run(&server, &[], &script);
        let mut command = Command::new("env");
        command.arg("--default-signal").arg(plain.get_program()).args(plain.get_args());
        let mut running = Running::start(command.env("HAPAX_SERVER", server.url()));
        assert!(held(&server));
        running.signal(signal);
        running.ends_with(3);
        assert_eq!(running.rest(), format!("{name}\n"));
        assert!(!held(&server));
    }
}

#[test]
fn lock_run_signal_reaches_the_process_group() {
    let server = Server::start();
    // The shell does not pass it on: the group does.
    let mut running =
        Running::start(&mut lock_run(&server, &[], "sleep 600 & echo $!; wait; wait"));
    let grandchild = running.first_line.clone();
    running.signal(Signal::TERM);
    running.ends_with(128 + 15);
    eventually("the grandchild ends", || !alive(&grandchild));
}

#[test]
fn lock_run_signal_while_waiting_leaves_no_lock() {
    let server = Server::start();
    let mut first = Running::start(&mut lock_run(&server, &[], HOLD));
    let mut waiting = lock_run(&server, &["--wait", "1h"], "echo ran").spawn().unwrap();
    // Wait until the process listens for the signal: the kernel shows which signals it catches.
    let status = format!("/proc/{}/status", waiting.id());
    wait_for("it catches SIGTERM", WAIT_TIMEOUT, || {
        let status = std::fs::read_to_string(&status).ok()?;
        let mask = status.lines().find_map(|line| line.strip_prefix("SigCgt:"))?.trim();
        let caught = u64::from_str_radix(mask, 16).ok()? & (1 << 14) != 0;
        caught.then_some(())
    });
    let pid = rustix::process::Pid::from_child(&waiting);
    rustix::process::kill_process(pid, Signal::TERM).unwrap();
    let status = wait_for("it ends", WAIT_TIMEOUT, || waiting.try_wait().unwrap());
    assert_eq!(status.code(), Some(128 + 15));
    first.let_go();
    first.wait();
    assert!(!held(&server));
}

#[test]
fn lock_run_ends_command_when_lock_is_lost() {
    let mut server = Server::start();
    let mut running = Running::start(&mut lock_run(
        &server,
        &["--ttl", "15s", "--grace", "20s"],
        "trap 'echo TERM; exit 0' TERM; echo ready; while :; do sleep 0.05; done",
    ));
    // The new server knows nothing of the lock: the next renewal is told that it is lost.
    server.restart();
    running.ends_with(76);
    assert_eq!(running.rest(), "TERM\n");
    assert!(!held(&server));
}

#[test]
fn lock_run_ends_command_before_unrenewed_lease_expires() {
    let mut server = Server::start();
    let began = Instant::now();
    let mut running = Running::start(&mut lock_run(
        &server,
        &["--ttl", "9s", "--grace", "1h"],
        "trap '' TERM; echo $$; while :; do sleep 0.05; done",
    ));
    server.kill();
    running.ends_with(76);
    assert!(!alive(&running.first_line), "although it did not listen to SIGTERM");
    // The last renewal that can have been answered was before the server was killed.
    assert!(began.elapsed() >= Duration::from_secs(3));
}

#[test]
fn lock_run_max_hold_ends_command_under_its_lock() {
    let server = Server::start();
    // Time enough for the command to begin on a busy machine.
    let options = ["--max-hold", "8s", "--grace", "300ms"];
    let script = "trap '' TERM; sleep 600 & echo $!; wait; wait; wait";
    let mut running = Running::start(&mut lock_run(&server, &options, script));
    running.ends_with(124);
    assert!(!held(&server));
    let grandchild = running.first_line.clone();
    eventually("all of its group ends", || !alive(&grandchild));
}

#[cfg(target_os = "linux")]
#[test]
fn lock_run_command_dies_with_killed_hapax() {
    let server = Server::start();
    let mut running = Running::start(&mut lock_run(&server, &[], "echo $$; exec sleep 600"));
    let command = running.first_line.clone();
    assert!(alive(&command));
    running.signal(Signal::KILL);
    running.wait();
    eventually("the command ends, too", || !alive(&command));
}

#[test]
fn lock_run_keeps_ignored_signals_ignored() {
    let server = Server::start();
    let mut command = Command::new("sh");
    let script = "trap '' HUP; exec \"$0\" \"$@\"";
    let plain = lock_run(&server, &[], "echo $$; read _; exit 5");
    command.args(["-c", script]).arg(plain.get_program()).args(plain.get_args());
    let mut running = Running::start(command.env("HAPAX_SERVER", server.url()));
    running.signal(Signal::HUP);
    running.let_go();
    running.ends_with(5);
}

#[test]
fn lock_run_works_on_a_store_without_a_server() {
    let store = TestStore::quick_sqlite();
    let on = |script: &str| {
        let mut command = hapax();
        command.args(["lock", "run", "job", "--store", &store.url()]);
        command.args(["--", "sh", "-c", script]);
        command
    };
    let mut first = Running::start(&mut on(HOLD));
    run(&mut on("echo ran")).failed(75);
    first.let_go();
    first.wait();
    assert_eq!(run(&mut on("echo ran")).ok(), "ran\n");
    run(hapax().args(["lock", "run", "job", "--store", "nothing:", "--", "true"])).failed(69);
}
