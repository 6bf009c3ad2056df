//! `hapax doctor` and `hapax bench` on real stores.

use crate::cli_support::{Ran, Setup, WAIT_TIMEOUT, hapax, run};
use crate::support::store::TestStore;
use crate::support::{eventually, has};
use hapax::sqlite::rusqlite::Connection;
use hapax_testkit::{Postgres, Redis, free_port, wait_for};

fn doctor(store: &str, more: &[&str]) -> Ran {
    run(hapax().args(["doctor", "--store", store]).args(more))
}

fn migrate(store: &str, more: &[&str]) -> Ran {
    run(hapax().args(["migrate", "--store", store]).args(more))
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
fn doctor_accepts_migrated_sqlite_file() {
    let store = TestStore::quick_sqlite();
    migrate(&store.url(), &[]).ok();
    let report = doctor(&store.url(), &["--json"]).json();
    assert_eq!(report["store"], "sqlite");
    for check in ["store.latency", "sqlite.schema", "sqlite.journal", "sqlite.synchronous"] {
        assert_eq!(severity(&report, check).as_deref(), Some("fine"), "{check}: {report}");
    }
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

/// The names and contents of the files in a folder. Without SQLite's shared memory, in which readers leave
/// marks: it is no part of the database, and is gone after a restart.
fn contents(folder: &std::path::Path) -> Vec<(std::ffi::OsString, Vec<u8>)> {
    let files = std::fs::read_dir(folder).unwrap().map(Result::unwrap);
    let files = files.filter(|file| !file.path().to_string_lossy().ends_with("-shm"));
    let mut all: Vec<_> =
        files.map(|file| (file.file_name(), std::fs::read(file.path()).unwrap())).collect();
    all.sort();
    all
}

#[test]
fn fault_41_doctor_leaves_sqlite_files_unchanged() {
    let store = TestStore::quick_sqlite();
    let TestStore::Sqlite(folder) = &store else { unreachable!("a file") };
    let theirs = Connection::open(folder.path().join("hapax.db")).unwrap();
    theirs.execute_batch("CREATE TABLE orders (id); INSERT INTO orders VALUES (1)").unwrap();
    drop(theirs);
    let before = contents(folder.path());
    let report = doctor(&store.url(), &[]).ok();
    has(&report, &["! sqlite.schema", "no tables", "hapax migrate --store", "! sqlite.journal"]);
    assert_eq!(doctor(&store.url(), &["--strict"]).code(), 1);
    assert!(contents(folder.path()) == before, "the file of another program is as it was");
    // Neither do other commands take over a file that has no tables of hapax.
    let list = ["command", "list", "--store", &store.url()];
    has(&run(hapax().args(list)).failed(69), &["hapax migrate"]);
    assert!(contents(folder.path()) == before);

    has(&migrate(&store.url(), &[]).ok(), &["up to date now"]);
    let migrated = contents(folder.path());
    has(&doctor(&store.url(), &[]).ok(), &["✓ sqlite.schema"]);
    assert!(contents(folder.path()) == migrated, "a file of its own is as it was, too");
    run(hapax().args(list)).ok();
    has(&migrate(&store.url(), &[]).ok(), &["nothing to do"]);
}

#[test]
fn fault_41_doctor_leaves_postgres_unchanged() {
    let postgres = Postgres::start();
    let tables = || postgres.psql("SELECT count(*) FROM pg_class WHERE relname LIKE 'hapax%'");
    let (code, report) = reached(&postgres.url(), &["--json"]);
    assert_eq!((code, tables().as_str()), (0, "0"), "{report}");
    assert_eq!(severity(&report, "postgres.schema").as_deref(), Some("warn"), "{report}");
    has(
        &run(hapax().args(["queue", "show", "outbox", "--store", &postgres.url()])).failed(69),
        &["hapax migrate"],
    );
    assert_eq!(tables(), "0");

    // The printed SQL makes what a start of hapax finds complete.
    let sql = wait_for("the server answers in time", WAIT_TIMEOUT, || {
        Some(migrate(&postgres.url(), &["--print"])).filter(|ran| ran.code() != 69)
    });
    postgres.psql(&sql.ok());
    let again = wait_for("the server answers in time", WAIT_TIMEOUT, || {
        Some(migrate(&postgres.url(), &[])).filter(|ran| ran.code() != 69)
    });
    has(&again.ok(), &["nothing to do"]);
    let (_, report) = reached(&postgres.url(), &["--json"]);
    assert_eq!(severity(&report, "postgres.schema").as_deref(), Some("fine"), "{report}");
}

/// The lines of the guide that grant a role what a running hapax needs.
fn documented_grants() -> Vec<String> {
    let guide = include_str!("../../../../docs/stores.md");
    let block = guide.split("```sql\n").nth(1).and_then(|text| text.split("```").next());
    let lines = block.expect("the grants").lines().filter(|line| line.starts_with("GRANT"));
    lines.map(str::to_owned).collect()
}

#[test]
fn fault_41_role_without_create_is_told_so() {
    let postgres = Postgres::start();
    postgres.psql("CREATE ROLE app LOGIN");
    let url = postgres.url().replace("postgres@", "app@");
    let refused = Setup::on(&url).refused();
    has(&refused, &["permission denied", "lacks a right", "hapax migrate"]);
    assert!(!refused.contains("password") && !refused.contains("credentials"), "{refused}");

    wait_for("the tables are made", WAIT_TIMEOUT, || {
        (migrate(&postgres.url(), &[]).code() == 0).then_some(())
    });
    documented_grants().iter().for_each(|line| drop(postgres.psql(line)));
    let server = Setup::on(&url).start();
    server.is_ready(true);
    server.lock("k");
    let token = server.post("/v1/commands/pay/k").send().token();
    let done = serde_json::json!({"token": token, "status": 200});
    assert_eq!(server.put("/v1/commands/pay/k").json(done).status(), 200);
    assert_eq!(server.put("/v1/records/k").json("1").status(), 201);
    let event = r#"{"domain":"d","job_id":"j","stage":"s","seq":1,"data":{}}"#;
    assert_eq!(server.post("/v1/events").json(event).status(), 201);
    assert_eq!(server.post("/v1/operator/sweep").status(), 200);
    assert_eq!(server.get("/v1/queues/outbox").status(), 200);
}
