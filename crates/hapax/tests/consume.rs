//! A consumer group that writes effect and progress in one SQLite transaction handles each event
//! exactly once, although its members are killed at any moment.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use hapax::Put;
use hapax::bus::consume::{
    Consumer, ConsumerGroupConfig, EventDelivery, EventOutcome, HandlerError,
};
use hapax::bus::{Bus, NewEvent};
use hapax::sqlite::rusqlite::{Connection, TransactionBehavior};
use hapax::sqlite::{HapaxTransaction, SqliteConfig, SqliteStore, migrate};
use hapax_testkit::scale;

const JOBS: usize = 24;
const FILE: &str = "HAPAX_TEST_FILE";

fn store(file: &Path) -> Arc<SqliteStore> {
    let config = SqliteConfig::new(file).partitions(16).timeout(Duration::from_secs(60));
    Arc::new(SqliteStore::open(config).unwrap())
}

/// Opens the shop's database, which hapax uses too.
fn shop(file: &Path) -> Connection {
    let connection = Connection::open(file).unwrap();
    connection.busy_timeout(Duration::from_secs(60)).unwrap();
    migrate(&connection).unwrap();
    let table = "CREATE TABLE IF NOT EXISTS effects (job TEXT NOT NULL, seq INTEGER NOT NULL)";
    connection.execute(table, []).unwrap();
    connection
}

fn member(file: &Path) -> Consumer {
    let shop = Arc::new(Mutex::new(shop(file)));
    let handler = move |delivery: EventDelivery| {
        let handled = effect(&mut shop.lock().unwrap(), &delivery);
        async { handled }
    };
    let consume = ConsumerGroupConfig::default()
        .lease(Duration::from_secs(1))
        .poll_interval(Duration::from_millis(20))
        .backoff(Duration::from_millis(10), Duration::from_millis(100));
    Bus::new(store(file)).consume_with("billing", handler, consume).unwrap()
}

/// Writes the effect and the group's progress in one transaction.
fn effect(shop: &mut Connection, delivery: &EventDelivery) -> Result<EventOutcome, HandlerError> {
    let transaction = shop.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let (job, seq) = (delivery.job.name(), i64::try_from(delivery.entry.seq)?);
    transaction.execute("INSERT INTO effects (job, seq) VALUES (?1, ?2)", (job, seq))?;
    let at = &delivery.progress;
    match transaction.hapax().put(&at.key, at.value.clone(), &at.expect, None)? {
        Put::Stored { version, .. } => {
            transaction.commit()?;
            Ok(EventOutcome::Saved(version))
        }
        // Dropping the transaction rolls the effect back.
        Put::Conflict => Ok(EventOutcome::Superseded),
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "the process that the test below kills"]
async fn victim() {
    let file = std::env::var(FILE).unwrap();
    let _member = member(Path::new(&file));
    std::future::pending::<()>().await;
}

fn victim_on(file: &Path) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "victim", "--ignored", "--nocapture"])
        .env(FILE, file)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn effects_happen_once_although_members_are_killed() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("shop.db");
    let connection = shop(&file);
    let count = |sql: &str| connection.query_row(sql, [], |row| row.get::<_, i64>(0)).unwrap();
    let bus = Bus::new(store(&file));
    let rounds = 4 * u64::from(scale());
    for round in 0..rounds {
        // Two members; one is killed after some effects, the other a moment later.
        let before = count("SELECT count(*) FROM effects");
        let mut victims = [victim_on(&file), victim_on(&file)];
        for seq in round * 4..round * 4 + 4 {
            let event = |job| NewEvent::new("orders", format!("job-{job}"), "paid", seq);
            bus.publish_all(&(0..JOBS).map(event).collect::<Vec<_>>()).await.unwrap();
        }
        // Kill in the middle of the work: after 5 to 64 effects, depending on the round.
        let some = before + 5 + i64::try_from(round * 17 % 60).unwrap();
        let until = Instant::now() + Duration::from_secs(10);
        while count("SELECT count(*) FROM effects") < some && Instant::now() < until {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        for victim in &mut victims {
            victim.kill().unwrap();
            victim.wait().unwrap();
        }
    }
    let last = member(&file);
    let wanted = JOBS as i64 * 4 * rounds as i64;
    let until = Instant::now() + Duration::from_secs(120);
    while count("SELECT count(*) FROM effects") < wanted {
        assert!(Instant::now() < until, "some never happened");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    last.stop().await;
    assert_eq!(count("SELECT count(*) FROM effects"), wanted);
    assert_eq!(count("SELECT count(*) FROM (SELECT DISTINCT job, seq FROM effects)"), wanted);
    let out_of_order = "SELECT count(*) FROM effects a JOIN effects b \
                        ON a.job = b.job AND a.rowid < b.rowid AND a.seq > b.seq";
    assert_eq!(count(out_of_order), 0);
}
