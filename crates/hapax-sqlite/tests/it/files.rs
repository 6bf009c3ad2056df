//! Files that are removed or replaced under a running store: refused from then on, until a restart.

use std::path::PathBuf;
use std::sync::Arc;

use crate::common::*;
use hapax_core::{Claims, Clock, Expect, ManualClock, Put, Records, Store, StoreResult, Timestamp};
use hapax_sqlite::SqliteStore;
use rusqlite::Connection;

fn label<T>(answer: &StoreResult<T>) -> &'static str {
    answer.as_ref().map_or_else(|error| error.label(), |_| "done")
}

async fn put(store: &SqliteStore, name: &str) -> StoreResult<Put> {
    store.put(&record(name), "1".into(), &Expect::Any, None).await
}

/// Every kind of call is refused, each by the thread that serves it.
async fn assert_refused(store: &SqliteStore) {
    for _ in 0..3 {
        assert_eq!(label(&put(store, "later").await), "replaced");
        assert_eq!(label(&store.ping().await), "replaced");
        assert_eq!(label(&store.get(&record("r")).await), "replaced");
        assert_eq!(label(&store.claim(&command("a"), &ask()).await), "replaced");
    }
}

#[tokio::test]
async fn fault_13_removed_wal_is_noticed() {
    let (place, store) = Place::with_store();
    let _ = put(&store, "r").await.unwrap();
    let wal = beside(&place.file(), "-wal");
    std::fs::remove_file(&wal).unwrap();
    assert_refused(&store).await;
    let told = store.ping().await.unwrap_err().to_string();
    assert!(told.contains("hapax.db-wal") && told.contains("restart"), "{told}");
    // An empty log in its place makes nothing good.
    std::fs::write(&wal, "").unwrap();
    assert_refused(&store).await;

    drop(store);
    place.closed().await;
    let restarted = place.store();
    assert!(restarted.get(&record("r")).await.unwrap().is_some());
    let _ = put(&restarted, "later").await.unwrap();
}

/// Removes a file in the middle of the next call, which reads the clock inside its transaction.
#[derive(Debug)]
struct RemovingClock {
    time: ManualClock,
    file: PathBuf,
}

impl Clock for RemovingClock {
    fn now(&self) -> Timestamp {
        let _ = std::fs::remove_file(&self.file);
        self.time.now()
    }
}

#[tokio::test]
async fn fault_13_write_into_a_removed_wal_is_not_acknowledged() {
    let place = Place::new();
    let clock = RemovingClock { time: ManualClock::default(), file: beside(&place.file(), "-wal") };
    let store = SqliteStore::open(place.config().clock(Arc::new(clock))).unwrap();
    assert_eq!(label(&put(&store, "r").await), "replaced");
}

#[tokio::test]
async fn fault_13_removed_file_is_refused_until_restart() {
    let (place, store) = Place::with_store();
    settled(&store, &command("a"), "done").await;
    for suffix in ["", "-wal", "-shm"] {
        std::fs::remove_file(beside(&place.file(), suffix)).unwrap();
    }
    assert_refused(&store).await;
    assert!(!place.file().exists(), "an empty store was begun");

    // The operator decides: another process begins a new file.
    let other = place.store();
    ticket(other.claim(&command("a"), &ask()).await);
    assert_refused(&store).await;
    drop(store);
    ticket(other.claim(&command("b"), &ask()).await);
}

#[tokio::test]
async fn fault_13_dropped_tables_are_refused() {
    let (place, store) = Place::with_store();
    settled(&store, &command("a"), "done").await;
    let stranger = place.stranger();
    for table in tables(&stranger) {
        stranger.execute_batch(&format!("DROP TABLE {table}")).unwrap();
    }
    assert_refused(&store).await;
    assert!(tables(&stranger).is_empty(), "empty tables were made");
}

fn tables(connection: &Connection) -> Vec<String> {
    let named = "SELECT name FROM sqlite_master WHERE type = 'table' AND name GLOB 'hapax_*'";
    let mut query = connection.prepare(named).unwrap();
    query.query_map([], |row| row.get(0)).unwrap().collect::<Result<_, _>>().unwrap()
}

/// SQLite would delete such a log, and with it what was acknowledged.
#[test]
fn fault_13_wal_without_its_database_is_refused() {
    let place = Place::new();
    let wal = beside(&place.file(), "-wal");
    std::fs::write(&wal, "the log of a database").unwrap();
    for _ in 0..2 {
        let refused = SqliteStore::open(place.config()).expect_err("a refusal");
        assert_eq!(refused.label(), "incompatible");
        assert!(refused.to_string().contains("hapax.db-wal"), "{refused}");
        assert!(wal.exists());
    }
    std::fs::remove_file(wal).unwrap();
    drop(place.store());
}
