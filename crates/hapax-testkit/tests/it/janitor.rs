//! Nothing outlives a test process, however that ends.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use hapax_testkit::{Postgres, Redis, wait_for};

const REPORT: &str = "HAPAX_TESTKIT_JANITOR_REPORT";
const PATIENCE: Duration = Duration::from_secs(120);

/// Not a test of its own: the process that the test below kills.
#[test]
#[ignore = "started by another test"]
fn victim() {
    // Someone may run all ignored tests.
    let Some(report) = env::var_os(REPORT).map(PathBuf::from) else {
        return;
    };
    let redis = Redis::start();
    let postgres = Postgres::start();
    // Its workers would never notice that their parent is gone.
    postgres.stop();
    let server = postgres.pid().expect("PostgreSQL runs");
    let family = fs::read_to_string(format!("/proc/{server}/task/{server}/children"));
    let lines = format!(
        "{}\n{} {} {server}\n",
        redis.folder().parent().expect("a common folder").display(),
        redis.pid().expect("Redis runs"),
        family.unwrap_or_default(),
    );
    // Written beside and renamed, so that it is never seen half written.
    let draft = report.with_extension("draft");
    fs::write(&draft, lines).expect("cannot write the report");
    fs::rename(&draft, &report).expect("cannot write the report");
    thread::sleep(PATIENCE);
}

#[test]
fn servers_and_folders_go_with_a_killed_process() {
    let folder = tempfile::tempdir().unwrap();
    let report = folder.path().join("report");
    let mut victim = Command::new(env::current_exe().unwrap())
        .args(["--ignored", "--exact", "janitor::victim"])
        .env(REPORT, &report)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let lines = wait_for("the victim's report", PATIENCE, || fs::read_to_string(&report).ok());
    let (root, pids) = lines.split_once('\n').unwrap();
    // A worker that has just ended is in the list as well.
    let pids = pids.split_ascii_whitespace();
    let pids: Vec<&str> = pids.filter(|pid| is_alive(pid)).collect();
    assert!(pids.len() > 3, "{lines}");

    victim.kill().unwrap();
    victim.wait().unwrap();
    wait_for("the servers are gone", PATIENCE, || {
        (!pids.iter().any(|pid| is_alive(pid))).then_some(())
    });
    wait_for("their folder is gone", PATIENCE, || (!Path::new(root).exists()).then_some(()));
}

/// A dead process that nobody has reaped yet counts as gone.
fn is_alive(pid: &str) -> bool {
    fs::read_to_string(format!("/proc/{pid}/stat"))
        .is_ok_and(|stat| stat.rsplit(')').next().is_some_and(|rest| !rest.starts_with(" Z")))
}
