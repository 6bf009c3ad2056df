//! `hapax doctor` and `hapax bench` on real stores.

use crate::cli_support::{Ran, WAIT_TIMEOUT, hapax, run};
use crate::support::store::TestStore;
use crate::support::{eventually, has};
use hapax_testkit::{Postgres, Redis, free_port, wait_for};

fn doctor(store: &str, more: &[&str]) -> Ran {
    run(hapax().args(["doctor", "--store", store]).args(more))
}

/// The report on a server that runs. A call that takes longer than its timeout, as on a busy disk, is repeated.
fn reached(store: &str, more: &[&str]) -> (i32, serde_json::Value) {
    wait_for("the store answers in time", WAIT_TIMEOUT, || {
        let ran = doctor(store, more);
        let report = serde_json::from_str(&ran.out()).expect("the output is JSON");
        severity(&report, "store.reach").is_none().then_some((ran.code(), report))
    })
}

fn severity(report: &serde_json::Value, check: &str) -> Option<String> {
    let findings = report["findings"].as_array()?;
    let finding = findings.iter().find(|finding| finding["check"] == check)?;
    Some(finding["severity"].as_str()?.to_owned())
}

#[test]
fn doctor_warns_of_memory() {
    let text = doctor("memory:", &[]).ok();
    let broken = "breaks: what was acknowledged is not lost";
    has(&text, &["! memory.durability", broken, "fix:    use sqlite:"]);
    assert!(!text.contains('\u{1b}'), "no colours where nobody sees them");
    assert_eq!(doctor("memory:", &["--strict"]).code(), 1);
}

#[test]
fn doctor_accepts_new_sqlite_file() {
    let store = TestStore::quick_sqlite();
    let report = doctor(&store.url(), &["--json", "--migrate"]).json();
    assert_eq!(report["store"], "sqlite");
    for check in ["store.latency", "store.tables", "sqlite.journal", "sqlite.synchronous"] {
        assert_eq!(severity(&report, check).as_deref(), Some("fine"), "{check}: {report}");
    }
    let file = store.url().replace("sqlite:", "");
    assert!(std::path::Path::new(&file).exists());
    assert_eq!(doctor(&format!("{}/no/such/folder.db", store.url()), &[]).code(), 2);
}

#[test]
fn doctor_examines_redis_and_postgresql() {
    let redis = Redis::with(&["--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru"]);
    let (code, report) = reached(&redis.url(), &["--json"]);
    assert_eq!((code, &report["severity"]), (2, &"refuse".into()), "{report}");
    assert_eq!(severity(&report, "redis.eviction").as_deref(), Some("refuse"), "{report}");

    let postgres = Postgres::start();
    let (code, report) = reached(&postgres.url(), &["--json", "--migrate"]);
    assert_eq!((code, &report["store"]), (0, &"postgres".into()), "{report}");
    assert_eq!(postgres.psql("SELECT count(*) FROM hapax_claims"), "0");
}

#[test]
fn doctor_exits_2_for_unreachable_store_without_password() {
    let store = format!("redis://app:hunter2@127.0.0.1:{}", free_port());
    let ran = doctor(&store, &[]);
    assert_eq!(ran.code(), 2, "{}", ran.out());
    assert!(ran.out().contains("✗ store.reach"), "{}", ran.out());
    assert!(!format!("{}{}", ran.out(), ran.err()).contains("hunter2"));
    assert_eq!(doctor("mystery:", &[]).code(), 2);
}

#[test]
fn doctor_warns_of_retention_below_redelivery() {
    let with = |retention: &str| {
        let times = ["--json", "--retention", retention, "--redelivery", "72h"];
        severity(&doctor("memory:", &times).json(), "retention")
    };
    assert_eq!(with("24h").as_deref(), Some("warn"));
    assert_eq!(with("30d").as_deref(), Some("fine"));
}

#[test]
fn bench_prints_a_line_for_every_workload() {
    let store = TestStore::quick_sqlite();
    let arguments = ["bench", "--store", &store.url(), "--seconds", "0.05", "--tasks", "1,3"];
    let table = run(hapax().args(arguments)).ok();
    assert_eq!(table.lines().filter(|line| line.starts_with("| ")).count(), 1 + 8, "{table}");
    run(hapax().args(["bench", "--store", "memory:", "--tasks", "0"])).failed(2);
}

#[test]
fn doctor_warns_of_inbox_retention_below_redelivery() {
    let report = doctor("memory:", &["--json", "--redelivery", "45d"]).json();
    assert_eq!(severity(&report, "inbox.retention").as_deref(), Some("warn"), "{report}");
    let kept = ["--json", "--redelivery", "45d", "--inbox-retention", "60d", "--retention", "46d"];
    let report = doctor("memory:", &kept).json();
    assert_eq!(severity(&report, "inbox.retention").as_deref(), Some("fine"), "{report}");
    let report = doctor("memory:", &["--json"]).json();
    assert_eq!(severity(&report, "inbox.retention"), None, "nothing is known: {report}");
}

/// A row of the outbox that is older than what consumers remember may be sent again at any time.
#[tokio::test(flavor = "multi_thread")]
async fn doctor_counts_old_outbox_row_as_redelivery() {
    let file = TestStore::quick_sqlite();
    let patient = hapax::StoreConfig::default().timeout(std::time::Duration::from_secs(20));
    let store = hapax::open(&file.url(), &patient).unwrap();
    let item = hapax::queue::QueueItem::new(&hapax::Tenant::default(), "orders", "{}");
    let _ = store.enqueue(&hapax::queue::QueueName::outbox(), &[item]).await.unwrap();
    eventually("the row is older", || {
        let report = doctor(&file.url(), &["--json", "--inbox-retention", "1ms"]).json();
        severity(&report, "inbox.retention").as_deref() == Some("warn")
    });
}

#[test]
fn fault_34_doctor_refuses_a_missing_file() {
    let store = TestStore::quick_sqlite();
    let missing = doctor(&store.url(), &[]);
    assert_eq!(missing.code(), 2, "{}", missing.out());
    has(&missing.out(), &["there is no file", "hapax migrate"]);
    let TestStore::Sqlite(folder) = &store else { unreachable!("a file") };
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "nothing was created");
}
