//! `hapax-torture` for a short time on each store: no promise is broken, and faults really happened.

use std::path::PathBuf;
use std::time::Duration;

use hapax_torture::history::write_history;
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
    };
    let report = run_torture(&config, |_| {}).expect("everything starts and ends");
    report.violations.is_empty().then(|| report.table())
}
