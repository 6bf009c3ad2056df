//! Servers and folders are gone after a test process was killed.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use hapax_testkit::{Postgres, Redis, wait_for};

const REPORT: &str = "HAPAX_TESTKIT_CLEANUP_REPORT";
const TIMEOUT: Duration = Duration::from_secs(120);

/// The process that the test below kills; not a test of its own.
#[test]
#[ignore = "started by another test"]
fn victim() {
    // Does nothing in a run of all ignored tests.
    let Some(report) = env::var_os(REPORT).map(PathBuf::from) else {
        return;
    };
    let redis = Redis::start();
    let postgres = Postgres::start();
    // Paused workers do not notice that their parent is gone.
    postgres.stop();
    let server = postgres.pid().expect("PostgreSQL runs");
    let family = fs::read_to_string(format!("/proc/{server}/task/{server}/children"));
    let lines = format!(
        "{}\n{} {} {server}\n",
        redis.folder().parent().expect("a common folder").display(),
        redis.pid().expect("Redis runs"),
        family.unwrap_or_default(),
    );
    // Renamed when complete, so that the test never reads a part of it.
    let draft = report.with_extension("draft");
    fs::write(&draft, lines).expect("cannot write the report");
    fs::rename(&draft, &report).expect("cannot write the report");
    thread::sleep(TIMEOUT);
}

#[test]
fn killed_test_process_leaves_no_servers_or_folders() {
    let folder = tempfile::tempdir().unwrap();
    let report = folder.path().join("report");
    let mut victim = Command::new(env::current_exe().unwrap())
        .args(["--ignored", "--exact", "cleanup::victim"])
        .env(REPORT, &report)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let lines = wait_for("the victim's report", TIMEOUT, || fs::read_to_string(&report).ok());
    let (root, pids) = lines.split_once('\n').unwrap();
    // The list may contain a worker that has just ended.
    let pids = pids.split_ascii_whitespace();
    let pids: Vec<&str> = pids.filter(|pid| is_alive(pid)).collect();
    assert!(pids.len() > 3, "{lines}");

    victim.kill().unwrap();
    victim.wait().unwrap();
    wait_for("the servers end", TIMEOUT, || (!pids.iter().any(|pid| is_alive(pid))).then_some(()));
    wait_for("their folder is removed", TIMEOUT, || (!Path::new(root).exists()).then_some(()));
}

/// A dead process that is not reaped yet counts as gone.
fn is_alive(pid: &str) -> bool {
    fs::read_to_string(format!("/proc/{pid}/stat"))
        .is_ok_and(|stat| stat.rsplit(')').next().is_some_and(|rest| !rest.starts_with(" Z")))
}
