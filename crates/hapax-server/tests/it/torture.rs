//! `hapax-torture` for a short time on each store: no promise is broken, and faults really happened.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::time::Duration;

use hapax_torture::history::{
    CallOutcome, CommandAnswer, Observation, read_history, write_history,
};
use hapax_torture::{
    FaultKind, StoreKind, TortureConfig, TortureReport, WorkloadKind, count_faults,
    count_observations, run_torture,
};

const SECONDS: u64 = 25;
const FAILOVER_SECONDS: u64 = 12;
/// What every workload reaches on a slow machine that does other things, too.
const LEAST_OF_EACH: usize = 5;
const LEAST_FAULTS: usize = 3;

fn torture(store: StoreKind, seed: u64) {
    let config = TortureConfig {
        hapax: PathBuf::from(env!("CARGO_BIN_EXE_hapax")),
        store,
        duration: Duration::from_secs(SECONDS * u64::from(hapax_testkit::scale())),
        seed,
        workloads: WorkloadKind::ALL.to_vec(),
        faults: FaultKind::ALL.to_vec(),
        clients: 1,
        fault_threads: 1,
        previous: None,
        history: None,
    };
    let report = run_torture(&config, |_| {}).expect("everything starts and ends");
    must_be_clean(&report);
    let seen = count_observations(&report.history);
    for workload in WorkloadKind::ALL.into_iter().filter(|workload| workload.runs_on(store)) {
        let count = seen.get(workload.name()).copied().unwrap_or(0);
        assert!(count >= LEAST_OF_EACH, "{}: {count}\n{}", workload.name(), report.table());
    }
    let faults = count_faults(&report.history).values().sum::<usize>();
    assert!(faults >= LEAST_FAULTS, "{}", report.table());
}

/// A short run with failovers.
fn torture_failover(store: StoreKind, seed: u64) {
    let config = TortureConfig {
        hapax: PathBuf::from(env!("CARGO_BIN_EXE_hapax")),
        store,
        duration: Duration::from_secs(FAILOVER_SECONDS * u64::from(hapax_testkit::scale())),
        seed,
        workloads: WorkloadKind::ALL.to_vec(),
        faults: vec![
            FaultKind::Failover,
            FaultKind::Reshard,
            FaultKind::KillHapax,
            FaultKind::CutClient,
        ],
        clients: 1,
        fault_threads: 1,
        previous: None,
        history: None,
    };
    let report = run_torture(&config, |_| {}).expect("everything starts and ends");
    must_be_clean(&report);
    let seen = count_observations(&report.history);
    for workload in WorkloadKind::ALL.into_iter().filter(|workload| workload.runs_on(store)) {
        assert!(seen.contains_key(workload.name()), "{}\n{}", workload.name(), report.table());
    }
    let faults = count_faults(&report.history);
    assert!(faults.contains_key("failover"), "{}", report.table());
    let has_slots = store == StoreKind::RedisCluster;
    assert_eq!(faults.contains_key("reshard"), has_slots, "{}", report.table());
}

fn must_be_clean(report: &TortureReport) {
    if !report.is_clean() {
        let kept = keep(report);
        panic!("history: {}\n{}\n{}", kept.display(), report.table(), report.pictures());
    }
}

/// Keeps the history of a violation, for `hapax-torture --replay`.
fn keep(report: &TortureReport) -> PathBuf {
    let name = format!("hapax-torture-{}-{}.jsonl", report.store, std::process::id());
    let path = std::env::temp_dir().join(name);
    let file = std::fs::File::create(&path).expect("a file");
    write_history(&report.history, std::io::BufWriter::new(file)).expect("the history is written");
    path
}

/// Enough clients and time for some hundred keys.
#[test]
fn torture_asks_again_for_every_acknowledged_key() {
    let config = TortureConfig {
        hapax: PathBuf::from(env!("CARGO_BIN_EXE_hapax")),
        store: StoreKind::Sqlite,
        duration: Duration::from_secs(7),
        seed: 31,
        workloads: vec![WorkloadKind::Commands, WorkloadKind::Proxy],
        faults: Vec::new(),
        clients: 10,
        fault_threads: 1,
        previous: None,
        history: None,
    };
    let report = run_torture(&config, |_| {}).expect("everything starts and ends");
    must_be_clean(&report);
    let asked_from = |workload: &str| {
        let asked = report.history.iter().find(|entry| {
            matches!(&entry.what, Observation::AskedAgain { workload: asked, .. } if asked == workload)
        });
        asked.unwrap_or_else(|| panic!("{workload}\n{}", report.table())).from
    };
    let (mut acknowledged, mut replayed) = (BTreeSet::new(), BTreeSet::new());
    for entry in &report.history {
        match &entry.what {
            Observation::CommandComplete { key, outcome: CallOutcome::Done(()), .. } => {
                acknowledged.insert(key);
            }
            Observation::CommandBegin {
                key,
                outcome: CallOutcome::Done(CommandAnswer::Replayed(_)),
                ..
            } if entry.from >= asked_from("commands") => {
                replayed.insert(key);
            }
            Observation::ProxyRequest { key, outcome: CallOutcome::Done(answer), .. } => {
                acknowledged.insert(key);
                if answer.replayed && entry.from >= asked_from("proxy") {
                    replayed.insert(key);
                }
            }
            _ => {}
        }
    }
    let missing: Vec<_> = acknowledged.difference(&replayed).collect();
    let count = acknowledged.len();
    assert!(missing.is_empty(), "of {count} keys not asked for again: {missing:?}");
}

/// What clients saw is most needed when a run fails.
#[test]
fn torture_keeps_the_history_of_a_run_that_fails() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name).display().to_string();
    // A hapax that starts twice, as two processes, and never again.
    let (first, second) = (path("first"), path("second"));
    let script = format!(
        "#!/bin/sh\n\
         if [ -e {second} ]; then exit 1; fi\n\
         if [ -e {first} ]; then : > {second}; else : > {first}; fi\n\
         exec {} \"$@\"\n",
        env!("CARGO_BIN_EXE_hapax")
    );
    let (hapax, history) = (PathBuf::from(path("hapax")), PathBuf::from(path("history.jsonl")));
    fs::write(&hapax, script).expect("a script");
    fs::set_permissions(&hapax, fs::Permissions::from_mode(0o755)).expect("a program");
    let config = TortureConfig {
        hapax,
        store: StoreKind::Sqlite,
        duration: Duration::from_secs(3),
        seed: 32,
        workloads: vec![WorkloadKind::Records],
        faults: vec![FaultKind::KillHapax],
        clients: 1,
        fault_threads: 1,
        previous: None,
        history: Some(history.clone()),
    };
    let Err(error) = run_torture(&config, |_| {}) else { panic!("hapax did not start again") };
    assert!(format!("{error:#}").contains("after the faults"), "{error:#}");
    let file = fs::File::open(&history).expect("a history");
    let kept = read_history(std::io::BufReader::new(file)).expect("whole lines");
    assert!(count_observations(&kept).contains_key("records"), "{} entries", kept.len());
    assert!(count_faults(&kept).contains_key("kill-hapax"), "{} entries", kept.len());
}

#[test]
fn torture_breaks_no_promise_on_sqlite() {
    torture(StoreKind::Sqlite, 11);
}

#[test]
fn torture_breaks_no_promise_on_redis() {
    torture(StoreKind::Redis, 12);
}

#[test]
fn torture_breaks_no_promise_on_postgres() {
    torture(StoreKind::Postgres, 13);
}

#[test]
fn torture_breaks_no_promise_on_redis_sentinel() {
    torture_failover(StoreKind::RedisSentinel, 21);
}

#[test]
fn torture_breaks_no_promise_on_redis_cluster() {
    torture_failover(StoreKind::RedisCluster, 22);
}

#[test]
fn torture_breaks_no_promise_on_postgres_standby() {
    torture_failover(StoreKind::PostgresStandby, 23);
}

/// The same clients and checks on a store that breaks its word: they notice.
#[test]
fn torture_notices_a_redis_that_forgets() {
    // On a busy machine a short run may write too little for a kill to matter.
    let tables: Vec<_> = (14..19).map_while(table_without_violations).collect();
    assert!(tables.len() < 5, "{}", tables.concat());
}

/// Runs on a Redis without a file; the table, if nothing was noticed.
fn table_without_violations(seed: u64) -> Option<String> {
    let config = TortureConfig {
        hapax: PathBuf::from(env!("CARGO_BIN_EXE_hapax")),
        store: StoreKind::ForgetfulRedis,
        duration: Duration::from_secs(SECONDS / 2),
        seed,
        workloads: vec![WorkloadKind::Records, WorkloadKind::Commands],
        faults: vec![FaultKind::KillStore],
        clients: 1,
        fault_threads: 1,
        previous: None,
        history: None,
    };
    let report = run_torture(&config, |_| {}).expect("everything starts and ends");
    report.violations.is_empty().then(|| report.table())
}
